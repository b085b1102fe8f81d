"""Runs the program of an archive node by node with torch's operators, from the file's bytes alone."""

from __future__ import annotations

import math
import operator

import torch

from tests.support.archive_body import LIST, STRING, TENSOR, read_body, record_of

_DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}
_ARITHMETIC = {
    **{
        n: getattr(operator, n)
        for n in [
            "add",
            "sub",
            "mul",
            "floordiv",
            "truediv",
            "mod",
            "pow",
            "eq",
            "ne",
            "lt",
            "gt",
            "le",
            "ge",
            "xor",
            "neg",
            "abs",
        ]
    },
    "and": operator.and_,
    "or": operator.or_,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "float": float,
    "int": int,
    "min": min,
    "max": max,
    "not": operator.not_,
}


class NotKnown(Exception):
    """The program has what this does not run, or gives another result in each run."""


def run(data, inputs):
    """The program's outputs for these inputs, which are not written."""
    body = read_body(data)
    (trace,) = body.traces
    tensors = [_tensor(data, body, entry) for entry in body.tensors]
    users = sorted((leaf.input, index) for index, leaf in enumerate(trace.leaves) if leaf.input >= 0)
    given = [tensors[number] for number in trace.model_tensors] + [
        inputs[index].clone() for _n, index in users
    ]
    outputs = _run(trace.program, given, tensors)
    return [outputs[number] for number in trace.outputs if number >= 0]


def _tensor(data, body, entry):
    storage = body.storages[entry.storage]
    offset, size = record_of(data, storage.name.decode())
    buffer = bytearray(data[offset : offset + size])
    flat = (
        torch.frombuffer(buffer, dtype=_DTYPES[entry.dtype])
        if size
        else torch.empty(0, dtype=_DTYPES[entry.dtype])
    )
    return flat.as_strided(entry.sizes, entry.strides, entry.offset)


def _constant(value, tensors):
    tag, payload = value
    if tag == TENSOR:
        return tensors[payload]
    if tag == LIST:
        return [_constant(item, tensors) for item in payload.items]
    if tag == STRING:
        return payload.decode()
    if tag == 6:
        return torch.device(payload.decode())
    if tag == 4:
        return complex(payload.real, payload.imag)
    return bool(payload) if tag == 1 else payload


def _run(program, inputs, tensors):
    values = [*inputs, *(_constant(constant.value, tensors) for constant in program.constants)]
    for node in program.nodes:
        name = program.ops[node.op].name.decode()
        args = [
            [values[v] for v in arg.values] if arg.is_list else values[arg.values[0]] for arg in node.args
        ]
        library, _, plain = name.partition("::")
        if library == "sym" and plain in _ARITHMETIC:
            results = [_ARITHMETIC[plain](*args)]
        elif library in ("sym", "srt"):
            raise NotKnown(name)
        else:
            base, _, overload = plain.partition(".")
            called = getattr(getattr(getattr(torch.ops, library), base), overload or "default")
            if torch.Tag.nondeterministic_seeded in called.tags or "empty" in name or "resize" in name:
                raise NotKnown(name)
            given = called(*args[: _positional(called)], **_keywords(called, args))
            results = list(given) if isinstance(given, (tuple, list)) else [given]
        values += results[: len(node.outputs)] + [None] * (len(node.outputs) - len(results))
    return [values[v] for v in program.outputs]


def _positional(called):
    return sum(not argument.kwarg_only for argument in called._schema.arguments)


def _keywords(called, args):
    pairs = zip(called._schema.arguments, args, strict=True)
    return {argument.name: value for argument, value in pairs if argument.kwarg_only}
