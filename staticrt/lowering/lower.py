"""Lowers a functional ATen graph to a C++ `Program`.

Lowering leaves all decisions to the run: nodes keep their order, numbers that depend on sizes stay nodes,
and every argument is stored by schema position, defaults included.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import math
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from staticrt.errors import LoweringError
from staticrt.native import _C
from staticrt.ops import facts_of_call

# Python functions of numbers, which graphs with symbolic sizes call -> C++ kernel.
_NUMBER_OPS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.truediv: "truediv",
    operator.mod: "mod",
    operator.pow: "pow",
    operator.neg: "neg",
    operator.pos: "pos",
    operator.abs: "abs",
    operator.eq: "eq",
    operator.ne: "ne",
    operator.lt: "lt",
    operator.le: "le",
    operator.gt: "gt",
    operator.ge: "ge",
    operator.and_: "and",
    operator.or_: "or",
    operator.xor: "xor",
    operator.not_: "not",
    operator.lshift: "lshift",
    operator.rshift: "rshift",
    builtins.min: "min",
    builtins.max: "max",
    builtins.abs: "abs",
    builtins.int: "int",
    builtins.float: "float",
    builtins.bool: "bool",
    builtins.round: "round",
    math.ceil: "ceil",
    math.floor: "floor",
    math.trunc: "trunc",
    math.sqrt: "sqrt",
    torch.sym_min: "min",
    torch.sym_max: "max",
    torch.sym_not: "not",
    torch.sym_ite: "ite",
    torch.sym_int: "int",
    torch.sym_float: "float",
    torch.sym_sum: "sum",
}

_CONTROL_FLOW: dict[str, str] = {
    "cond": "srt::cond",
    "while_loop": "srt::while_loop",
    "scan": "srt::scan",
    "map_impl": "srt::map",
}


def model_line(node: fx.Node) -> str:
    """The user's line a node comes from, "file.py:41", or "" if the graph does not know."""
    return _line_of(node.meta.get("stack_trace") or "")


def layer(node: fx.Node) -> str:
    """The path of the layer that a node comes from, "layers.0.norm", or "" if the graph does not know."""
    stack = node.meta.get("nn_module_stack")
    path, _kind = next(reversed(stack.values())) if stack else ("", None)
    return _path_of(path)


@functools.lru_cache(maxsize=1024)
def _path_of(path: str) -> str:
    """A path as Dynamo writes it, "L['self']._modules['layers']['0']", as in `named_modules`."""
    if not path.startswith("L["):
        return path
    parts = re.findall(r"\['?([^'\]]+)'?\]|\.?(\w+)", path)[1:]
    words = [quoted or plain for quoted, plain in parts]
    return ".".join(word for word in words[1:] if word != "_modules")


_TORCH_FOLDER = str(Path(torch.__file__).parent)


@functools.lru_cache(maxsize=1024)
def _line_of(trace: str) -> str:
    for path, line in reversed(re.findall(r'File "([^"]+)", line (\d+)', trace)):
        if not path.startswith(_TORCH_FOLDER):
            return f"{Path(path).name}:{line}"
    return ""


def listing(graph: fx.Graph) -> str:
    """One line per node, with its layer and model line, for logs."""
    lines = []
    for node in graph.nodes:
        places = [f"layer {layer(node)}" if layer(node) else "", model_line(node)]
        comment = ", ".join(filter(None, places))
        lines.append(f"{node.format_node()}{'   # ' if comment else ''}{comment}")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program and where the graph's results are.

    Args:
        program: its outputs are the graph's outputs that are nodes, in order.
        outputs: per flat output of the graph, ("tensor", index of the program's output) or
            ("constant", Python object).
    """

    program: _C.Program
    outputs: tuple[tuple[str, Any], ...]


def lower(graph_module: fx.GraphModule) -> Lowered:
    """Lower a functional ATen graph.

    Args:
        graph_module: placeholders become the program's inputs in order; every node that makes a tensor
            has fake-tensor `meta["val"]`; the output is a flat tuple of nodes and constants.

    Raises:
        LoweringError: a Program cannot express some node.
    """
    return _Lowering(graph_module).run()


class _Lowering:
    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.module = graph_module
        self.builder = _C.ProgramBuilder()
        # A node's value, or the list of them for a node with several results.
        self.values: dict[fx.Node, Any] = {}
        self.layout: tuple[tuple[str, Any], ...] = ()

    def run(self) -> Lowered:
        for node in self.module.graph.nodes:
            try:
                getattr(self, f"_{node.op}")(node)
            except LoweringError:
                raise
            except Exception as error:
                raise LoweringError(
                    f"cannot lower {node.format_node()}: {error}", at=model_line(node) or node.name
                ) from error
        return Lowered(self.builder.build(), self.layout)

    def _placeholder(self, node: fx.Node) -> None:
        self.values[node] = self.builder.input(_info(node.name, node.meta.get("val")))

    def _get_attr(self, node: fx.Node) -> None:
        value = operator.attrgetter(str(node.target))(self.module)
        if isinstance(
            value, (fx.GraphModule, torch.ScriptObject)
        ):  # a body; an argument of its schema's class
            self.values[node] = value
        else:
            self.values[node] = self.builder.constant(value, node.name)

    def _output(self, node: fx.Node) -> None:
        outputs = node.args[0]
        flat = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        nodes = [item for item in flat if isinstance(item, fx.Node)]
        positions = iter(range(len(nodes)))
        self.layout = tuple(
            ("tensor", next(positions)) if isinstance(item, fx.Node) else ("constant", item) for item in flat
        )
        self.builder.outputs([self.values[item] for item in nodes])

    def _call_function(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is operator.getitem and isinstance(self.values.get(node.args[0]), list):  # type: ignore[arg-type]
            source, index = node.args
            assert isinstance(source, fx.Node)
            assert isinstance(index, int)
            self.values[node] = self.values[source][index]
        elif isinstance(target, torch._ops.OpOverload):
            self._operator(node, target)
        elif isinstance(target, torch._ops.HigherOrderOperator):
            self._higher_order(node, str(target.name()))  # type: ignore[no-untyped-call]
        elif target in _NUMBER_OPS or target is operator.getitem:
            op = "srt::getitem" if target is operator.getitem else f"sym::{_NUMBER_OPS[target]}"
            self._emit(node, op, [self._argument(a) for a in node.args])
        else:
            raise LoweringError(
                f"no kernel for the Python function {target!r}",
                at=model_line(node) or node.name,
                fix="register an operator for it with torch.library, or leave the module part eager",
            )

    def _operator(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        numbers = _number_positions(node, target._schema)
        if len(numbers) == 1 and (overload := _scalar_overload(target, numbers[0])) is not None:
            target, numbers = overload, []
        args = []
        for position, argument in enumerate(target._schema.arguments):
            if position < len(node.args) and not argument.kwarg_only:
                value = node.args[position]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif argument.has_default_value():
                value = argument.default_value
            else:
                raise LoweringError(f"{target} lacks argument {argument.name!r}", at=node.name)
            args.append(self._number_tensor(node, value) if position in numbers else self._argument(value))
        name = target._schema.name + (f".{target._overloadname}" if target._overloadname != "default" else "")
        self._emit(node, name, args, **_facts(node, target))

    def _number_tensor(self, node: fx.Node, value: Any) -> Any:
        """A number that stands where `node` takes a tensor, as the tensor of no dimensions that torch makes of it."""
        number = value.meta["val"] if isinstance(value, fx.Node) else value
        beside = [a.meta.get("val") for a in node.args if isinstance(a, fx.Node)]
        dtype = _promoted(number, [t for t in beside if isinstance(t, torch.Tensor)])
        name = f"{node.name}.number"
        if not isinstance(value, fx.Node):
            return self.builder.constant(torch.tensor(number, dtype=dtype), name)
        lists: dict[str, Any] = {"written_args": [], "aliases": [], "bodies": []}
        facts = {
            "name": name,
            "where": model_line(node),
            "module": layer(node),
            "unpacks_list": False,
            "has_effects": False,
            **lists,
        }
        info = (name, dtype, torch.device("cpu"))
        args = [self.values[value], dtype, None, None, None]
        return self.builder.node("aten::scalar_tensor", args, [info], facts)[0]

    def _higher_order(self, node: fx.Node, name: str) -> None:
        op = _CONTROL_FLOW.get(name)
        if op is None:
            raise LoweringError(
                f"higher-order operator {name!r} is not supported", at=model_line(node) or node.name
            )
        bodies, args = [], []
        for argument in node.args:
            body = self.values.get(argument) if isinstance(argument, fx.Node) else None
            if isinstance(body, fx.GraphModule):
                lowered = lower(body)
                if any(kind == "constant" for kind, _ in lowered.outputs):
                    raise LoweringError(
                        f"a branch of {name!r} returns a constant", at=model_line(node) or node.name
                    )
                bodies.append(lowered.program)
            else:
                args.append(self._argument(argument))
        outputs = node.meta["val"]
        self._emit(
            node,
            op,
            args,
            bodies=bodies,
            results=list(outputs) if isinstance(outputs, (tuple, list)) else None,
        )

    def _argument(self, value: Any) -> Any:
        """Nodes replaced by their values, in one argument of a node."""
        if isinstance(value, fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        if isinstance(value, slice):
            raise LoweringError(f"a slice object is not an operator argument: {value}")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise LoweringError(f"symbolic number {value} is not a node of the graph")
        return value

    def _emit(
        self,
        node: fx.Node,
        op: str,
        args: Sequence[Any],
        *,
        aliases: Sequence[tuple[int, int, bool]] = (),
        written_args: Sequence[int] = (),
        has_effects: bool = False,
        returns_list: bool = False,
        bodies: Sequence[_C.Program] = (),
        results: list[Any] | None = None,
    ) -> None:
        val = node.meta.get("val")
        many = isinstance(val, (tuple, list))
        parts: list[Any] = list(val) if isinstance(val, (tuple, list)) else [val]
        infos = [_info(f"{node.name}.{i}" if many else node.name, part) for i, part in enumerate(parts)]
        if node.target in _WITH_STATISTICS:
            infos[1:3] = [(name, _statistics_dtype(node), device) for name, _dtype, device in infos[1:3]]
        if val is None and not node.users:
            infos = []
        facts = {
            "name": node.name,
            "where": model_line(node),
            "module": layer(node),
            "unpacks_list": returns_list and many,
            "has_effects": has_effects,
            "written_args": list(written_args),
            "aliases": [
                (i, a, may) for out, a, may in aliases for i in (range(len(infos)) if returns_list else [out])
            ],
            "bodies": list(bodies),
        }
        refs = self.builder.node(op, list(args), infos, facts)
        self.values[node] = refs if many else (refs[0] if refs else None)


def _number_positions(node: fx.Node, schema: Any) -> list[int]:
    """Positions of arguments that are numbers where the schema has tensors: `torch.mul(2, x)`, `x // 3`."""
    found = []
    for position, (value, argument) in enumerate(zip(node.args, schema.arguments, strict=False)):
        given = value.meta.get("val") if isinstance(value, fx.Node) else value
        if str(argument.type) == "Tensor" and given is not None and not isinstance(given, torch.Tensor):
            found.append(position)
    return found


def _scalar_overload(target: torch._ops.OpOverload, position: int) -> torch._ops.OpOverload | None:
    """The overload that takes a number at this position: `add.Tensor(x, 2)` is `add.Scalar(x, 2)`, since the number
    would not take part in type promotion either way."""
    name = target._overloadname.replace("Tensor", "Scalar").replace("default", "Scalar")
    if name == target._overloadname or not hasattr(target._overloadpacket, name):
        return None
    found: torch._ops.OpOverload = getattr(target._overloadpacket, name)
    arguments = found._schema.arguments
    return found if position < len(arguments) and str(arguments[position].type) == "number" else None


def _promoted(number: Any, tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype in which torch computes with `number` beside tensors."""
    for kind, plain in ((torch.SymInt, 1), (torch.SymFloat, 1.0), (torch.SymBool, True)):
        number = plain if isinstance(number, kind) else number
    dtype = torch.result_type(tensors[0], number) if tensors else torch.tensor(number).dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, torch.result_type(tensor, number))
    return dtype


def _info(name: str, val: Any) -> tuple[str, torch.dtype | None, torch.device | None]:
    if isinstance(val, torch.Tensor):
        return (name, val.dtype, val.device)
    return (name, None, None)


# The second and third results are statistics. torch's rules for fake tensors give them the dtype of the input, its
# kernels for the CPU that of the parameters, where these differ (autocast).
_WITH_STATISTICS = {
    torch.ops.aten.native_layer_norm.default: (2, 3),
    torch.ops.aten.native_group_norm.default: (1, 2),
    torch.ops.aten._native_batch_norm_legit_no_training.default: (1, 2, 3, 4),
}


def _statistics_dtype(node: fx.Node) -> torch.dtype:
    """The dtype that torch's CPU kernel gives the statistics of a norm."""
    parameters = [node.args[i] for i in _WITH_STATISTICS[node.target] if i < len(node.args)]  # type: ignore[index]
    given = [item.meta["val"] for item in [*parameters, node.args[0]] if isinstance(item, fx.Node)]
    dtype: torch.dtype = given[0].dtype
    return dtype


def _facts(node: fx.Node, target: torch._ops.OpOverload) -> dict[str, Any]:
    """What a Program keeps of the op's facts: aliases, written arguments, effects, list results."""
    known = facts_of_call(target, node.args, node.kwargs)
    schema = target._schema
    return {
        "aliases": [(alias.output, alias.arg, alias.may) for alias in known.aliases],
        "written_args": known.mutates,
        "has_effects": bool(known.mutates) or known.random or not schema.returns,
        "returns_list": len(schema.returns) == 1 and str(schema.returns[0].type) == "List[Tensor]",
    }
