"""The engine behind every compiled callable: pick a capture for a call, or make one, or run eagerly."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from staticrt import ahead, donation, executable
from staticrt._compat import hidden_from_dynamo
from staticrt.branches import MAX_BRANCHES, OtherDecision, run_decided
from staticrt.entry import Entry, Failure, share_memory, tensor_metadata, writes_inference_tensors
from staticrt.errors import CaptureError, LoweringError, PassError
from staticrt.fast_path import FastPath
from staticrt.frontend import budget
from staticrt.frontend.dynamo import NotCompiled
from staticrt.frontend.graph import CapturedGraph, KnownInputs
from staticrt.frontend.keys import CallKey, EagerOnly, call_key, eager_reason, needs_gradients
from staticrt.frontend.names import argument_names
from staticrt.frontend.reasons import CannotCapture, ModelChanges
from staticrt.frontend.state import Snapshot, global_hooks, has_global_hooks
from staticrt.frontend.structure import Flattener, take_apart
from staticrt.held import HeldMemory
from staticrt.ops.size_nodes import NeedsShapeEnv
from staticrt.options import Options
from staticrt.pieces import Pieces
from staticrt.report.eager import eager_call, nobody_watches
from staticrt.trials import Trials

if TYPE_CHECKING:
    from staticrt.report.explain import Explanation

log = logging.getLogger(__name__)

# Captures that may fail as the model changes its own attributes: many do so in their first call only.
_MAX_CHANGES = 2


class TakenApart(Exception):
    """The call's arguments flatten otherwise now: it has to be looked up again."""


class Engine(HeldMemory):
    """Runs a function or module compiled.

    Args:
        function: what to run; also what runs eagerly.
        options: checked options.
        name: for messages.
        part: the function is a part that Dynamo cut out: it guards the Python state, and nothing cuts further.
        known: of the flat arguments of a part.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        name: str,
        part: bool = False,
        known: KnownInputs | None = None,
    ) -> None:
        self.function = function
        self.options = options
        self.name = name
        self._entries: dict[tuple[Any, ...], list[Entry]] = {}
        # key -> "parts", "later", "again" or "eager", once capture failed
        self._routes: dict[tuple[Any, ...], str] = {}
        self._order: list[Entry] = []
        self._eager: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.RLock()
        self._warned: set[str] = set()
        self._failures: dict[tuple[Any, ...], Failure] = {}
        self._trials: dict[tuple[Any, ...], Trials] = {}  # of keys on the route "parts"
        self._changes: Counter[tuple[Any, ...]] = Counter()  # key -> captures the model's changes spoiled
        self._is_part = part
        self._known = known or KnownInputs()
        self.pieces = Pieces(function, self._piece, options)
        self._untrainable = ""
        self.fast = FastPath(self)
        if not part:
            donation.check_names(function, options.donate)

    # -- calls -------------------------------------------------------------------------------------------------

    @hidden_from_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.options.donate and not self._is_part:
            if torch.is_grad_enabled() and self._wants_gradients():
                raise donation.needs_gradients(self.options.donate)
            return donation.call(self._call, self.function, self.options.donate, args, kwargs)
        return self._call(*args, **kwargs)

    @hidden_from_dynamo
    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._look_up(args, kwargs)
        except TakenApart:
            return self._call(*args, **kwargs)

    def _look_up(self, args: Any, kwargs: Any) -> Any:
        reason = eager_reason()
        if reason is not None:
            return self._run_eagerly(args, kwargs, reason)
        if torch.is_grad_enabled():
            # Dynamo looks at such a call itself: no key is needed where the arguments are plain.
            needs = needs_gradients((*args, *kwargs.values()))
            if needs or (needs is not None and self._wants_gradients()):
                return self._train(args, kwargs)
        flattener = Flattener()
        spec = flattener.flatten((args, kwargs))
        leaves = flattener.leaves
        try:
            call = call_key(leaves, spec)
        except EagerOnly as error:
            return self._run_eagerly(args, kwargs, str(error))
        if torch.is_grad_enabled() and (call.needs_grad or self._wants_gradients()):
            return self._train(args, kwargs)
        try:
            route = self._routes.get(call.key)
        except TypeError:  # an argument that cannot be hashed
            return self._run_eagerly(args, kwargs, "an argument is neither a tensor nor hashable")
        entry = self._find(call, leaves)
        try:
            if entry is None and route is not None:
                return self._run_uncaptured(call.key, flattener, args, kwargs)
            if entry is None:
                return self._miss(call, flattener, args, kwargs)
            return self._run(entry, flattener, args, kwargs)
        except OtherDecision as other:
            return self._run_other(call, flattener, args, kwargs, [other.entry])

    def _wants_gradients(self) -> bool:
        parameters = getattr(self.function, "parameters", None)
        return parameters is not None and any(p.requires_grad for p in parameters())

    def _find(self, call: CallKey, leaves: Sequence[Any], tried: Sequence[Entry] = ()) -> Entry | None:
        for entry in self._entries.get(call.key, ()):
            if entry not in tried and entry.accepts(leaves, call):
                return entry
        return None

    def _run(self, entry: Entry, flat_args: Flattener, args: Any, kwargs: Any) -> Any:
        leaves = flat_args.leaves
        captured = entry.captured
        if captured.mutates:
            if share_memory(captured, leaves):
                return self._run_eagerly(
                    args, kwargs, "an argument that is written shares memory with another input"
                )
            if not torch.is_inference_mode_enabled() and writes_inference_tensors(captured, leaves):
                return self._run_eagerly(args, kwargs, "an inference tensor is written")  # which raises
        entry.calls += 1
        flat = [*captured.values, *(leaves[index] for index in captured.user_leaves)]
        outputs = run_decided(entry, flat) if captured.decided else entry.executable.run(flat)
        if isinstance(entry.executable, executable.StaticExecutable) and not captured.decided:
            static = entry.executable
            self.fast.learn(captured, static.native, static.outputs, entry.state, args, kwargs)
        return captured.out_spec.build(outputs, flat_args.containers)

    def _run_eagerly(self, args: Any, kwargs: Any, reason: str, where: str = "") -> Any:
        self._eager["call", reason, where] += 1
        if nobody_watches():  # a context manager costs more than a small function
            return self.function(*args, **kwargs)
        with eager_call(self.name, reason, where):
            return self.function(*args, **kwargs)

    def _run_other(self, call: CallKey, flat: Flattener, args: Any, kwargs: Any, tried: list[Entry]) -> Any:
        """Run a call whose data decides otherwise than in the captures `tried`."""
        while call.key not in self._routes:
            entry = self._find(call, flat.leaves, tried)
            try:
                if entry is None:
                    return self._miss(call, flat, args, kwargs, tried)
                result = self._run(entry, flat, args, kwargs)
                with self._lock:  # likely the next call's branch too
                    entries = self._entries.get(call.key, [])
                    self._entries[call.key] = [entry, *(e for e in entries if e is not entry)]
                return result
            except OtherDecision as other:
                if other.entry in tried:
                    break
                tried.append(other.entry)
        return self._run_uncaptured(call.key, flat, args, kwargs)

    # -- captures ----------------------------------------------------------------------------------------------

    def _miss(
        self, call: CallKey, flat: Flattener, args: Any, kwargs: Any, tried: Sequence[Entry] = ()
    ) -> Any:
        entry = None
        with self._lock:
            if call.key not in self._routes:
                entry = self._find(call, flat.leaves, tried)  # another thread may have made it
                if entry is None and len(tried) >= MAX_BRANCHES:
                    self._give_up_branches(call.key)
                elif entry is None:
                    if len(self._order) >= self.options.max_captures:
                        reason = f"more than max_captures={self.options.max_captures} captures"
                        self._warn_once(f"{self.name}: {reason}; further ones run eagerly")
                        return self._run_eagerly(args, kwargs, reason)
                    entry = self._capture(call, flat.leaves, args, kwargs)
        if entry is not None:
            return self._run(entry, flat, args, kwargs)
        return self._run_uncaptured(call.key, flat, args, kwargs)

    def _run_uncaptured(self, key: tuple[Any, ...], flat: Flattener, args: Any, kwargs: Any) -> Any:
        """Run what could not be captured whole: in parts where that helps, else eagerly."""
        failed = self._failures[key]
        route = self._routes.get(key, "eager")
        gave_up = ""  # why not in pieces from now on, if eager answers
        if route == "parts" and not has_global_hooks():
            trials = self._trials.get(key)
            if trials is None:
                trials = self._trials.setdefault(key, Trials(not self.options.deterministic))
            way, trial = trials.way(flat.leaves)
            begin = time.perf_counter_ns()
            try:
                if way == "eager":
                    result = self._run_eagerly(
                        args, kwargs, trials.reason(trial) or failed.reason, failed.where
                    )
                    trials.ran(way, trial, begin, compiled=False)
                    return result
                result, compiled = self.pieces.infer(args, kwargs)
                if not compiled:  # nothing to compile, or Dynamo's recompile limit
                    self._eager["call", failed.reason, failed.where] += 1
                trials.ran(way, trial, begin, compiled)
                return result
            except NotCompiled as error:
                gave_up = str(error)
        try:
            result = self._run_eagerly(args, kwargs, failed.reason, failed.where)
        except Exception:
            # The call itself is wrong, as eager says; a right one of the same kind is tried again.
            if not failed.impossible and not gave_up:
                self._routes.pop(key, None)
            raise
        if gave_up:
            self._routes[key] = "eager"
            self._eager["call", gave_up, ""] += 0
        elif route == "later":
            self._routes[key] = "parts"
        elif route == "again":
            self._routes.pop(key, None)
        return result

    def _train(self, args: Any, kwargs: Any) -> Any:
        """Run a call whose results need gradients: Dynamo cuts it, each part is differentiated ahead of time."""
        if self._is_part or not self.options.training or self._untrainable:
            return self._run_eagerly(args, kwargs, self._untrainable or "the call needs gradients")
        if has_global_hooks():
            return self._run_eagerly(
                args, kwargs, "torch has hooks on all modules, which Dynamo does not see"
            )
        try:
            result, compiled = self.pieces.train(args, kwargs)
        except NotCompiled as error:
            if self.options.fullgraph:
                raise CaptureError(f"cannot capture {self.name} for training: {error}") from error
            self._untrainable = str(error)
            return self._run_eagerly(args, kwargs, self._untrainable)
        if not compiled:
            self._eager["call", "the call needs gradients, and Dynamo found nothing to compile", ""] += 1
        return result

    def _piece(self, function: Callable[..., Any], number: int, known: KnownInputs) -> Engine:
        return Engine(function, self.options, f"{self.name}, part {number}", part=True, known=known)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"staticrt: {text}", stacklevel=5)

    def _capture(self, call: CallKey, leaves: Sequence[Any], args: Any, kwargs: Any) -> Entry | None:
        from staticrt.frontend.capture import capture

        snapshot = Snapshot() if self._is_part else Snapshot([("", self.function), *global_hooks()])
        snapshot.add_arguments(leaves)
        seen = [entry for entry in self._entries.get(call.key, ()) if entry.ints]
        symbolic = self._known.symbolic_ints | frozenset(
            index
            for index, value in call.ints
            if any(dict(entry.ints).get(index, value) != value for entry in seen)
        )

        def attempt(quick: bool) -> tuple[CapturedGraph, executable.Executable]:
            captured = capture(
                self.function,
                args,
                kwargs,
                snapshot=snapshot,
                names=argument_names(self.function, args, kwargs, len(leaves)),
                tensors=self._tensors(),
                dynamic=self.options.dynamic is not False,
                known=replace(self._known, symbolic_ints=symbolic),
                decide=not self._is_part and self.options.graphs is False,
                quick=quick,
            )
            if not snapshot.complete:
                raise CannotCapture("the model reaches more containers than can be guarded")
            if torch.is_grad_enabled() and any(value.requires_grad for value in captured.values):
                raise CannotCapture("the result may need gradients of a tensor that is no argument")
            return captured, self._executable(captured)

        try:
            with budget.account(self.options.seconds_to_capture()):
                try:
                    # An accelerator compiles islands when it likes, and may ask torch about their sizes then.
                    captured, built = attempt(quick=self.options.accelerators is None)
                except NeedsShapeEnv as error:
                    log.debug("captured again with torch's own sizes: %s", error)
                    captured, built = attempt(quick=False)
        except donation.WrittenDonation:
            raise
        except ModelChanges as error:
            if any(take_apart(leaves[index]) for index in snapshot.changed_arguments(error.paths)):
                raise TakenApart from error
            self._fail(call.key, error)
            return None
        except (PassError, LoweringError) as error:
            if self.options.executor == "static":
                raise
            self._fail(call.key, CannotCapture(str(error), ""))
            return None
        except Exception as error:
            self._fail(call.key, error)
            return None
        entry = Entry(
            captured=captured,
            executable=built,
            state=snapshot.guard(),
            ints=tuple((i, v) for i, v in call.ints if i not in symbolic),
            metadata=tensor_metadata(captured.values),
        )
        self.fast.forget()
        self._entries[call.key] = [*self._entries.get(call.key, ()), entry]
        self._order.append(entry)
        return entry

    def _executable(self, captured: CapturedGraph) -> executable.Executable:
        if not self._is_part:
            executable.donated_inputs(captured, self.options.donate)
        built = executable.build(
            captured,
            self.options.executor,
            freeze=self.options.freeze,
            accelerators=self.options.accelerators,
            # A graph that data may stop runs again as another one, on the same arguments.
            donate=() if self._is_part or captured.decided else self.options.donate,
            **self.options.runtime(),
        )
        if self.options.graphs is False:
            return built
        from staticrt.capture.compiled import CapturedExecutable

        return CapturedExecutable(built, captured, self.options.graphs, self.name)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ahead.Readiness:
        """Capture and plan for these arguments without running the model on them."""
        try:
            return ahead.prepare(self, args, kwargs)
        except TakenApart:
            return self.prepare(args, kwargs)

    def explain(self) -> Explanation:
        """What was compiled, what runs eagerly, and why."""
        from staticrt.report.engine import explanation

        return explanation(self)

    def _give_up_branches(self, key: tuple[Any, ...]) -> None:
        """Data decides too often otherwise: captures that follow branches cost more than they save."""
        dropped = [entry for entry in self._entries[key] if entry.captured.decided]
        self._entries[key] = [entry for entry in self._entries[key] if not entry.captured.decided]
        self._order = [entry for entry in self._order if entry not in dropped]
        self._fail(key, CannotCapture(f"data decides branches in more than {MAX_BRANCHES} ways", ""))

    def _fail(self, key: tuple[Any, ...], error: Exception) -> None:
        """Remember why a capture failed and how its calls run from now on."""
        from staticrt.frontend.capture import failure

        reason, where = failure(error)
        if self.options.fullgraph:
            raise CaptureError(f"cannot capture {self.name}: {reason}", at=where or None) from error
        impossible = isinstance(error, CannotCapture)
        self._failures[key] = Failure(reason, where, impossible)
        # What the model raised may be the caller's mistake: eager decides, and parts are tried afterwards.
        whole = self._is_part or getattr(self.function, "runs_whole_or_eagerly", False)
        whole |= isinstance(error, CannotCapture) and error.even_in_parts
        self._routes[key] = "eager" if whole else "parts" if impossible else "later"
        if isinstance(error, ModelChanges) and self._changes[key] < _MAX_CHANGES:
            self._changes[key] += 1
            self._routes[key] = "again"

    def _tensors(self) -> dict[int, tuple[str, str]]:
        function = self.function
        if not isinstance(function, torch.nn.Module):
            return {}
        found = {id(b): ("buffer", name) for name, b in function.named_buffers()}
        found.update({id(p): ("parameter", name) for name, p in function.named_parameters()})
        return found
