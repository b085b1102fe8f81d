"""A device for tests: records operators in Python, replays them on raw addresses of a real pool.

"copy" behaves as CUDA does: capturing computes nothing (whatever ran is undone and outputs are scribbled over), replays
read and write the captured addresses only. "rebind" behaves as CPU graphs do.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from staticrt.errors import CaptureError
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.graphs.protocol import GraphCaps, TensorMeta
from staticrt.graphs.storage import describe, is_plain, tensor_at, with_bits

SCRIBBLE = 0x7B  # a byte pattern no test computes


def span_bytes(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the storage."""
    storage = tensor.untyped_storage()
    return raw_bytes(storage.data_ptr(), storage.nbytes())


def numpy_copy(raw: torch.Tensor) -> torch.Tensor:
    """A copy in numpy's memory: torch's comes from the pool during a capture."""
    return torch.from_numpy(raw.numpy().copy())


class Place:
    """A tensor of the record: metadata, and where its first element is at a replay."""

    def __init__(self, tensor: torch.Tensor, inputs: list[torch.Tensor], blocks: Counter[int]) -> None:
        self.base = tensor.untyped_storage().data_ptr()
        self.times = blocks[self.base]  # storages that began here before: an address may have several
        self.meta = describe(tensor)._replace(nbytes=span_bytes(tensor), storage_offset=0)
        self.ptr = tensor.data_ptr()
        self.bits = (tensor.is_conj(), tensor.is_neg())
        self.source = ("fixed", 0)
        for index, given in enumerate(inputs):
            if given.numel() and given.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                self.source = ("input", index)
                self.delta = self.ptr - given.data_ptr()
                break

    def tensor(self, rebinds: list[torch.Tensor] | None, moved: dict[tuple[int, int], int]) -> torch.Tensor:
        ptr = self.ptr
        if rebinds is not None and self.source[0] == "input":
            ptr = rebinds[self.source[1]].data_ptr() + self.delta
        elif (self.base, self.times) in moved:
            ptr += moved[self.base, self.times] - self.base
        return with_bits(tensor_at(TensorMeta(ptr if self.meta.nbytes else 0, *self.meta[1:])), *self.bits)


class Recording(TorchDispatchMode):
    def __init__(self, graph: FakeGraph, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.graph = graph
        self.inputs = inputs
        self.made: set[int] = set()
        self.undo: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors: list[torch.Tensor] = []
        tree_map(lambda v: tensors.append(v) if isinstance(v, torch.Tensor) else None, (args, kwargs))
        before = {id(t) for t in tensors}
        self.save_written(func, args, kwargs)
        kept = [] if func._schema.is_mutable else [(t, numpy_copy(raw_of(t))) for t in tensors if is_plain(t)]
        result = func(*args, **kwargs)
        for tensor, old in kept:  # native_batch_norm writes its statistics although no schema says so
            if not torch.equal(raw_of(tensor), old):
                self.save(tensor, old)
        unsafe = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        if unsafe:
            self.graph.broken = f"{func} depends on values"
        outs: list[torch.Tensor] = []
        tree_map(lambda v: outs.append(v) if isinstance(v, torch.Tensor) else None, result)
        storages = {t.untyped_storage().data_ptr() for t in tensors if is_plain(t)}
        news = [
            t
            for t in outs
            if id(t) not in before and is_plain(t) and t.untyped_storage().data_ptr() not in storages
        ]
        bases = {t.untyped_storage().data_ptr() for t in news}
        self.made |= bases
        self.graph.blocks.update(bases)
        writes = func._schema.is_mutable
        if not news and not writes:
            return result  # a view
        self.graph.record(func, args, kwargs, outs, news, self.inputs)
        return result

    def save_written(self, func: Any, args: Any, kwargs: Any) -> None:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if (
                argument.alias_info is not None
                and argument.alias_info.is_write
                and isinstance(value, torch.Tensor)
            ):
                self.save(value)
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in kwargs:
                self.save(kwargs[argument.name])

    def save(self, tensor: torch.Tensor, before: torch.Tensor | None = None) -> None:
        """Note that a tensor is written. `before`: its storage's bytes; None: it is yet to be written."""
        ptr = tensor.untyped_storage().data_ptr()
        if ptr not in self.made:
            self.made.add(ptr)
            everything = raw_of(tensor)
            self.undo.append((everything, numpy_copy(everything) if before is None else before))


class FakeGraph:
    def __init__(self, pool: CpuGraphPool, caps: GraphCaps, faults: dict[str, list[int]]) -> None:
        self.pool = pool
        self.caps = caps
        self.faults = faults
        self.ops: list[Any] | None = []
        self.broken = ""
        self.outputs: list[tuple[int, int]] = []
        self.blocks: Counter[int] = Counter()  # storages that began at each address

    @property
    def num_kernels(self) -> int:
        return len(self.ops or ())

    constant_bytes = 0
    unexplained = 0
    may_vary = False

    def agrees_with(self, other: Any) -> bool:
        return True

    def record(self, func: Any, args: Any, kwargs: Any, outs: Any, news: Any, inputs: Any) -> None:
        def place(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and is_plain(value):
                return Place(value, inputs, self.blocks)
            return value

        made = {id(new) for new in news}
        kept = [(i, Place(out, inputs, self.blocks)) for i, out in enumerate(outs) if id(out) in made]
        assert self.ops is not None
        self.ops.append((func, tree_map(place, args), tree_map(place, kwargs), kept))

    @contextlib.contextmanager
    def capture(self, *, stream: Any = None, inputs: Any = (), fixed: Any = ()) -> Any:
        fault(self.faults, "capture")
        saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        if not self.caps.capture_executes:
            info = self.pool.check_live(set())
            for ptr, nbytes, _where in info.unexpected if info is not None else ():
                raw = raw_bytes(ptr, nbytes)
                saved.append((raw, raw.clone()))
        recording = Recording(self, list(inputs))
        try:
            with self.pool.route(stream), recording:
                yield self
                fault(self.faults, "capture_end")
        except BaseException:
            self.ops = []
            put_back(saved, recording)
            raise
        if not self.caps.capture_executes:
            info = self.pool.check_live({raw.data_ptr() for raw, _copy in saved})
            for ptr, nbytes, _where in info.unexpected if info is not None else ():
                raw_bytes(ptr, nbytes).fill_(SCRIBBLE)
            put_back(saved, recording)
        if self.broken:
            put_back(saved, recording)
            raise CaptureError(self.broken)

    def take_turn(self) -> None:
        pass

    def replay_new(self, rebinds: Any) -> list[torch.Tensor]:
        memory = [torch.empty_strided(size, stride, dtype=dtype) for size, stride, dtype in self.metas]
        self.replay(rebinds, memory)
        return memory

    def bind_outputs(self, outputs: Any) -> None:
        self.metas = [(t.shape, t.stride(), t.dtype) for t in outputs]
        bases = [t.untyped_storage().data_ptr() for t in outputs]
        self.outputs = [(base, self.blocks[base]) for base in bases]

    def replay(self, rebinds: Any = None, outputs: Any = None) -> None:
        if self.ops is None:
            raise CaptureError("replay of a graph that was reset")
        moved = {}
        if outputs is not None:
            moved = {
                place: t.untyped_storage().data_ptr() for place, t in zip(self.outputs, outputs, strict=True)
            }
        with torch.no_grad():
            for number, (func, args, kwargs, news) in enumerate(self.ops):
                fault(self.faults, "replay", number)

                def put(value: Any) -> Any:
                    return value.tensor(rebinds, moved) if isinstance(value, Place) else value

                result = func(*tree_map(put, args), **tree_map(put, kwargs))
                outs = [v for v in tree_leaves(result) if isinstance(v, torch.Tensor)]
                for index, place in news:
                    place.tensor(rebinds, moved).copy_(outs[index])

    def reset(self) -> None:
        self.ops = None

    def dump(self, path: str) -> None:
        with open(path, "w") as file:
            file.writelines(f"{func}\n" for func, *_rest in self.ops or ())


def put_back(saved: Any, recording: Recording) -> None:
    for raw, copy in (*saved, *recording.undo):
        raw.copy_(copy)


def raw_bytes(ptr: int, nbytes: int) -> torch.Tensor:
    return tensor_at(TensorMeta(ptr, nbytes, torch.uint8, torch.device("cpu"), (nbytes,), (1,), 0))


class Fault(Exception):
    """Thrown where a test asked for it."""


def fault(faults: dict[str, list[Any]], where: str, number: int = 0) -> None:
    """Raise the next planned fault of this place: faults[where] = [None, error, …] in order of passage."""
    plan = faults.get(where)
    if plan and number == 0:
        error = plan.pop(0)
        if error is not None:
            raise error


class FakeBackend:
    """`GraphBackend` with `mode` "copy" or "rebind"."""

    def __init__(self, mode: str = "copy") -> None:
        copy = mode == "copy"
        self.caps = GraphCaps(
            capture_executes=not copy,
            rebind_inputs=not copy,
            rebind_outputs=not copy,
            has_streams=False,
        )
        self.faults: dict[str, list[Any]] = {}
        self.pools: list[Any] = []
        self.graphs = 0

    def device_scope(self, index: int) -> Any:
        return contextlib.nullcontext()

    def synchronize(self, index: int) -> None:
        pass

    def new_stream(self, index: int) -> Any:
        return None

    def new_pool(self, index: int) -> CpuGraphPool:
        pool = CpuGraphPool()
        self.pools.append(pool)
        return pool

    def new_graph(self, pool: Any, *, keep: bool = False) -> FakeGraph:
        self.graphs += 1
        return FakeGraph(pool, self.caps, self.faults)

    def warmup_scope(self, pool: Any, stream: Any) -> Any:
        fault(self.faults, "warmup")
        return pool.route(stream)

    def register_generator(self, graph: Any, generator: torch.Generator) -> None:
        pass

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"
