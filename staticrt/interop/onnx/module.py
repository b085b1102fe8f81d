"""An imported ONNX model as a module, and its compiled form."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt.api.compile import CompiledModule
from staticrt.api.options import checked_options
from staticrt.errors import InputError
from staticrt.interop.onnx.numbers import Numbers, objects
from staticrt.interop.onnx.program import Program, Scope, recording
from staticrt.interop.onnx.size_conditions import SizeCondition
from staticrt.interop.onnx.strings import CallTexts, Maps, Strings, Vocabulary, as_maps
from staticrt.interop.onnx.types import from_array
from staticrt.options import Options

_MAX_HOST = 64  # the most elements of an input whose values decide shapes


@dataclasses.dataclass(frozen=True)
class InputInfo:
    """An input of a model.

    Args:
        dtype: the tensor's; None for a sequence or an optional value.
        shape: per dimension a size, a name, or None where the model does not say; None: any rank.
        host: its values decide shapes, so traces are specialised on them.
        text: the input holds strings, which are passed as numbers.
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[int | str | None, ...] | None
    host: bool = False
    optional: bool = False
    text: bool = False


class OnnxModule(torch.nn.Module):
    """An ONNX model. Float initializers are its parameters (without gradients), large integer ones its buffers.

    Args:
        program: the computation.
        inputs: the inputs, in the model's order.
        tensors: kind ("parameter", "buffer", or "structure": no state), ONNX name, value.
        conditions: what the named sizes of the inputs must satisfy.
        vocabulary: the model's strings.
        decoded: number of an output that is not a tensor -> the keys of its maps, or None for strings.
    """

    runs_whole_or_eagerly = True  # the model has no Python code at which Dynamo could split the graph

    def __init__(
        self,
        program: Program,
        inputs: Sequence[InputInfo],
        tensors: Sequence[tuple[str, str, torch.Tensor]],
        conditions: Sequence[SizeCondition] = (),
        vocabulary: Vocabulary | None = None,
        decoded: Mapping[int, tuple[int | str, ...] | None] | None = None,
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.input_names = tuple(info.name for info in inputs)
        self.output_names = program.outputs
        self.vocabulary = vocabulary or Vocabulary()
        self.decoded = dict(decoded or {})
        plain = all(info.dtype is not None and not info.host and not info.text for info in self.inputs)
        # Number of inputs if none of them needs `bind` and all results are tensors; else -1.
        self.num_plain = len(inputs) if plain and not self.decoded else -1
        self._program = program
        self._conditions = tuple(conditions)
        self._paths = tuple(_register(self, *tensor) for tensor in tensors)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See `OnnxModel.__call__`."""
        texts = CallTexts(self.vocabulary)
        arguments = self.bind(args, kwargs, texts)
        tensors = [_get(self, path) for path in self._paths]
        values = [self._enter(info, value) for info, value in zip(self.inputs, arguments, strict=True)]
        self._check_conditions(arguments)
        own = {id(tensor) for tensor in tensors}
        outputs = [_leave(value, own) for value in self._program.run(Scope(tensors), values)]
        found = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return found if recording() else self.finish(found, texts)

    def finish(self, found: Any, texts: CallTexts) -> Any:
        """Convert results for the caller: numbers of strings and maps become strings and maps."""
        if not self.decoded:
            return found
        outputs = list(found) if len(self.output_names) > 1 else [found]
        for index, keys in self.decoded.items():
            if isinstance(outputs[index], torch.Tensor):
                value = outputs[index]
                outputs[index] = texts.decode(value) if keys is None else as_maps(value, keys)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def call_parameters(self) -> list[tuple[str, bool]]:
        """Names of the call's arguments and whether each is optional. ONNX names need not be Python names."""
        return [(info.name, bool(info.optional)) for info in self.inputs]

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], texts: CallTexts | None = None
    ) -> tuple[Any, ...]:
        """Convert arguments for `forward`: arrays become tensors, values that decide shapes become numbers, and strings become
        numbers of the call's texts.

        Raises:
            InputError: an input is missing, unknown or given twice, or its type does not fit.
        """
        if len(args) > len(self.inputs):
            raise InputError(
                f"the model takes {len(self.inputs)} inputs, got {len(args)}",
                fix=f"its inputs are {', '.join(self.input_names)}",
            )
        given = dict(zip(self.input_names, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.input_names or name in given:
                what = "is given twice" if name in given else "is not an input of the model"
                raise InputError(f"{name!r} {what}", fix=f"its inputs are {', '.join(self.input_names)}")
            given[name] = value
        missing = [info.name for info in self.inputs if info.name not in given and not info.optional]
        if missing:
            raise InputError(
                f"input {missing[0]!r} is missing",
                fix=f"the model's inputs are {', '.join(self.input_names)}",
            )
        texts = texts or CallTexts(self.vocabulary)
        return tuple(_bind(info, given.get(info.name), texts) for info in self.inputs)

    def _check_conditions(self, arguments: Sequence[Any]) -> None:
        """Raise InputError unless the sizes are ones that the model was exported for."""
        if not self._conditions:
            return
        sizes: dict[str, Any] = {}
        for info, value in zip(self.inputs, arguments, strict=True):
            if isinstance(value, torch.Tensor):
                for name, size in zip(info.shape or (), value.shape, strict=False):
                    if isinstance(name, str):
                        sizes.setdefault(name, size)
        for condition in self._conditions:
            if condition.names <= sizes.keys() and not condition.holds(sizes):
                shown = ", ".join(f"{name} = {sizes[name]}" for name in sorted(condition.names))
                raise InputError(
                    f"the model was exported for sizes with {condition.text}, got {shown}",
                    fix="export the module again with example arguments of such sizes",
                )

    def _enter(self, info: InputInfo, value: Any) -> Any:
        """A bound argument as a value of the program."""
        if isinstance(value, torch.Tensor):
            _check(info, value)
            return Strings(value) if info.text else value
        if info.dtype is not None and isinstance(
            value, (tuple, int, float, bool, torch.SymInt, torch.SymFloat)
        ):
            return Numbers(objects(value), info.dtype)
        return value

    def extra_repr(self) -> str:
        return f"inputs={', '.join(self.input_names)}; outputs={', '.join(self.output_names)}"


class OnnxModel(CompiledModule):
    """A compiled ONNX model: `staticrt.compile` of an `OnnxModule`, called with tensors or numpy arrays.

    Inputs are given in the model's order or by their names (`model(**{"input.1": x})`); one output comes back as
    a tensor, several as a tuple in the model's order, sequences as lists. Results are always torch tensors.
    """

    def __new__(cls, module: OnnxModule, options: Options) -> OnnxModel:
        return torch.nn.Module.__new__(cls)  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and len(args) == self.module.num_plain:
            for value in args:
                if type(value) is not torch.Tensor:
                    break
            else:
                return self._executor.fast.call(*args)
        module = self.module
        texts = CallTexts(module.vocabulary)
        return module.finish(self._executor.fast.call(*module.bind(args, kwargs, texts)), texts)

    @property
    def module(self) -> OnnxModule:
        """The model as a plain module, which runs eagerly."""
        return self._module  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"OnnxModel({self._module!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._module, dict(self._options.values))

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxModel:
        return OnnxModel(copy.deepcopy(self.module, memo), self._options)

    def __copy__(self) -> OnnxModel:
        return OnnxModel(copy.copy(self.module), self._options)


def _rebuild(module: OnnxModule, options: dict[str, Any]) -> OnnxModel:
    return OnnxModel(module, checked_options(options))


def _register(module: torch.nn.Module, kind: str, name: str, value: torch.Tensor) -> tuple[str, ...]:
    """Register a tensor under its ONNX name. Dots become submodules, so that exported state dicts keep their keys."""
    parts = [part for part in name.split(".") if part] or ["unnamed"]
    owner = module
    path: list[str] = []
    for part in parts[:-1]:
        child = owner._modules.get(part)
        if child is None:
            if hasattr(owner, part):
                break
            child = torch.nn.Module()
            owner.add_module(part, child)
        owner = child
        path.append(part)
    leaf = "_".join(parts[len(path) :])
    while hasattr(owner, leaf):
        leaf += "_"
    if kind == "parameter":
        owner.register_parameter(leaf, torch.nn.Parameter(value, requires_grad=False))
    else:
        owner.register_buffer(leaf, value, persistent=kind == "buffer")
    return (*path, leaf)


def _get(module: torch.nn.Module, path: tuple[str, ...]) -> torch.Tensor:
    for part in path[:-1]:
        module = module._modules[part]  # type: ignore[assignment]
    leaf = path[-1]
    found = module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]
    assert found is not None
    return found


def _bind(info: InputInfo, value: Any, texts: CallTexts) -> Any:
    if isinstance(value, torch.Tensor):
        pass
    elif info.text and value is not None:
        try:
            value = texts.encode(value)
        except TypeError as error:
            raise InputError(
                f"input {info.name!r} is strings: {error}", fix="pass an array of str"
            ) from error
    elif type(value).__module__ == "numpy":
        value = from_array(value)
    elif isinstance(value, (list, tuple)) and info.dtype is None:
        value = [from_array(item) if type(item).__module__ == "numpy" else item for item in value]
    if info.host and isinstance(value, torch.Tensor) and value.dim() <= 1 and not recording():
        _check(info, value)
        if value.numel() <= _MAX_HOST:
            found = value.tolist()
            return tuple(found) if isinstance(found, list) else found
    return value


def _check(info: InputInfo, value: torch.Tensor) -> None:
    """Raise InputError unless a tensor fits the model's declaration. In a trace this makes declared sizes constants."""
    if info.dtype is not None and value.dtype != info.dtype:
        raise InputError(
            f"input {info.name!r} is {info.dtype}, got {value.dtype}", fix=f"pass it as .to({info.dtype})"
        )
    if info.shape is None:
        return
    fits = value.dim() == len(info.shape)
    if not fits or any(
        type(want) is int and have != want for have, want in zip(value.shape, info.shape, strict=True)
    ):
        shown = ", ".join("?" if dim is None else str(dim) for dim in info.shape)
        raise InputError(
            f"input {info.name!r} has shape [{', '.join(map(str, value.shape))}], the model takes [{shown}]",
            fix="pass the sizes that the model fixes; those with names may be any",
        )


def _leave(value: Any, own: set[int]) -> Any:
    """An output for the caller; a tensor of the module is copied. Strings and maps are still numbers."""
    if isinstance(value, (Strings, Maps)):
        value = value.codes if isinstance(value, Strings) else value.scores
    if isinstance(value, Numbers):
        return value.tensor().clone() if recording() else value.tensor()
    if isinstance(value, (list, tuple)):
        return [_leave(item, own) for item in value]
    return value.clone() if id(value) in own else value
