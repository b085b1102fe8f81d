"""Watch model code while it is traced: the state that it reads, and its effects.

A recorded graph replays tensor operators and nothing else, so a model that prints, logs, reads the clock or a file, or
draws from Python's `random` must not be recorded. The call that would do so is stopped before it happens, in the model's
own code and in Python's library beneath it. What torch and the tracer do for themselves is not watched.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from staticrt.frontend.guards import warning_filters
from staticrt.frontend.guards.class_questions import asks_for_class
from staticrt.frontend.guards.code_reads import asks_for_handled
from staticrt.frontend.guards.effects import (
    ANSWERED,
    CHANGES_GRADIENTS,
    LAZY,
    READS_SEED,
    REGISTERS_HOOK,
    SETS_DETERMINISM,
    effect_handed_on,
    effect_of,
    judge,
    library_effect,
    library_module,
    looks_at_types,
    missed_by_dynamo,
    torch_effects,
)
from staticrt.frontend.guards.global_locks import LockWatch, global_locks
from staticrt.frontend.guards.late_effects import global_writes, module_look_ups
from staticrt.frontend.guards.model_builtins import (
    CALL_EACH,
    MODEL_BUILTINS,
    NeedsNumber,
    is_symbolic,
    uses_other_names,
)
from staticrt.frontend.guards.reads import (
    LOOKS_UP_MODULE,
    Reads,
    is_layer_file,
    looks_up_modules,
    returns_setting,
)
from staticrt.frontend.guards.special_names import names_of
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.guards.tensor_memory import PLAIN
from staticrt.frontend.reasons import is_torch_file, is_user_code, is_user_file, signal_handlers, user_frame
from staticrt.frontend.tracing import autocast
from staticrt.frontend.weak import weakly
from staticrt.native import _C

_KINDS = _C.CallWatcher
_IMPORT = importlib.import_module.__code__
# What an import runs for a module that has not been imported, and what only asks whether it is there.
_FIND_MODULE: types.CodeType = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]
_FIND_SPEC = importlib.util.find_spec.__code__
_SYMBOLIC: tuple[Any, ...] = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TEXT_OF_NUMBER = {id(kind.__repr__.__code__) for kind in _SYMBOLIC}
_HASH_OF_NUMBER = {id(kind.__hash__.__code__) for kind in _SYMBOLIC}
# Functions of torch whose answer, of a symbolic size, holds for all sizes instead of this one.
_ASK_OF_SIZES = frozenset(
    {"guard_or_false", "guard_or_true", "statically_known_true", "statically_known_false"}
)
# These catch the TypeError of a number without a hash, and compute the same without their cache.
_DO_WITHOUT_HASH = {("einops.einops", "_apply_recipe"), ("einops.einops", "_apply_recipe_array_api")}


class ImpureCall(BaseException):
    """Stops a recorded run before an effect that no graph replays; model code should not catch it."""


class Watcher:
    """Watches model code between `start` and `stop`, in the thread that starts it.

    Args:
        snapshot: gets what model code reads by name, before it can change it.
        constants: no number is symbolic, except for those that data decides.
        may_change_gradients: clearing and clipping them is part of what is recorded, as in a training step.
    """

    def __init__(
        self, snapshot: Snapshot, constants: bool = False, may_change_gradients: bool = False
    ) -> None:
        self._snapshot = snapshot
        self._constants = constants
        self._may_change_gradients = may_change_gradients
        self._reads = Reads(snapshot, weakly(self._note))
        self._locks = LockWatch(weakly(self._note_once))
        self._entered: set[int] = set()  # ids of code objects, which the watcher keeps
        self._watcher: _C.CallWatcher | None = None
        self._handlers: frozenset[int] = frozenset()  # ids of code, of signals: not the model's either
        self._arguments: frozenset[int] = frozenset()  # ids of what stands for them
        self._collects = False  # a collection has begun in the thread that is watched
        self.impure: list[tuple[str, str]] = []  # what, model line
        self.even_in_parts = False  # Dynamo must not split the model there
        self.often_once = False  # many models do that in their first call only
        self.needs_constants = False
        # Where code may read the class of a number, which a number that data decides does not show.
        self.asks_for_class = ""

    def start(self, is_new: Callable[[Any], bool], arguments: Iterable[Any]) -> None:
        """Watch from here on.

        Args:
            is_new: whether the run made an object.
            arguments: tensors and containers that the run is given for those of the caller.
        """
        self._reads.is_new = is_new
        MODEL_BUILTINS.update_from_builtins()
        MODEL_BUILTINS.on_names = self._snapshot.add_model_names
        MODEL_BUILTINS.on_abstract = self._snapshot.add_virtual_subclasses
        MODEL_BUILTINS.on_dir = self._snapshot.add_listing
        self._arguments = frozenset(map(id, arguments))
        MODEL_BUILTINS.on_id = self._asks_for_identity
        self._watcher = _C.CallWatcher(
            *(self._classify, judge, self._begins, self._calls, self._returned, self._left), MODEL_BUILTINS
        )
        self._handlers = signal_handlers()
        self._watcher.start()
        # Finalizers and callbacks that a collection runs are not the model's.
        gc.callbacks.insert(0, self._collection_begins)
        gc.callbacks.append(self._collection_ends)

    def stop(self) -> None:
        for callback in (self._collection_begins, self._collection_ends):
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)
        MODEL_BUILTINS.on_names = MODEL_BUILTINS.on_abstract = None
        MODEL_BUILTINS.on_dir = MODEL_BUILTINS.on_id = None
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = None
        self._locks.stop()

    def pause(self) -> bool:
        """Do not watch until `resume`; returns whether it watched."""
        return self._watcher is not None and self._watcher.pause()

    def resume(self) -> None:
        """Watch again."""
        if self._watcher is not None:
            self._watcher.resume()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not watch within; afterwards as before."""
        watched = self.pause()
        try:
            yield
        finally:
            if watched:
                self.resume()

    def _collection_begins(self, phase: str, _info: Any) -> None:
        if phase == "start":
            self._collects = self.pause()

    def _collection_ends(self, phase: str, _info: Any) -> None:
        if phase == "stop" and self._collects:
            self._collects = False
            self.resume()

    # -- what the C++ watcher asks and tells -------------------------------------------------------------------

    def _classify(self, frame: types.FrameType) -> int:
        code = frame.f_code
        filename = code.co_filename
        if is_user_code(frame):
            if id(code) in self._handlers:
                return _KINDS.SILENT
            kinds = _KINDS.JUDGED | _KINDS.REPORTED | _KINDS.MODEL
            is_told = id(code) in self._snapshot.cached_functions
            is_told |= looks_up_modules(frame) or bool(global_locks(frame))
            return kinds | (_KINDS.LEFT if is_told else 0)
        if id(code) in torch_effects() or id(code) in _TEXT_OF_NUMBER or id(code) in _HASH_OF_NUMBER:
            return _KINDS.REPORTED
        if code is CALL_EACH:
            return _KINDS.JUDGED
        if is_torch_file(filename):
            if is_layer_file(filename):
                self._reads.enter(frame)
                return _KINDS.LOUD
            is_told = returns_setting(code) or code.co_name in _ASK_OF_SIZES
            return _KINDS.LOUD | (_KINDS.REPORTED if is_told else 0)
        module = library_module(filename)
        if module is None:
            return _KINDS.IGNORED
        if module == "linecache" or code is _FIND_MODULE:
            kind = _KINDS.SILENT  # it reads source files, or imports, as it does in eager: once
            return kind | (_KINDS.REPORTED if code is _FIND_MODULE else 0)
        if code is _FIND_SPEC:
            return _KINDS.SILENT | _KINDS.REPORTED
        if module == "importlib" and filename.startswith("<frozen"):
            return _KINDS.IGNORED
        self._reads.library(frame)
        told = (
            looks_at_types(module, code.co_name)
            or library_effect(module, code.co_name) is not None
            or code is _IMPORT
        )
        return _KINDS.JUDGED | _KINDS.MODEL | (_KINDS.REPORTED if told else 0)

    def _begins(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if is_user_file(code.co_filename):
            self.even_in_parts |= code.co_name == "__del__"
            if id(code) not in self._entered:
                self._entered.add(id(code))
                self._enter(frame)
            else:
                self._reads.enter(
                    frame
                )  # the same code, maybe of another class or of a function with other globals
            self._locks.begin(frame)
            return
        effect = torch_effects().get(id(code))
        if effect is not None:
            if effect is CHANGES_GRADIENTS and self._may_change_gradients:
                return
            if effect is REGISTERS_HOOK and type(frame.f_locals["self"]) not in PLAIN:
                return
            self.even_in_parts |= effect in (READS_SEED, CHANGES_GRADIENTS, SETS_DETERMINISM)
            if frame.f_locals.get("enabled") is not False:  # fork_rng that does nothing
                self._note(effect, user_frame(frame) or frame, often_once=effect in (LAZY, REGISTERS_HOOK))
            return
        caller = _model_frame(frame.f_back)
        if id(code) in _TEXT_OF_NUMBER and frame.f_back and is_layer_file(frame.f_back.f_code.co_filename):
            caller = frame.f_back  # a layer warns of sizes, or raises an error
        if caller is None:
            return  # torch's own
        if returns_setting(code):
            self._reads.setting(frame)
        elif id(code) in _TEXT_OF_NUMBER:
            self._show(frame.f_locals["self"], caller)
        elif id(code) in _HASH_OF_NUMBER:
            if (caller.f_globals.get("__name__"), caller.f_code.co_name) not in _DO_WITHOUT_HASH:
                self._need_constants(caller)
        elif code is _IMPORT:
            self._reads.imports(frame.f_locals["name"], caller)
        elif code is _FIND_MODULE or code is _FIND_SPEC:
            self._reads.looks_for(frame.f_locals["name"])
        else:
            module = library_module(code.co_filename) or ""
            effect = library_effect(module, code.co_name)
            if effect is not None:
                self._note(effect, caller, often_once=module == "logging")
            elif _holds_symbolic(list(frame.f_locals.values())):
                self._need_constants(caller)

    def _calls(self, frame: types.FrameType, function: Any) -> None:
        if is_torch_file(frame.f_code.co_filename):
            self._of_torch(frame, effect_of(function) or "")
        caller = _model_frame(frame)
        if caller is None:
            return
        if function is torch.get_num_threads:
            self._snapshot.num_threads = torch.get_num_threads()
            return
        if function in ANSWERED:
            self._snapshot.add_answer(function)
            return
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and self._snapshot.follows_code and function.__name__ == "__subclasses__":
            self._snapshot.add_subclasses(owner)
            return
        what = effect_of(function)
        if what is None or (caller is not frame and _is_internal(what, frame)):
            return
        self.even_in_parts |= missed_by_dynamo(function)
        self._note(what, caller, often_once="_warnings." in what)

    def _of_torch(self, frame: types.FrameType, what: str) -> None:
        """Torch's own code is about to print or to warn."""
        if "_warnings." in what:
            self._snapshot.add_answer(warning_filters.filters)
            if not warning_filters.warns_each_time():
                return
            what = "makes torch warn, which filters show each time"
            self.even_in_parts = True
        self._note(what, user_frame(frame) or frame)

    def _returned(self, function: Any) -> None:
        # Only the functions that set it are reported here, of which `torch.autocast` calls this one last.
        if autocast.note() and function is torch.set_autocast_cache_enabled:
            self.even_in_parts = True  # Dynamo's graphs keep no cache either
            self._note(
                "an autocast block within one of another dtype",
                user_frame(sys._getframe()) or sys._getframe(),
            )

    def _left(self, frame: types.FrameType, result: Any) -> None:
        code = frame.f_code
        self._locks.end(frame)
        if id(code) in self._snapshot.cached_functions:
            self._snapshot.add_cached(code, result)
        if looks_up_modules(frame) and frame.f_lasti in (module_look_ups(code) or ()):
            self._note(LOOKS_UP_MODULE, frame, often_once=True)

    # -- what it means -----------------------------------------------------------------------------------------

    def _enter(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if "set_stance" in names_of(code):  # which raises where Dynamo is at work
            self.even_in_parts = True
            self._note("may call torch.compiler.set_stance()", frame)
        if asks_for_handled(code):
            self.even_in_parts = True
            self._note("may read or raise an exception that its caller handles", frame)
        # The snapshot has those that there are, tells whether they changed and puts them back.
        written = sorted(name for name in global_writes(code) if not self._is_kept(name, frame.f_globals))
        if written:
            self._note(f"writes the global {written[0]!r}", frame)
        if uses_other_names(frame):
            self._note("calls type() or isinstance() by another name", frame)
        handed_on = effect_handed_on(frame)
        if handed_on is not None:
            self._note(handed_on, frame)
        self._reads.enter(frame)
        if self._snapshot.gets_classes or asks_for_class(frame):
            if not self._constants:
                self._need_constants(frame)
            self.asks_for_class = self.asks_for_class or _place(frame)

    def _is_kept(self, name: str, scope: dict[str, Any]) -> bool:
        return self._snapshot.follows_code and name in scope and not name.startswith("__")

    def _show(self, number: Any, frame: types.FrameType) -> None:
        """Model code makes text of a number: from here on it is a constant of the trace."""
        if isinstance(number, torch.SymInt):
            value = number.node.guard_int("", 0)
            if number.node._graph_repr() == str(value):
                return
            if number.node.hint is not None:  # torch's symbols may keep the name of a size that is guarded
                self._need_constants(None)
            self._note("makes text of a number that data decides", frame)
        else:
            self._need_constants(None)

    def _asks_for_identity(self, value: Any) -> None:
        if id(value) in self._arguments:
            self._note("asks for the id() of an argument", user_frame(sys._getframe()) or sys._getframe())

    def _need_constants(self, frame: types.FrameType | None) -> None:
        if self._constants and frame is not None:
            self._note("uses a number that data decides as a key", frame)
        self.needs_constants = True
        raise NeedsNumber

    def _note_once(self, what: str, frame: types.FrameType) -> None:
        self._note(what, frame, often_once=True)

    def _note(self, what: str, frame: types.FrameType, often_once: bool = False) -> None:
        self.impure.append((what, _place(frame)))
        self.often_once = often_once if len(self.impure) == 1 else self.often_once
        raise ImpureCall  # from a profiler it stops the call before it happens


class EffectsSeen:
    """Whether what runs within has an effect besides computing; nothing is stopped.

    Code that Dynamo compiled is watched too: what happens in between.
    """

    def __init__(self) -> None:
        self.any = False
        self._watcher: _C.CallWatcher | None = None

    def __enter__(self) -> EffectsSeen:
        self._watcher = _C.CallWatcher(
            self._classify, judge, self._begins, self._calls, self._returned, self._returned, {}
        )
        self._watcher.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = None

    def _classify(self, frame: types.FrameType) -> int:
        code = frame.f_code
        if is_user_file(code.co_filename):
            return _KINDS.JUDGED
        module = library_module(code.co_filename)
        if module is None:
            return _KINDS.LOUD if is_torch_file(code.co_filename) else _KINDS.IGNORED
        told = library_effect(module, code.co_name) is not None
        return _KINDS.JUDGED | (_KINDS.REPORTED if told else 0)

    def _begins(self, frame: types.FrameType) -> None:
        self.any |= _model_frame(frame) is not None

    def _calls(self, frame: types.FrameType, function: Any) -> None:
        keeps_random = getattr(function, "__name__", "") in (
            "getstate",
            "setstate",
        )  # as Dynamo does around its work
        self.any |= not keeps_random and _model_frame(frame) is not None and effect_of(function) is not None

    def _returned(self, *_what: Any) -> None:
        """The watcher needs no function's return."""


def _place(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


def _model_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The frame of model code for which Python's library runs at `frame`; None: torch or the tracer lies between."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_user_file(filename):
            return frame
        if library_module(filename) is None and frame.f_code is not CALL_EACH:
            return None
        frame = frame.f_back
    return None


def _is_internal(what: str, frame: types.FrameType) -> bool:
    """Whether something is without effect where Python's library does it: files in memory, generated code, limits, locks of its own."""
    if what.startswith("calls sys.exc"):  # `contextlib` asks, and tells nobody
        return library_module(frame.f_code.co_filename) != "traceback"
    return what in ("calls exec()", "calls __import__()") or what.startswith(
        (
            *("calls _io.StringIO", "calls _io.BytesIO", "calls sys.get", "calls gc.get"),
            *("calls gc.isenabled", "calls _thread.lock", "calls _thread.RLock"),
        )
    )


def _holds_symbolic(value: Any, depth: int = 6) -> bool:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)) and depth:
        return any(_holds_symbolic(each, depth - 1) for each in value)
    return is_symbolic(value)
