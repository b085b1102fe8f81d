"""The callable that `GraphContext.wrap` returns: one captured function per kind of call, least recently used evicted."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError
from staticrt.frontend.reasons import warn
from staticrt.graphs.functions import Function, Mode
from staticrt.graphs.manager import is_capturing, uncaptured
from staticrt.graphs.overrides import runs_plain
from staticrt.graphs.policy import KeyFunction, Policy
from staticrt.graphs.preconditions import assume_static_inputs, why_no_key
from staticrt.graphs.protocol import GraphBackend
from staticrt.graphs.surroundings import surroundings
from staticrt.torch_private import hidden_from_dynamo

_numbers = itertools.count()
_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})
_CONSTANTS = (bool, str, type(None), torch.dtype, torch.device)


class CaptureOwner(Protocol):
    """What owns the captures of wrapped functions: a `GraphContext`."""

    policy: Policy

    @property
    def backend(self) -> GraphBackend: ...

    def adopt(self, wrapped: Any, functions: list[Function]) -> None: ...

    def call(self, function: Function, inputs: list[Any]) -> list[Any]: ...

    def forget(self, function: Function) -> None: ...

    def step(self) -> contextlib.AbstractContextManager[Any]: ...


class _Kind:
    """One kind of call: its captured function and the structure of its results."""

    function: Function
    out_spec: Any = None  # of the last run of Python code


class WrappedFunction:
    """A function whose calls are captured and replayed. See `GraphContext.wrap`.

    Args:
        context: owns the captures.
        function: what runs; an `nn.Module` brings its parameters and buffers as static inputs.
        static_inputs: arguments that keep their address: positions, or names of parameters.
        mutated_inputs: arguments that the function writes. Buffers of a module need not be named.
        unused_ints: integer arguments without effect: calls that differ only in them share a capture.
        constants: tensors that the function closes over and may return.
        mode: "inference", "forward" (a backward follows) or "backward".
        boxed: the function takes one list, which it empties, and returns a list; so does the wrapper.
        name: for reports; None: the function's.
        key: integers of a call -> what decides which capture it uses; None: the integers themselves.
        stack_traces: where each output is made, for messages.
        input_names: names of boxed inputs, for messages.
    """

    def __init__(
        self,
        context: CaptureOwner,
        function: Callable[..., Any],
        *,
        static_inputs: Sequence[int | str] = (),
        mutated_inputs: Sequence[int | str] = (),
        unused_ints: Sequence[int | str] = (),
        constants: Sequence[torch.Tensor] = (),
        mode: str | Mode = Mode.INFERENCE,
        boxed: bool = False,
        name: str | None = None,
        key: KeyFunction | None = None,
        stack_traces: Sequence[str | None] | None = None,
        input_names: Sequence[str] = (),
    ) -> None:
        options = {n: v for n, v in locals().copy().items() if n not in ("self", "context", "function")}
        self._options = options  # for a copy
        if not callable(function):
            raise InputError(f"wrap takes a function or module, got {type(function).__name__}")
        if not boxed and not isinstance(function, torch.nn.Module):
            functools.update_wrapper(self, function)
        self.context = context
        self.number = next(_numbers)
        self.name = name or getattr(function, "__name__", None) or type(function).__name__
        self._function = function
        self._module = function if isinstance(function, torch.nn.Module) else None
        self._boxed = boxed
        self._mode = Mode(mode)
        self._key = key
        self._constants = tuple(constants)
        self._stack_traces = tuple(stack_traces) if stack_traces is not None else None
        names = _parameter_names(function) if not boxed else tuple(input_names)
        self._static = _positions(static_inputs, names, "static_inputs")
        self._mutated = _positions(mutated_inputs, names, "mutated_inputs")
        self._unused = _positions(unused_ints, names, "unused_ints")
        self._names = names
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self._live: list[Function] = []  # the functions of `_kinds`, also known to the finalizer
        self._sizes: set[Any] = set()
        self._warned_sizes = False
        self._trained: Callable[..., Any] | None = None
        context.adopt(self, self._live)

    # -- calls ---------------------------------------------------------------------------------------------------

    @hidden_from_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return self._function(*args, **kwargs)
        if self._boxed:
            return self._call_boxed(args[0])
        lifted = self._lifted()
        if torch.is_grad_enabled() and _any_needs_grad(args, kwargs, lifted):
            return self._train(args, kwargs)
        leaves, spec = _flatten(args, kwargs)
        number = len(leaves)
        if lifted:
            leaves += [tensor for _name, tensor in lifted]
        key = self._kind_key(leaves, self._unused_leaves(spec, args, kwargs))
        if key is None:
            self._refuse_plain(leaves)
            return self._function(*args, **kwargs)
        kind = self._kinds.get((spec, key))
        if kind is None:
            made = self._new_kind(spec, key, leaves, number, args, kwargs, lifted)
            if made is None:
                return self._function(*args, **kwargs)
            kind = made
        elif len(self._kinds) > 1:
            self._kinds.move_to_end((spec, key))
        del args, kwargs
        outputs = self.context.call(kind.function, leaves)
        return _unflatten(outputs, kind.out_spec)

    def _call_boxed(self, inputs: list[Any]) -> list[Any]:
        key = self._kind_key(inputs, self._unused)
        if key is None:
            self._refuse_plain(inputs)
            return list(self._function(inputs))
        kind = self._kinds.get(key)
        if kind is None:
            if not self._worth_capturing(inputs, self._unused):
                return list(self._function(inputs))
            function = Function(
                self._function,
                self.name,
                frozenset(i for i in self._static if isinstance(i, int)),
                self._constants,
                tuple(i for i in self._mutated if isinstance(i, int)),
                self._mode,
                self._names,
                self._stack_traces,
            )
            assume_static_inputs(function, inputs, self.context.backend)
            kind = _Kind()
            kind.function = function
            self._add_kind(key, kind)
        elif len(self._kinds) > 1:
            self._kinds.move_to_end(key)
        return self.context.call(kind.function, inputs)

    def _train(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Capture forward and backward through `torch.compile(backend="staticrt")`."""
        if self._trained is None:
            options: dict[str, Any] = {"graphs": self.context}
            self._trained = torch.compile(self._function, backend="staticrt", options=options)
        with self.context.step():
            return self._trained(*args, **kwargs)

    # -- kinds of calls ------------------------------------------------------------------------------------------

    def _unused_leaves(self, spec: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[Any]:
        """Positions of leaves that are integers without effect."""
        if not self._unused:
            return self._unused
        owners = range(len(args)) if spec is None else _owners(args, kwargs)
        return frozenset(i for i, owner in enumerate(owners) if self._names_one(self._unused, owner))

    def _kind_key(self, leaves: Sequence[Any], unused: frozenset[Any]) -> Any:
        """The key that selects the capture of a call; None if the call cannot be captured."""
        parts = surroundings()
        if parts is None:
            return None
        ints: list[int] = []
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if leaf.layout is not torch.strided:
                    return None
                parts += (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg())
            elif type(leaf) is int:
                parts.append(int)  # f(1, x) and f(x, 1) differ
                if index not in unused:
                    ints.append(leaf)
            elif isinstance(leaf, torch.Generator):
                parts.append(leaf)  # a replay draws from the generator that it was captured with
            elif isinstance(leaf, (float, complex)):
                parts += (type(leaf), repr(leaf))  # 0.0 and -0.0 are equal, nan is not equal to itself
            elif isinstance(leaf, _CONSTANTS):
                parts += (type(leaf), leaf)
            else:
                return None
        if ints:
            parts.append(self._key(tuple(ints)) if self._key is not None else tuple(ints))
        if self._module is not None:
            parts.append(tuple(m.training for m in self._module.modules()))
        return tuple(parts)

    def _refuse_plain(self, leaves: Sequence[Any]) -> None:
        """Raise if a call without a key would run uncaptured and `Policy.or_error` is set."""
        if self.context.policy.or_error and not runs_plain(self._mode):
            raise uncaptured(self.name, why_no_key(leaves, self._names, _CONSTANTS))

    def _worth_capturing(self, leaves: Sequence[Any], unused: frozenset[Any]) -> bool:
        """Whether the policy captures calls with these integers. Warns once about too many sizes."""
        ints = tuple(v for i, v in enumerate(leaves) if type(v) is int and i not in unused)
        policy = self.context.policy
        if policy.capture_sizes is not None and ints:
            single = ints[0] if len(ints) == 1 else ints
            if ints not in policy.capture_sizes and single not in policy.capture_sizes:
                return False
        self._sizes.add(ints)
        if len(self._sizes) > policy.max_sizes_unwarned and not self._warned_sizes:
            self._warned_sizes = True
            warn(
                f"staticrt: {self.name} has been captured for {len(self._sizes)} distinct sizes; each takes a capture. "
                "Pad to few sizes, or name the worthwhile ones in capture_sizes"
            )
        return True

    def _new_kind(
        self,
        spec: Any,
        key: Any,
        leaves: Sequence[Any],
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lifted: Sequence[tuple[str, torch.Tensor]],
    ) -> _Kind | None:
        if not self._worth_capturing(leaves, self._unused_leaves(spec, args, kwargs)):
            return None
        owners = _owners(args, kwargs)
        static = {i for i, owner in enumerate(owners) if self._names_one(self._static, owner)}
        static |= set(range(number, len(leaves)))
        mutated = tuple(i for i, owner in enumerate(owners) if self._names_one(self._mutated, owner))
        names = tuple(self._leaf_name(owner) for owner in owners) + tuple(name for name, _t in lifted)
        function = self._function
        kind = _Kind()

        def model(inputs: list[Any]) -> list[Any]:
            own = inputs[:number]
            inputs.clear()
            own_args, own_kwargs = (own, {}) if spec is None else pytree.tree_unflatten(own, spec)
            own = []
            outputs, kind.out_spec = _flatten_outputs(function(*own_args, **own_kwargs))
            return outputs

        kind.function = Function(
            model,
            self.name,
            frozenset(static),
            self._constants,
            mutated,
            self._mode,
            names,
            self._stack_traces,
            read_in_place=frozenset(range(number, len(leaves))),
        )
        return self._add_kind((spec, key), kind)

    def _add_kind(self, key: Any, kind: _Kind) -> _Kind:
        self._kinds[key] = kind
        self._live.append(kind.function)
        while len(self._kinds) > self.context.policy.max_graphs:
            _key, old = self._kinds.popitem(last=False)
            self._live.remove(old.function)
            self.context.forget(old.function)
        return kind

    def _names_one(self, wanted: frozenset[int | str], owner: int | str) -> bool:
        if owner in wanted:
            return True
        if isinstance(owner, int) and owner < len(self._names):
            return self._names[owner] in wanted
        return isinstance(owner, str) and owner in self._names and self._names.index(owner) in wanted

    def _leaf_name(self, owner: int | str) -> str:
        if isinstance(owner, str):
            return owner
        return self._names[owner] if owner < len(self._names) else ""

    def _lifted(self) -> list[tuple[str, torch.Tensor]]:
        if self._module is None:
            return []
        return [*self._module.named_parameters(), *self._module.named_buffers()]

    # -- life ----------------------------------------------------------------------------------------------------

    def functions(self) -> list[Function]:
        """The captured functions, the least recently used first."""
        return [kind.function for kind in self._kinds.values()]

    def forget(self) -> None:
        """Drop the captures of all kinds of calls."""
        functions = self.functions()
        self._kinds.clear()
        self._live.clear()
        for function in functions:
            self.context.forget(function)

    def forget_all(self) -> None:
        """Drop all kinds of calls, because a forked child starts empty."""
        self._kinds.clear()
        self._live.clear()
        self._trained = None

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedFunction:
        """Wrap a copy of the function in the same context."""
        return WrappedFunction(self.context, copy.deepcopy(self._function, memo), **self._options)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"captures of {self.name} cannot be pickled: pickle the function itself, and wrap it again"
        )

    def __repr__(self) -> str:
        return f"<{self.name}, captured in {self.context!r}>"


def _parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        target = function.forward if isinstance(function, torch.nn.Module) else function
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional)


def _positions(given: Sequence[int | str], names: Sequence[str], option: str) -> frozenset[int | str]:
    for item in given:
        if not isinstance(item, (int, str)) or isinstance(item, bool):
            raise InputError(f"{option} holds positions and names of arguments, got {item!r}")
    return frozenset(given)


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """Leaves and structure; None for positional arguments without containers, which most calls have."""
    if not kwargs and all(type(value) in _LEAVES for value in args):
        return list(args), None
    return pytree.tree_flatten((args, kwargs))


def _flatten_outputs(outputs: Any) -> tuple[list[Any], Any]:
    """Leaves and structure. For a tensor, or a tuple or list of leaves, the structure is the type alone."""
    kind = type(outputs)
    if kind is torch.Tensor:
        return [outputs], kind
    if kind in (tuple, list) and all(type(value) in _LEAVES for value in outputs):
        return list(outputs), kind
    return pytree.tree_flatten(outputs)


def _unflatten(leaves: list[Any], spec: Any) -> Any:
    if spec is torch.Tensor:
        return leaves[0]
    if spec is tuple:
        return tuple(leaves)
    return leaves if spec is list else pytree.tree_unflatten(leaves, spec)


def _owners(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int | str]:
    """Per leaf the argument it belongs to."""
    owners: list[int | str] = []
    for position, value in enumerate(args):
        owners += [position] * len(pytree.tree_leaves(value))
    for name, value in kwargs.items():
        owners += [name] * len(pytree.tree_leaves(value))
    return owners


def _any_needs_grad(
    args: tuple[Any, ...], kwargs: dict[str, Any], lifted: Sequence[tuple[str, torch.Tensor]]
) -> bool:
    if any(tensor.requires_grad for _name, tensor in lifted):
        return True
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (list, tuple, dict)) and any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(value)
        ):
            return True
    return False
