"""Classifies the outputs of a captured function and rebuilds them after a replay."""

from __future__ import annotations

import dataclasses
import enum
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.errors import CaptureError
from staticrt.graphs.liveness import PathIndex, PathOutput
from staticrt.graphs.protocol import TensorMeta
from staticrt.graphs.storage import describe, is_plain, storage_ptr, storage_ref, tensor_at, with_bits


class Kind(enum.Enum):
    """Where an output's bytes come from."""

    NEW = "new"  # a storage that the graph allocates
    ALIAS_NEW = "alias of new output"  # of an earlier output of this graph
    ALIAS_PATH = "alias of path output"  # of an output of a node before this one
    INPUT = "input"  # the very object that was passed
    ALIAS_INPUT = "alias of input"  # a view of an input outside the pool
    CONSTANT = "constant"  # a captured object: an int, None, a tensor the function closes over
    EMPTY = "empty"  # a tensor without bytes


@dataclasses.dataclass(frozen=True)
class OutputSpec:
    """One output.

    Args:
        index: NEW: itself. ALIAS_NEW: the output it aliases. INPUT, ALIAS_INPUT: the input. ALIAS_PATH: the output's
            index at `depth`.
        value: CONSTANT: what is returned.
        offset: ALIAS_INPUT: storage offset relative to the input's, in elements of the output's dtype.
        whole: NEW: the tensor covers its storage, contiguous or not, so that `empty_strided` makes it.
        same_as: the earlier output that is the same object, or -1.
    """

    kind: Kind
    meta: TensorMeta | None = None
    index: int = -1
    depth: int = -1
    value: Any = None
    offset: int = 0
    conj: bool = False
    neg: bool = False
    whole: bool = False
    same_as: int = -1


class Source:
    """An input of the captured function, referred to without keeping it alive.

    Args:
        index: position of the input.
        tensor: the caller's tensor, or the buffer that replaces it.
    """

    __slots__ = ("index", "itemsize", "offset", "ptr", "ref", "tensor")

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self.index = index
        self.tensor = weakref.ref(tensor)
        self.ref = storage_ref(tensor)
        self.ptr = self.ref.recorded_ptr
        self.offset = tensor.storage_offset()
        self.itemsize = tensor.itemsize


def classify(
    outputs: Sequence[Any],
    sources: Sequence[Source],
    constants: Sequence[torch.Tensor],
    find_path: Callable[[int], PathIndex | None],
    owns: Callable[[torch.Tensor], bool],
    where: Callable[[int], str],
) -> list[OutputSpec]:
    """The kinds of a capture's outputs.

    Args:
        outputs: what the function returned.
        sources: inputs that are not outputs of the path.
        constants: tensors the function closes over.
        find_path: maps a storage's address to the live path output that has it.
        owns: whether a tensor is on the graph's device.
        where: maps an output's index to the place where it was made, for messages.

    Raises:
        CaptureError: a replay could not rebuild an output.
    """
    specs: list[OutputSpec] = []
    same: dict[int, int] = {}
    base: dict[int, Source] = {}
    for source in reversed(sources):
        tensor = source.tensor()
        if tensor is not None:
            same[id(tensor)] = source.index
        if source.ref.use_count() > 0 and source.ptr != 0:
            base[source.ptr] = source
    tensor = None
    persistent = {storage_ptr(t) for t in constants if is_plain(t)} - {0}
    new: dict[int, int] = {}
    first: dict[int, int] = {}
    for position, out in enumerate(outputs):
        if not isinstance(out, torch.Tensor):
            specs.append(OutputSpec(Kind.CONSTANT, value=out))
            continue
        if id(out) in same:
            specs.append(OutputSpec(Kind.INPUT, index=same[id(out)]))
            continue
        _check(out, owns, where(position))
        meta = describe(out)
        flags: dict[str, Any] = {"conj": out.is_conj(), "neg": out.is_neg()}
        if (earlier := first.setdefault(id(out), position)) != position:
            flags["same_as"] = earlier
        ptr = meta.data_ptr
        if ptr in persistent or any(out is constant for constant in constants):
            specs.append(OutputSpec(Kind.CONSTANT, meta, value=out))
        elif ptr == 0:
            specs.append(OutputSpec(Kind.EMPTY, meta, **flags))
        elif ptr in base:
            found = base[ptr]
            offset = meta.storage_offset - found.offset * found.itemsize // out.itemsize
            specs.append(OutputSpec(Kind.ALIAS_INPUT, meta, found.index, offset=offset, **flags))
        elif (place := find_path(ptr)) is not None:
            specs.append(OutputSpec(Kind.ALIAS_PATH, meta, place[1], place[0], **flags))
        elif ptr in new:
            specs.append(OutputSpec(Kind.ALIAS_NEW, meta, new[ptr], **flags))
        else:
            new[ptr] = position
            covers = meta.storage_offset == 0 and _span(meta) * out.itemsize == meta.nbytes
            whole = covers and not out.is_conj() and not out.is_neg()
            specs.append(OutputSpec(Kind.NEW, meta, position, whole=whole, **flags))
    return specs


def _check(out: torch.Tensor, owns: Callable[[torch.Tensor], bool], where: str) -> None:
    if out.requires_grad:
        raise CaptureError(
            "an output requires gradients although no input of the captured function does",
            at=where,
            fix="pass the tensors that need gradients as arguments",
        )
    if not is_plain(out):
        raise CaptureError(f"an output is a {out.layout} tensor of type {type(out).__name__}", at=where)
    if not owns(out) and storage_ptr(out) != 0:
        raise CaptureError(
            f"Expected all outputs in graph capture on the graph's device, got one on {out.device}", at=where
        )


def _span(meta: TensorMeta) -> int:
    """Elements from the first to the last, inclusive; 0 for an empty tensor."""
    if 0 in meta.size:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(meta.size, meta.stride, strict=True))


def with_flags(tensor: torch.Tensor, spec: OutputSpec) -> torch.Tensor:
    """The tensor with the conjugate and negative bits of the output's spec."""
    return with_bits(tensor, spec.conj, spec.neg)


def alias_of_input(spec: OutputSpec, source: torch.Tensor) -> torch.Tensor:
    """The view of `source` that the function returned."""
    meta = spec.meta
    assert meta is not None
    offset = spec.offset + source.storage_offset() * source.itemsize // meta.dtype.itemsize
    if source.dtype is meta.dtype and not source.is_conj() and not source.is_neg():
        with torch.no_grad():
            return with_flags(torch.as_strided(source, meta.size, meta.stride, offset), spec)
    return with_flags(storage_ref(source).tensor(meta._replace(storage_offset=offset)), spec)


def empty(spec: OutputSpec) -> torch.Tensor:
    """The output that has no bytes. Each call gets one of its own, because the caller may give it another shape."""
    meta = spec.meta
    assert meta is not None
    return with_flags(torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=meta.device), spec)


def like_fresh(spec: OutputSpec, output: torch.Tensor) -> torch.Tensor:
    """A template for the memory that a replay allocates for a new output (`caps.rebind_outputs`): the output itself if it
    covers its storage, else all bytes of the storage."""
    meta = spec.meta
    assert meta is not None
    if spec.whole:
        return output
    flat = meta._replace(dtype=torch.uint8, size=(meta.nbytes,), stride=(1,), storage_offset=0)
    return storage_ref(output).tensor(flat)


def shaped(spec: OutputSpec, memory: torch.Tensor) -> torch.Tensor:
    """The output on memory that a replay allocated for it, or for the output that it aliases."""
    meta = spec.meta
    assert meta is not None
    if spec.whole and spec.kind is Kind.NEW:
        return memory
    return with_flags(storage_ref(memory).tensor(meta), spec)


def rebuild(
    specs: Sequence[OutputSpec],
    refs: Sequence[PathOutput | None],
    inputs: Sequence[Any],
    path: Sequence[Sequence[PathOutput | None]],
) -> list[Any]:
    """The outputs after a replay into the pool. Stores references to new storages in `refs`."""
    outputs: list[Any] = []
    for position, spec in enumerate(specs):
        kind = spec.kind
        if spec.same_as >= 0:
            outputs.append(outputs[spec.same_as])
        elif kind is Kind.NEW:
            ref = refs[position]
            assert ref is not None
            assert spec.meta is not None
            if ref.cached is not None:
                ref.cached._backward_hooks = None
                outputs.append(ref.cached)
                continue
            tensor = tensor_at(spec.meta)
            ref.give_out(tensor)
            outputs.append(with_flags(tensor, spec))
        elif kind is Kind.ALIAS_NEW or kind is Kind.ALIAS_PATH:
            ref = refs[position]
            assert ref is not None
            assert spec.meta is not None
            outputs.append(with_flags(ref.ref.tensor(spec.meta), spec))
        else:
            outputs.append(not_made(spec, inputs))
    return outputs


def not_made(spec: OutputSpec, inputs: Sequence[Any]) -> Any:
    """An output whose bytes no replay makes."""
    if spec.kind is Kind.CONSTANT:
        return spec.value
    if spec.kind is Kind.EMPTY:
        return empty(spec)
    source = inputs[spec.index]
    return source if spec.kind is Kind.INPUT else alias_of_input(spec, source)
