"""Bodies of ONNX functions: local functions of a model, and definitions of operators in ONNX's schemas."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import FunctionProto, ModelProto, NodeProto


class FunctionBodies:
    """Finds the body of a node's function.

    Args:
        model: provides local functions. Its types are inferred when a body first depends on them.
    """

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._local = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
        self._types: dict[str, Any] | None = None

    def local(self, node: NodeProto) -> FunctionProto | None:
        """The model-local function that a node calls, or None."""
        return self._local.get((node.domain, node.op_type, getattr(node, "overload", "")))

    def of_schema(self, node: NodeProto, domain: str, version: int) -> FunctionProto | None:
        """The function body in the operator's schema, for the types of this node's inputs; None if there is none."""
        try:
            schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            return None
        body = None
        if schema.has_function:
            chosen = max((v for v in schema.function_opset_versions if v <= version), default=None)
            body = schema.get_function_with_opset_version(chosen) if chosen else b""
        elif schema.has_context_dependent_function:
            chosen = max(
                (v for v in schema.context_dependent_function_opset_versions if v <= version), default=None
            )
            types = [self._type(name) for name in node.input]
            if chosen is None or any(t is None for t in types):
                return None
            body = schema.get_context_dependent_function_with_opset_version(
                chosen, node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        if not body:
            return None
        proto = FunctionProto()
        proto.ParseFromString(body)
        # The body lists its attributes; the schema has their defaults.
        for name, attribute in schema.attributes.items():
            if attribute.default_value.name and not any(a.name == name for a in proto.attribute_proto):
                proto.attribute_proto.append(attribute.default_value)
        if not proto.input:
            return None
        return proto

    def _type(self, name: str) -> Any:
        if not name:
            return onnx.TypeProto()
        if self._types is None:
            self._types = _infer_types(self._model)
        return self._types.get(name)


def _infer_types(model: ModelProto) -> dict[str, Any]:
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # an invalid model raises later, where it runs
        graph = model.graph
    found = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return found
