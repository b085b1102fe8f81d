"""Runs calls whose results need gradients: by a joint trace, by graph splits, or eagerly."""

from __future__ import annotations

from functools import partial
from typing import Any

from staticrt.errors import TraceError
from staticrt.executor.call_state import CallState
from staticrt.executor.cost_trials import StepTrials
from staticrt.executor.graph_splits import GraphSplits
from staticrt.executor.handed_back import LeftToEager
from staticrt.executor.joint_calls import JointCalls
from staticrt.frontend.dynamo.dynamo import NotCompiled
from staticrt.frontend.guards.global_hooks import has_global_hooks
from staticrt.options import Options
from staticrt.runtime.call import Call
from staticrt.runtime.eager_runs import EagerCalls
from staticrt.torch_private import default_process_group


class TrainingCalls:
    """The calls of one compiled callable whose results need gradients.

    Args:
        joint: serves calls by joint traces.
        splits: serves calls by partial graphs, each of which is differentiated ahead of time.
        eager: runs calls eagerly.
        options: checked options.
        name: for messages.
        compiles: False where no call is compiled.
    """

    def __init__(
        self,
        joint: JointCalls,
        splits: GraphSplits,
        eager: EagerCalls,
        options: Options,
        name: str,
        compiles: bool,
    ) -> None:
        self._joint = joint
        self._splits = splits
        self._eager = eager
        self._options = options
        self._name = name
        self._only_eager = "" if compiles and options.training else "the call needs gradients"

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call | None = None) -> Any:
        """The result of a call. `call`: as of `JointCalls.serve`.

        Raises:
            NeedsNone: the call needs no backward, and nothing has run.
        """
        if self._only_eager:
            return self._eager.run(args, kwargs, self._only_eager)
        if has_global_hooks():
            return self._eager.run(args, kwargs, "torch has hooks on all modules, which Dynamo does not see")
        state: CallState | None = None
        if self._options.joint_trace:
            try:
                served = self._joint.serve(args, kwargs, call)
            except LeftToEager as left:
                result = self._eager.run(args, kwargs, left.reason, left.where)
                left.answered()
                if left.lasts:
                    self._eager.will_last(args, kwargs, left.reason, left.where)
                return result
            if isinstance(served, tuple):
                return served[0]
            state = served
        try:
            result, compiled = self._in_parts(state, args, kwargs)
        except NotCompiled as error:
            if self._options.fullgraph:
                raise TraceError(
                    f"cannot trace {self._name} for training: {error}", fix="leave out fullgraph=True"
                ) from error
            self._only_eager = str(error)
            return self._eager.run(args, kwargs, self._only_eager)
        finally:
            if state is not None and state.watched is not None:
                state.watched.ran()
        if not compiled:
            reason = "the call needs gradients, and Dynamo found nothing to compile"
            self._eager.counts["call", reason, ""] += 1
        return result

    def _in_parts(self, state: CallState | None, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Run a call by graph splits, or eagerly where timings prefer that.

        Args:
            state: of the call's key, if it has one.
        """
        split = partial(self._splits.train, args, kwargs)
        # Ranks that choose different ways might start collectives in different orders.
        if state is None or state.failure is None or self._options.fullgraph or default_process_group():
            return split()
        if state.trials is None:
            state.trials = StepTrials(not self._options.deterministic)
        failed = state.failure
        return state.trials.run(
            Call.of(args, kwargs).leaves,
            split,
            partial(self._eager.run_as_tried, args, kwargs, failed.reason, failed.where),
        )
