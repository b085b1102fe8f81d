"""Joint traces: the tracer records the forward and the backward of a call, below autograd.

The tracer records the forward while autograd runs on fake tensors. Then `Backward` lets autograd compute gradients from
incoming gradients, which are further inputs of the graph, and the tracer records the operators of the backward like
those of the forward. `joint_program.py` splits the graph and runs both halves in the native autograd node.

Calls whose backward could not be repeated as in eager (hooks, some custom autograd Functions, results that are inputs) are
refused with a reason.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.functionalize.functionalize import written_args
from staticrt.frontend.guards.process_state import without_autocast
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.reasons import CannotTrace, NeedsNoGradient
from staticrt.frontend.tracing.maybe_views import storage_of
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.tracer import AUTOGRAD_NODE, BACKWARD, NO_GRAD
from staticrt.shapes.fake_results import below, new
from staticrt.training import formulas
from staticrt.training.checkpoint_state import look_again
from staticrt.training.eager_nodes import saving_nodes

# Names in model code that indicate hooks, gradients computed in the forward, or reads of an argument's autograd state,
# which differs in the recorded run, where arguments are leaves.
_REFUSED_NAMES = frozenset({
    "is_leaf", "grad_fn", "_base", "_is_view", "_version", "output_nr", "retains_grad", "is_inference",
    "backward", "grad", "register_hook", "register_multi_grad_hook", "register_post_accumulate_grad_hook",
    "register_prehook", "retain_grad", "saved_tensors_hooks",
})  # fmt: skip


class Backward:
    """Records the backward of one trace; `TraceRequest.derive`.

    Args:
        request: of the trace, with its snapshot of Python state.

    Attributes:
        num_outputs: flat outputs of the function.
        num_results: those, and after them tensors that several of them view.
        own: indices of the tensors among them that the forward computes; the others view one of those or an input.
        differentiable: indices of those that get an incoming gradient, in the order in which autograd made their nodes;
            a tensor returned twice counts once.
        levels: for each of those, as of `segments.cut`; all 0 with custom autograd Functions.
        sources: the tensor of each gradient: (id of a tensor of the model, -1), or (0, index of an argument).
        saving: the autograd nodes that save tensors.
        has_functions: some are of custom autograd Functions, which Dynamo would differentiate otherwise than eager.
        functions: these.
    """

    def __init__(self, request: TraceRequest) -> None:
        self._request = request
        self._snapshot = request.snapshot
        self.num_outputs = self.num_results = 0
        self.own: frozenset[int] = frozenset()
        self.differentiable: tuple[int, ...] = ()
        self.levels: tuple[int, ...] = ()
        self.sources: tuple[tuple[int, int], ...] = ()
        self.saving: frozenset[int] = frozenset()
        self.has_functions = False
        self.functions: formulas.Functions | None = None

    def __call__(self, tracer: Any, arguments: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Further outputs of the graph: tensors that results view, then the gradients of all inputs that may have one.

        A gradient is None for an input that no result depends on. If results are computed from others, the whole gradient
        of each result comes last; the gradients of what it is computed from depend on its incoming gradient alone.

        Raises:
            CannotTrace: no graph repeats what eager's backward does.
        """
        named = _REFUSED_NAMES & self._snapshot.model_names
        if named:
            reason = f"the model may use {min(named)}, which a joint trace does not record"
            raise CannotTrace(reason, even_in_parts=True)
        refuse_distributed(self._snapshot)  # again: modules that the code reads as globals are known only now
        lifted = tracer.inputs.lifted.values()
        given = [*(each.fake for each in lifted), *(each.value for each in lifted), *arguments]
        viewed = self._find_own(outputs, [value for value in given if isinstance(value, torch.Tensor)])
        self.num_outputs = len(outputs)
        outputs = [*outputs, *viewed]
        self.num_results = len(outputs)
        first: dict[int, int] = {}  # of results that are one tensor
        for index, out in enumerate(outputs):
            if index in self.own and out.requires_grad:
                first.setdefault(id(out), index)
        if not first:
            if any(isinstance(out, torch.Tensor) and out.requires_grad for out in outputs):
                raise CannotTrace("every result that needs a gradient is an input or a view of one")
            if tracer.decided:
                raise CannotTrace("data decides whether a result needs a gradient")
            raise NeedsNoGradient
        if any(outputs[i].grad_fn is None for i in first.values()):
            raise CannotTrace("a result is a leaf that the model makes")
        by_node = sorted(first.values(), key=lambda i: outputs[i].grad_fn._sequence_nr())
        self.differentiable = tuple(by_node)
        results = [outputs[i] for i in by_node]
        inputs = {id(each.value): (each.value, (id(each.value), -1)) for each in lifted}
        for index, value in enumerate(arguments):
            if isinstance(value, torch.Tensor):
                inputs.setdefault(id(value), (value, (0, index)))
        wanted = {key: item for key, item in inputs.items() if item[0].requires_grad}
        for value, _source in wanted.values():
            _refuse_history(value)
        live = [out for out in outputs if isinstance(out, torch.Tensor) and out.grad_fn is not None]
        nodes = _nodes(live, wanted.keys())
        functions = [node for node in nodes if _is_function(node)]
        if functions:
            self.has_functions = True
            _refuse_views(outputs, self.own)
            self.functions = formulas.Functions(functions, results, self._request)
        elif tracer.writes:
            _refuse_hidden_writes(tracer.graph.nodes)
        with below():  # to look at what is saved is no operator
            self.saving = saving_nodes(nodes)
        self.levels = (0,) * len(results) if functions else _levels(results, nodes)
        self.sources = tuple(source for _value, source in wanted.values())
        tangents = _incoming(tracer, results, len(arguments))
        tracer.shape_env.decider = None  # a backward that data stopped could not begin anew
        look_again(tracer)
        tracer.marks = lambda: {BACKWARD: "is_backward", AUTOGRAD_NODE: torch_private.running_node()}
        sources = [value for value, _source in wanted.values()]
        # In eager the backward runs after the autocast block that the forward is in.
        with without_autocast(), _cut_at(results, self.levels, tangents) as whole:
            gradients = torch_private.gradients(results, sources, tangents)
        if self.functions is not None:
            self.functions.end(tracer, tangents)
        return [*viewed, *gradients, *whole]

    def _find_own(self, outputs: Sequence[Any], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Find which outputs the forward computes; where several views share memory, only what they view is one.

        Returns:
            What outputs view that is no output itself, and no input.
        """
        inputs = {storage_of(value) for value in given}
        sharing: dict[int, list[torch.Tensor]] = {}
        for out in outputs:
            if isinstance(out, torch.Tensor) and storage_of(out) not in inputs:
                sharing.setdefault(storage_of(out), []).append(out)
        computed: dict[int, torch.Tensor] = {}
        for memory, found in sharing.items():
            if len({id(out) for out in found}) == 1 and not torch_private.is_one_of_several_views(found[0]):
                computed[memory] = found[0]
                continue
            bases = [out if out._base is None else out._base for out in found]
            computed[memory] = next((base for base in bases if base.requires_grad), bases[0])
        known = {id(out) for out in outputs}
        viewed = [base for base in computed.values() if id(base) not in known]
        wanted = {id(base) for base in computed.values()}
        self.own = frozenset(i for i, out in enumerate((*outputs, *viewed)) if id(out) in wanted)
        return viewed


def refuse_distributed(snapshot: Snapshot) -> None:
    """Refuse modules under DistributedDataParallel.

    Raises:
        CannotTrace: the code reaches one.
    """
    if any(isinstance(value, torch.nn.parallel.DistributedDataParallel) for value in snapshot.alive):
        raise CannotTrace(
            "DistributedDataParallel prepares each reduction of gradients in C++, which a joint trace does not record"
        )


def _refuse_history(value: torch.Tensor) -> None:
    """Refuse a tensor of the model that is not a leaf: the recorded backward would continue into real history."""
    if not value.is_leaf:
        raise CannotTrace("the model reads a tensor that has a history of its own")
    if value._backward_hooks:
        raise CannotTrace("a parameter has hooks")


def _refuse_hidden_writes(nodes: Iterable[fx.Node]) -> None:
    """Refuse writes of values that autograd sees through tensors that hide them: detached ones, or with gradients off.

    Such a write changes the value of a tensor and not its history. To differentiate twice, functional operators run
    again, where a new value has the history of what was written.
    """
    written: set[int] = set()
    seen: set[int] = set()
    hiding: set[fx.Node] = set()  # views that autograd does not see, and views of them
    for node in nodes:
        tensors = _tensors_of(node)
        seen.update(storage_of(value) for value in tensors if value.requires_grad)
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        targets = written_args(node)
        is_hidden = NO_GRAD in node.meta
        written.update(storage_of(arg.meta["val"]) for arg in targets if is_hidden or arg in hiding)
        memory = {storage_of(value) for value in tensors}
        sources = [arg for arg in node.all_input_nodes if memory & {storage_of(v) for v in _tensors_of(arg)}]
        # torch detaches what a factory function makes, and nothing else reads that.
        if node.target is torch.ops.aten.detach.default:
            is_hidden |= any(len(arg.users) > 1 or arg.meta["val"].requires_grad for arg in sources)
        if sources and (is_hidden or not hiding.isdisjoint(sources)):
            hiding.add(node)
    if written & seen:
        raise CannotTrace(
            "it writes a value that autograd sees through a detached tensor, or with gradients off"
        )


def _tensors_of(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return [each for each in values if isinstance(each, torch.Tensor) and each.layout == torch.strided]


def _is_function(node: Any) -> bool:
    """Whether an autograd node is of a custom autograd Function, whose backward is code of others.

    Raises:
        CannotTrace: it is one of DTensor, of which Dynamo knows how they are differentiated.
    """
    if not isinstance(node, torch.autograd.function.BackwardCFunction) or formulas.is_recorded_whole(node):
        return False
    function: Any = node._forward_cls  # type: ignore[attr-defined]
    if function.__module__.startswith("torch.distributed.tensor."):
        raise CannotTrace(f"a custom autograd Function, {type(node).__name__}")
    return True


def _refuse_views(outputs: Sequence[Any], own: Container[int]) -> None:
    """Refuse results that view an input, or another result, by a custom autograd Function.

    Such views are made again after each run, by operators alone.

    Raises:
        CannotTrace: there is one.
    """
    for index, out in enumerate(outputs):
        node = out.grad_fn if index not in own and isinstance(out, torch.Tensor) else None
        base = None if node is None or out._base is None else out._base.grad_fn
        while node is not None and node is not base:
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                raise CannotTrace(
                    "a result is a view that a custom autograd Function makes", even_in_parts=True
                )
            node = next((following for following, _number in node.next_functions), None)


def _nodes(results: Iterable[torch.Tensor], known: Iterable[int]) -> dict[Any, tuple[tuple[Any, int], ...]]:
    """The autograd nodes behind results, with the edges of each.

    Raises:
        CannotTrace: one is of a leaf made in the forward.
    """
    known = frozenset(known)
    stack: list[Any] = [out.grad_fn for out in results]
    found: dict[Any, tuple[tuple[Any, int], ...]] = {}
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if hasattr(node, "variable") and id(node.variable) not in known:
            raise CannotTrace("the model makes a tensor that requires gradients")
        found[node] = tuple(edge for edge in node.next_functions if edge[0] is not None)
        stack += (following for following, _number in found[node])
    return found


def _levels(
    results: Sequence[torch.Tensor], nodes: Mapping[Any, tuple[tuple[Any, int], ...]]
) -> tuple[int, ...]:
    """For each result, how many others in a row are computed from it, each from the last.

    Args:
        results: tensors with a history.
        nodes: as of `_nodes`.
    """
    waiting = Counter(following for edges in nodes.values() for following, _number in edges)
    level = {(out.grad_fn, out.output_nr): 0 for out in results}
    above = dict.fromkeys(nodes, 0)  # results in a row through which a gradient reaches each node
    if len(level) == 1:
        return (0,)
    for node, _number in level:
        above[node] = 1
    ready = [node for node in nodes if not waiting[node]]
    while ready:
        node = ready.pop()
        for edge in nodes[node]:
            following = edge[0]
            reached = above[node]
            if edge in level:
                level[edge] = max(level[edge], reached)
                reached = level[edge] + 1
            above[following] = max(above[following], reached)
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return tuple(level[out.grad_fn, out.output_nr] for out in results)


@contextlib.contextmanager
def _cut_at(
    results: Sequence[torch.Tensor], levels: Sequence[int], tangents: Sequence[torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """Context manager: a result's own incoming gradient stands for its whole gradient in what the backward computes of it.

    Yields:
        A list that holds the whole gradient of each result when the backward is over; empty if no result is computed
        from another one.
    """
    whole = list(tangents) if any(levels) else []

    def hook(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def replace(gradient: torch.Tensor) -> torch.Tensor:
            whole[number] = gradient
            return tangents[number]

        return replace

    handles: list[Any] = [out.register_hook(hook(i)) for i, out in enumerate(results) if levels[i]]  # type: ignore[no-untyped-call]
    try:
        yield whole
    finally:
        for handle in handles:
            handle.remove()


def _incoming(tracer: Any, results: Sequence[torch.Tensor], first: int) -> list[torch.Tensor]:
    """An incoming gradient for each result: fake tensors, placeholders that count on from the arguments."""
    body = next(node for node in tracer.graph.nodes if node.op != "placeholder")
    made = []
    for number, out in enumerate(results):
        gradient = new(tracer.fake_mode, out.shape, out, _strides(out))
        with tracer.graph.inserting_before(body):
            tracer.inputs.add_user(gradient, f"arg_{first + number}")
        made.append(gradient)
    return made


def _strides(out: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a result's incoming gradient; the node copies gradients with other strides.

    They are the result's own if it is dense and its sizes are constants, or if it has a memory format of torch; else
    row-major.
    """
    formats = {4: (torch.channels_last,), 5: (torch.channels_last_3d,)}.get(out.dim(), ())
    if out.is_contiguous() or any(out.is_contiguous(memory_format=each) for each in formats):
        return tuple(out.stride())
    if all(isinstance(number, int) for number in (*out.shape, *out.stride())):
        steps: Any = out.stride()
        order = sorted(range(out.dim()), key=lambda dim: -steps[dim])
        if out.permute(order).is_contiguous():
            return tuple(out.stride())
    strides: list[Any] = []
    reach: Any = 1
    for size in reversed(out.shape):
        strides.insert(0, reach)
        reach = reach * size
    return tuple(strides)
