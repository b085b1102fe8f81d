"""`staticrt.from_onnx`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from staticrt.errors import OnnxError

if TYPE_CHECKING:
    import onnx

    from staticrt.interop.onnx.module import InputInfo, OnnxModel
    from staticrt.interop.onnx.program import Program


def from_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, example_inputs: Any = None, **options: Any
) -> OnnxModel:
    """Compile an ONNX model.

    The model becomes an `nn.Module` (`.module`) that goes through the same trace, passes and runtime as any
    other. Named and unknown dimensions stay symbolic; sizes that the model fixes are checked.

    Args:
        model: path of a `.onnx` file, its bytes, or a loaded `onnx.ModelProto`. External data are read from
            beside the file, and from nowhere else.
        example_inputs: as in `staticrt.compile`: trace now.
        options: those of `staticrt.compile`. `dynamic` is False by default if the model fixes every size.

    Returns:
        A compiled model, called with tensors or numpy arrays, by position or by the model's input names; returns
        torch tensors. `input_names`, `output_names` and `inputs` say what it takes and gives.

    Raises:
        OnnxError: the `onnx` package is missing; the file is damaged or no valid model; it holds operators that
            are not supported.
        OptionError: an unknown option.
    """
    _require_onnx()
    import torch

    from staticrt.api.options import checked_options
    from staticrt.interop.onnx.hosts import deciding_inputs
    from staticrt.interop.onnx.importer import Importer
    from staticrt.interop.onnx.module import OnnxModel, OnnxModule
    from staticrt.interop.onnx.size_conditions import read

    proto, name, base_dir = _read(model)
    importer = Importer(proto, name, base_dir)
    program = importer.run()
    hosts = deciding_inputs(program)
    infos = [
        _input(value, value.name in hosts) for value in proto.graph.input if value.name in program.inputs
    ]
    if options.get("dynamic") is None and _all_fixed(infos):
        options["dynamic"] = False
    conditions = read(proto, [dim for info in infos for dim in info.shape or () if isinstance(dim, str)])
    decoded = _decoded_outputs(proto, program)
    module = OnnxModule(program, infos, importer.tensors, conditions, importer.vocabulary, decoded).eval()
    compiled = OnnxModel(module, checked_options(options))
    if example_inputs is not None:
        if isinstance(example_inputs, dict):
            args = compiled.module.bind((), example_inputs)
        elif isinstance(example_inputs, (list, tuple)):
            args = compiled.module.bind(example_inputs, {})
        else:
            args = compiled.module.bind((example_inputs,), {})
        with torch.no_grad():
            compiled.__inspectable__().prepare(args, {})
    return compiled


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise OnnxError("the onnx package is not installed", fix="pip install 'staticrt[onnx]'") from error


def _read(model: Any) -> tuple[onnx.ModelProto, str, str]:
    """The protobuf message, a name for error messages, and the folder of external data."""
    import onnx

    name, base_dir = "the model", ""
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        name, base_dir = os.path.basename(path), os.path.dirname(os.path.abspath(path))
        try:
            with open(path, "rb") as file:
                model = file.read()
        except OSError as error:
            raise OnnxError(f"cannot read {path!r}: {error.strerror}", fix="check the path") from error
    if isinstance(model, (bytes, bytearray, memoryview)):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(bytes(model))
        except Exception as error:
            raise OnnxError(
                f"{name} is not an ONNX model, or is damaged: {error}",
                fix="check the file, or export it again",
            ) from error
        model = proto
    if not isinstance(model, onnx.ModelProto):
        raise OnnxError(
            f"from_onnx takes a path, bytes or an onnx.ModelProto, got {type(model).__name__}",
            fix="for a module, use staticrt.compile",
        )
    _validate(model, name)
    return model, name, base_dir


def _validate(model: onnx.ModelProto, name: str) -> None:
    """Raise OnnxError unless the model can be imported."""
    if not model.HasField("graph") or not model.opset_import:
        raise OnnxError(
            f"{name} has no graph or no operator set", fix="the file is not a model, or truncated"
        )
    try:
        _check_names(model.graph, name)
    except UnicodeDecodeError as error:
        raise OnnxError(f"{name} holds text that is not UTF-8", fix="export it again") from error
    for function in model.functions:
        _check_nodes(function.node, name)


def _check_names(graph: onnx.GraphProto, name: str) -> None:
    seen: set[str] = set()
    texts = [value.name for value in (*graph.input, *graph.output, *graph.initializer)]
    if not all(isinstance(text, str) for text in texts):  # protobuf gives bytes for what it cannot decode
        raise OnnxError(f"{name} holds names that are not UTF-8", fix="export it again")
    _check_nodes(graph.node, name)
    for value in graph.input:
        if not value.name or value.name in seen:
            raise OnnxError(f"{name} has two inputs {value.name!r}, or one without a name")
        seen.add(value.name)
    for node in graph.node:
        for output in node.output:
            if output and output in seen:
                raise OnnxError(f"{name} computes {output!r} twice", at=f"{node.op_type} {node.name!r}")
            seen.add(output)


def _check_nodes(nodes: Iterable[onnx.NodeProto], name: str) -> None:
    for node in nodes:
        texts = [*node.input, *node.output, node.op_type, node.domain, node.name]
        if not all(isinstance(text, str) for text in (*texts, *(a.name for a in node.attribute))):
            raise OnnxError(f"{name} holds names that are not UTF-8", fix="export it again")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check_names(attribute.g, name)


def _input(value: onnx.ValueInfoProto, host: bool) -> InputInfo:
    import onnx
    import torch

    from staticrt.interop.onnx.module import InputInfo
    from staticrt.interop.onnx.types import dtype_of

    kind = value.type.WhichOneof("value")
    if kind == "sparse_tensor_type" or kind == "map_type":
        raise OnnxError(f"input {value.name!r} is a {kind.removesuffix('_type')}; only tensors are supported")
    if kind != "tensor_type":
        return InputInfo(value.name, None, None, False, kind == "optional_type")
    tensor = value.type.tensor_type
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        shape = []
        for dim in tensor.shape.dim:
            which = dim.WhichOneof("value")
            if which == "dim_value" and dim.dim_value > 0:
                shape.append(dim.dim_value)
            else:  # some exporters write 0 or -1 for a size they do not know
                shape.append(dim.dim_param or None if which == "dim_param" else None)
    sizes = None if shape is None else tuple(shape)
    if tensor.elem_type == onnx.TensorProto.STRING:
        return InputInfo(value.name, torch.int64, sizes, text=True)
    dtype = dtype_of(tensor.elem_type, f"input {value.name!r}")
    return InputInfo(value.name, dtype, sizes, host and not dtype.is_complex)


def _decoded_outputs(model: onnx.ModelProto, program: Program) -> dict[int, tuple[int | str, ...] | None]:
    """Outputs that are strings or maps: see `OnnxModule`."""
    import onnx

    found: dict[int, tuple[int | str, ...] | None] = {}
    maker = {name: step for step in program.steps for name in step.outputs}
    for index, value in enumerate(model.graph.output):
        step = maker.get(value.name)
        if step is not None and step.operator.name == "ZipMap":
            found[index] = step.attributes["prepared"]
        elif value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            found[index] = None
    return found


def _all_fixed(infos: list[InputInfo]) -> bool:
    return all(info.shape is not None and all(isinstance(dim, int) for dim in info.shape) for info in infos)
