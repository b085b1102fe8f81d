"""Every transition of a call, taken by real calls: outcomes, the stages that follow, and the route of the key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import TraceError
from staticrt.executor import executor as executor_module
from staticrt.executor import trace_cache
from staticrt.executor.call_state import Route
from staticrt.executor.graph_splits import GraphSplits
from staticrt.executor.machine import Outcome, Stage, advance
from staticrt.frontend.dynamo.dynamo import NotCompiled
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.maybe_views import SizesDecideViews
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.shapes.size_env import NeedsShapeEnv
from staticrt.tuning import MAX_BRANCHES, MAX_INTERVENTIONS

SEEN: set[Outcome] = set()


@pytest.fixture(autouse=True)
def no_gradients():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def path(monkeypatch):
    """The way of a call: "OUTCOME STAGE ROUTE" after each transition, without those of its partial graphs."""
    steps: list[str] = []

    def noted(outcome, state):
        stage = advance(outcome, state)
        if not sys._getframe(1).f_locals["self"]._is_partial:
            SEEN.add(outcome)
            steps.append(f"{outcome.name} {stage.name} {state.route.name}")
        return stage

    for module in (executor_module, trace_cache):
        monkeypatch.setattr(module, "advance", noted)
    return steps


def calls(path, compiled, *args):
    """Result and way of one call that does not take the fast path."""
    path.clear()
    result = compiled.__inspectable__()(*args)
    return result, list(path)


def way(path, compiled, *args):
    return calls(path, compiled, *args)[1]


def prints(x):
    print("", end="")
    return x * 2


def test_a_call_is_traced_once_and_found_afterwards(path):
    compiled, x = staticrt.compile(lambda x: x * 2), torch.ones(3)
    assert way(path, compiled, x) == ["NOT_FOUND TRACE WHOLE", "TRACED RUN WHOLE", "RETURNED DONE WHOLE"]
    result, steps = calls(path, compiled, x)
    assert steps == ["FOUND RUN WHOLE", "RETURNED DONE WHOLE"]
    assert torch.equal(result, x * 2)


def test_a_trace_made_by_another_thread_is_found_before_tracing(path, monkeypatch):
    compiled, x = staticrt.compile(lambda x: x * 2), torch.ones(3)
    executor = compiled.__inspectable__()
    find = executor_module._ACTIONS[Stage.FIND]

    def late(self, progress):  # another thread makes the trace after this one looked
        if progress.call.leaves[0] is x and not executor.snapshot().traces:
            executor(torch.ones(4))
            return Outcome.NOT_FOUND
        return find(self, progress)

    monkeypatch.setitem(executor_module._ACTIONS, Stage.FIND, late)
    assert way(path, compiled, x)[-3:] == ["NOT_FOUND TRACE WHOLE", "FOUND RUN WHOLE", "RETURNED DONE WHOLE"]
    assert len(executor.snapshot().traces) == 1


def test_other_sizes_are_tried_where_ours_do_not_serve(path):
    steps = way(path, staticrt.compile(lambda x: torch.cdist(x, x)), torch.randn(3, 4))
    assert steps == [
        "NOT_FOUND TRACE WHOLE",
        "NEEDS_OTHER_SIZES TRACE WHOLE",
        "TRACED RUN WHOLE",
        "RETURNED DONE WHOLE",
    ]


def test_an_argument_that_the_model_changes_is_flattened_into_its_attributes(path):
    class Holder:
        count = 0

    def counts(x, holder):
        holder.count = holder.count + 1
        return x + holder.count

    holder = Holder()
    holder.count = 3
    result, steps = calls(path, staticrt.compile(counts), torch.zeros(2), holder)
    assert steps[:2] == ["NOT_FOUND TRACE WHOLE", "ARGUMENTS_CHANGED FLATTEN WHOLE"]
    assert steps[-1] == "RETURNED DONE WHOLE"
    assert (result.tolist(), holder.count) == ([4, 4], 4)


def test_a_model_that_changes_itself_is_traced_again_twice_and_then_split(path):
    class Counts(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls = self.calls + 1
            return x + self.calls

    model = Counts()
    compiled = staticrt.compile(model)
    for _ in range(2):
        assert way(path, compiled, torch.zeros(2)) == [
            "NOT_FOUND TRACE WHOLE",
            "MODEL_CHANGED EAGER RETRY",
            "EAGER_RETURNED DONE WHOLE",
        ]
    assert way(path, compiled, torch.zeros(2)) == [
        "NOT_FOUND TRACE WHOLE",
        "CANNOT_TRACE SPLIT SPLIT",
        "RETURNED DONE SPLIT",
    ]
    assert model.calls == 3


def test_what_cannot_be_traced_is_split_from_then_on(path):
    compiled, x = staticrt.compile(prints), torch.ones(3)
    assert way(path, compiled, x) == [
        "NOT_FOUND TRACE WHOLE",
        "CANNOT_TRACE SPLIT SPLIT",
        "RETURNED DONE SPLIT",
    ]
    result, steps = calls(path, compiled, x)
    assert steps == ["NOT_FOUND SPLIT SPLIT", "RETURNED DONE SPLIT"]
    assert torch.equal(result, x * 2)


def test_fullgraph_raises_instead(path):
    compiled = staticrt.compile(prints, fullgraph=True)
    for _ in range(2):
        with pytest.raises(TraceError, match=r"print\(\)"):
            compiled(torch.ones(3))
    assert path == ["NOT_FOUND TRACE WHOLE"] * 2


def test_what_raises_only_while_it_is_traced_is_split_once_eager_answered(path):
    def asks(x):
        if torch.compiler.is_compiling():
            raise ValueError("not under a compiler")
        return x + 1

    compiled, x = staticrt.compile(asks), torch.ones(3)
    result, steps = calls(path, compiled, x)
    assert steps[0] == "NOT_FOUND TRACE WHOLE"
    assert steps[-2:] == ["RAISED EAGER EAGER_FIRST", "EAGER_RETURNED DONE SPLIT"]
    assert result.tolist() == [2, 2, 2]


def test_what_eager_refuses_too_is_traced_again(path):
    compiled = staticrt.compile(lambda x, y: x @ y)
    right, wrong = torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(RuntimeError):
        compiled(right, wrong)
    assert path[-2:] == ["RAISED EAGER EAGER_FIRST", "EAGER_RAISED DONE WHOLE"]
    assert way(path, compiled, right, torch.ones(3, 4))[-2:] == ["TRACED RUN WHOLE", "RETURNED DONE WHOLE"]


def test_what_must_not_be_split_runs_eagerly(path):
    class Prints(nn.Module):
        runs_whole_or_eagerly = True

        def forward(self, x):
            return prints(x)

    compiled, x = staticrt.compile(Prints()), torch.ones(3)
    assert way(path, compiled, x) == [
        "NOT_FOUND TRACE WHOLE",
        "ONLY_EAGER EAGER EAGER",
        "EAGER_RETURNED DONE EAGER",
    ]
    assert way(path, compiled, x) == ["NOT_FOUND EAGER EAGER", "EAGER_RETURNED DONE EAGER"]


def test_state_that_changes_between_calls_lets_dynamo_compile_anew(path):
    class Config:
        def __len__(self):
            return 2

    config, x = Config(), torch.ones(3)
    compiled = staticrt.compile(lambda x: prints(x) * len(config))
    assert way(path, compiled, x)[-1] == "RETURNED DONE SPLIT"
    for length in range(3, 3 + sum(MAX_INTERVENTIONS)):
        Config.__len__ = lambda _config, length=length: length
        result, steps = calls(path, compiled, x)
        assert steps[:2] == ["NOT_FOUND SPLIT SPLIT", steps[1]]
        assert torch.equal(result, x * 2 * length)
        if length < 2 + sum(MAX_INTERVENTIONS):
            assert steps[1] == "STATE_CHANGED TRACE WHOLE"
            assert steps[2:] == ["CANNOT_TRACE SPLIT SPLIT", "RETURNED DONE SPLIT"]
            assert way(path, compiled, x) == ["NOT_FOUND SPLIT SPLIT", "RETURNED DONE SPLIT"]
    assert steps[1:] == ["ONLY_EAGER EAGER EAGER", "EAGER_RETURNED DONE EAGER"]


def test_state_that_a_split_model_changes_itself_is_left_to_dynamo(path):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = {"number": 0}

        def forward(self, x):
            self.calls["number"] += 1
            return prints(x) * self.calls["number"]

    model, x = Counts(), torch.ones(3)
    compiled = staticrt.compile(model)
    for number in range(1, 12):
        result, steps = calls(path, compiled, x)
        assert result.tolist() == [2.0 * number] * 3
        assert not any("STATE_CHANGED" in step for step in steps)


def test_a_branch_of_data_gets_a_trace_and_is_looked_at_first_afterwards(path):
    compiled, x = staticrt.compile(lambda x: x * 2 if x.sum() > 0 else x - 1), torch.ones(3)
    compiled(x)
    result, steps = calls(path, compiled, -x)
    assert torch.equal(result, -x - 1)
    assert [step.split()[0] for step in steps if "SIZES" not in step] == [
        *("FOUND", "OTHER_DECISION", "NOT_FOUND", "TRACED", "RETURNED")
    ]
    assert [step.split()[0] for step in way(path, compiled, -x)] == [
        *("FOUND", "OTHER_DECISION", "FOUND", "RETURNED")
    ]
    assert way(path, compiled, -x) == ["FOUND RUN WHOLE", "RETURNED DONE WHOLE"]


def test_too_many_branches_are_split(path):
    def counted(x, n):
        for _ in range(int(n)):
            x = x + 1
        return x

    compiled = staticrt.compile(counted)
    for n in range(MAX_BRANCHES):
        assert way(path, compiled, torch.zeros(2), torch.tensor(n))[-1] == "RETURNED DONE WHOLE"
    result, steps = calls(path, compiled, torch.zeros(2), torch.tensor(MAX_BRANCHES))
    assert steps.count("OTHER_DECISION FIND WHOLE") == MAX_BRANCHES
    assert steps[-2:] == ["CANNOT_TRACE SPLIT SPLIT", "RETURNED DONE SPLIT"]
    assert result.tolist() == [MAX_BRANCHES] * 2
    assert not compiled.__inspectable__().snapshot().traces


def test_a_written_argument_that_shares_memory_runs_eagerly_this_once(path):
    def writes(x, y):
        x.add_(1)
        return x + y

    compiled = staticrt.compile(writes)
    compiled(torch.zeros(2), torch.zeros(2))
    x = torch.zeros(2)
    result, steps = calls(path, compiled, x, x[:])
    assert steps == ["FOUND RUN WHOLE", "LEFT_TO_EAGER EAGER WHOLE", "RETURNED DONE WHOLE"]
    assert result.tolist() == [2, 2]


def test_beyond_max_traces_calls_run_eagerly_and_nothing_is_kept_of_them(path):
    compiled = staticrt.compile(lambda x: x * 2, max_traces=1)
    compiled(torch.ones(3))
    with pytest.warns(UserWarning, match="max_traces=1"):
        steps = way(path, compiled, torch.ones(3, 3))
    assert steps == ["NOT_FOUND TRACE WHOLE", "LEFT_TO_EAGER EAGER WHOLE", "RETURNED DONE WHOLE"]
    assert list(compiled.__inspectable__().snapshot().routes.values()) == [Route.WHOLE]


def test_eager_replaces_splits_that_dynamo_refuses(path, monkeypatch):
    def refuses(self, args, kwargs):
        raise NotCompiled("refused")

    monkeypatch.setattr(GraphSplits, "infer", refuses)
    compiled, x = staticrt.compile(prints), torch.ones(3)
    assert way(path, compiled, x) == [
        "NOT_FOUND TRACE WHOLE",
        "CANNOT_TRACE SPLIT SPLIT",
        "NOT_COMPILED EAGER SPLIT",
        "REPLACED DONE EAGER",
    ]
    assert way(path, compiled, x)[0] == "NOT_FOUND EAGER EAGER"


def test_splits_stay_where_eager_raises_in_their_place(path, monkeypatch):
    def fails(x):
        print("", end="")
        if x.sum() > 5:
            raise ValueError("too large")
        return x

    def refuses(self, args, kwargs):
        raise NotCompiled("refused")

    compiled, x = staticrt.compile(fails), torch.ones(3)
    compiled(x)
    monkeypatch.setattr(GraphSplits, "infer", refuses)
    path.clear()
    with pytest.raises(ValueError, match="too large"):
        compiled(x * 9)
    assert path == ["NOT_FOUND SPLIT SPLIT", "NOT_COMPILED EAGER SPLIT"]


def test_global_hooks_make_split_calls_run_eagerly(path):
    compiled, x = staticrt.compile(prints), torch.ones(3)
    compiled(x)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        steps = way(path, compiled, x)
    finally:
        hook.remove()
    assert steps == ["NOT_FOUND SPLIT SPLIT", "LEFT_TO_EAGER EAGER SPLIT", "EAGER_RETURNED DONE SPLIT"]


def test_what_reaches_parameters_is_traced_with_its_backward(path):
    layer, x = nn.Linear(3, 2), torch.ones(4, 3)
    compiled = staticrt.compile(lambda x: layer(x))
    with torch.enable_grad():
        assert way(path, compiled, x) == [
            "NOT_FOUND TRACE WHOLE",
            "NEEDS_BACKWARD TRAIN TRAIN",
            "RETURNED DONE TRAIN",
        ]
        assert way(path, compiled, x) == ["NOT_FOUND TRAIN TRAIN", "RETURNED DONE TRAIN"]
        layer.requires_grad_(False)
        assert way(path, compiled, x) == [
            "NOT_FOUND TRAIN TRAIN",
            "NEEDS_NO_GRADIENT FIND WHOLE",
            "NOT_FOUND TRACE WHOLE",
            "TRACED RUN WHOLE",
            "RETURNED DONE WHOLE",
            "RETURNED DONE WHOLE",
        ]
        assert way(path, compiled, x) == ["FOUND RUN WHOLE", "RETURNED DONE WHOLE"]


def test_arguments_are_flattened_once(monkeypatch):
    from staticrt.frontend.arguments.structure import Flattener

    flattened: list[object] = []
    original = Flattener.flatten

    def noted(self, value):
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
            flattened.append(value)
        return original(self, value)

    monkeypatch.setattr(Flattener, "flatten", noted)
    compiled = staticrt.compile(lambda x, *, scale: x * scale)
    compiled(torch.ones(1, 3), scale=torch.ones(3))
    assert len(flattened) == 1

    weight = torch.ones(3, requires_grad=True)  # only the trace shows that the call needs its gradient

    def decided(x):
        return x * weight if x.sum() > 0 else weight

    compiled = staticrt.compile(decided)
    with torch.enable_grad():
        compiled(torch.ones(3))
        flattened.clear()
        compiled(torch.ones(2, 3)).sum().backward()  # of another key
    assert len(flattened) == 1


# The ways to represent sizes, in the order of NEEDS_OTHER_SIZES.


def _sizings(request, error):
    found = []
    while request is not None:
        found.append(request.sizing)
        request = request.after(error)
    return found


@pytest.mark.parametrize(
    ("sizes", "special"), [((2, 3), []), ((1, 3), [Sizing.SHAPE_ENV_ZERO_ONE])], ids=["usual", "one"]
)
def test_sizes_become_constants_last(sizes, special):
    request = TraceRequest.of(torch.relu, (torch.ones(sizes),), {})
    found = _sizings(request, RuntimeError("the model does not take these sizes"))
    assert found == [Sizing.OURS, Sizing.SHAPE_ENV, *special, Sizing.SHAPE_ENV_CONSTANT]


def test_constant_sizes_need_no_symbols_of_torch_at_first():
    request = TraceRequest.of(torch.relu, (torch.ones(1),), {}, sizing=Sizing.first(False, shape_env=False))
    assert _sizings(request, RuntimeError()) == [Sizing.OURS_CONSTANT, Sizing.SHAPE_ENV_CONSTANT]


def test_what_no_other_sizes_help_ends_the_trace():
    request = TraceRequest.of(torch.relu, (torch.ones(1),), {})
    assert request.after(CannotTrace("a print", "")) is None
    assert request.after(SizesDecideViews()).sizing is Sizing.SHAPE_ENV_CONSTANT
    late = TraceRequest.of(torch.relu, (torch.ones(1),), {}, sizing=Sizing.SHAPE_ENV)
    assert late.after(NeedsShapeEnv()) is None


def test_every_outcome_was_taken_by_a_call():
    # Another process of xdist may have run some tests of this file.
    if set(Outcome) != SEEN and "PYTEST_XDIST_WORKER" in os.environ:
        alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", __file__], check=True, env=alone
        )
    else:
        assert set(Outcome) == SEEN
