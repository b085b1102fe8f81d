"""What every op of torch's operator database does on samples, recorded once for all tests of `ops/`."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SAMPLES_PER_OP = {torch.float32: 6, torch.int64: 2}
CALLS_PER_OVERLOAD = 8  # enough to see each op alias and not alias; more only cost time
# Composite ops are decomposed before a dispatch mode sees them; these have no entry of their own name in
# the database, or samples that miss the case of interest.
BY_HAND: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("einsum", ("ij->ji", [torch.rand(2, 3)]), {}),
    ("einsum", ("ij,jk->ik", [torch.rand(2, 3), torch.rand(3, 2)]), {}),
    ("broadcast_tensors", ([torch.rand(3, 1), torch.rand(1, 2)],), {}),
    ("meshgrid", ([torch.rand(3), torch.rand(2)],), {}),
    ("cartesian_prod", ([torch.rand(3)],), {}),
    ("cartesian_prod", ([torch.rand(3), torch.rand(2)],), {}),
    ("block_diag", ([torch.rand(3, 2)],), {}),
    ("dropout", (torch.rand(3), 0.5, False), {}),
    ("dropout", (torch.rand(3), 0.5, True), {}),
    ("alpha_dropout", (torch.rand(3), 0.5, False), {}),
    ("feature_dropout", (torch.rand(2, 3), 0.5, False), {}),
    ("feature_alpha_dropout", (torch.rand(2, 3), 0.5, False), {}),
    ("feature_alpha_dropout", (torch.rand(2, 3), 0.5, True), {}),
    ("native_dropout", (torch.rand(3), 0.5, True), {}),
    ("native_dropout", (torch.rand(3), 0.5, False), {}),
    ("rrelu", (torch.randn(3), 0.1, 0.3, True), {}),
    ("type_as", (torch.rand(3), torch.rand(2)), {}),
    ("lift", (torch.rand(3),), {}),
    ("lift_fresh", (torch.rand(3),), {}),
    ("_cast_Float", (torch.rand(3),), {}),
    ("unsafe_split_with_sizes", (torch.rand(4), [1, 3]), {}),
    ("linalg_multi_dot", ([torch.rand(2, 3), torch.rand(3, 2), torch.rand(2, 4)],), {}),
    ("pad", (torch.rand(3), [0, 0]), {}),
    ("pad", (torch.rand(1, 1, 3), [0, 0], "circular"), {}),
    ("pad", (torch.rand(1, 3), [0, 0], "reflect"), {}),
    ("constant_pad_nd", (torch.rand(3), [0, 0]), {}),
    ("roll", (torch.rand(3), [0], [0]), {}),
    ("flip", (torch.rand(3), []), {}),
    ("repeat", (torch.rand(3), [1]), {}),
    ("tile", (torch.rand(3), [1]), {}),
    ("repeat_interleave", (torch.rand(3), 1), {}),
    ("sum_to_size", (torch.rand(3, 2), [3, 2]), {}),
    ("to", (torch.rand(3), torch.float32), {}),
    ("to", (torch.rand(3), torch.float64), {}),
    ("contiguous", (torch.rand(3, 2),), {}),
    ("contiguous", (torch.rand(3, 2).t(),), {}),
    ("reshape", (torch.rand(3, 2), [6]), {}),
    ("reshape", (torch.rand(3, 2).t(), [6]), {}),
    ("matrix_power", (torch.rand(2, 2), 1), {}),
    ("linalg_matrix_power", (torch.rand(2, 2), 1), {}),
    ("matrix_power", (torch.rand(2, 2), 0), {}),
    ("cat", ([torch.rand(3)],), {}),
    ("hstack", ([torch.rand(3)],), {}),
    ("vstack", ([torch.rand(1, 3)],), {}),
    ("column_stack", ([torch.rand(3, 2)],), {}),
    ("diff", (torch.rand(3), 0), {}),
    ("round", (torch.arange(3),), {}),
    ("ceil", (torch.arange(3),), {}),
    ("batch_norm", (torch.rand(2, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5, False), {}),
    (
        "batch_norm",
        (torch.rand(2, 3), None, None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5, False),
        {},
    ),
    ("native_batch_norm", (torch.rand(2, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5), {}),
    (
        "instance_norm",
        (torch.rand(2, 3, 4), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5, False),
        {},
    ),
    (
        "_batch_norm_impl_index",
        (torch.rand(2, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5, False),
        {},
    ),
    ("gru_cell", (torch.rand(2, 3), torch.rand(2, 3), torch.rand(9, 3), torch.rand(9, 3)), {}),
    ("rand_like", (torch.rand(3),), {}),
    ("bernoulli", (torch.rand(3),), {}),
    ("multinomial", (torch.rand(3), 1), {}),
    ("scaled_dot_product_attention", (torch.rand(1, 2, 3, 4),) * 3, {"dropout_p": 0.5}),
    ("scaled_dot_product_attention", (torch.rand(1, 2, 3, 4),) * 3, {}),
]


@dataclass(frozen=True)
class Call:
    """One call of one overload as it happened.

    `shared[i]`: positions of the arguments that share storage with result i (its elements, if a list).
    `written`: positions of the tensor arguments whose elements changed. `drew`: random state moved.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    shared: tuple[frozenset[int], ...]
    written: frozenset[int]
    drew: bool


def _storages(value: Any) -> set[int]:
    return {
        t.untyped_storage()._cdata
        for t in tree_leaves(value)
        if isinstance(t, torch.Tensor) and t.layout == torch.strided and t.numel()
    }


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.layout == torch.strided]


def observe(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
    names = [a.name for a in op._schema.arguments]
    by_position = {**dict(enumerate(args)), **{names.index(k): v for k, v in kwargs.items()}}
    before = {i: [t.clone() for t in _tensors(v)] for i, v in by_position.items()}
    storages = {i: _storages(v) for i, v in by_position.items()}
    state = torch.get_rng_state()
    result = op(*args, **kwargs)
    drew = not torch.equal(state, torch.get_rng_state())
    results = result if len(op._schema.returns) > 1 else (result,)
    shared = tuple(
        frozenset(i for i, held in storages.items() if held & _storages(value)) for value in results
    )
    written = frozenset(
        i
        for i, olds in before.items()
        for old, new in zip(olds, _tensors(by_position[i]), strict=False)
        if old.shape != new.shape or not _same(old, new)
    )
    return Call(op, tuple(args), dict(kwargs), result, shared, written, drew)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))


class _Record(TorchDispatchMode):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self.calls = calls
        self.count: Counter[Any] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[op] += 1
        if self.count[op] > CALLS_PER_OVERLOAD:
            return op(*args, **(kwargs or {}))
        call = observe(op, args, kwargs or {})
        self.calls.append(call)
        return call.result


def resolve(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The overload of `aten.name` that takes these arguments, or None."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return None
    try:
        overload = torch._C._jit_resolve_packet(f"aten::{name}", *args, **kwargs)
    except RuntimeError:
        return None
    return getattr(packet, overload or "default")


def _samples() -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    from tests.support.operator_database import op_db

    for info in op_db:
        for dtype in SAMPLES_PER_OP:
            if "jiterator" in info.name or not info.supports_dtype(dtype, "cpu"):
                continue
            samples = info.sample_inputs("cpu", dtype, requires_grad=False)
            for _, sample in zip(range(SAMPLES_PER_OP[dtype]), samples, strict=False):
                yield info.aten_name, info.op, (sample.input, *sample.args), sample.kwargs


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="session")
def calls() -> list[Call]:
    """Every overload call that the samples of torch's operator database lead to."""
    recorded: list[Call] = []
    recorder = _Record(recorded)
    with _one_thread(), torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        for name, function, args, kwargs in _samples():
            overload = resolve(name, args, kwargs) or resolve(
                name.removeprefix("nn_functional_"), args, kwargs
            )
            if overload is not None and recorder.count[overload] < CALLS_PER_OVERLOAD:
                # The Python function may massage its arguments before it calls the op.
                with contextlib.suppress(RuntimeError, TypeError, IndexError, ValueError):
                    recorded.append(observe(overload, args, kwargs))
            with recorder:
                function(*args, **kwargs)
        for name, args, kwargs in BY_HAND:
            overload = resolve(name, args, kwargs)
            assert overload is not None, name
            recorded.append(observe(overload, args, kwargs))
    return recorded
