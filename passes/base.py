"""The base class of passes (requires, run, lint, ensures), and the registry that users can extend."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._pytree import tree_leaves

from staticrt.errors import OptionError, PassError, StaticRuntimeError


@dataclass(frozen=True)
class Tolerance:
    """How far a pass may move results: |a - b| <= atol + rtol * |b|. `BITWISE` means not at all."""

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def bitwise(self) -> bool:
        return self.rtol == 0.0 and self.atol == 0.0


BITWISE = Tolerance()


@dataclass(frozen=True)
class PassResult:
    """The result of a pass.

    Attributes:
        gm: the graph module that was given, rewritten in place.
        changed: whether the graph differs now.
        count: how many places were rewritten.
    """

    gm: fx.GraphModule
    changed: bool
    count: int = 0


class GraphPass:
    """A rewrite of a graph that keeps its meaning. Holds options, never state between runs.

    A subclass sets `name`, maybe `tolerance`, and defines `run`; `requires` and `ensures` raise
    through `refuse`.
    """

    name: ClassVar[str] = ""
    # How far results may move: most passes not at all.
    tolerance: ClassVar[Tolerance] = BITWISE

    def requires(self, gm: fx.GraphModule) -> None:
        """Check what the pass expects of a graph. Default: ATen-level calls with metadata."""
        require_aten(self, gm)

    def run(self, gm: fx.GraphModule) -> PassResult:
        raise NotImplementedError

    def ensures(self, gm: fx.GraphModule) -> None:
        """Check what the pass promises of its result."""

    def refuse(self, message: str, *, at: fx.Node | None = None, fix: str | None = None) -> PassError:
        """An error that names this pass and the node, to be raised."""
        return PassError(f"pass {self.name!r}: {message}", at=describe(at) if at else None, fix=fix)

    def _broken(self, what: str, at: str | None = None) -> PassError:
        fix = f"leave it out with disabled={{{self.name!r}}} and report it"
        return PassError(f"pass {self.name!r} {what}", at=at, fix=fix)

    def __call__(self, gm: fx.GraphModule, *, recompile: bool = True) -> PassResult:
        """Run with all checks.

        Args:
            gm: rewritten in place.
            recompile: whether to recompile `gm`; a pipeline does so once, at its end.

        Raises:
            PassError: the graph is not what the pass requires, the pass failed, or left a graph that
                is malformed, lost metadata, changed its signature or broke what the pass ensures.
        """
        self.requires(gm)
        signature = _signature(gm)
        had_meta = _has_meta(gm)
        try:
            result = self.run(gm)
        except StaticRuntimeError:
            raise
        except Exception as error:
            raise self._broken(f"failed: {type(error).__name__}: {error}") from error
        if result.changed:
            self._check(gm, signature, had_meta)
            if recompile:
                gm.recompile()
        return result

    def _check(self, gm: fx.GraphModule, signature: tuple[list[str], int], had_meta: bool) -> None:
        try:
            gm.graph.lint()
        except RuntimeError as error:
            raise self._broken(f"left a malformed graph: {error}") from error
        after = _signature(gm)
        if after != signature:
            raise self._broken(f"changed the graph's signature: {signature} became {after}")
        if had_meta:
            for node in gm.graph.nodes:
                if node.op == "call_function" and "val" not in node.meta:
                    raise self._broken("left a node without metadata", describe(node))
        self.ensures(gm)


def require_aten(graph_pass: GraphPass, gm: fx.GraphModule) -> None:
    """Refuse graphs with calls that are neither operators nor plain functions of numbers."""
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        target = node.target
        if node.op != "call_function" or not (
            isinstance(target, (OpOverload, HigherOrderOperator))
            or target is operator.getitem
            or getattr(target, "__module__", "") in NUMBER_MODULES
        ):
            raise graph_pass.refuse(
                f"requires an ATen-level graph, found {node.op} of {target}",
                at=node,
                fix="trace with torch.export, or trace with make_fx",
            )


# Modules whose functions a traced graph applies to sizes and other numbers.
NUMBER_MODULES = frozenset(
    {"_operator", "math", "builtins", "torch", "torch.fx.experimental.symbolic_shapes"}
    | {"torch.utils._sympy.functions", "torch.fx.experimental.sym_node"}
)


def _signature(gm: fx.GraphModule) -> tuple[list[str], int]:
    inputs = [str(n.target) for n in gm.graph.find_nodes(op="placeholder")]
    return inputs, len(tree_leaves(output_args(gm)))


def _has_meta(gm: fx.GraphModule) -> bool:
    return all("val" in n.meta for n in gm.graph.nodes if n.op == "call_function")


def output_args(gm: fx.GraphModule) -> Any:
    """The structure that the graph returns."""
    return gm.graph.output_node().args[0]


def output_nodes(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes that the graph returns, in order, repeated if returned twice."""
    found: list[fx.Node] = []
    fx.map_arg(output_args(gm), found.append)
    return found


def describe(node: fx.Node) -> str:
    """The node as text, with the model line it comes from if known."""
    text = f"{node.name} = {node.target}" if node.op == "call_function" else f"{node.op} {node.name}"
    if node.op == "call_function":
        text += f"({', '.join([str(a) for a in node.args] + [f'{k}={v}' for k, v in node.kwargs.items()])})"
    line = source_line(node)
    return f"{text}   ({line})" if line else text


def source_line(node: fx.Node) -> str:
    """ "file.py:41" of the model line that made the node, or ""."""
    trace = node.meta.get("stack_trace") or ""
    for text in reversed(trace.splitlines()):
        text = text.strip()
        if text.startswith('File "'):
            file, _, rest = text[len('File "') :].partition('", line ')
            return f"{file.rpartition('/')[2]}:{rest.split(',')[0]}"
    return ""


_P = TypeVar("_P", bound=type[GraphPass])
_registered: dict[str, type[GraphPass]] = {}


def register_pass(cls: _P) -> _P:
    """Class decorator that makes a pass known by its name, for pipelines that users put together.

    Raises:
        OptionError: the pass has no name, or the name is taken.
    """
    if not cls.name:
        raise OptionError(f"cannot register pass {cls.__name__}: it has no name", fix='set name = "..."')
    if cls.name in _registered:
        raise OptionError(
            f"pass {cls.name!r} is registered twice: {_registered[cls.name]} and {cls}",
            fix="give it another name",
        )
    _registered[cls.name] = cls
    return cls


def registered_passes() -> dict[str, type[GraphPass]]:
    """Every registered pass by name, in order of registration."""
    return dict(_registered)


def tensor_meta(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node, or None if it is not a node or has no tensor value."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def each_node(gm: fx.GraphModule, targets: Iterable[Callable[..., Any]]) -> Iterator[fx.Node]:
    """Calls of any of `targets`, in graph order. The list is taken first: nodes may be erased meanwhile."""
    wanted = set(targets)
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in wanted]
    yield from found
