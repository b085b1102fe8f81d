"""Whatever Python state forward reads: what changes between two calls shows in the next one, as in eager."""

import functools
import sys
import time
import types

import pytest
import torch
from torch import nn

import staticrt
from staticrt import tuning
from tests.soundness.state_fuzzer import answer, compiled, failure, same
from tests.soundness.state_kinds import KINDS, MISSED_BY_DYNAMO, RUN_EAGERLY

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_change_shows_in_the_next_call(kind):
    assert failure(1, (kind,), changes=3) == ""


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - MISSED_BY_DYNAMO)[::3])
def test_a_change_shows_behind_torch_compile(kind):
    assert failure(3, (kind,), changes=2, way="backend") == ""


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - RUN_EAGERLY - {"offset_of_tensor_in_storage"}))
def test_state_that_stays_is_traced_once(kind):
    read, change = KINDS[kind]()
    fast = compiled(read, "compile")
    try:
        for _call in range(3):
            assert same(answer(fast), answer(read))
    finally:
        getattr(change, "restore", lambda: None)()
    (trace,) = fast.explain().traces
    assert trace.route == "whole"
    assert trace.calls >= 2


def traces(fast):
    return [trace.route for trace in fast.explain().traces]


def test_an_equal_number_or_text_is_no_change():
    config = types.SimpleNamespace(scale=2.5, sizes=(1000, 2000), name="some name")
    fast = staticrt.compile(lambda x: x * config.scale + config.sizes[0] * len(config.name))
    for scale in ("2.5", "2.50"):
        config.scale = float(scale)
        config.sizes = (int("1000"), int("2000"))
        config.name = "".join(["some", " name"])
        assert fast(torch.ones(2)).tolist() == [9002.5, 9002.5]
    assert traces(fast) == ["whole"]


def test_a_zero_of_another_sign_is_a_change():
    config = types.SimpleNamespace(scale=0.0)
    fast = staticrt.compile(lambda x: x * config.scale)
    assert torch.signbit(fast(torch.ones(1))).tolist() == [False]
    config.scale = -0.0
    assert torch.signbit(fast(torch.ones(1))).tolist() == [True]


def test_what_the_code_does_not_name_may_change():
    class Config:
        scale = 2.0
        calls = 0

    config = Config()
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    fast = staticrt.compile(lambda x: x * config.scale * weight)
    for call in range(3):
        Config.calls = weight.owner = call
        x = torch.ones(2)
        x.owner = call
        assert fast(x).tolist() == [2.0, 2.0]
    assert traces(fast) == ["whole"]
    assert fast.explain().traces[0].calls == 3


def test_an_attribute_of_an_argument_is_read():
    fast = staticrt.compile(lambda x: x * getattr(x, "gain", 1.0))
    assert [fast(torch.ones(1)).item() for _ in range(3)] == [1.0] * 3
    x = torch.ones(1)
    for gain in (2.0, 3.0):
        x.gain = gain
        assert fast(x).item() == gain
    assert fast(torch.ones(1)).item() == 1.0


@pytest.mark.parametrize("name", ["grad", "grad_fn", "is_leaf", "_base", "_version"])
def test_what_only_a_real_tensor_knows_is_not_traced(name):
    def model(x):
        return x * (2 if getattr(x, name) is None else 3)

    fast = staticrt.compile(model)
    x = torch.ones(4)
    with torch.no_grad():
        for value in (x, x[1:], x[1:].view(3, 1)):
            x.add_(1)
            assert same(fast(value), model(value))
    assert traces(fast) != ["whole"]
    assert f".{name} of a tensor" in str(fast.explain())


def test_a_view_that_autograd_refuses_to_speak_of_disturbs_no_trace():
    """Asking whether such a view is a leaf raises; code that names `.grad` makes a trace look at every tensor."""
    base = torch.ones(2, 3, requires_grad=True) * 1
    view, _other = base.unbind(0)
    base.add_(1)
    with pytest.raises(RuntimeError, match="is a view and"):
        view.is_leaf  # noqa: B018
    weight = nn.Parameter(torch.ones(4), requires_grad=False)
    fast = staticrt.compile(lambda x: x * (weight if weight.grad is None else 3))
    assert fast(torch.ones(4)).tolist() == [1] * 4
    weight.grad = torch.ones(4)
    assert fast(torch.ones(4)).tolist() == [3] * 4
    assert traces(fast) == ["whole", "whole"]


def test_storage_offset_of_an_argument():
    base = torch.arange(8.0)
    fast = staticrt.compile(lambda x: x + x.storage_offset())
    assert fast(base[2:4]).tolist() == [4.0, 5.0]
    assert fast(base[4:6]).tolist() == [8.0, 9.0]
    assert "storage_offset" in str(fast.explain())


def test_a_function_that_only_c_code_reaches_is_guarded():
    def key(number, sign=1.0):
        return number * sign

    kept = [iter(lambda: key, None)]
    fast = staticrt.compile(lambda x: x * sorted([1.0, 2.0], key=hidden())[0])

    def hidden():
        return kept[0].__reduce__()[1][0]()

    assert fast(torch.ones(1)).item() == 1.0
    key.__defaults__ = (-1.0,)
    assert fast(torch.ones(1)).item() == 2.0


def test_a_function_of_torchscript_in_a_closure():
    """Its calls are C++'s; a walk that asked it for its attributes crashed the process."""

    @torch.jit.script
    def doubled(x):
        return x * 2

    held = types.SimpleNamespace(function=doubled, more=1.0)
    fast = staticrt.compile(lambda x: doubled(x) + held.function(x) + held.more)
    for more in (1.0, 1.0, 2.0):
        held.more = more
        assert fast(torch.ones(2)).tolist() == [4.0 + more] * 2


def test_a_model_that_counts_its_calls_in_a_class_runs_as_in_eager():
    class Counted(nn.Module):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return x * self.calls

    fast = staticrt.compile(Counted())
    assert [fast(torch.ones(1)).item() for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_explain_counts_what_each_call_compares():
    small = staticrt.compile(nn.Sequential(nn.ReLU()))
    large = staticrt.compile(nn.Sequential(*(nn.ReLU() for _ in range(20))))
    with torch.no_grad():
        for fast in (small, large):
            fast(torch.ones(1))
    (few,), (many,) = small.explain().traces, large.explain().traces
    assert dict(few.state)["objects"] + 19 == dict(many.state)["objects"]
    assert f"objects {dict(many.state)['objects']}" in str(large.explain())


OF_PARTS = KINDS.keys() - RUN_EAGERLY


@pytest.mark.parametrize("kind", sorted({*(MISSED_BY_DYNAMO & OF_PARTS), *sorted(OF_PARTS)[::5]}))
def test_a_change_shows_where_the_model_runs_in_parts(kind):
    """Dynamo's guards see less than ours."""
    read, change = KINDS[kind]()

    def model(x):
        print(end="")
        return read(x)

    fast = compiled(model, "compile")
    default_dtype = torch.get_default_dtype()
    try:
        for number in (0.5, 2.0, 3.0):
            for _call in range(2):
                assert same(answer(fast), answer(model)), f"after {number}"
            change(number)
        assert same(answer(fast), answer(model))
    finally:
        torch.set_default_dtype(default_dtype)
        getattr(change, "restore", lambda: None)()


OF_CLASSES = ("builtin_shadowed", "class_attribute_given_to_derived_class", "metaclass_attribute")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in (*OF_CLASSES, "method_of_class_replaced", "ordered_dict_moved")),
        ("method_of_class_replaced", {"backward_node": "aot"}),  # refused before anything is traced
    ],
)
def test_a_change_shows_where_a_training_call_runs_in_parts(kind, options):
    read, change = KINDS[kind]()

    def model(x):
        return read(x * 2 if x.sum() > 0 else x)  # a branch that data decides: no joint trace serves it

    def trained(function):
        x = torch.ones(2, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        return gradient

    fast = staticrt.compile(model, **options)
    try:
        for number in (0.5, 2.0, 3.0):
            for _call in range(2):
                assert trained(fast).equal(trained(model)), f"after {number}"
            change(number)
        assert trained(fast).equal(trained(model))
    finally:
        getattr(change, "restore", lambda: None)()


def test_numbers_that_each_training_step_changes_leave_the_parts_compiled():
    scope = {"step": 0}
    exec("def model(x): return x * step if x.sum() > 0 else x", scope)
    fast = staticrt.compile(scope["model"])
    for step in range(20):
        scope["step"] = step
        x = torch.ones(2, requires_grad=True)
        (gradient,) = torch.autograd.grad(fast(x).sum(), x)
        assert gradient.tolist() == [step] * 2
    assert not [run for run in fast.explain().eager if "again and again" in run.reason]


def test_a_global_that_each_training_call_rebinds_leaves_the_parts_compiled():
    scopes = {}, {}
    for scope in scopes:
        exec("last = None\ndef model(x):\n    global last\n    last = x\n    return (x * x).sin()", scope)
    eager, fast = (
        scopes[0]["model"],
        staticrt.compile(scopes[1]["model"], deterministic=True),
    )  # no cost trials
    for step in range(20):
        gradients = []
        for function, scope in zip((eager, fast), scopes, strict=True):
            x = torch.full((2,), float(step), requires_grad=True)
            gradients += torch.autograd.grad(function(x).sum(), x)
            assert scope["last"] is x
        torch.testing.assert_close(*gradients)
    assert sum(run.calls for run in fast.explain().eager) == tuning.STEP_ATTEMPTS


def test_an_attribute_beside_one_that_the_model_changes_is_watched():
    class Computed:
        def __init__(self):
            self.calls = 0
            self.known = 1.0

        def __getattr__(self, name):
            self.calls += 1
            return 10.0

    def model(x, holder):
        return x * holder.found + holder.known

    holder = Computed()
    fast = staticrt.compile(lambda x: model(x, holder))
    with torch.no_grad():
        for change in (lambda: None, lambda: None, lambda: setattr(holder, "known", 2.0)):
            change()
            assert fast(torch.ones(1)).tolist() == [10 + holder.known]
        holder.found = 3.0
        assert fast(torch.ones(1)).tolist() == [5]
        del holder.found
        assert fast(torch.ones(1)).tolist() == [12]
    assert holder.calls == 4


def limit_after_an_effect(x):
    time.time()  # the trace ends here, and Dynamo splits the rest
    return x * (sys.getrecursionlimit() % 7)


def test_what_dynamo_reads_once_is_read_in_each_call_behind_an_effect():
    fast = staticrt.compile(limit_after_an_effect)
    x = torch.randn(4)
    before = sys.getrecursionlimit()
    try:
        with torch.no_grad():
            for limit in (before + 1, before + 2, before + 4):
                sys.setrecursionlimit(limit)
                assert torch.equal(fast(x), limit_after_an_effect(x))
    finally:
        sys.setrecursionlimit(before)


def test_state_that_only_the_second_trace_meets_is_guarded():
    """The first one stops where a size is a key: it has to be a constant."""
    settings = {"scale": 2.0}
    by_length = {2: lambda x: x * settings["scale"]}

    def model(x):
        return by_length[x.shape[0]](x)

    fast = staticrt.compile(model)
    for scale in (2.0, 3.0, 4.0):
        settings["scale"] = scale
        assert fast(torch.ones(2)).tolist() == [scale] * 2


def test_effects_that_only_the_second_trace_meets_happen_once():
    calls = []

    @functools.cache
    def ones(size):
        calls.append(size)
        return torch.ones(size, size)

    fast = staticrt.compile(lambda x: ones(x.shape[0]) @ x)
    for size in (2, 3, 2, 3):
        fast(torch.ones(size, 1))
    assert calls == [2, 3]
