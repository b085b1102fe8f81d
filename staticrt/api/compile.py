"""`staticrt.compile`: the entry point for modules and functions."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from staticrt import torch_private
from staticrt.api.generation import bound_to_compiled
from staticrt.api.options import checked_options
from staticrt.api.sources import callable_of
from staticrt.errors import InputError
from staticrt.executor.executor import Executor
from staticrt.executor.prepare import example_arguments
from staticrt.executor.sharded import ShardedExecutor, is_sharded
from staticrt.frontend.arguments.names import named_like
from staticrt.frontend.dynamo.parallel import calling, is_parallel
from staticrt.frontend.tracing import trace  # noqa: F401  a first call traces: it finds the tracer imported
from staticrt.native import _C
from staticrt.options import Options
from staticrt.runtime.asynchronous import Future, fork
from staticrt.tools.report.inspection import Tools

if TYPE_CHECKING:
    from staticrt.runtime.explain.explanation import Explanation

F = TypeVar("F", bound=Callable[..., Any])


class _Compiled(Tools):
    """What compiled functions and modules have in common."""

    _executor: Executor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__call__ is _Compiled.__call__:
            _C.call_executor_directly(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._executor.fast.call(*args, **kwargs)

    def __inspectable__(self) -> Executor:
        return self._executor

    def explain(self) -> Explanation:
        """What was compiled, what runs eagerly, and why."""
        return self._executor.explain()

    def run_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call asynchronously; see `staticrt.fork`."""
        return fork(self, *args, **kwargs)

    def trim(self) -> None:
        """Free memory that is unused between calls; the next call allocates it again."""
        self._executor.trim()

    def drop_plans(self) -> None:
        """Drop every execution plan and captured graph, and their memory. Traces stay; the next calls plan and capture again.

        Results that are held keep their values. Calls that other threads have begun finish with what they have.
        `explain().traces[i].signatures[j].calls` counts the calls of each plan, `replays` those of each captured graph.

        Raises:
            CaptureError: called by a function while that is captured.
        """
        self._executor.drop_plans()

    def deallocate_output_tensors(self) -> None:
        """See `Executor.deallocate_output_tensors`."""
        self._executor.deallocate_output_tensors()

    def disable_manage_output_tensors(self) -> None:
        """See `Executor.disable_manage_output_tensors`."""
        self._executor.disable_manage_output_tensors()


class CompiledFunction(_Compiled):
    """A function that runs compiled. Calls like the function it wraps."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        name = named_like(self, function)
        self._options = options
        # No repr here: copy.deepcopy may still be building the module that a method is bound to.
        self._executor = Executor(function, options, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<staticrt.compile of {self._executor.name}>"

    def __reduce__(self) -> Any:
        return _rebuild, (self._executor.function, dict(self._options.values))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return CompiledFunction(copy.deepcopy(self._executor.function, memo), self._options)


def _rebuild(function: Any, options: dict[str, Any]) -> Any:
    return compile(function, **options)


# Attributes a CompiledModule keeps itself; every other one is the module's.
_OWN = frozenset({"_module", "_options", "_executor", "_replaced_forward", "__signature__"})
# nn.Module methods that must reach the module itself, since it may override them or its type may.
_FORWARDED = [
    "state_dict", "load_state_dict", "_load_from_state_dict", "_save_to_state_dict", "named_parameters",
    "parameters", "named_buffers", "buffers", "named_modules", "modules", "named_children", "children",
    "get_parameter", "get_buffer", "get_submodule", "set_submodule", "register_buffer", "register_parameter",
    "register_module", "add_module", "register_forward_hook", "register_forward_pre_hook",
    "register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook",
    "register_state_dict_pre_hook", "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook",
    "register_state_dict_post_hook", "extra_repr", "get_extra_state", "set_extra_state", "zero_grad",
    "share_memory",
]  # fmt: skip
_FORWARDED_SELF = [
    "train", "eval", "to", "to_empty", "cuda", "cpu", "xpu", "float", "double", "half", "bfloat16", "type",
    "requires_grad_", "apply", "_apply",
]  # fmt: skip
_DUNDERS = (
    "__len__", "__iter__", "__getitem__", "__contains__", "__reversed__", "__setitem__", "__delitem__",
)  # fmt: skip


class CompiledModule(_Compiled, torch.nn.Module):
    """A module that runs compiled. Its parameters, buffers, hooks and attributes are the wrapped module's own."""

    _module: torch.nn.Module
    _options: Options

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        own = self.__dict__
        own["_module"] = module
        own["_options"] = options
        own["_executor"] = self._make_executor(module, options)
        with contextlib.suppress(TypeError, ValueError):  # a forward written in C has none
            own["__signature__"] = inspect.signature(module.forward)

    def __new__(cls, module: torch.nn.Module, options: Options) -> CompiledModule:
        return super().__new__(_class_for(type(module), CompiledParallel if is_parallel(module) else cls))

    @staticmethod
    def _make_executor(module: torch.nn.Module, options: Options) -> Executor:
        made = ShardedExecutor if is_sharded(module) else Executor
        return made(module, options, type(module).__qualname__)

    # Libraries save, unwrap and name modules by their class: isinstance() holds for the module's own as well.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._module)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return self._executor(*args, **kwargs)

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
        self._executor.swap_weights(weights, strict)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return bound_to_compiled(getattr(self._module, name), self._module, self._executor.fast.call)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":
            raise InputError(
                f"a compiled module cannot become a {value.__qualname__}",
                fix="change the module before it is compiled, as in staticrt.compile(fully_shard(module))",
            )
        if name == "forward" and "_replaced_forward" not in vars(self):
            vars(self)["_replaced_forward"] = self._module.forward
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward":
            vars(self).pop("_replaced_forward", None)
        delattr(self._module, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *vars(self), *dir(self._module)})

    def __repr__(self) -> str:
        return f"CompiledModule({self._module!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._module, dict(self._options.values))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        made = CompiledModule.__new__(CompiledModule, self._module, self._options)
        memo[id(self)] = made  # what was assigned to `forward` may be bound to it
        return self._fill(made, copy.deepcopy(self._module, memo))

    def __copy__(self) -> CompiledModule:
        made = CompiledModule.__new__(CompiledModule, self._module, self._options)
        return self._fill(made, copy.copy(self._module))

    def _fill(self, made: CompiledModule, module: torch.nn.Module) -> CompiledModule:
        """Initialise `made` as the compiled form of a copy of the module."""
        made.__init__(module, self._options)  # type: ignore[misc]
        if "_replaced_forward" in vars(self):
            vars(made)["_replaced_forward"] = types.MethodType(type(module).forward, module)
        return made


class CompiledParallel(CompiledModule):
    """A `DistributedDataParallel` whose model runs compiled.

    Its own forward runs as it is, in every call: it broadcasts buffers and prepares the reduction of the gradients, in
    Python and by collectives that no graph holds.
    """

    @staticmethod
    def _make_executor(module: torch.nn.Module, options: Options) -> Executor:
        model: torch.nn.Module = module.module  # type: ignore[assignment]
        return CompiledModule._make_executor(
            model._module if isinstance(model, CompiledModule) else model, options
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return calling(self._module, self._executor.fast.call)(*args, **kwargs)

    def swap_weights(self, weights: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Refused: gradients are reduced by hooks on the tensors themselves.

        Raises:
            InputError: always.
        """
        raise InputError(
            "swap_weights would take the parameters away from the hooks by which DistributedDataParallel reduces "
            "their gradients",
            fix="load_state_dict(), which copies into the parameters",
        )


def _forward_to_module(name: str, original: Any, returns_self: bool = False) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._module, name)(*args, **kwargs)
        return self if returns_self and result is self._module else result

    return method


for _name in _FORWARDED:
    if hasattr(torch.nn.Module, _name):
        setattr(CompiledModule, _name, _forward_to_module(_name, getattr(torch.nn.Module, _name)))
for _name in _FORWARDED_SELF:
    if hasattr(torch.nn.Module, _name):
        setattr(CompiledModule, _name, _forward_to_module(_name, getattr(torch.nn.Module, _name), True))


# By the module's type. Weak on both sides, so it keeps neither type alive.
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type[CompiledModule]]] = weakref.WeakKeyDictionary()


def _class_for(kind: type[torch.nn.Module], base: type[CompiledModule]) -> type[CompiledModule]:
    """CompiledModule, or a subclass, with the container methods that a type of modules has, and its signature of `forward`."""
    known = _classes.get(kind)
    made = known() if known is not None else None
    if made is None:
        found = {
            name: _forward_to_module(name, getattr(kind, name)) for name in _DUNDERS if hasattr(kind, name)
        }
        members = {**found, "forward": _Forward(kind), "__module__": __name__}
        made = type("CompiledModule", (base,), members)
        _classes[kind] = weakref.ref(made)
    return made


class _Forward:
    """`forward` of a compiled module: the compiled call, or what has been assigned to it.

    Libraries wrap it: `model.forward = autocast(model.forward)`. The wrapper becomes the wrapped module's, so that hooks
    run around it and traces hold it; what it calls is then the forward that the wrapped module had.
    """

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        def forward(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
            replaced = vars(self).get("_replaced_forward")
            if replaced is not None:
                return replaced(*args, **kwargs)
            if torch_private.fx_is_tracing():  # torch.fx calls the forward of what it traces, not its hooks
                return self._module.forward(*args, **kwargs)
            return self._run(*args, **kwargs)

        # torch.fx looks for a function of the class. A module of torch.jit has one by object only.
        self._function = functools.wraps(kind.forward)(forward) if hasattr(kind, "forward") else forward

    def __get__(self, instance: CompiledModule | None, owner: type | None = None) -> Any:
        if instance is None:
            return self._function
        if "_replaced_forward" in vars(instance):
            return instance._module.forward
        return types.MethodType(self._function, instance)


@overload
def compile(module: torch.nn.Module, example_inputs: Any = None, **options: Any) -> CompiledModule: ...
@overload
def compile(module: F, example_inputs: Any = None, **options: Any) -> F: ...
def compile(module: Any, example_inputs: Any = None, *, dynamic: bool | None = None, **options: Any) -> Any:
    """Compile a module or function for the static runtime.

    The result is called like the original. Without `example_inputs` the first call traces. Sizes stay symbolic:
    other batch sizes and lengths need no new trace; another dtype, device, rank, layout or constant does.
    Calls that need gradients are compiled with their backward, see docs/training.md. `explain()` says what was compiled, what was not, and why.

    Args:
        module: an `nn.Module` (its parameters stay its own), a function, a `torch.export.ExportedProgram`, or the
            path of a file of `torch.export.save`. Of such a file only the graph is executed (`archive/checked_export.py`).
        example_inputs: trace now, for these: a tuple or list of positional arguments, or a dict of keyword
            arguments, or one tensor. Values do not matter, only structure, dtypes, ranks. If the model raises on
            them, a warning says so.
        dynamic: None or True: symbolic sizes. False: each size is another trace.
        options: see `staticrt.options.OPTIONS`.

    Returns:
        A `CompiledFunction` for a function, else a `CompiledModule`.

    Raises:
        InputError: `module` is none of these, or its file cannot be read.
        OptionError: an unknown option or value.
        TraceError: with `fullgraph=True`, the model cannot be traced whole.
        AcceleratorUnavailable: `accelerators` names one that cannot be used here.
    """
    parsed = checked_options({"dynamic": dynamic, **options})
    if parsed.accelerators is not None:
        from staticrt.api import accelerators

        accelerators.find(parsed.accelerators)
    if isinstance(module, CompiledModule):
        module = module._module
    elif isinstance(module, CompiledFunction):
        module = module._executor.function
    module = callable_of(module)
    compiled: CompiledModule | CompiledFunction
    if isinstance(module, torch.nn.Module):
        compiled = CompiledModule(module, parsed)
    else:
        compiled = CompiledFunction(module, parsed)
    if example_inputs is not None:
        ready = compiled._executor.prepare(*example_arguments(example_inputs))
        if ready.raised:
            warnings.warn(f"staticrt: example_inputs are {ready}", stacklevel=2)
    return compiled
