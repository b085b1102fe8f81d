"""Why something is not compiled, and where in the model."""

from __future__ import annotations

import functools
import linecache
import os
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Mapping
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any

import torch

from staticrt.native import _C

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# In an editable install, passes and facts of operators do not lie beneath `staticrt/`.
_OURS = (
    _HERE,
    *(
        os.path.dirname(os.path.abspath(str(spec.origin))) + os.sep
        for name in ("passes", "ops")
        if (spec := find_spec(f".{name}", "staticrt")) is not None
    ),
)
_CAPTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tracing", "trace.py")
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Packages that compute symbolic sizes, partly by functions that they generate.
_OF_SIZES = ("site-packages/sympy", "site-packages/mpmath")
# Installed packages that run beneath models: symbolic sizes, arrays, pytrees.
_INFRASTRUCTURE = (
    *_OF_SIZES, "site-packages/numpy", "site-packages/functorch", "site-packages/optree",
    "site-packages/_pytest", "site-packages/pluggy",
)  # fmt: skip
BROADCASTS = "data decides whether a size is broadcast"
SETS_DATA = "the model sets a tensor's .data"
NESTS = "nn.TransformerEncoder makes a nested tensor of a padded batch; enable_nested_tensor=False compiles"
# Begins the message of a program that stops because data took another branch than in its trace. Archives hold it.
OTHERWISE = "staticrt: data decided otherwise"
_LINE = "_staticrt_line"  # of an exception: where it was raised
_INTERRUPT = "_staticrt_interrupt"  # of an exception: a signal handler raised it
_GENERATED = "<eval_with_key>"  # how the file names of GraphModules' code begin
_SIGNALS = tuple(signal.valid_signals())
_handlers: dict[int, CodeType] = {}  # of signals: one may have removed itself before it raises
_graph_nodes: weakref.WeakKeyDictionary[Any, list[dict[str, Any]]] = weakref.WeakKeyDictionary()
_user_files: dict[str, bool] = {}
_location = threading.local()


def set_location(place: tuple[str, int, str, str] | None) -> None:
    """Set the location of this thread in a model that is not Python code.

    Args:
        place: file, line (or node number), function (or operator) and text; None: look at Python frames again.
    """
    _location.place = place


def location() -> tuple[str, int, str, str] | None:
    """What `set_location` said last in this thread."""
    return getattr(_location, "place", None)


class CannotTrace(Exception):
    """The tracer met something that has no graph form.

    Args:
        reason: what it met, as a phrase.
        where: the model line, "" where there is none; None: the one now running.
        even_in_parts: Dynamo would run it differently from eager, too.
    """

    def __init__(self, reason: str, where: str | None = None, even_in_parts: bool = False) -> None:
        super().__init__(reason if not where else f"{reason} ({where})")
        self.even_in_parts = even_in_parts
        self.reason = reason
        self.where = model_line() if where is None else where


class ModelChanges(CannotTrace):
    """The model changed its own state while it was recorded; a later call may not change it again.

    Args:
        paths: what changed, as `Snapshot.changes` gives it.
        does: what the model does to it.
        even_in_parts: as of `CannotTrace`.
    """

    def __init__(self, paths: list[str], does: str = "changes ", even_in_parts: bool = False) -> None:
        super().__init__(f"the model {does}{paths[0]}", even_in_parts=even_in_parts)
        self.paths = paths


class ArgumentRead(CannotTrace):
    """The model read an object inside of an argument: such objects are compared by identity from now on."""

    def __init__(self) -> None:
        super().__init__("the model reads an object inside of an argument", "")


class FirstCalls(ModelChanges):
    """The model did what many do in their first calls only, such as a warning."""

    def __init__(self, reason: str, where: str) -> None:
        CannotTrace.__init__(self, reason, where)
        self.paths = []


class NeedsBackward(CannotTrace):
    """The result needs gradients of tensors that are no arguments: the trace has to have its backward."""

    def __init__(self) -> None:
        super().__init__("the result may need gradients of a tensor that is not an argument", "")


class NeedsNoGradient(CannotTrace):
    """No result needs a gradient, although arguments or weights require some."""

    def __init__(self) -> None:
        super().__init__("no result needs a gradient", "")


class TooSlow(CannotTrace):
    """Tracing takes longer than `trace_seconds` allows."""


class RefusesItself(CannotTrace):
    """A guard refuses the call that the trace was made for: if it were kept, each such call would be traced again."""

    def __init__(self, guard: str, where: str) -> None:
        super().__init__(f"a guard refuses the call that it was made for: {guard}", where, even_in_parts=True)


class NeedsConstants(CannotTrace):
    """The model uses a symbolic number where a number is required: the trace needs constant numbers."""

    def __init__(self) -> None:
        super().__init__("a number that data decides is used by its type or as a key")


def is_user_file(filename: str) -> bool:
    """Whether a file holds model code: not torch, not this package, not Python's own library."""
    known = _user_files.get(filename)
    if known is None:
        path = os.path.abspath(filename)
        inside_site = f"{os.sep}site-packages{os.sep}" in path
        ours = path.startswith(_OURS) and not path.startswith(_HERE + "models" + os.sep)
        known = not (
            ours
            or path.startswith(_TORCH)
            or any(f"{os.sep}{name}{os.sep}" in path for name in _INFRASTRUCTURE)
            or filename.startswith("<frozen")
            or _is_finder(path)
            or (path.startswith(_STDLIB) and not inside_site)
        )
        _user_files[filename] = known
    return known


def is_user_code(frame: FrameType) -> bool:
    """Whether a frame runs model code: that of a user's file, and not what a library generates for sizes."""
    caller = frame.f_back
    if frame.f_code.co_filename == "<string>" and caller is not None:
        filename = caller.f_code.co_filename
        if any(f"{os.sep}{name}{os.sep}" in filename for name in _OF_SIZES):
            return False
        if filename.startswith((_TORCH, *_OURS)) and _generated_for(frame).startswith("torch."):
            return False
    return is_user_file(frame.f_code.co_filename)


def _generated_for(frame: FrameType) -> str:
    """The module of the class that a method was generated for: of a named tuple, or of a data class."""
    owner = frame.f_locals.get("_cls")
    return str(owner.__module__ if isinstance(owner, type) else frame.f_globals.get("__name__", ""))


def _is_finder(path: str) -> bool:
    """Whether a file holds a finder of modules, such as editable installs have: torch imports while it is traced."""
    for finder in sys.meta_path:
        kind = finder if isinstance(finder, type) else type(finder)
        where = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if kind.__module__ != "__main__" and where is not None and os.path.abspath(where) == path:
            return True
    return False


def is_torch_file(filename: str) -> bool:
    """Whether a file is torch's own."""
    return filename.startswith(_TORCH)


def is_trace_file(filename: str) -> bool:
    """Whether a file is the one that calls the model to trace it: what lies above it is not model code."""
    return filename == _CAPTURE


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of model code at or above `frame`; torch's own modules where there is none."""
    first_module: FrameType | None = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_user_file(filename):
            return frame
        if filename == _CAPTURE:  # what lies above is the caller of the model, not the model
            break
        if (
            first_module is None
            and filename.startswith(_TORCH + "nn" + os.sep)
            and "module.py" not in filename
        ):
            first_module = frame
        frame = frame.f_back
    return first_module


def warn(text: str) -> None:
    """Warn of the line of a user's code that this package was called from."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(text, stacklevel=level)


def model_line(frame: FrameType | None = None) -> str:
    """ "file.py:41" of the model line now running, or ""."""
    place = location()
    if place is not None:
        return f"{os.path.basename(place[0])}:{place[1]}"
    found = user_frame(frame if frame is not None else sys._getframe(1))
    return "" if found is None else f"{os.path.basename(found.f_code.co_filename)}:{found.f_lineno}"


def stack_trace(frame: FrameType | None) -> str | None:
    """The model line now running in the form fx keeps in meta["stack_trace"]."""
    place = location()
    if place is not None:
        return f'File "{place[0]}", line {place[1]}, in {place[2]}\n    {place[3]}'
    found = user_frame(frame)
    if found is None:
        return None
    code, line = found.f_code, found.f_lineno
    if code.co_filename.startswith(_GENERATED) and (source := _meta_of_generated(found).get("stack_trace")):
        return str(source)
    text = linecache.getline(code.co_filename, line).strip()
    return f'File "{code.co_filename}", line {line}, in {code.co_name}\n    {text}'


_CALL_MODULE = torch.nn.Module._call_impl.__code__


def layer_of(frame: FrameType | None, layers: Mapping[int, str]) -> Mapping[str, tuple[str, type]] | None:
    """The innermost layer that is being called, in the form that torch's tracers keep in meta["nn_module_stack"].

    Args:
        layers: paths of modules by their ids.
    """
    generated: FrameType | None = None
    while frame is not None and frame.f_code.co_filename != _CAPTURE:
        if frame.f_code.co_filename.startswith(_GENERATED):
            generated = frame
        elif frame.f_code is _CALL_MODULE:
            if generated is not None and (stack := _meta_of_generated(generated).get("nn_module_stack")):
                noted: Mapping[str, tuple[str, type]] = stack
                return noted
            module = frame.f_locals.get("self")
            path = layers.get(id(module))
            if path is not None:
                return {path: (path, type(module))}
        frame = frame.f_back
    return None


def _meta_of_generated(frame: FrameType) -> Mapping[str, Any]:
    """The model line that Dynamo noted for a line of a GraphModule's generated code."""
    module = frame.f_locals.get("self")
    lines = getattr(module, "_lineno_map", None)
    index = lines.get(frame.f_lineno - getattr(module, "_prologue_start", 0)) if lines else None
    if module is None or index is None:
        return {}
    if module not in _graph_nodes:
        kept = ("stack_trace", "nn_module_stack")
        _graph_nodes[module] = [
            {key: node.meta[key] for key in kept if key in node.meta} for node in module.graph.nodes
        ]
    noted = _graph_nodes[module]
    return noted[index] if index < len(noted) else {}


def exception_line(error: BaseException) -> str:
    """ "file.py:41" of the innermost model line in an exception's traceback, or ""."""
    best: str = vars(error).get(_LINE, "")
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if is_user_file(filename):
            best = f"{os.path.basename(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return best


def note_line(error: BaseException) -> None:
    """Let `exception_line` tell the line of an exception that loses its traceback."""
    vars(error)[_LINE] = exception_line(error)


def signal_handlers() -> frozenset[int]:
    """The ids of the code of what Python calls when a signal comes, wherever the main thread then is; of earlier handlers too.

    Code that Dynamo makes may have a dict among its constants, and then has no hash.
    """
    for number in _SIGNALS:
        handler: Any = signal.getsignal(number)
        if not callable(handler):  # SIG_DFL and SIG_IGN, whose class, an enum, is
            continue
        while isinstance(handler, functools.partial):
            handler = handler.func
        function = getattr(handler, "__func__", handler)
        if not hasattr(function, "__code__"):
            called = getattr(type(handler).__call__, "__func__", type(handler).__call__)
            function = called if hasattr(called, "__code__") else function
        _C.note_signal_errors(function)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            _handlers[id(code)] = code
    return frozenset(_handlers)


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal handler raised an exception, which must reach the caller and is not an error of the model."""
    codes = {id(frame.f_code) for frame, _line in traceback.walk_tb(error.__traceback__)}
    found = _INTERRUPT in vars(error) or not codes.isdisjoint(signal_handlers())
    if found:
        vars(error)[_INTERRUPT] = True  # its traceback may be cut, and the handler be another
    return found


def raise_interrupt(error: BaseException) -> None:
    """Raise what a signal handler raised, where that is `error` or its cause."""
    cause: BaseException | None = error
    seen: set[int] = set()  # an exception may be its own cause
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if is_interrupt(cause):
            raise cause
        cause = cause.__cause__
