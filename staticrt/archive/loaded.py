"""`staticrt.load`: run an archive without the model's Python code."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt.archive import literals
from staticrt.archive.files import written_by_torch
from staticrt.archive.structures import Decoder, count_leaves, largest_reference
from staticrt.errors import ArchiveError, GradError, InputError, OptionError
from staticrt.executor.prepare import Readiness, readiness, with_bytes
from staticrt.frontend.arguments.structure import Flattener, ResultSpec, Structure
from staticrt.native import _C
from staticrt.options import parse_options
from staticrt.runtime.asynchronous import Future, fork
from staticrt.runtime.call_key import eager_reason
from staticrt.runtime.call_spec import CallSpec
from staticrt.runtime.explain.explanation import Explanation, TraceReport
from staticrt.runtime.explain.inspectable import Graph
from staticrt.runtime.fast_call import FastPath
from staticrt.tools.report.inspection import Tools
from staticrt.torch_private import hidden_from_dynamo

# As WeightKind in csrc/archive/archive.h.
_PARAMETER, _BUFFER, _TEMPORARY_BUFFER, _CONSTANT = range(4)
_TENSOR, _INT, _LITERAL = range(3)
_OPTIONS = (
    "prepared",
    "max_prepared",
    "out_variants",
    "optimize_memory",
    "deterministic",
    "poison",
    "verify",
)


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
        options: of the runtime, as `staticrt.compile` takes them: prepared, max_prepared, out_variants,
            optimize_memory, deterministic, poison, verify.

    Raises:
        ArchiveError: the file is not an archive of staticrt, is damaged or truncated, was made with another torch, or
            needs an operator, class or CPU feature that is missing here, or calls an operator that needs consent; or its
            device, or `device`, does not exist in this process or lacks an operator.
        OptionError: an option that does not apply to loading, or `device` is no device.
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
    if isinstance(source, (bytes, bytearray, memoryview)):
        data: str | bytes = bytes(source)
        where = f"{len(data)} bytes in memory"
    else:
        data = where = os.fsdecode(source)
    try:
        runtime = {name: values[name] for name in _OPTIONS}
        archive = _C.open_archive(data, where, check_weights, list(allow_operators), place, runtime)
        return LoadedModel(archive, where, types)
    except UnicodeDecodeError:
        raise ArchiveError("archive is damaged: a name in it is not text", at=where) from None
    except ArchiveError:
        writer, fix = written_by_torch(data)
        if not writer:
            raise
        text = f"archive has no program of staticrt's but is what {writer} wrote"
        raise ArchiveError(text, at=where, fix=fix) from None


class _NoState:
    """The Python state of a trace for `FastPath`: a loaded program depends on none."""

    def native(self) -> _C.StateGuard:
        return _C.StateGuard()


class _SavedTrace:
    """One trace: the C++ object, and what Python needs to call it."""

    def __init__(self, native: _C.ArchiveTrace, decoder: Decoder) -> None:
        self.native = native
        try:
            data = json.loads(native.structure)
            arguments, results, constants = data["arguments"], data["results"], data["constants"]
            self.report: Mapping[str, Any] = data["report"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArchiveError(f"archive is damaged: the structure of a trace ({error!r})") from None
        self.in_spec: Structure = decoder.structure(arguments)
        self.out_spec: ResultSpec = decoder.result(results)
        self.leaves = native.leaves
        reads = {leaf["input"]: index for index, leaf in enumerate(self.leaves) if leaf["input"] >= 0}
        self.call_spec = CallSpec(
            self.in_spec,
            self.out_spec,
            tuple(native.model_tensors),
            user_leaves=tuple(reads[position] for position in range(len(reads))),
            same=tuple((index, leaf["same"]) for index, leaf in enumerate(self.leaves) if leaf["same"] >= 0),
        )
        self.outputs: list[tuple[str, Any]] = [
            ("constant", literals.decode(constant)) if output < 0 else ("tensor", output)
            for output, constant in zip(native.outputs, constants, strict=True)
        ]
        self._check()
        self.calls = 0

    def input_names(self) -> tuple[str, ...]:
        """Names of the program's inputs, "" for the model's own tensors, which come first."""
        users = sorted((leaf["input"], leaf["name"]) for leaf in self.leaves if leaf["input"] >= 0)
        return ("",) * len(self.call_spec.values) + tuple(name for _position, name in users)

    def _check(self) -> None:
        """Check that the structures have as many leaves as the program.

        Raises:
            ArchiveError: they differ, or a structure refers to a container that does not exist.
        """
        results = [self.out_spec.result, *(structure for _number, structure in self.out_spec.writes)]
        counts = (count_leaves(self.in_spec), sum(map(count_leaves, results)))
        shape = [child.kind for child in self.in_spec.children]
        if counts != (len(self.leaves), len(self.outputs)) or shape != [tuple, dict]:
            raise ArchiveError(f"archive is damaged: structures of {counts} leaves")
        # References number the caller's containers first, then those of the result.
        limit = sum(map(_count_containers, [self.in_spec, *results]))
        references = [largest_reference(self.in_spec), *map(largest_reference, results)]
        if max([*references, *(number for number, _structure in self.out_spec.writes)]) >= limit:
            raise ArchiveError("archive is damaged: a structure refers to no container")

    def arguments_text(self) -> str:
        """What it takes, by name."""
        return f"({', '.join(str(leaf['name']) for leaf in self.leaves)})"

    def rebind(self, args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[Any]) -> Any:
        """The call with its arguments in the positions and keywords of this trace; None if they do not fit."""
        positional, keywords = self.in_spec.children
        names = [name for name, _kind, _default in parameters]
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or any(kind.startswith("VAR") for _n, kind, _d in parameters):
            given = {}
            if len(args) != len(positional.children):
                return None
            names = [f"\0{i}" for i in range(len(args))]
            given = dict(zip(names, args, strict=True))
        if given.keys() & kwargs.keys():
            return None
        given.update(kwargs)
        wanted = [*names[: len(positional.children)], *keywords.context]
        for name, _kind, default in parameters:
            if default and name in wanted:
                given.setdefault(name, literals.decode(default[0]))
            elif default and name in given and literal_text(given[name]) == json_text(default[0]):
                del given[name]
        if set(wanted) != given.keys() or len(wanted) != len(given):
            return None
        return (
            tuple(given[name] for name in wanted[: len(positional.children)]),
            {name: given[name] for name in keywords.context},
        )


def _count_containers(structure: Structure) -> int:
    own = structure.kind not in (None, "ref", tuple, torch.Size)
    return own + sum(map(_count_containers, structure.children))


def literal_text(value: Any) -> str | None:
    """JSON of a constant, or None if the value is not a constant."""
    try:
        return literals.dumps(value)
    except literals.NotLiteral:
        return None


def json_text(data: Any) -> str:
    """Encoded JSON as text, as `literals.dumps` writes it."""
    return json.dumps(data, separators=(",", ":"))


class LoadedPrograms:
    """What reports ask of a loaded model: an `Inspectable`."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.name = model.name
        self.explain = model.explain

    @property
    def fast_calls(self) -> int:
        """Calls that were served without Python."""
        return self._model._fast.calls

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

    def __init__(self, archive: _C.Archive, where: str, types: Sequence[type]) -> None:
        self._archive = archive
        self._where = where
        decoder = Decoder(types)
        try:
            self._parameters: list[list[Any]] = [
                [str(name), str(kind), list(default)]
                for name, kind, default in json.loads(archive.facts["calling"])
            ]
            self._traces = [_SavedTrace(native, decoder) for native in archive.traces]
        except ArchiveError as error:
            raise ArchiveError(error.message, at=where, fix=error.fix) from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ArchiveError(f"archive is damaged: its call ({error!r})", at=where) from None
        self._fast = FastPath(functools.partial(self._run))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fast.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<staticrt model {self.name}, {len(self._traces)} traces, from {self._where}>"

    def __reduce__(self) -> Any:
        raise TypeError("a loaded model cannot be pickled: pass the archive's path or bytes instead")

    @property
    def name(self) -> str:
        """The name of the class or function that was saved."""
        return str(self._archive.facts["name"])

    def __inspectable__(self) -> LoadedPrograms:
        return LoadedPrograms(self)

    @property
    def facts(self) -> dict[str, Any]:
        """The versions of staticrt and torch and the CPU capability with which it was saved, and the CPU features it needs."""
        keys = ("staticrt_version", "torch_version", "cpu_capability", "cpu_features")
        return {key: self._archive.facts[key] for key in keys}

    # -- calls -------------------------------------------------------------------------------------------------

    @hidden_from_dynamo
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        reason = eager_reason()
        if reason is not None:
            raise InputError(f"{self.name}, loaded from an archive, cannot run while {reason}")
        reasons = []
        for number, trace in enumerate(self._traces):
            call = self._fit(trace, args, kwargs)
            if isinstance(call, str):
                reasons.append(f"trace {number}: {call}")
                continue
            flattener, leaves, rebound = call
            values = trace.native.run(leaves)
            if values is None:
                reasons.append(f"trace {number}: {_C.DECIDED_OTHERWISE}")
                continue
            trace.calls += 1
            flat = [values[item] if kind == "tensor" else item for kind, item in trace.outputs]
            if not rebound and not trace.native.decided:
                executable = trace.native.executable
                self._fast.learn(trace.call_spec, executable, trace.outputs, _NoState(), args, kwargs)
            return trace.out_spec.build(flat, flattener.containers)
        raise InputError(
            f"the call fits no trace of {self.name}:\n    " + "\n    ".join(reasons),
            at=self._where,
            fix="call the compiled model like this and save it again; the archive has no model code",
        )

    def _fit(
        self, trace: _SavedTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Flattener, list[Any], bool] | str:
        """The call's leaves for this trace and whether arguments had to be rearranged, or the reason why the call does not fit."""
        flattener = Flattener()
        structure = flattener.flatten((args, kwargs))
        rebound = False
        if structure != trace.in_spec:
            call = trace.rebind(args, kwargs, self._parameters)
            flattener = Flattener()
            if call is None or flattener.flatten(call) != trace.in_spec:
                return f"the call gives {_call_text(args, kwargs)}, the trace takes {trace.arguments_text()}"
            rebound = True
        leaves: list[Any] = []
        for leaf, spec in zip(flattener.leaves, trace.leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
                    return f"{spec['name']!r} is a tensor subclass, {type(leaf).__name__}"
                if leaf.requires_grad and torch.is_grad_enabled():
                    raise GradError(
                        f"argument {spec['name']!r} requires gradients, which a loaded program does not give",
                        fix="call it under torch.no_grad(), or pass a detached tensor",
                    )
                leaves.append(leaf)
            elif type(leaf) is int:
                if not -(2**63) <= leaf < 2**63:
                    return f"{spec['name']!r} is an int of more than 64 bits"
                leaves.append(leaf)
            else:
                text = literal_text(leaf)
                if text is None:
                    return f"{spec['name']!r} is a {type(leaf).__name__}"
                leaves.append(text)
        why = trace.native.refusal(leaves)
        return why if why else (flattener, leaves, rebound)

    def run_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call asynchronously; see `staticrt.fork`."""
        return fork(self, *args, **kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> Readiness:
        """Plan for these arguments without running the model; only the saved traces can be prepared.

        Returns:
            Whether the next such call is prepared, and otherwise why each trace is not.
        """
        args, kwargs = with_bytes(args, kwargs)
        reasons = []
        for number, trace in enumerate(self._traces):
            call = self._fit(trace, args, kwargs)
            if isinstance(call, str):
                reasons.append(f"trace {number}: {call}")
            elif trace.native.decided:
                reasons.append(f"trace {number}: data decides which branch runs")
            else:
                return readiness(trace.native.prepare, call[1])
        return Readiness(False, f"the call fits no trace of {self.name}: " + "; ".join(reasons))

    def trim(self) -> None:
        """Free memory that is unused between calls; the next call allocates it again."""
        for trace in self._traces:
            trace.native.executable.trim()

    # -- weights -----------------------------------------------------------------------------------------------

    def _named(self, *kinds: int) -> dict[str, torch.Tensor]:
        return {name: tensor for name, kind, tensor in self._archive.weights if kind in kinds}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by name: the live tensors, mapped from the file until they are written."""
        return self._named(_PARAMETER, _BUFFER)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters by name. They do not require gradients."""
        return list(self._named(_PARAMETER).items())

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Buffers by name, including non-persistent ones."""
        return list(self._named(_BUFFER, _TEMPORARY_BUFFER).items())

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Copy values into parameters and buffers; the next call uses them.

        Args:
            state_dict: tensors by name, with the saved shapes; dtypes are converted.
            strict: require exactly the names of `state_dict()`. If a check fails, nothing is copied.

        Raises:
            InputError: a name or shape differs.
        """
        own = self._named(_PARAMETER, _BUFFER, _TEMPORARY_BUFFER)
        missing = sorted(self.state_dict().keys() - state_dict.keys())
        unexpected = sorted(state_dict.keys() - own.keys())
        if strict and (missing or unexpected):
            raise InputError(
                f"state dict for {self.name}: missing {missing or 'none'}, unexpected {unexpected or 'none'}",
                fix="pass the state dict of the model that was saved, or strict=False",
            )
        for name, value in state_dict.items():
            if name in own and own[name].shape != value.shape:
                raise InputError(
                    f"state dict for {self.name}: {name} has shape {list(value.shape)}, expected {list(own[name].shape)}"
                )
        with torch.no_grad():
            for name, value in state_dict.items():
                if name in own:
                    own[name].copy_(value)

    # -- reports -----------------------------------------------------------------------------------------------

    def explain(self) -> Explanation:
        """The archive's graphs with inputs, size conditions and numbers of calls."""
        facts = self._archive.facts
        notes = (
            f"loaded from {self._where}: saved by staticrt {facts['staticrt_version']}, torch {facts['torch_version']}, "
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

    def _report(self, trace: _SavedTrace) -> TraceReport:
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


def _call_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The kinds of a call's arguments: "(Tensor, mask=list of 2)"."""

    def kind(value: Any) -> str:
        name = type(value).__name__
        return f"{name} of {len(value)}" if isinstance(value, (list, tuple, dict)) else name

    return f"({', '.join([*map(kind, args), *(f'{name}={kind(value)}' for name, value in kwargs.items())])})"
