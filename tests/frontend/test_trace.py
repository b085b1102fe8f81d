"""Traces against eager: values, aliases, writes, symbolic sizes."""

import copy
import threading
import time

import pytest
import torch
from torch import nn

import staticrt
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.frontend.tracing.trace import trace_with_any_sizing


def trace(function, args, kwargs, **more):
    return trace_with_any_sizing(TraceRequest.of(function, args, kwargs, **more))


def run(traced, *leaves):
    return traced.module(*traced.values, *(leaves[i] for i in traced.user_leaves))


class Writes(nn.Module):
    """Writes through views, into running statistics, and into a fresh tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        y = self.norm(torch.relu_(self.linear(x)))
        z = torch.zeros(x.shape[0], 16)
        z[:, :8] = y
        z[:, 8:].add_(1)
        return z, z.t(), y.view(-1), x[0], x


def test_writes_views_and_buffers_match_eager():
    model = Writes().requires_grad_(False)
    eager = copy.deepcopy(model)
    traced = trace(model, (torch.randn(4, 8),), {})
    for batch in (4, 2, 9):
        x = torch.randn(batch, 8)
        got, want = run(traced, x), eager(x)
        torch.testing.assert_close(got, want)
        assert got[4] is x
        assert got[3].data_ptr() == x.data_ptr()
        assert got[0].data_ptr() == got[1].data_ptr()  # z.t() is a view of z
        torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)
        assert model.norm.num_batches_tracked == eager.norm.num_batches_tracked


def test_written_input_comes_back_as_itself():
    def f(x):
        x[1:].mul_(2)
        return x, x.view(-1)

    traced = trace(f, (torch.randn(3, 4),), {})
    x = torch.randn(5, 4)
    want = x.clone()
    f(want)
    same, flat = run(traced, x)
    assert same is x
    assert flat.data_ptr() == x.data_ptr()
    torch.testing.assert_close(x, want)
    assert [spec.mutated for spec in traced.inputs] == [True]


def test_graph_is_functional_but_for_the_write_back():
    traced = trace(lambda x: x.add_(1).mul_(2), (torch.randn(3),), {})
    writers = [
        n for n in traced.module.graph.nodes if n.op == "call_function" and n.target._schema.is_mutable
    ]
    assert [n.target for n in writers] == [torch.ops.aten.copy_.default]


def test_batch_size_one_is_not_special():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).requires_grad_(False)
    traced = trace(model, (torch.randn(1, 4),), {})
    for batch in (1, 5, 0):
        assert traced.guards.holds([torch.randn(batch, 4)])
    assert not traced.guards.holds([torch.randn(3, 5)])


def test_size_branches_are_guarded():
    def f(x):
        return x * 2 if x.shape[0] == 1 else x + x.shape[0]

    one = trace(f, (torch.randn(1, 3),), {})
    many = trace(f, (torch.randn(4, 3),), {})
    assert one.guards.holds([torch.randn(1, 3)])
    assert not one.guards.holds([torch.randn(4, 3)])
    assert many.guards.holds([torch.randn(7, 3)])
    assert not many.guards.holds([torch.randn(1, 3)])
    x = torch.randn(7, 3)
    torch.testing.assert_close(run(many, x)[0], f(x))


def test_sizes_that_data_decides():
    def f(x):
        index = x.nonzero()[:, 0]
        return x[index] * index.shape[0]

    traced = trace(f, (torch.tensor([0.0, 1.0, 2.0]),), {})
    for x in (torch.tensor([0.0, 3.0]), torch.zeros(4), torch.ones(6)):
        torch.testing.assert_close(run(traced, x)[0], f(x))


def test_nodes_know_their_model_line():
    traced = trace(nn.Linear(3, 3).requires_grad_(False), (torch.randn(2, 3),), {})
    (node,) = [n for n in traced.module.graph.nodes if n.op == "call_function"]
    assert "linear.py" in node.meta["stack_trace"]


def test_parameters_come_first_and_are_the_models_own():
    model = nn.Linear(3, 3).requires_grad_(False)
    tensors = {id(p): ("parameter", name) for name, p in model.named_parameters()}
    traced = trace(model, (torch.randn(2, 3),), {}, tensors=tensors)
    assert [(s.kind, s.target) for s in traced.inputs] == [
        ("parameter", "weight"),
        ("parameter", "bias"),
        ("user", 0),
    ]
    assert traced.values[0] is model.weight


class Impure(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act
        self.count = 0
        self.log = []

    def forward(self, x):
        return self.act(self, x)


def _print(self, x):
    print("side effect")
    return x + 1


def _count(self, x):
    self.count += 1
    return x + 1


def _append(self, x):
    self.log.append(x)
    return x + 1


def _keep(self, x):
    self.kept = x * 2
    return x + 1


def _seed(self, x):
    torch.manual_seed(0)
    return torch.rand_like(x)


def _numpy(self, x):
    return x + torch.from_numpy(x.numpy())


def _branch(self, x):
    return x + 1 if x.sum().item() > 0 else x - 1


def _clock(self, x):
    import time

    return x + time.time()


def _python_random(self, x):
    import random

    return x + random.random()


@pytest.mark.parametrize(
    "act",
    [_print, _count, _append, _keep, _seed, _numpy, _branch, _clock, _python_random],
    ids=lambda f: f.__name__,
)
def test_side_effects_are_refused_and_undone(act):
    from staticrt.frontend.guards.state import Snapshot

    model = Impure(act)
    state = dict(vars(model))
    with pytest.raises((CannotTrace, RuntimeError, TypeError)):
        trace(model, (torch.ones(3),), {}, snapshot=Snapshot([("model", model)]))
    assert dict(vars(model)) == state
    assert model.log == []


def test_a_refused_side_effect_does_not_happen(capsys):
    with pytest.raises(CannotTrace, match=r"calls print\(\)"):
        trace(Impure(_print), (torch.ones(3),), {})
    assert capsys.readouterr().out == ""


def test_random_generators_are_left_alone():
    import random

    random.seed(1)
    torch.manual_seed(1)
    python, state = random.getstate(), torch.get_rng_state()
    for act in (_seed, _python_random):
        with pytest.raises(CannotTrace):
            trace(Impure(act), (torch.ones(3),), {})
    trace(lambda x: torch.rand_like(x), (torch.ones(3),), {})
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_zero_and_one_are_guarded_where_they_were_assumed():
    """Broadcasting 1 against n: the trace for 1 must not serve other sizes, nor the other way round."""

    def f(x, y):
        return x + y

    traced = trace(f, (torch.randn(1, 4), torch.randn(3, 4)), {})
    assert traced.guards.holds([torch.randn(1, 4), torch.randn(5, 4)])
    assert not traced.guards.holds([torch.randn(3, 4), torch.randn(5, 4)])
    both = trace(f, (torch.randn(3, 4), torch.randn(3, 4)), {})
    assert not both.guards.holds([torch.randn(1, 4), torch.randn(3, 4)])
    static = trace(f, (torch.randn(2, 4), torch.randn(2, 4)), {}, sizing=Sizing.OURS_CONSTANT)
    assert not static.guards.holds([torch.randn(3, 4), torch.randn(3, 4)])


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_cells_are_taken_apart(cell, bias):
    module = cell(5, 7, bias=bias)
    compiled = staticrt.compile(module)
    with torch.no_grad():
        for batch in (2, 3, 2):
            x = torch.randn(batch, 5)
            got, want = compiled(x), module(x)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    (report,) = compiled.explain().traces
    assert not any("cell" in name for name, _count in report.operators)


def test_buffers_that_share_memory_and_are_written_are_refused():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.zeros(4))
            self.register_buffer("part", self.whole[1:3])

        def forward(self, x):
            self.whole.add_(x)
            return self.part * 2

    with pytest.raises(CannotTrace, match="share"):
        trace(Shared(), (torch.ones(4),), {})


def test_tied_parameters_are_one_input():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).requires_grad_(False)
    model[1].weight = model[0].weight
    traced = trace(model, (torch.randn(2, 3),), {})
    assert len(traced.values) == 1
    x = torch.randn(5, 3)
    torch.testing.assert_close(run(traced, x)[0], model(x))


def test_a_trace_and_dynamo_in_another_thread_leave_torch_as_it_was():
    """
    Dynamo   [ flag on ............. flag as found ]
    trace        [ flag on .................... flag as found ]   must not overlap: it would stay on
    """
    recording, compiled = threading.Event(), threading.Event()

    def backend(gm, inputs):
        recording.wait(0.3)  # for a trace that does not wait for us
        return gm.forward

    def in_dynamo():
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        compiled.set()

    def model(x):
        recording.set()
        compiled.wait(10)
        return x * 2

    import torch._dynamo.convert_frame

    thread = threading.Thread(target=in_dynamo)
    thread.start()
    while not torch.compiler._is_compiling_flag and thread.is_alive():
        time.sleep(0.001)
    try:
        trace(model, (torch.ones(2),), {})
    except CannotTrace:
        pass  # events are not operators
    finally:
        thread.join()
        still = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = False
    assert not still
