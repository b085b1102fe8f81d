"""Find values that model code keeps from a trace: fake tensors and symbolic numbers that outlive it.

A cache of the model (`functools.lru_cache`, an attribute of a function or a parameter) that holds a fake tensor would
return it to eager code. So after the run, when the state that the snapshot knows is restored, the references to each fake
value are counted. If there are more than the tracer's own, the garbage collector's lists are searched for the holders, and
the values are removed from them.
"""

from __future__ import annotations

import gc
import sys
import traceback
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import _lru_cache_wrapper
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import FunctionCtx

from staticrt import tuning
from staticrt.frontend.guards.caches import entries_of, table_of, take_out
from staticrt.frontend.guards.state_values import dict_of, members_of
from staticrt.frontend.guards.tensor_memory import PLAIN, gradient_of
from staticrt.frontend.reasons import is_interrupt, note_line
from staticrt.frontend.tracing.trace_tensor import TraceParameter, TraceTensor
from staticrt.shapes.fake_results import cached_values
from staticrt.shapes.size_env import NeedsShapeEnv

_FAKE = frozenset({FakeTensor, TraceTensor, TraceParameter, torch.SymInt, torch.SymFloat, torch.SymBool})
_IN_CACHE = "keeps tensors in the cache of"


def _references(values: Iterable[Any]) -> list[int]:
    return list(map(sys.getrefcount, values))


_LISTED = _references([object()])[0]  # of an object that nothing but a list refers to


def _owned_by_cpp() -> int:
    """How many Python references a tensor has more where C++ owns it too, as a view owns its base."""
    base = torch.empty(2)
    before = sys.getrefcount(base)
    view = base.view(2)
    return sys.getrefcount(base) - before if view._is_view() else 0


class Escapes:
    """Finds the values that outlive one trace. Open it before the trace makes its first fake.

    Args:
        mode: the trace's `TraceFakeMode`.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._made: set[int] = set()  # ids of what the trace made and a collection has moved since
        self._older: list[weakref.ref[Any]] = []  # fakes among those

    def open(self) -> None:
        """Watch what is made from here on."""
        # Objects that are alive now leave the youngest generation, which from here on holds what the trace makes.
        gc.collect(0)
        gc.callbacks.append(self._before_collection)

    def close(self) -> None:
        """Stop watching the collector; may be called repeatedly."""
        if self._before_collection in gc.callbacks:
            gc.callbacks.remove(self._before_collection)

    def _before_collection(self, phase: str, _info: Any) -> None:
        if phase == "start":
            young = gc.get_objects(0)
            self._made.update(map(id, young))
            self._older += [weakref.ref(value) for value in young if type(value) in _FAKE]

    def is_new(self, value: Any) -> bool:
        """Whether the run made an object that its result refers to, or may have."""
        if not gc.is_tracked(value):
            return isinstance(value, (bytearray, memoryview, torch.Generator)) or hasattr(value, "__array__")
        if isinstance(value, (type, types.FunctionType)) and _is_global(value):
            return False  # imported meanwhile, maybe
        return id(value) in self._made or any(value is young for young in gc.get_objects(0))

    def undo(self, owned: Callable[[], Iterable[Any]], roots: Iterable[Any]) -> list[str]:
        """Remove what the run made from the objects that keep it; after the run.

        Args:
            owned: gives each reference that the trace itself has to its values.
            roots: through which it reaches everything it made.

        Returns:
            What kept it, as phrases that follow "the model"; [] where nothing escaped.
        """
        young = gc.get_objects(0)
        values = [value for value in young if type(value) in _FAKE and self._is_ours(value)]
        older = {id(value): value for ref in self._older if (value := ref()) is not None}
        values += [value for value in older.values() if self._is_ours(value)]
        self._made.update(map(id, young))
        older.clear()
        value = None
        del young[:]
        found = self._unaccounted(values, owned())
        if not found:
            return []
        # Dead cycles refer to fakes too: an exception's traceback, a function that calls itself.
        suspects = [weakref.ref(value) for value in found]
        del values, found
        gc.collect(0 if not self._older else 2)
        alive = [value for ref in suspects if (value := ref()) is not None]
        value = None
        alive = self._unaccounted(alive, owned())
        return _Holders(alive, self._made, roots).release() if alive else []

    def undo_gradients(self, before: Mapping[int, Any]) -> list[str]:
        """Restore the `.grad` of real tensors where the run set it, also to a fake that only C++ refers to; as `undo`.

        It looks at every tensor of the process, so call it only for code that names functions which set the attribute.

        Args:
            before: gradients before the run, by the ids of their tensors; those of others are cleared.
        """
        found = []
        for tensor in gc.get_objects():
            if type(tensor) in PLAIN:
                gradient = gradient_of(tensor)
                if type(gradient) in _FAKE and self._is_ours(gradient):
                    tensor.grad = before.get(id(tensor))
                    found.append("keeps a tensor of the trace in the .grad of a tensor")
                elif gradient is None and before.get(id(tensor)) is not None:
                    tensor.grad = before[id(tensor)]
                    found.append("clears the .grad of a tensor")
        return found

    def _is_ours(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return bool(value.fake_mode is self._mode)  # type: ignore[attr-defined]
        node = value.node
        return (node.env if hasattr(type(node), "env") else node.shape_env) is self._mode.sizes

    def _unaccounted(self, values: list[Any], references: Iterable[Any]) -> list[Any]:
        """The trace's values that have references besides these and the list of values."""
        owned = Counter(map(id, references))
        owned.update(map(id, cached_values(self._mode)))
        # What torch remembers of a fake tensor, as its number of nonzero elements, dies with it.
        owned.update(id(x) for fake in values if isinstance(fake, torch.Tensor) for x in vars(fake).values())
        found: list[Any] = []
        for index, count in enumerate(_references(values)):
            value: Any = values[index]
            more = count - _LISTED - owned[id(value)]
            if more == 1 and isinstance(value, torch.Tensor) and value._use_count() > 1:  # type: ignore[attr-defined]
                more -= _owned_by_cpp()
            if more > 0:
                found.append(value)
        return found


def _is_global(value: Any) -> bool:
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def let_go(error: BaseException) -> None:
    """Clear the frames of an exception that ended a run: their variables hold what they computed.

    An error also loses its traceback, whose frames refer to the model's functions, and a lambda to what it closes over:
    to search the heap for what keeps the values takes longer than most traces. `exception_line` still tells the line.
    """
    is_error = isinstance(error, (Exception, NeedsShapeEnv)) and not is_interrupt(error)
    if is_error:
        note_line(error)
    running = _running_frames()
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        traceback.clear_frames(following.__traceback__)
        for frame, _line in traceback.walk_tb(following.__traceback__):
            if id(frame) not in running:
                _ = frame.f_locals  # updates a copy that was made before, which refers to the values, too
        if is_error:
            BaseException.with_traceback(following, None)  # whatever the class says to attributes
        following = following.__cause__ or following.__context__


def _running_frames() -> set[int]:
    """Ids of the frames that this function's caller runs in."""
    found = set()
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found


def values_of(graph: fx.Graph) -> Iterator[Any]:
    """Each reference that a graph's nodes have to fake values."""
    shared: set[int] = set()
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, (list, tuple)):
            yield value
        elif id(value) not in shared:
            shared.add(id(value))
            yield from value


def is_cached(found: str) -> bool:
    """Whether one of the phrases that `Escapes.undo` returns is of an `lru_cache`."""
    return found.startswith(_IN_CACHE)


class _Holders:
    """The objects that refer to some values of a trace, and how to remove these references.

    Args:
        values: the values.
        made: ids of what the run made.
        roots: objects of the trace from which the search starts.
    """

    def __init__(self, values: list[Any], made: set[int], roots: Iterable[Any]) -> None:
        self._values = values
        self._made = made
        self._ours = self._reached(roots)
        self._seen = {id(value) for value in values}  # the values, and what leads to them
        self._found: list[str] = []

    def release(self) -> list[str]:
        """Undo each reference; returns phrases that say where they were."""
        ignored = self._ours | _running_frames() | {id(self._values), id(self.__dict__), id(self)}
        level = self._values
        keep: list[Any] = []  # so that ids stay theirs
        while level:
            keep.append(level)
            following: list[Any] = []
            ignored |= {id(level), id(following), id(keep)}
            for holder in gc.get_referrers(*level):
                if id(holder) in ignored or id(holder) in self._seen or _is_of_function(holder):
                    continue
                if id(holder) not in self._made or _is_part_of_old(holder, self._made):
                    self._cut(holder)
                else:
                    self._seen.add(id(holder))
                    following.append(holder)
                if len(self._seen) - len(self._values) > tuning.MAX_HOLDERS:
                    return [*self._found, "keeps tensors of the trace in more places than are looked for"]
            level = following
        if self._found or len(self._seen) == len(self._values):
            return self._found
        return ["keeps a tensor of the trace where only C code looks"]

    def _reached(self, roots: Iterable[Any]) -> set[int]:
        """Ids of what the tracer made and reaches; the tensors of its graph, and what they hold, die with it."""
        todo = list(roots)
        reached = set(map(id, todo))
        while todo:
            for item in gc.get_referents(todo.pop()):
                if id(item) in self._made and id(item) not in reached:
                    reached.add(id(item))
                    todo.append(item)
        return reached

    def _cut(self, holder: Any) -> None:
        """`holder` was there before the run and refers to what it made."""
        cache = holder if isinstance(holder, _lru_cache_wrapper) else _cache_of(holder)
        if cache is None:
            self._take_out(holder)
            return
        take_out(cache, [entry for entry in entries_of(cache) if any(map(self._leads, entry))])
        self._found.append(f"{_IN_CACHE} {_name_of(cache)}()")

    def _take_out(self, holder: Any) -> None:
        """Remove from a container, or an object's attributes, what leads to the values."""
        removed: list[str] = []
        leads = self._leads
        if isinstance(holder, dict):
            kind = next((x for x in gc.get_referrers(holder) if isinstance(x, type)), None)
            if kind is not None and dict_of(kind) is holder:
                for key in [key for key, item in holder.items() if leads(item)]:
                    delattr(kind, key)
                    removed.append(f"{kind.__name__}.{key}")
            else:
                for key in [key for key, item in dict.items(holder) if leads(item) or leads(key)]:
                    dict.pop(holder, key)
                    removed.append(f"{_owner_of(holder)}{_place(key)}")
        elif isinstance(holder, (list, deque)):
            kept = [item for item in holder if not leads(item)]
            if len(kept) != len(holder):
                holder.clear()
                holder.extend(kept)
                removed.append(f"a {type(holder).__name__}")
        elif isinstance(holder, set):
            for item in [item for item in holder if leads(item)]:
                holder.discard(item)
                removed.append("a set")
        elif isinstance(holder, types.CellType):
            if leads(holder.cell_contents):
                del holder.cell_contents
                removed.append("a variable of a closure")
        else:
            removed += self._attributes(holder)
        if removed:
            self._found.append(f"keeps a tensor of the trace in {removed[0]}")
        else:
            self._found.append(
                f"keeps a tensor of the trace in a {type(holder).__name__}, which cannot be undone"
            )

    def _attributes(self, holder: Any) -> list[str]:
        removed = []
        attributes = getattr(holder, "__dict__", None)
        if isinstance(attributes, dict):
            for key in [key for key, item in attributes.items() if self._leads(item)]:
                del attributes[key]
                removed.append(f"{_name_of(holder)}.{key}")
        for member in members_of(type(holder)):
            try:
                value = member.__get__(holder)
            except AttributeError:
                continue
            if self._leads(value):
                member.__delete__(holder)
                removed.append(f"{_name_of(holder)}.{member.__name__}")
        return removed

    def _leads(self, value: Any) -> bool:
        return id(value) in self._seen


def _is_part_of_old(holder: Any, made: set[int]) -> bool:
    """Whether a dict that looks new is an older one: the garbage collector learns of a dict when it first needs to."""
    if type(holder) is not dict:
        return False
    return any(
        id(owner) not in made and type(owner) not in (types.FrameType, list) and owner is not holder
        for owner in gc.get_referrers(holder)
    )


def _is_of_function(holder: Any) -> bool:
    """Whether it is an autograd node of a Function, or the attributes of one: it dies with the results that it belongs to."""
    if type(holder) is dict:
        return any(isinstance(owner, FunctionCtx) for owner in gc.get_referrers(holder))
    return isinstance(holder, FunctionCtx)


def _cache_of(holder: Any) -> Any:
    """The cache of `functools.lru_cache` whose entries a dict holds."""
    owners = gc.get_referrers(holder) if type(holder) is dict else ()
    return next((x for x in owners if isinstance(x, _lru_cache_wrapper) and table_of(x) is holder), None)


def _name_of(owner: Any) -> str:
    return str(getattr(owner, "__name__", None) or f"a {type(owner).__name__}")


def _owner_of(attributes: dict[Any, Any]) -> str:
    for owner in gc.get_referrers(attributes):
        if getattr(owner, "__dict__", None) is attributes:
            return _name_of(owner)
    return "a dict"


def _place(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.40}]"
