"""`staticrt.load`: run an archive without the model's Python code."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt.archive import swap
from staticrt.archive.files import written_by_torch
from staticrt.archive.programs import BUFFER, PARAMETER, TEMPORARY_BUFFER, SavedPrograms, SavedTrace
from staticrt.errors import ArchiveError, InputError, OptionError
from staticrt.executor.prepare import Readiness, readiness, with_bytes
from staticrt.native import _C
from staticrt.options import parse_options
from staticrt.runtime.asynchronous import Future, fork
from staticrt.runtime.explain.explanation import Explanation, TraceReport
from staticrt.runtime.explain.inspectable import Graph
from staticrt.tools.report.inspection import Tools

_TENSOR, _INT, _LITERAL = range(3)
_MOST_TO_PREPARE = 64  # calls that `swap_weights` prepares again
_OPTIONS = (
    "prepared", "max_prepared", "out_variants", "optimize_memory", "deterministic", "weight_memory", "poison",
    "verify",
)  # fmt: skip


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    device: str | torch.device | None = None,
    types: Sequence[type] = (),
    check_weights: bool = True,
    allow_operators: Sequence[str] = (),
    **options: Any,
) -> LoadedModel:
    """Load an archive of `staticrt.save`. Loading unpickles no objects and imports no modules.

    A file is memory-mapped and must not change while the model lives. Loading binds the programs; the first call of each input
    signature prepares it, as after `staticrt.compile`.

    Args:
        source: a file name, or an archive's bytes, which are copied.
        device: where the model's tensors are copied to, once, and where it then runs; arguments must be there. None: where
            it was saved. An archive with tensors on several devices besides the CPU loads only where it was saved.
        types: further classes whose instances the model takes or returns. Tuples, lists, dicts and registered pytree
            containers are always known.
        check_weights: compare all weights with their checksums, which reads the whole file. If False, only the program is
            checked, and weights are read from the file when they are used.
        allow_operators: operators that the archive may call besides those of torch that compute tensors from their arguments:
            "mylib::op", or a whole library, "mylib::*".
        options: runtime options, as `staticrt.compile` takes them: prepared, max_prepared, out_variants,
            optimize_memory, deterministic, weight_memory, poison, verify.

    Raises:
        ArchiveError: the file is not an archive of staticrt, is damaged or truncated, was made with another torch, or
            needs an operator, class or CPU feature that is missing here, or calls an operator that needs consent; or its
            device, or `device`, does not exist in this process or lacks an operator.
        OptionError: an option that does not apply to loading, or `device` is not a device.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise OptionError(
            f"staticrt.load takes no option {unknown[0]!r}", fix=f"options are {', '.join(_OPTIONS)}"
        )
    values = parse_options(options).values
    try:
        place = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(
            f"device is {device!r}: {str(error).splitlines()[0]}", fix='name a device, for example "cpu"'
        ) from None
    runtime = {name: values[name] for name in _OPTIONS}
    return LoadedModel(_Opening(source, place, tuple(types), check_weights, tuple(allow_operators), runtime))


class _Opening:
    """An archive's source and how it is opened.

    Args: as of `load`; `runtime` are its options, all of them.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        device: torch.device | None,
        types: tuple[type, ...],
        check_weights: bool,
        allow_operators: tuple[str, ...],
        runtime: dict[str, Any],
    ) -> None:
        self._how = (device, types, check_weights, allow_operators, runtime)
        self._data: str | bytes | None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._data = bytes(source)
            self._where = f"{len(self._data)} bytes in memory"
            self._version = None
        else:
            self._data = self._where = os.fsdecode(source)
            self._version = _version(self._where)

    def of(self, source: str | os.PathLike[str] | bytes) -> _Opening:
        """Another archive, opened in the same way."""
        return _Opening(source, *self._how)

    def programs(self) -> SavedPrograms:
        """Open it. Bytes are forgotten then: C++ has a copy.

        Raises:
            ArchiveError: see `load`.
        """
        data, where = self._data, self._where
        device, types, check_weights, allow_operators, runtime = self._how
        assert data is not None
        try:
            archive = _C.open_archive(data, where, check_weights, list(allow_operators), device, runtime)
            programs = SavedPrograms(archive, where, types)
        except UnicodeDecodeError:
            raise ArchiveError("archive is damaged: a name in it is not text", at=where) from None
        except ArchiveError:
            writer, fix = written_by_torch(data)
            if not writer:
                raise
            text = f"archive has no program of staticrt's but is what {writer} wrote"
            raise ArchiveError(text, at=where, fix=fix) from None
        if isinstance(data, bytes):
            self._data = None
        return programs

    def again(self) -> SavedPrograms:
        """Open the same file once more.

        Raises:
            InputError: it is another file now, or was never one.
        """
        if self._data is None or self._version is None or _version(self._where) != self._version:
            what = "has changed since" if self._version else "was loaded from bytes"
            raise InputError(
                f"weights cannot be swapped by name: the archive {what}",
                at=self._where,
                fix="pass the file name, or the bytes, of an archive of the model with the new weights",
            )
        return self.programs()


def _version(path: str) -> tuple[int, ...] | None:
    """What changes when a file is written or replaced; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _prepare(programs: SavedPrograms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Readiness:
    args, kwargs = with_bytes(args, kwargs)
    reasons = []
    for number, trace in enumerate(programs.traces):
        call = programs.fit(trace, args, kwargs)
        if isinstance(call, str):
            reasons.append(f"trace {number}: {call}")
        elif trace.native.decided:
            reasons.append(f"trace {number}: data decides which branch runs")
        else:
            return readiness(trace.native.prepare, call[1])
    return Readiness(False, f"the call fits no trace of {programs.name}: " + "; ".join(reasons))


class LoadedPrograms:
    """What reports ask of a loaded model: an `Inspectable`."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.name = model.name
        self.explain = model.explain

    @property
    def fast_calls(self) -> int:
        """Calls that were served without Python."""
        return self._model._now.fast.calls

    def graphs(self) -> list[Graph]:
        """One for each saved trace."""
        return [
            Graph(f"graph {number}", trace.native.executable, trace.input_names())
            for number, trace in enumerate(self._model._traces)
        ]

    def wants_gradients(self) -> bool:
        """Loaded programs record none."""
        return False


class LoadedModel(Tools):
    """A model read from an archive. Called like the module that was saved, from any thread.

    The model owns its parameters and buffers. `state_dict()` returns them; copying into them, or `load_state_dict`,
    changes the results of later calls. Calls update the buffers that the model writes.
    """

    def __init__(self, opening: _Opening) -> None:
        self._opening = opening
        self._now = opening.programs()
        self._to_prepare: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._swapping = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = self._now  # held until the call ends: `swap_weights` may put another in its place
        return now.fast.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<staticrt model {self.name}, {len(self._traces)} traces, from {self._now.where}>"

    @property
    def _archive(self) -> _C.Archive:
        return self._now.archive

    @property
    def _parameters(self) -> list[list[Any]]:
        return self._now.parameters

    @property
    def _traces(self) -> list[SavedTrace]:
        return self._now.traces

    def __reduce__(self) -> Any:
        raise TypeError("a loaded model cannot be pickled: pass the archive's path or bytes instead")

    @property
    def name(self) -> str:
        """The name of the class or function that was saved."""
        return self._now.name

    def __inspectable__(self) -> LoadedPrograms:
        return LoadedPrograms(self)

    @property
    def facts(self) -> dict[str, Any]:
        """The versions of staticrt and torch and the CPU capability with which it was saved, and the CPU features it needs."""
        keys = ("staticrt_version", "torch_version", "cpu_capability", "cpu_features")
        return {key: self._archive.facts[key] for key in keys}

    # -- calls -------------------------------------------------------------------------------------------------
    def run_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call asynchronously; see `staticrt.fork`."""
        return fork(self, *args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Readiness:
        """Plan for these arguments without running the model; only the saved traces can be prepared.

        Returns:
            Whether the next such call is prepared, and otherwise why each trace is not.
        """
        ready = _prepare(self._now, args, kwargs)
        if ready and len(self._to_prepare) < _MOST_TO_PREPARE:
            call = swap.without_bytes((args, kwargs))
            if call not in self._to_prepare:
                self._to_prepare.append(call)
        return ready

    def trim(self) -> None:
        """Free memory that is unused between calls; the next call allocates it again."""
        for trace in self._traces:
            trace.native.executable.trim()

    # -- weights -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by name: the live tensors, mapped from the file until they are written."""
        return self._now.weights(PARAMETER, BUFFER)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters by name. They do not require gradients."""
        return list(self._now.weights(PARAMETER).items())

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Buffers by name, including non-persistent ones."""
        return list(self._now.weights(BUFFER, TEMPORARY_BUFFER).items())

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Copy values into parameters and buffers; the next call uses them.

        Args:
            state_dict: tensors by name, with the saved shapes; dtypes are converted.
            strict: require exactly the names of `state_dict()`. If a check fails, nothing is copied.

        Raises:
            InputError: a name or shape differs.
        """
        own = self._now.weights(PARAMETER, BUFFER, TEMPORARY_BUFFER)
        self._check_names(state_dict, strict)
        for name, value in state_dict.items():
            if name in own and own[name].shape != value.shape:
                raise InputError(
                    f"state dict for {self.name}: {name} has shape {list(value.shape)}, expected {list(own[name].shape)}"
                )
        with torch.no_grad():
            for name, value in state_dict.items():
                if name in own:
                    own[name].copy_(value)

    def _check_names(self, state_dict: Mapping[str, torch.Tensor], strict: bool) -> None:
        own = self._now.weights(PARAMETER, BUFFER, TEMPORARY_BUFFER)
        missing = sorted(self.state_dict().keys() - state_dict.keys())
        unexpected = sorted(state_dict.keys() - own.keys())
        if strict and (missing or unexpected):
            raise InputError(
                f"state dict for {self.name}: missing {missing or 'none'}, unexpected {unexpected or 'none'}",
                fix="pass the state dict of the model that was saved, or strict=False",
            )

    def swap_weights(
        self, weights: Mapping[str, torch.Tensor] | str | os.PathLike[str] | bytes, strict: bool = True
    ) -> None:
        """Put other weights in place of all present ones at once, while calls go on.

        A call that has begun finishes on the old weights; one that begins afterwards sees only the new ones. Calls that
        `prepare` was asked for are prepared again first, so that none waits for it. `state_dict()` gives
        other tensors afterwards. What a running call writes into old buffers is lost.

        Args:
            weights: by name, as in `state_dict()`: they are copied, so each process holds its own. Or an archive of the
                same model with other weights, by file name or bytes: of a file all processes map the same pages.
            strict: a mapping names every parameter and persistent buffer, and no others.

        Raises:
            InputError: a name, shape or dtype does not fit, the archive was saved on another device, or the file of
                this model has changed since it was loaded; no weight has changed.
            ArchiveError: `weights` names no readable archive; nothing has changed.
        """
        with self._swapping:
            if isinstance(weights, Mapping):
                fresh, opening = self._with_values(weights, strict), self._opening
            else:
                opening = self._opening.of(weights)
                fresh = opening.programs()
            swap.check_fits(self._now, fresh)
            for call in list(self._to_prepare):
                _prepare(fresh, *swap.with_tensors(call))
            self._opening, self._now = opening, fresh

    def _with_values(self, weights: Mapping[str, torch.Tensor], strict: bool) -> SavedPrograms:
        """The same archive, opened again, with these values and otherwise the present ones."""
        self._check_names(weights, strict)
        fresh = self._opening.again()
        swap.put_values(self._now, fresh, weights)
        return fresh

    # -- reports -----------------------------------------------------------------------------------------------

    def explain(self) -> Explanation:
        """The archive's graphs with inputs, size conditions and numbers of calls."""
        facts = self._archive.facts
        notes = (
            f"loaded from {self._now.where}: saved by staticrt {facts['staticrt_version']}, torch {facts['torch_version']}, "
            f"on a CPU with {facts['cpu_capability']}",
            *self._packed_note(),
            *self._plans_note(),
            "no model code: a call that fits none of these traces raises",
        )
        return Explanation(self.name, tuple(map(self._report, self._traces)), (), notes)

    def _packed_note(self) -> tuple[str, ...]:
        held = sum(trace.native.packed_bytes for trace in self._traces)
        taken = sum(trace.native.executable.taken_bytes for trace in self._traces)
        return (f"packed weights: {held} bytes in the archive, {taken} of them in use",) if held else ()

    def _plans_note(self) -> tuple[str, ...]:
        held = sum(trace.native.num_plans for trace in self._traces)
        programs = [stats for trace in self._traces for stats in trace.native.executable.prepared_stats]
        used, made = (sum(stats[key] for stats in programs) for key in ("known_plans", "searched_plans"))
        return (
            (f"memory plans: {held} in the archive, {used} of them in use, {made} made here",) if held else ()
        )

    def _report(self, trace: SavedTrace) -> TraceReport:
        operators = tuple((str(name), int(count)) for name, count in trace.report["operators"])
        return TraceReport(
            route="loaded",
            inputs=tuple(map(_describe, trace.leaves)),
            nodes=sum(count for _name, count in operators),
            operators=operators,
            guards=tuple(trace.native.guard_texts),
            mutates=tuple(trace.report["mutates"]),
            passes=tuple(trace.report["passes"]),
            kinds=tuple(trace.native.executable.node_counts.items()),
            executor="StaticExecutable",
            calls=trace.calls,
        )


def _describe(leaf: Mapping[str, Any]) -> str:
    if leaf["kind"] == _LITERAL:
        return f"{leaf['name']}: {leaf['constant']}"
    if leaf["kind"] == _INT:
        return f"{leaf['name']}: int"
    dtype = str(leaf["dtype"]).removeprefix("torch.")
    where = "" if leaf["device"].type == "cpu" else f" on {leaf['device']}"
    return f"{leaf['name']}: {dtype}, {leaf['dim']} dimensions{where}"
