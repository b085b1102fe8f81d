"""The programs of an archive, and how a call finds the one that it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt.archive import literals
from staticrt.archive.structures import Decoder, count_leaves, largest_reference
from staticrt.errors import ArchiveError, GradError, InputError
from staticrt.frontend.arguments.structure import Flattener, ResultSpec, Structure
from staticrt.frontend.weak import weakly
from staticrt.native import _C
from staticrt.runtime.call_key import eager_reason
from staticrt.runtime.call_spec import CallSpec
from staticrt.runtime.fast_call import FastPath
from staticrt.torch_private import hidden_from_dynamo

# As WeightKind in csrc/archive/archive.h.
PARAMETER, BUFFER, TEMPORARY_BUFFER, CONSTANT = range(4)


class _NoState:
    """The Python state of a trace for `FastPath`: a loaded program depends on none."""

    def native(self) -> _C.StateGuard:
        return _C.StateGuard()


class SavedTrace:
    """One trace: the C++ object, and what Python needs to call it."""

    def __init__(self, native: _C.ArchiveTrace, decoder: Decoder) -> None:
        self.native = native
        try:
            data = json.loads(native.structure)
            arguments, results, constants = data["arguments"], data["results"], data["constants"]
            self.report: Mapping[str, Any] = data["report"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArchiveError(f"archive is damaged: the structure of a trace ({error!r})") from None
        self.in_spec: Structure = decoder.structure(arguments)
        self.out_spec: ResultSpec = decoder.result(results)
        self.leaves = native.leaves
        reads = {leaf["input"]: index for index, leaf in enumerate(self.leaves) if leaf["input"] >= 0}
        self.call_spec = CallSpec(
            self.in_spec,
            self.out_spec,
            tuple(native.model_tensors),
            user_leaves=tuple(reads[position] for position in range(len(reads))),
            same=tuple((index, leaf["same"]) for index, leaf in enumerate(self.leaves) if leaf["same"] >= 0),
        )
        self.outputs: list[tuple[str, Any]] = [
            ("constant", literals.decode(constant)) if output < 0 else ("tensor", output)
            for output, constant in zip(native.outputs, constants, strict=True)
        ]
        self._check()
        self.calls = 0

    def input_names(self) -> tuple[str, ...]:
        """Names of the program's inputs, "" for the model's own tensors, which come first."""
        users = sorted((leaf["input"], leaf["name"]) for leaf in self.leaves if leaf["input"] >= 0)
        return ("",) * len(self.call_spec.values) + tuple(name for _position, name in users)

    def _check(self) -> None:
        """Check that the structures have as many leaves as the program.

        Raises:
            ArchiveError: they differ, or a structure refers to a container that does not exist.
        """
        results = [self.out_spec.result, *(structure for _number, structure in self.out_spec.writes)]
        counts = (count_leaves(self.in_spec), sum(map(count_leaves, results)))
        shape = [child.kind for child in self.in_spec.children]
        if counts != (len(self.leaves), len(self.outputs)) or shape != [tuple, dict]:
            raise ArchiveError(f"archive is damaged: structures of {counts} leaves")
        # References number the caller's containers first, then those of the result.
        limit = sum(map(_count_containers, [self.in_spec, *results]))
        references = [largest_reference(self.in_spec), *map(largest_reference, results)]
        if max([*references, *(number for number, _structure in self.out_spec.writes)]) >= limit:
            raise ArchiveError("archive is damaged: a structure refers to no container")

    def arguments_text(self) -> str:
        """What it takes, by name."""
        return f"({', '.join(str(leaf['name']) for leaf in self.leaves)})"

    def rebind(self, args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[Any]) -> Any:
        """The call with its arguments in the positions and keywords of this trace; None if they do not fit."""
        positional, keywords = self.in_spec.children
        names = [name for name, _kind, _default in parameters]
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or any(kind.startswith("VAR") for _n, kind, _d in parameters):
            given = {}
            if len(args) != len(positional.children):
                return None
            names = [f"\0{i}" for i in range(len(args))]
            given = dict(zip(names, args, strict=True))
        if given.keys() & kwargs.keys():
            return None
        given.update(kwargs)
        wanted = [*names[: len(positional.children)], *keywords.context]
        for name, _kind, default in parameters:
            if default and name in wanted:
                given.setdefault(name, literals.decode(default[0]))
            elif default and name in given and literal_text(given[name]) == json_text(default[0]):
                del given[name]
        if set(wanted) != given.keys() or len(wanted) != len(given):
            return None
        return (
            tuple(given[name] for name in wanted[: len(positional.children)]),
            {name: given[name] for name in keywords.context},
        )


def _count_containers(structure: Structure) -> int:
    own = structure.kind not in (None, "ref", "unread", tuple, torch.Size)
    return own + sum(map(_count_containers, structure.children))


def literal_text(value: Any) -> str | None:
    """JSON of a constant, or None if the value is not a constant."""
    try:
        return literals.dumps(value)
    except literals.NotLiteral:
        return None


def json_text(data: Any) -> str:
    """Encoded JSON as text, as `literals.dumps` writes it."""
    return json.dumps(data, separators=(",", ":"))


class SavedPrograms:
    """An open archive: its traces, its weights, and the fast path of calls. Only the values of its weights ever change.

    Args:
        archive: opened by C++.
        where: its file, for messages.
        types: as in `load`.
    """

    def __init__(self, archive: _C.Archive, where: str, types: Sequence[type]) -> None:
        self.archive = archive
        self.where = where
        decoder = Decoder(types)
        try:
            self.name = str(archive.facts["name"])
            self.parameters: list[list[Any]] = [
                [str(name), str(kind), list(default)]
                for name, kind, default in json.loads(archive.facts["calling"])
            ]
            self.traces = [SavedTrace(native, decoder) for native in archive.traces]
        except ArchiveError as error:
            raise ArchiveError(error.message, at=where, fix=error.fix) from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ArchiveError(f"archive is damaged: its call ({error!r})", at=where) from None
        self.fast = FastPath(weakly(self.run))  # no cycle, which would keep programs and weights

    def weights(self, *kinds: int) -> dict[str, torch.Tensor]:
        """The live tensors of these kinds (`WeightKind`) by name."""
        return {name: tensor for name, kind, tensor in self.archive.weights if kind in kinds}

    @hidden_from_dynamo
    def run(self, *args: Any, **kwargs: Any) -> Any:
        reason = eager_reason()
        if reason is not None:
            raise InputError(f"{self.name}, loaded from an archive, cannot run while {reason}")
        reasons = []
        for number, trace in enumerate(self.traces):
            call = self.fit(trace, args, kwargs)
            if isinstance(call, str):
                reasons.append(f"trace {number}: {call}")
                continue
            flattener, leaves, rebound = call
            values = trace.native.run(leaves)
            if values is None:
                reasons.append(f"trace {number}: {_C.DECIDED_OTHERWISE}")
                continue
            trace.calls += 1
            flat = [values[item] if kind == "tensor" else item for kind, item in trace.outputs]
            if not rebound and not trace.native.decided:
                executable = trace.native.executable
                self.fast.learn(trace.call_spec, executable, trace.outputs, _NoState(), args, kwargs)
            return trace.out_spec.build(flat, flattener.containers)
        raise InputError(
            f"the call fits no trace of {self.name}:\n    " + "\n    ".join(reasons),
            at=self.where,
            fix="call the compiled model like this and save it again; the archive has no model code",
        )

    def fit(
        self, trace: SavedTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Flattener, list[Any], bool] | str:
        """The call's leaves for this trace and whether arguments had to be rearranged, or the reason why the call does not fit."""
        flattener = Flattener()
        structure = flattener.flatten((args, kwargs))
        rebound = False
        if structure != trace.in_spec:
            call = trace.rebind(args, kwargs, self.parameters)
            flattener = Flattener()
            if call is None or flattener.flatten(call) != trace.in_spec:
                return f"the call gives {_call_text(args, kwargs)}, the trace takes {trace.arguments_text()}"
            rebound = True
        leaves: list[Any] = []
        for leaf, spec in zip(flattener.leaves, trace.leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
                    return f"{spec['name']!r} is a tensor subclass, {type(leaf).__name__}"
                if leaf.requires_grad and torch.is_grad_enabled():
                    raise GradError(
                        f"argument {spec['name']!r} requires gradients, which a loaded program does not give",
                        fix="call it under torch.no_grad(), or pass a detached tensor",
                    )
                leaves.append(leaf)
            elif type(leaf) is int:
                if not -(2**63) <= leaf < 2**63:
                    return f"{spec['name']!r} is an int of more than 64 bits"
                leaves.append(leaf)
            else:
                text = literal_text(leaf)
                if text is None:
                    return f"{spec['name']!r} is a {type(leaf).__name__}"
                leaves.append(text)
        why = trace.native.refusal(leaves)
        return why if why else (flattener, leaves, rebound)


def _call_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The kinds of a call's arguments: "(Tensor, mask=list of 2)"."""

    def kind(value: Any) -> str:
        name = type(value).__name__
        return f"{name} of {len(value)}" if isinstance(value, (list, tuple, dict)) else name

    return f"({', '.join([*map(kind, args), *(f'{name}={kind(value)}' for name, value in kwargs.items())])})"
