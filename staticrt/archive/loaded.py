"""`staticrt.load`: run an archive without the model's Python code."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt._compat import hidden_from_dynamo
from staticrt.archive import literals
from staticrt.archive.structures import Decoder, count_leaves, largest_reference
from staticrt.asynchronous import Future, fork
from staticrt.errors import ArchiveError, GradError, InputError, OptionError
from staticrt.fast_path import FastPath
from staticrt.frontend.keys import eager_reason
from staticrt.frontend.structure import Flattener, ResultSpec, Structure
from staticrt.native import _C
from staticrt.options import parse_options
from staticrt.report.explain import CaptureReport, Explanation
from staticrt.report.tools import Tools

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
    types: Sequence[type] = (),
    check_weights: bool = True,
    **options: Any,
) -> LoadedModel:
    """Load what `staticrt.save` wrote. Nothing is unpickled, and no module is imported.

    A file is mapped: it must stay as it is while the model lives. Programs are bound here; each input signature is
    prepared at its first call, as after `staticrt.compile`.

    Args:
        source: a file name, or an archive's bytes, which are copied.
        types: classes, apart from tuples, lists, dicts and registered pytree containers, whose instances the model
            takes or returns.
        check_weights: compare all weights with their checksums, which reads them. False: only the program is checked,
            and weights are read from the file as they are used.
        options: of the runtime, as `staticrt.compile` takes them: prepared, max_prepared, out_variants,
            optimize_memory, deterministic, poison, verify.

    Raises:
        ArchiveError: the file is no archive of staticrt's, is damaged or cut short, was made with another torch, or
            needs an operator, class or CPU feature that is not there.
        OptionError: an option that loading does not take.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise OptionError(
            f"staticrt.load takes no option {unknown[0]!r}", fix=f"options are {', '.join(_OPTIONS)}"
        )
    values = parse_options(options).values
    if isinstance(source, (bytes, bytearray, memoryview)):
        data: str | bytes = bytes(source)
        where = f"{len(data)} bytes in memory"
    else:
        data = where = os.fsdecode(source)
    try:
        archive = _C.open_archive(data, where, check_weights, {name: values[name] for name in _OPTIONS})
        return LoadedModel(archive, where, types)
    except UnicodeDecodeError:
        raise ArchiveError("archive is damaged: a name in it is not text", at=where) from None


class _NoState:
    """What `FastPath` asks of a capture's Python state: a loaded program depends on none."""

    def native(self) -> _C.StateGuard:
        return _C.StateGuard([], [], [], [], [], [])


@dataclasses.dataclass(frozen=True)
class _Symbol:
    leaf: int


@dataclasses.dataclass(frozen=True)
class _Guards:
    symbols: tuple[_Symbol, ...]


class _Capture:
    """One capture: the C++ object, and what Python needs to call it. Attributes are those of `CapturedGraph`."""

    def __init__(self, native: _C.ArchiveCapture, decoder: Decoder) -> None:
        self.native = native
        try:
            data = json.loads(native.structure)
            arguments, results, constants = data["arguments"], data["results"], data["constants"]
            self.report: Mapping[str, Any] = data["report"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArchiveError(f"archive is damaged: the structure of a capture ({error!r})") from None
        self.in_spec: Structure = decoder.structure(arguments)
        self.out_spec: ResultSpec = decoder.result(results)
        self.leaves = native.leaves
        self.values = native.model_tensors
        reads = {leaf["input"]: index for index, leaf in enumerate(self.leaves) if leaf["input"] >= 0}
        self.same = tuple(
            (index, leaf["same"]) for index, leaf in enumerate(self.leaves) if leaf["same"] >= 0
        )
        self.user_leaves = tuple(reads[position] for position in range(len(reads)))
        self.guards = _Guards(tuple(map(_Symbol, native.guarded_leaves)))
        self.outputs: list[tuple[str, Any]] = [
            ("constant", literals.decode(constant)) if output < 0 else ("tensor", output)
            for output, constant in zip(native.outputs, constants, strict=True)
        ]
        self._check()
        self.calls = 0

    def _check(self) -> None:
        """The structures have the leaves that the program has."""
        results = [self.out_spec.result, *(structure for _number, structure in self.out_spec.writes)]
        counts = (count_leaves(self.in_spec), sum(map(count_leaves, results)))
        shape = [child.kind for child in self.in_spec.children]
        if counts != (len(self.leaves), len(self.outputs)) or shape != [tuple, dict]:
            raise ArchiveError(f"archive is damaged: structures of {counts} leaves")
        # References count the caller's containers first, then the result's own.
        limit = sum(map(_count_containers, [self.in_spec, *results]))
        references = [largest_reference(self.in_spec), *map(largest_reference, results)]
        if max([*references, *(number for number, _structure in self.out_spec.writes)]) >= limit:
            raise ArchiveError("archive is damaged: a structure refers to no container")

    def rebind(self, args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[Any]) -> Any:
        """The call with its arguments passed as this capture has them, or None."""
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
    """JSON of a constant, or None if it is none."""
    try:
        return literals.dumps(value)
    except literals.NotLiteral:
        return None


def json_text(data: Any) -> str:
    """Encoded JSON as text, as `literals.dumps` writes it."""
    return json.dumps(data, separators=(",", ":"))


class LoadedModel(Tools):
    """A model read from an archive. Called like the module that was saved, from any thread.

    Parameters and buffers are tensors of their own: `state_dict()` gives them, and copying into them, or
    `load_state_dict`, changes what later calls compute. Buffers that the model writes are written here too.
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
            self._captures = [_Capture(native, decoder) for native in archive.captures]
        except ArchiveError as error:
            raise ArchiveError(error.message, at=where, fix=error.fix) from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ArchiveError(f"archive is damaged: its call ({error!r})", at=where) from None
        self._fast = FastPath(functools.partial(self._run))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fast.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<staticrt model {self.name}, {len(self._captures)} captures, from {self._where}>"

    def __reduce__(self) -> Any:
        raise TypeError("a loaded model is not pickled: hand over the archive's path or bytes")

    @property
    def name(self) -> str:
        """The name of the class or function that was saved."""
        return str(self._archive.facts["name"])

    @property
    def facts(self) -> dict[str, Any]:
        """Versions of staticrt and torch that saved it, CPU capability there, features it needs."""
        keys = ("staticrt_version", "torch_version", "cpu_capability", "cpu_features")
        return {key: self._archive.facts[key] for key in keys}

    # -- calls -------------------------------------------------------------------------------------------------

    @hidden_from_dynamo
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        reason = eager_reason()
        if reason is not None:
            raise InputError(f"{self.name}, loaded from an archive, cannot run while {reason}")
        reasons = []
        for number, capture in enumerate(self._captures):
            call = self._fit(capture, args, kwargs)
            if isinstance(call, str):
                reasons.append(f"capture {number}: {call}")
                continue
            flattener, leaves, rebound = call
            values = capture.native.run(leaves)
            if values is None:
                reasons.append(f"capture {number}: {_C.DECIDED_OTHERWISE}")
                continue
            capture.calls += 1
            flat = [values[item] if kind == "tensor" else item for kind, item in capture.outputs]
            if not rebound and not capture.native.decided:
                executable = capture.native.executable
                self._fast.learn(capture, executable, capture.outputs, _NoState(), args, kwargs)  # type: ignore[arg-type]
            return capture.out_spec.build(flat, flattener.containers)
        raise InputError(
            f"the call fits no capture of {self.name}:\n    " + "\n    ".join(reasons),
            at=self._where,
            fix="call the compiled model like this before saving it again; no model code is in the archive",
        )

    def _fit(
        self, capture: _Capture, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Flattener, list[Any], bool] | str:
        """The call's leaves for this capture and whether arguments were passed otherwise, or why it does not fit."""
        flattener = Flattener()
        structure = flattener.flatten((args, kwargs))
        rebound = False
        if structure != capture.in_spec:
            call = capture.rebind(args, kwargs, self._parameters)
            flattener = Flattener()
            if call is None or flattener.flatten(call) != capture.in_spec:
                return f"arguments are {structure}, captured were {capture.in_spec}"
            rebound = True
        leaves: list[Any] = []
        for leaf, spec in zip(flattener.leaves, capture.leaves, strict=True):
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
        why = capture.native.refusal(leaves)
        return why if why else (flattener, leaves, rebound)

    def run_async(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """The call, made beside this thread; see `staticrt.fork`."""
        return fork(self, *args, **kwargs)

    def trim(self) -> None:
        """Give back memory that no call uses; the next call takes it again."""
        for capture in self._captures:
            capture.native.executable.trim()

    # -- weights -----------------------------------------------------------------------------------------------

    def _named(self, *kinds: int) -> dict[str, torch.Tensor]:
        return {name: tensor for name, kind, tensor in self._archive.weights if kind in kinds}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and lasting buffers by name: the live tensors, mapped from the file until written."""
        return self._named(_PARAMETER, _BUFFER)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters by name; they take no gradients."""
        return list(self._named(_PARAMETER).items())

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Buffers by name, temporary ones too."""
        return list(self._named(_BUFFER, _TEMPORARY_BUFFER).items())

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """Copy values into parameters and buffers; the next call sees them.

        Args:
            state_dict: tensors by name, of the shapes that were saved; dtypes are converted.
            strict: names must be exactly those of `state_dict()`. Nothing is copied where a check fails.

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
        """What the archive holds: graphs, inputs, size conditions, how often each ran."""
        facts = self._archive.facts
        notes = (
            f"loaded from {self._where}: saved by staticrt {facts['staticrt_version']}, torch {facts['torch_version']}, "
            f"on a CPU with {facts['cpu_capability']}",
            *self._packed_note(),
            *self._plans_note(),
            "no model code: a call outside these captures is an error",
        )
        return Explanation(self.name, tuple(map(self._report, self._captures)), (), notes)

    def _packed_note(self) -> tuple[str, ...]:
        held = sum(capture.native.packed_bytes for capture in self._captures)
        taken = sum(capture.native.executable.taken_bytes for capture in self._captures)
        return (f"packed weights: {held} bytes in the archive, {taken} of them in use",) if held else ()

    def _plans_note(self) -> tuple[str, ...]:
        held = sum(capture.native.num_plans for capture in self._captures)
        programs = [stats for capture in self._captures for stats in capture.native.executable.prepared_stats]
        used, made = (sum(stats[key] for stats in programs) for key in ("known_plans", "searched_plans"))
        return (
            (f"memory plans: {held} in the archive, {used} of them in use, {made} made here",) if held else ()
        )

    def _report(self, capture: _Capture) -> CaptureReport:
        operators = tuple((str(name), int(count)) for name, count in capture.report["operators"])
        return CaptureReport(
            route="loaded",
            inputs=tuple(map(_describe, capture.leaves)),
            nodes=sum(count for _name, count in operators),
            operators=operators,
            guards=tuple(capture.native.guard_texts),
            mutates=tuple(capture.report["mutates"]),
            passes=tuple(capture.report["passes"]),
            kinds=tuple(capture.native.executable.node_counts.items()),
            executor="StaticExecutable",
            calls=capture.calls,
        )


def _describe(leaf: Mapping[str, Any]) -> str:
    if leaf["kind"] == _LITERAL:
        return f"{leaf['name']}: {leaf['constant']}"
    if leaf["kind"] == _INT:
        return f"{leaf['name']}: int"
    dtype = str(leaf["dtype"]).removeprefix("torch.")
    return f"{leaf['name']}: {dtype}, {leaf['dim']} dimensions"
