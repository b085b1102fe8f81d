"""`staticrt.compile`: the front door."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from staticrt.asynchronous import Future, fork
from staticrt.callers import bound_to_compiled
from staticrt.compiled import Engine
from staticrt.options import Options, parse_options
from staticrt.report.tools import Tools
from staticrt.sources import callable_of

if TYPE_CHECKING:
    from staticrt.report.explain import Explanation

F = TypeVar("F", bound=Callable[..., Any])


class CompiledFunction(Tools):
    """A function that runs compiled. Calls like the function it wraps."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self._options = options
        # No repr of what has no name: it may be a method of a module that copy.deepcopy has only begun.
        self._engine = Engine(
            function, options, getattr(function, "__qualname__", type(function).__qualname__)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.fast.call(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<staticrt.compile of {self._engine.name}>"

    def __reduce__(self) -> Any:
        return _rebuild, (self._engine.function, dict(self._options.values))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return CompiledFunction(copy.deepcopy(self._engine.function, memo), self._options)

    def explain(self) -> Explanation:
        """What was compiled, what runs eagerly, and why."""
        return self._engine.explain()

    def run_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """The call, made beside this thread; see `staticrt.fork`."""
        return fork(self, *args, **kwargs)

    def trim(self) -> None:
        """Give back memory that no call uses; the next call takes it again."""
        self._engine.trim()

    def deallocate_output_tensors(self) -> None:
        """See `Engine.deallocate_output_tensors`."""
        self._engine.deallocate_output_tensors()

    def disable_manage_output_tensors(self) -> None:
        """See `Engine.disable_manage_output_tensors`."""
        self._engine.disable_manage_output_tensors()


def _rebuild(function: Any, options: dict[str, Any]) -> Any:
    return compile(function, **options)


# Attributes a CompiledModule keeps itself; every other one is the module's.
_OWN = frozenset({"_module", "_options", "_engine", "__signature__"})
# nn.Module methods that must reach the module itself, since it may override them or its type may.
_FORWARDED = [
    "state_dict",
    "load_state_dict",
    "_load_from_state_dict",
    "_save_to_state_dict",
    "named_parameters",
    "parameters",
    "named_buffers",
    "buffers",
    "named_modules",
    "modules",
    "named_children",
    "children",
    "get_parameter",
    "get_buffer",
    "get_submodule",
    "set_submodule",
    "register_buffer",
    "register_parameter",
    "register_module",
    "add_module",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
    "register_state_dict_pre_hook",
    "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_state_dict_post_hook",
    "extra_repr",
    "get_extra_state",
    "set_extra_state",
    "zero_grad",
    "share_memory",
]
_FORWARDED_SELF = [
    "train",
    "eval",
    "to",
    "to_empty",
    "cuda",
    "cpu",
    "xpu",
    "float",
    "double",
    "half",
    "bfloat16",
    "type",
    "requires_grad_",
    "apply",
    "_apply",
]
_DUNDERS = (
    "__len__",
    "__iter__",
    "__getitem__",
    "__contains__",
    "__reversed__",
    "__setitem__",
    "__delitem__",
)


class CompiledModule(Tools, torch.nn.Module):
    """A module that runs compiled. Its parameters, buffers, hooks and attributes are the wrapped module's own."""

    _module: torch.nn.Module
    _engine: Engine
    _options: Options

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        own = self.__dict__
        own["_module"] = module
        own["_options"] = options
        own["_engine"] = Engine(module, options, type(module).__qualname__)
        with contextlib.suppress(TypeError, ValueError):  # a forward written in C has none
            own["__signature__"] = inspect.signature(module.forward)

    def __new__(cls, module: torch.nn.Module, options: Options) -> CompiledModule:
        names = tuple(name for name in _DUNDERS if hasattr(type(module), name))
        return super().__new__(_class_with(names, cls))  # type: ignore[arg-type]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._engine.fast.call(*args, **kwargs)

    @property
    def forward(self) -> Any:  # type: ignore[override]
        """The compiled call, with the module's own signature."""
        engine = self._engine

        @functools.wraps(self._module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return engine(*args, **kwargs)

        return forward

    def explain(self) -> Explanation:
        """What was compiled, what runs eagerly, and why."""
        return self._engine.explain()

    def swap_weights(self, weights: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Put other values into parameters and buffers, all at once, while calls go on.

        A call that has begun finishes on the old values; one that begins afterwards sees only new ones. The
        module's tensors stay the same objects, so optimizers keep them; `.grad` is None afterwards.

        Args:
            weights: by name, as in `state_dict()`; they are copied.
            strict: every parameter and persistent buffer must be named.

        Raises:
            InputError: a name, shape, dtype or device that does not fit; nothing has changed.
        """
        self._engine.swap_weights(weights, strict)

    def run_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """The call, made beside this thread; see `staticrt.fork`."""
        return fork(self, *args, **kwargs)

    def trim(self) -> None:
        """Give back memory that no call uses; the next call takes it again."""
        self._engine.trim()

    def deallocate_output_tensors(self) -> None:
        """See `Engine.deallocate_output_tensors`."""
        self._engine.deallocate_output_tensors()

    def disable_manage_output_tensors(self) -> None:
        """See `Engine.disable_manage_output_tensors`."""
        self._engine.disable_manage_output_tensors()

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return bound_to_compiled(getattr(self._module, name), self._module, self._engine.fast.call)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._module)})

    def __repr__(self) -> str:
        return f"CompiledModule({self._module!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._module, dict(self._options.values))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return CompiledModule(copy.deepcopy(self._module, memo), self._options)

    def __copy__(self) -> CompiledModule:
        return CompiledModule(copy.copy(self._module), self._options)


def _forward_to_module(name: str, returns_self: bool) -> Callable[..., Any]:
    original = getattr(torch.nn.Module, name)

    @functools.wraps(original)
    def method(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._module, name)(*args, **kwargs)
        return self if returns_self and result is self._module else result

    return method


for _name in _FORWARDED:
    if hasattr(torch.nn.Module, _name):
        setattr(CompiledModule, _name, _forward_to_module(_name, False))
for _name in _FORWARDED_SELF:
    if hasattr(torch.nn.Module, _name):
        setattr(CompiledModule, _name, _forward_to_module(_name, True))


@functools.cache
def _class_with(names: tuple[str, ...], base: type) -> type:
    """CompiledModule with these container methods, those that the module's type has."""

    def forward(name: str) -> Callable[..., Any]:
        return lambda self, *args: getattr(self._module, name)(*args)

    found = {name: forward(name) for name in names}
    return type(base.__name__, (base,), {**found, "__module__": base.__module__}) if found else base


@overload
def compile(module: torch.nn.Module, example_inputs: Any = None, **options: Any) -> CompiledModule: ...
@overload
def compile(module: F, example_inputs: Any = None, **options: Any) -> F: ...
def compile(module: Any, example_inputs: Any = None, *, dynamic: bool | None = None, **options: Any) -> Any:
    """Compile a module or function for the static runtime.

    The result is called like the original. Without `example_inputs` the first call captures. Sizes stay symbolic:
    other batch sizes and lengths need no new capture; another dtype, device, rank, layout or constant does.
    Calls that need gradients are compiled with their backward, see docs/training.md. `explain()` says what was compiled, what was not, and why.

    Args:
        module: an `nn.Module` (its parameters stay its own), a function, a `torch.export.ExportedProgram`, or the
            path of a file of `torch.export.save`, which is read with `torch.export.load`.
        example_inputs: capture now, for these: a tuple or list of positional arguments, or a dict of keyword
            arguments, or one tensor. Values do not matter, only structure, dtypes, ranks.
        dynamic: None or True: symbolic sizes. False: each size is another capture.
        options: see `staticrt.options.OPTIONS`.

    Returns:
        A `CompiledFunction` for a function, else a `CompiledModule`.

    Raises:
        InputError: nothing of this can be made of `module`.
        OptionError: an unknown option or value.
        CaptureError: with `fullgraph=True`, the model cannot be captured whole.
        AcceleratorUnavailable: `accelerators` names one that cannot be used here.
    """
    parsed = parse_options({"dynamic": dynamic, **options})
    if parsed.accelerators is not None:
        from staticrt import accelerators

        accelerators.find(parsed.accelerators)
    if isinstance(module, (CompiledModule, CompiledFunction)):
        module = module._engine.function
    module = callable_of(module)
    compiled: CompiledModule | CompiledFunction
    if isinstance(module, torch.nn.Module):
        compiled = CompiledModule(module, parsed)
    else:
        compiled = CompiledFunction(module, parsed)
    if example_inputs is not None:
        if isinstance(example_inputs, torch.Tensor):
            example_inputs = (example_inputs,)
        args = () if isinstance(example_inputs, dict) else tuple(example_inputs)
        kwargs = dict(example_inputs) if isinstance(example_inputs, dict) else {}
        compiled._engine.prepare(args, kwargs)
    return compiled
