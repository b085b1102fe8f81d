"""One trace that is ready to run, and what a call must be like to run it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from staticrt import tuning
from staticrt.errors import NumberError, StaticRuntimeError
from staticrt.frontend.graph import InputSpec, TracedGraph
from staticrt.frontend.guards.remade_tensors import RemadeTensors
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.native import _C
from staticrt.runtime.call_key import CallKey
from staticrt.runtime.call_spec import CallSpec

if TYPE_CHECKING:
    from staticrt.runtime.executable import Executable


FAILED_EARLY = "it raised before anything was written: eager writes what comes before the error"


@dataclasses.dataclass(eq=False)
class CachedTrace:
    """One trace, ready to run."""

    traced: TracedGraph
    executable: Executable
    state: StateGuard
    ints: tuple[tuple[int, int], ...]  # int leaves that are constants of this trace
    metadata: list[Any] = dataclasses.field(init=False)  # of the model's tensors
    calls: int = 0
    remade: RemadeTensors | None = None  # finds tensors of the model's that others have replaced

    def __post_init__(self) -> None:
        self.metadata = tensor_metadata(self.traced.values)
        self._first_values = self.traced.values if self.remade is not None else ()

    @functools.cached_property
    def call_spec(self) -> CallSpec:
        """What the fast path needs; `replace_values` makes a new one."""
        traced = self.traced
        return CallSpec(traced.in_spec, traced.out_spec, traced.values, traced.user_leaves, traced.same)

    def replace_values(self, values: tuple[torch.Tensor, ...]) -> None:
        """Run on other tensors in place of the model's own, which have the same metadata."""
        self.traced.values = values
        self.__dict__.pop("call_spec", None)

    @functools.cached_property
    def takes_sizes(self) -> Callable[[Sequence[Any]], bool] | None:
        """Tells from the user's inputs whether the trace accepts a call that differs in sizes only from one it ran.

        None: only `accepts` can tell, or a call that raises may not be made again.
        """
        traced, leaves = self.traced, self.traced.user_leaves
        executable: Any = self.executable  # a StaticExecutable
        has_effects = traced.mutates or traced.random or traced.out_spec.writes
        may_branch = traced.catches or traced.decided or self.remade is not None
        known = all(symbol.leaf in leaves for symbol in traced.guards.symbols)
        if has_effects or may_branch or not known:
            return None
        guards, native, sizes = traced.guards, executable.native, executable.sizes
        dims = [(symbol.leaf, symbol.dim) for symbol in guards.symbols if symbol.prop == "size"]

        def takes(inputs: Sequence[Any]) -> bool:
            given = dict(zip(leaves, inputs, strict=True))
            # Of sizes 0 and 1 several traces may be true, of which the executor takes the first.
            accepted = all(given[leaf].shape[dim] > 1 for leaf, dim in dims) and guards.holds(given)
            if accepted:
                sizes.see(native, inputs)
            return accepted

        return takes

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """What the graph takes for a call's flat arguments: the model's own tensors, then leaves."""
        spec = self.call_spec
        return [*spec.values, *[leaves[index] for index in spec.user_leaves]]

    def accepts(self, leaves: Sequence[Any], call: CallKey) -> bool:
        return self._accepts(leaves, call, self.traced.values, self.state)

    def take_remade(self, leaves: Sequence[Any], call: CallKey) -> bool:
        """Whether the trace accepts a call once it reads the tensors that the model made anew; from then on it does."""
        found = self.remade.find() if self.remade is not None else None
        if found is None:
            return False
        state, replaced = found
        values = tuple(replaced.get(id(value), value) for value in self._first_values)
        if not self._accepts(leaves, call, values, state):
            return False
        self.replace_values(values)
        self.state = state
        return True

    def _accepts(
        self, leaves: Sequence[Any], call: CallKey, own: Sequence[torch.Tensor], state: StateGuard
    ) -> bool:
        values = dict(call.ints)
        return (
            all(values[index] == value for index, value in self.ints)
            and self.traced.guards.holds(leaves)
            and tensor_metadata(own) == self.metadata
            and state.read_attribute(leaves) is None
            and state.holds()
        )

    def own_tensors(self) -> Iterator[tuple[InputSpec, torch.Tensor]]:
        """The model's own tensors that the graph reads."""
        own = (spec for spec in self.traced.inputs if spec.kind != "user")
        return zip(own, self.traced.values, strict=True)


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a trace failed.

    Args:
        impossible: the model does what no graph replays; else it raised something.
        even_in_parts: graph splits would not do as eager does either: such calls run eagerly.
        eager_first: the model raised, or changed its own state: eager runs the call, and the next one is traced again.
        needs_none: of a trace with its backward: no result needs a gradient.
    """

    reason: str
    where: str
    impossible: bool
    even_in_parts: bool = False
    eager_first: bool = False
    needs_none: bool = False


def tensor_metadata(values: Sequence[torch.Tensor]) -> list[Any]:
    """What a trace assumed of the model's tensors (`weight.data = …` may change it)."""
    return [(v.dtype, v.shape, v.stride(), v.device, v.requires_grad) for v in values]


def _inputs(traced: TracedGraph, leaves: Sequence[Any]) -> Iterator[tuple[InputSpec, Any]]:
    """Each input of a graph, with what this call gives for it."""
    values = iter(traced.values)
    for spec in traced.inputs:
        yield spec, leaves[int(spec.target)] if spec.kind == "user" else next(values)


def writes_inference_tensors(traced: TracedGraph, leaves: Sequence[Any]) -> bool:
    return any(spec.mutated and value.is_inference() for spec, value in _inputs(traced, leaves))


def undo_of(traced: TracedGraph, leaves: Sequence[Any]) -> Callable[[], None] | None:
    """What undoes the effects of the run that follows if it raises; None: no model code catches errors, or nothing can undo them."""
    if not traced.catches:
        return None
    inputs = [(spec, value) for spec, value in _inputs(traced, leaves) if isinstance(value, torch.Tensor)]
    written = [value.detach() for spec, value in inputs if spec.mutated]
    if sum(value.nbytes for value in written) > tuning.MAX_BYTES_TAKEN_BACK:
        return None
    if not (written or traced.random) or any(value.device.type != "cpu" for _spec, value in inputs):
        return None
    copies = [value.clone() for value in written]
    state = torch.get_rng_state() if traced.random else None

    def undo() -> None:
        with torch.no_grad():
            for value, copy in zip(written, copies, strict=True):
                value.copy_(copy)
        if state is not None:
            torch.set_rng_state(state)

    return undo


def beyond_trace(error: Exception, trace: CachedTrace, undo: Callable[[], None] | None = None) -> str:
    """Why the call runs eagerly after a run of a trace raised `error` in this thread; "": the caller gets the error.

    Args:
        undo: as of `undo_of`; is called where it is needed.
    """
    native: Any = getattr(trace.executable, "native", None)
    before_effects = native is not None and native.failed_before_effects()
    traced = trace.traced
    has_effects = traced.mutates or bool(traced.out_spec.writes)
    if not before_effects and (has_effects or traced.random):
        if undo is None:
            return ""
        undo()
    if traced.catches:
        return "an operator raised, and the model may catch that"
    if isinstance(error, NumberError):
        return f"arithmetic on sizes raised in the trace: {error}"
    if "view size is not compatible" in str(error):
        return "a result has other strides than in the trace"
    return FAILED_EARLY if has_effects else ""


def first_run_raised(trace: CachedTrace, error: Exception, drop: Callable[[], object]) -> str:
    """Why the call runs eagerly if this was the first run of its trace; "": the caller gets the error.

    Args:
        drop: forgets the trace: the call is wrong in a way that fake tensors do not show.
    """
    if trace.calls > 1 or not isinstance(error, RuntimeError) or isinstance(error, StaticRuntimeError):
        return ""
    drop()
    # Where an accelerator runs parts of it, a device may have failed.
    subgraphs: Any = getattr(trace.executable, "accelerator_lines", tuple)
    if trace.traced.mutates or trace.traced.random or subgraphs():
        return ""
    return f"its first run raised {type(error).__name__}: {error}".partition("\n")[0].removesuffix(" (")


def share_memory(traced: TracedGraph, leaves: Sequence[Any]) -> bool:
    """Whether a written input overlaps another input, or itself. The graph assumes that no two elements share memory.

    Compares addresses, since two storages may refer to the same memory (arrays of NumPy, DLPack).
    """
    inputs = list(_inputs(traced, leaves))
    written = [i for i, (spec, _value) in enumerate(inputs) if spec.mutated]
    return _C.shares_memory(written, [value for _spec, value in inputs])
