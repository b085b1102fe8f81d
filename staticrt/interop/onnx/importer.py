"""Imports the protobuf messages of a model as a `Program`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from staticrt.errors import OnnxError
from staticrt.interop.onnx import operators, registry
from staticrt.interop.onnx.functions import FunctionBodies
from staticrt.interop.onnx.hosts import needed_numbers
from staticrt.interop.onnx.numbers import MAX_NUMBERS, Numbers, objects
from staticrt.interop.onnx.ordering import in_order
from staticrt.interop.onnx.program import FunctionBody, Program, Scope, Step, function_operator
from staticrt.interop.onnx.registry import Call, Operator
from staticrt.interop.onnx.strings import Strings, Vocabulary
from staticrt.interop.onnx.types import DTYPES, SMALL, to_tensor, type_name

_DOMAINS = {"ai.onnx": ""}
_MAX_DEPTH = 64
# Operators that take weights of 2 and 4 bits; those that hand them on.
_TAKE_SMALL = frozenset({"DequantizeLinear", "GatherBlockQuantized", "MatMulNBits"})
_PASS_SMALL = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze"})
_DROPPED = frozenset({"consumed_inputs"})  # of operator set 1, a hint


class Importer:
    """Imports one model.

    Args:
        model: checked by the caller as far as `onnx` can.
        name: for messages.
        base_dir: where its external data may lie; "" for nowhere.
    """

    def __init__(self, model: ModelProto, name: str, base_dir: str) -> None:
        self.model = model
        self.name = name
        self.base_dir = base_dir
        self.tensors: list[tuple[str, str, torch.Tensor]] = []  # kind, name, value
        self.vocabulary = Vocabulary()
        self.bodies = FunctionBodies(model)
        self._unsupported: list[str] = []
        self._small: dict[str, str] = {}  # tensors of 2 and 4 bits: name -> type
        self._depth = 0
        self._number = 0

    def run(self) -> Program:
        """The main graph.

        Raises:
            OnnxError: operators without a builder, all of them named; a damaged model.
        """
        program = self.graph(self.model.graph, versions(self.model.opset_import, self.name))
        if self._unsupported:
            lines = list(dict.fromkeys(self._unsupported))
            raise OnnxError(
                f"{self.name} needs {len(lines)} operator(s) that are not supported: {'; '.join(lines[:20])}",
                fix="write the operators as model-local functions, or export the model with other ones",
            )
        return program

    def graph(self, graph: GraphProto, opsets: Mapping[str, int]) -> Program:
        """A graph or sub-graph."""
        constants: dict[str, Numbers | Strings | int] = {}
        for tensor in graph.initializer:
            if tensor.data_type in SMALL:
                self._small[tensor.name] = type_name(tensor.data_type)
            value = self._tensor(tensor)
            constants[tensor.name] = (
                value if isinstance(value, Strings) else self._initializer(tensor.name, value)
            )
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = self._initializer(sparse.values.name, self._dense(sparse))
        # Before IR version 4 initializers are listed as inputs, too; a caller need not give those.
        inputs = tuple(value.name for value in graph.input if value.name not in constants)
        outputs = tuple(value.name for value in graph.output)
        program = self._program(graph.name, inputs, outputs, graph.node, opsets, constants, {})
        program.rows.update(_rows(graph))
        return program

    def function(self, proto: FunctionProto, node: NodeProto, opsets: Mapping[str, int]) -> Operator:
        """A function as an operator, with the attributes of one call."""
        given = {a.name: a for a in proto.attribute_proto}
        given.update({a.name: a for a in node.attribute})
        inner = {**opsets, **versions(proto.opset_import, proto.name)}
        program = self._program(
            proto.name, tuple(proto.input), tuple(proto.output), proto.node, inner, {}, given
        )
        return function_operator(node.op_type, node.domain, program)

    def _program(
        self,
        name: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        nodes: Sequence[NodeProto],
        opsets: Mapping[str, int],
        constants: dict[str, Numbers | Strings | int],
        bound: Mapping[str, AttributeProto],
    ) -> Program:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise OnnxError(
                f"{self.name}: graphs or functions are nested more than {_MAX_DEPTH} deep", at=name
            )
        steps: list[Step] = []
        for node in in_order(nodes, self.name):
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                (output,) = node.output
                for attribute in node.attribute:
                    if attribute.t.data_type in SMALL:
                        self._small[output] = type_name(attribute.t.data_type)
                constants[output] = self._constant(node, bound)
                continue
            step = self._step(node, opsets, bound)
            if step is None:
                continue
            if not self._fold(step, constants):
                steps.append(step)
        self._depth -= 1
        free = _liveness(steps, inputs, outputs, constants)
        program = Program(name, inputs, outputs, tuple(steps), constants, free)
        self._as_numbers(constants, needed_numbers(program))
        return program

    def _as_numbers(self, constants: dict[str, Numbers | Strings | int], needed: set[str]) -> None:
        """Whether an input (such as a scale) is structure even if it is an initializer."""
        for name in sorted(needed & constants.keys()):
            index = constants[name]
            if not isinstance(index, int):
                continue
            value = self.tensors[index][2]
            if value.dim() <= 1 and value.numel() <= MAX_NUMBERS and not value.is_complex():
                constants[name] = Numbers(
                    objects(value.reshape(-1).tolist(), tuple(value.shape)), value.dtype
                )
                self.tensors[index] = ("structure", *self.tensors[index][1:])

    def _step(
        self, node: NodeProto, opsets: Mapping[str, int], bound: Mapping[str, AttributeProto]
    ) -> Step | None:
        self._number += 1
        domain = _DOMAINS.get(node.domain, node.domain)
        label = f"{node.op_type} {node.name or ', '.join(node.output)!r}"
        operator = self._operator(node, domain, opsets, label)
        if operator is None:
            return None
        self._check_small(node, domain, label)
        attributes: dict[str, Any] = {}
        if not isinstance(operator.function, FunctionBody):  # a body has its attributes bound already
            for attribute in node.attribute:
                if attribute.name not in _DROPPED:
                    found = bound.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
                    if found is not None:
                        attributes[attribute.name] = self._attribute(found, opsets, label)
            self._check_attributes(operator, attributes, label)
            attributes = self._prepared(operator, attributes, label)
        inputs = tuple(node.input)
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        first = enumerate(inputs[: operator.required])
        given = sum(1 for index, name in first if name or index in operator.omittable)
        if given < operator.required or (operator.rest is None and len(inputs) > len(operator.kinds)):
            raise OnnxError(
                f"{node.op_type} takes {operator.required} to {len(operator.kinds)} inputs, got {len(inputs)}",
                at=f"{label} of {self.name}",
                fix="the model is invalid; export it again",
            )
        outputs = tuple(node.output)
        text = f"{', '.join(filter(None, outputs))} = {node.op_type}({', '.join(inputs)})"
        location = (self.name, self._number, node.op_type, _printable(text))
        return Step(operator, label, location, inputs, outputs, attributes, opsets.get(domain, 1))

    def _operator(
        self, node: NodeProto, domain: str, opsets: Mapping[str, int], label: str
    ) -> Operator | None:
        version = opsets.get(domain)
        proto = self.bodies.local(node)
        if proto is None:
            if version is None:
                raise OnnxError(
                    f"the model does not import operator set {domain or 'ai.onnx'!r}", at=f"{label} of {self.name}",
                    fix="the model is invalid; export it again",
                )  # fmt: skip
            operators.load()
            found = registry.find(domain, node.op_type, version)
            if found is not None:
                return found
            proto = self.bodies.of_schema(node, domain, version)
        if proto is None:
            what = f"{domain + '.' if domain else ''}{node.op_type} (opset {version}) at {label}"
            self._unsupported.append(what)
            return None
        return self.function(proto, node, opsets)

    def _check_small(self, node: NodeProto, domain: str, label: str) -> None:
        """Raise OnnxError for operators that would treat a tensor of 2 or 4 bits as bytes."""
        found = [name for name in node.input if name in self._small]
        if not found or (node.op_type in _TAKE_SMALL):
            return
        if node.op_type in _PASS_SMALL and not domain:
            self._small.update(dict.fromkeys(node.output, self._small[found[0]]))
            return
        raise OnnxError(
            f"{node.op_type} of the {self._small[found[0]]} tensor {found[0]!r} is not supported",
            at=f"{label} of {self.name}",
            fix="tensors of this type are taken by DequantizeLinear only",
        )

    def _check_attributes(self, operator: Operator, attributes: dict[str, Any], label: str) -> None:
        unknown = sorted(attributes.keys() - operator.attributes)
        if unknown:
            known = ", ".join(sorted(operator.attributes)) or "none"
            raise OnnxError(
                f"{operator.name} has no attribute {unknown[0]!r}; it has {known}",
                at=f"{label} of {self.name}",
                fix="the model is invalid, or newer than this version of staticrt knows",
            )

    def _prepared(self, operator: Operator, attributes: dict[str, Any], label: str) -> dict[str, Any]:
        """Attributes as the builder expects them. Errors name the node."""
        at = f"{label} of {self.name}"
        try:
            return operator.prepared(self.vocabulary, attributes)
        except OnnxError as error:
            raise OnnxError(error.message, at=error.at or at, fix=error.fix) from error
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            raise OnnxError(
                f"attributes of {operator.name} are missing, or do not fit each other: {error}",
                at=at,
                fix="the model is invalid; export it again",
            ) from error

    def _tensor(self, proto: onnx.TensorProto, at: object = None) -> torch.Tensor | Strings:
        if proto.data_type != onnx.TensorProto.STRING:
            return to_tensor(proto, self.base_dir, at)
        texts = [text.decode(errors="replace") for text in proto.string_data]
        if len(texts) != math.prod(proto.dims):
            raise OnnxError(
                f"tensor {proto.name!r} has {len(texts)} strings for the shape {list(proto.dims)}", at=at
            )
        return Strings(self.vocabulary.codes(texts, proto.dims))

    def _attribute(self, attribute: AttributeProto, opsets: Mapping[str, int], label: str) -> Any:
        kind = attribute.type
        if kind == AttributeProto.GRAPH:
            return self.graph(attribute.g, opsets)
        if kind == AttributeProto.TENSOR:
            return self._tensor(attribute.t, label)
        if kind == AttributeProto.STRING:
            return attribute.s.decode(errors="replace")
        if kind == AttributeProto.STRINGS:
            return tuple(item.decode(errors="replace") for item in attribute.strings)
        if kind in (AttributeProto.FLOAT, AttributeProto.INT):
            return onnx.helper.get_attribute_value(attribute)
        if kind in (AttributeProto.FLOATS, AttributeProto.INTS):
            return tuple(onnx.helper.get_attribute_value(attribute))
        if kind == AttributeProto.TYPE_PROTO:
            return attribute.tp
        raise OnnxError(
            f"attribute {attribute.name!r} of type {kind} is not supported", at=f"{label} of {self.name}"
        )

    # -- constants ---------------------------------------------------------------------------------------------

    def _constant(self, node: NodeProto, bound: Mapping[str, AttributeProto]) -> Numbers | Strings | int:
        label = f"Constant {node.output[0]!r}"
        if len(node.attribute) != 1:
            raise OnnxError(
                f"a Constant has one value, got {len(node.attribute)}", at=f"{label} of {self.name}"
            )
        (attribute,) = node.attribute
        if attribute.ref_attr_name:
            attribute = bound.get(attribute.ref_attr_name, attribute)
        name = node.attribute[0].name
        if name == "sparse_value":
            return self._initializer(node.output[0], self._dense(attribute.sparse_tensor), structural=True)
        value = self._attribute(attribute, {}, label)
        if name.startswith("value_string"):
            return Strings(self.vocabulary.codes([value] if isinstance(value, str) else value, None))
        if isinstance(value, Strings):
            return value
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(
                value, dtype=torch.float32 if name.startswith("value_float") else torch.int64
            )
        return self._initializer(node.output[0], value, structural=True)

    def _initializer(self, name: str, value: torch.Tensor, structural: bool = False) -> Numbers | int:
        """Whether a constant is structure: small integers, single numbers and constants in the graph. Others are state of the
        module. Exporters write epsilons, exponents and factors as scalars, and passes match patterns by their values."""
        whole = not value.is_floating_point() and not value.is_complex()
        structural = structural or (value.dim() == 0 and not value.is_complex())
        if value.dim() <= 1 and (whole or structural) and value.numel() <= (MAX_NUMBERS if whole else 16):
            return Numbers(objects(value.reshape(-1).tolist(), tuple(value.shape)), value.dtype)
        self.tensors.append(("buffer" if whole else "parameter", name, value))
        return len(self.tensors) - 1

    def _dense(self, sparse: onnx.SparseTensorProto) -> torch.Tensor:
        values, indices = to_tensor(sparse.values, self.base_dir), to_tensor(sparse.indices, self.base_dir)
        dims = list(sparse.dims)
        flat = torch.zeros(int(torch.tensor(dims).prod()), dtype=values.dtype)
        if indices.dim() == 2:
            strides = torch.tensor([int(torch.tensor(dims[i + 1 :]).prod()) for i in range(len(dims))])
            indices = (indices * strides).sum(1)
        if indices.numel() != values.numel() or (
            len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(flat)
        ):
            raise OnnxError(
                f"sparse tensor {sparse.values.name!r} has indices outside of its shape", at=self.name
            )
        flat[indices] = values
        return flat.reshape(dims)

    def _fold(self, step: Step, constants: dict[str, Numbers | Strings | int]) -> bool:
        """Compute a step now if it depends on structure alone, not on the module's state."""
        if not step.operator.pure or any(isinstance(v, Program) for v in step.attributes.values()):
            return False
        inputs = [constants.get(name) if name else None for name in step.inputs]
        if any(
            name and not isinstance(value, Numbers) for name, value in zip(step.inputs, inputs, strict=True)
        ):
            return False
        try:
            found = step.operator.run(inputs, step.attributes, Call(step.opset, step.outputs, Scope(())))
        except Exception:  # raises again when the model runs
            return False
        found = found if isinstance(found, tuple) else (found,)
        if len(found) < len(step.outputs) or not all(isinstance(v, (Numbers, torch.Tensor)) for v in found):
            return False
        if any(isinstance(v, torch.Tensor) and v.numel() > MAX_NUMBERS for v in found):
            return False
        for name, value in zip(step.outputs, found, strict=False):
            if name:
                constants[name] = (
                    value if isinstance(value, Numbers) else self._initializer(name, value, True)
                )
        return True


def versions(imports: Sequence[Any], name: str) -> dict[str, int]:
    """Version of each operator set that a model or function imports.

    Raises:
        OnnxError: a version that the installed `onnx` package does not know.
    """
    found = {_DOMAINS.get(item.domain, item.domain): int(item.version) for item in imports}
    newest = onnx.defs.onnx_opset_version()
    if found.get("", 1) > newest or found.get("", 1) < 1:
        raise OnnxError(
            f"{name} is written in operator set {found['']}; the installed onnx package knows 1 to {newest}",
            fix="upgrade onnx, or convert the model with onnx.version_converter",
        )
    return found


def _rows(graph: GraphProto) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Declared shape (0 for unknown sizes) and type of a graph's tensor outputs."""
    found = {}
    for value in graph.output:
        declared = value.type.tensor_type
        if value.type.HasField("tensor_type") and declared.elem_type in DTYPES:
            sizes = tuple(max(dim.dim_value, 0) for dim in declared.shape.dim)
            found[value.name] = (sizes, DTYPES[declared.elem_type])
    return found


def _liveness(
    steps: list[Step], inputs: tuple[str, ...], outputs: tuple[str, ...], constants: Mapping[str, Any]
) -> frozenset[str]:
    """Fill in `Step.last` and return the names that come from enclosing graphs."""
    own = {*inputs, *constants, *(name for step in steps for name in step.outputs)}
    alive = set(outputs)
    free = set(outputs)
    for step in reversed(steps):
        used = {name for name in step.inputs if name}
        for value in step.attributes.values():
            if isinstance(value, Program):
                used |= value.free
        ends = (used | set(step.outputs)) - alive
        step.last = tuple(sorted(name for name in ends if name in own and name))
        alive |= used
        free |= used
    return frozenset(free - own)


def _printable(text: str) -> str:
    return text.encode("unicode_escape").decode()[:200]
