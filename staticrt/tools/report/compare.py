"""`compiled.compare(*args)`: where compiled results differ from eager ones, and at which node first.

    eager model ── traced graph ── after passes ── the runtime's program
                 1               2                3

Each arrow is checked on its own: the traced graph is run operator by operator against the model, the graph
after passes against the traced one, and the runtime's values against the graph's, node by node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from staticrt.errors import InputError
from staticrt.executor.executor import Executor
from staticrt.frontend.arguments.names import leaf_paths
from staticrt.frontend.arguments.structure import Flattener
from staticrt.lowering.lower import lower, model_line
from staticrt.memory import html
from staticrt.native import _C
from staticrt.options import parse_options
from staticrt.passes.pipeline import run_pipeline
from staticrt.runtime.cached_trace import CachedTrace


@dataclasses.dataclass(frozen=True)
class NodeDifference:
    """A value that differs.

    Args:
        name, op, where: its node.
        what: by how much, as `torch.testing.assert_close` says it.
    """

    name: str
    op: str
    where: str
    what: str

    def __str__(self) -> str:
        place = f"   ({self.where})" if self.where else ""
        return f"{self.name} = {self.op}{place}: {self.what}"


@dataclasses.dataclass(frozen=True)
class CompareReport:
    """What `compare` found.

    Args:
        ok: compiled results equal eager's within tolerance.
        stage: "" if ok; else where they begin to differ: "trace", "passes", "runtime", or "call" (stages agree when run one by
            one: state between calls, or memory planning).
        difference: how the results differ.
        first: the first node that differs, where one was found.
        checked: nodes compared in the runtime stage.
    """

    ok: bool
    stage: str
    difference: str = ""
    first: NodeDifference | None = None
    checked: int = 0

    def __str__(self) -> str:
        if self.ok:
            return f"compiled equals eager; {self.checked} nodes compared"
        lines = [f"compiled differs from eager: {self.difference}", f"  stage: {_STAGES[self.stage]}"]
        if self.first is not None:
            lines.append(f"  first node off: {self.first}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        if self.ok:
            return html.title(str(self))
        rows: list[list[Any]] = [
            ["stage", _STAGES[self.stage]],
            ["difference", self.difference],
            ["nodes compared", self.checked],
        ]
        if self.first is not None:
            rows += [["first node off", f"{self.first.name} = {self.first.op}"], ["line", self.first.where],
                     ["how far off", self.first.what]]  # fmt: skip
        return html.title("compiled differs from eager") + html.table(rows, ["", ""])


_STAGES = {
    "trace": "the traced graph is not the model",
    "passes": "a graph pass changed the results",
    "runtime": "the runtime computes a node differently",
    "call": "each stage alone agrees: state kept between calls, or memory planning",
}


class _State:
    """A model's tensors and the random state, put back before each run, so that every run starts alike."""

    def __init__(self, function: Callable[..., Any]) -> None:
        tensors: list[torch.Tensor] = []
        if isinstance(function, torch.nn.Module):
            tensors = [*function.parameters(), *function.buffers()]
        self._saved = [(t, t.detach().clone()) for t in tensors]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, value in self._saved:
                tensor.copy_(value)
        torch.set_rng_state(self._random)


def compare(
    executor: Executor,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> CompareReport:
    """Compare compiled with eager on these arguments. Neither they nor the model's state are changed.

    Raises:
        InputError: only one of rtol and atol is given.
    """
    if (rtol is None) != (atol is None):
        raise InputError("rtol and atol are given together or not at all")

    def off(got: Any, want: Any) -> str:
        return difference(got, want, rtol, atol, check_device=False)

    state = _State(executor.function)

    def run(function: Callable[..., Any]) -> Any:
        state.restore()
        own_args, own_kwargs = copied((tuple(args), kwargs))
        with torch.no_grad():
            return copied((function(*own_args, **own_kwargs), own_args, own_kwargs))

    try:
        want = run(executor.function)
        # Twice: the first call may run the general path, later ones what it prepared.
        parted = off(run(executor.fast.call), want) or off(run(executor.fast.call), want)
        with torch.no_grad():
            traced = executor.find(tuple(args), kwargs) is not None
        if not traced:
            return CompareReport(not parted, "call" if parted else "", parted)
        stages = _stages(executor, run, off, want, copied((tuple(args), kwargs)), state)
        return _verdict(stages, parted)
    finally:
        state.restore()


def difference(
    got: Any, want: Any, rtol: float | None, atol: float | None, *, check_device: bool = True
) -> str:
    """How a result differs from another, "" where it does not.

    Tensors and numbers are compared within the tolerance, other leaves (strings, dtypes and the like) by `==`.
    """
    one, other = pytree.tree_structure(got), pytree.tree_structure(want)
    if one != other:
        return f"structure {one} instead of {other}"
    for (path, mine), (_path, its) in zip(leaf_paths(got), leaf_paths(want), strict=True):
        place = f"{path}: " if path else ""
        if all(isinstance(leaf, (torch.Tensor, int, float, complex)) for leaf in (mine, its)):
            try:
                torch.testing.assert_close(
                    mine, its, rtol=rtol, atol=atol, equal_nan=True, check_device=check_device
                )
            except AssertionError as error:
                return place + " ".join(str(error).split())
        elif type(mine) is not type(its) or not _same(mine, its):
            return f"{place}{mine!r} instead of {its!r}"
    return ""


def _same(value: Any, right: Any) -> bool:
    try:
        return bool(value == right)
    except Exception:  # an object that cannot be compared, for example because it holds tensors
        return True


def _verdict(stages: Iterator[tuple[str, str, NodeDifference | None, int]], parted: str) -> CompareReport:
    checked = 0
    for stage, what, first, count in stages:
        checked = max(checked, count)
        if what and parted:
            return CompareReport(False, stage, parted, first, checked)
    return CompareReport(not parted, "call" if parted else "", parted, None, checked)


def _stages(
    executor: Executor,
    run: Callable[[Callable[..., Any]], Any],
    off: Callable[[Any, Any], str],
    want: Any,
    call: tuple[Any, Any],
    state: _State,
) -> Iterator[tuple[str, str, NodeDifference | None, int]]:
    plain = Executor(
        executor.function,
        parse_options({"passes": False, "executor": "reference", "dynamic": executor.options.dynamic}),
        executor.name,
    )
    yield "trace", off(run(plain), want), None, 0
    with torch.no_grad():
        traced = plain.find(*call)
    if traced is None:
        return
    flat = _flat_inputs(traced, call)
    before = _values(traced.traced.module, flat, state)
    graph = traced.traced.module
    results = graph.graph.find_nodes(op="output")[0].all_input_nodes
    wanted = [before[n.name] for n in results if n.name in before]
    run_pipeline(graph)
    after = _values(graph, flat, state)
    results = graph.graph.find_nodes(op="output")[0].all_input_nodes
    got = [after[n.name] for n in results if n.name in after]
    yield "passes", off(got, wanted), _first_off(graph, after, before, off), 0
    exposed = _runtime_values(graph, flat, state)
    first = _first_off(graph, exposed, after, off)
    yield "runtime", str(first) if first else "", first, len(exposed)


def _flat_inputs(trace: CachedTrace, call: tuple[Any, Any]) -> list[Any]:
    flattener = Flattener()
    flattener.flatten(call)
    return trace.inputs(flattener.leaves)


def copied(value: Any) -> Any:
    """A copy of arguments with cloned tensors, for models that write into their arguments."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), value)


class _Recording(fx.Interpreter):
    """Runs a graph operator by operator and keeps what every node made."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor):
            self.values[n.name] = result.clone()
        return result


def _values(module: fx.GraphModule, flat: Sequence[Any], state: _State) -> dict[str, Any]:
    """Name of each node that makes a tensor -> the tensor, on copies of the inputs."""
    state.restore()
    recording = _Recording(module)
    with torch.no_grad():
        recording.run(*copied(list(flat)))
    return recording.values


def _tensor_nodes(module: fx.GraphModule) -> list[fx.Node]:
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor)
    ]


def _runtime_values(module: fx.GraphModule, flat: Sequence[Any], state: _State) -> dict[str, Any]:
    """The same from the C++ runtime, prepared: every tensor is an output of a copy of the program."""
    written = {
        node.args[0]
        for node in module.graph.nodes
        if "copy_" in str(node.target) and node.op == "call_function"
    }
    nodes = [
        node for node in _tensor_nodes(module) if node not in written and "copy_" not in str(node.target)
    ]
    copy = fx.GraphModule(module, module.graph)
    copy.graph = fx.Graph()
    mapping: dict[fx.Node, fx.Node] = {}
    copy.graph.graph_copy(module.graph, mapping)
    copy.graph.output(tuple(mapping[node] for node in nodes))
    executable = _C.Executable(lower(copy).program)
    values: list[Any] = []
    for _ in range(2):  # recorded, then prepared
        state.restore()
        with torch.no_grad():
            values = executable.run(copied(list(flat)))
    return {node.name: value for node, value in zip(nodes, values, strict=True)}


def _first_off(
    module: fx.GraphModule, got: dict[str, Any], want: dict[str, Any], off: Callable[[Any, Any], str]
) -> NodeDifference | None:
    for node in _tensor_nodes(module):
        if node.name in got and node.name in want and (what := off(got[node.name], want[node.name])):
            return NodeDifference(node.name, str(node.target), model_line(node), what)
    return None
