"""`staticrt.compile(…, graphs=…)` on a test device that records operators: the reference executor's."""

import pytest
import torch

import staticrt
from staticrt.errors import CaptureError, OptionError
from staticrt.graphs import GraphContext
from tests.support.fake_graph_backend import FakeBackend


@pytest.fixture(params=["copy", "rebind"])
def context(request):
    made = GraphContext("cpu", backend=FakeBackend(request.param))
    yield made
    made.close()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x, scale=2):
        return self.norm(self.linear(x)).relu() * scale


def test_a_module_replays(context):
    model = Net().eval()
    fast = staticrt.compile(model, graphs=context, executor="reference")
    with torch.no_grad():
        held = []
        for _ in range(5):
            x = torch.randn(2, 4)
            held.append((fast(x), model(x)))
        for out, expected in held:  # outputs belong to the caller
            torch.testing.assert_close(out, expected)
    report = context.explain()
    assert report.captures == 1
    assert report.replays >= 3
    text = str(fast.explain())
    assert "replays" in text
    assert "linear.weight" in text


def test_another_size_is_another_capture(context):
    model = Net().eval()
    fast = staticrt.compile(model, graphs=context, executor="reference")
    with torch.no_grad():
        for rows in (2, 5, 2, 5, 2, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(fast(x), model(x))
    assert context.explain().captures == 2


def test_a_buffer_that_the_model_writes(context):
    model, twin = Net().train(), Net().train()
    twin.load_state_dict(model.state_dict())
    fast = staticrt.compile(model, graphs=context, executor="reference")
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(3, 4)
            torch.testing.assert_close(fast(x), twin(x))
            torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)
            assert model.norm.num_batches_tracked == twin.norm.num_batches_tracked
    assert context.explain().replays >= 3


def test_a_changed_parameter_is_seen(context):
    model = Net().eval()
    fast = staticrt.compile(model, graphs=context, executor="reference")
    with torch.no_grad():
        for number in range(6):
            if number == 3:
                model.linear.weight.data = torch.randn(3, 4)
            if number == 4:
                model.linear.weight.mul_(2)
            x = torch.randn(2, 4)
            torch.testing.assert_close(fast(x), model(x))


def test_programs_go_with_their_callable(context):
    fast = staticrt.compile(Net().eval(), graphs=context, executor="reference")
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(2, 4))
    assert context.manager is not None
    import gc

    del fast
    gc.collect()
    assert context.manager is None


def test_the_option_takes_a_context_or_a_flag():
    with pytest.raises(OptionError, match="GraphContext"):
        staticrt.compile(Net(), graphs="yes")


@pytest.mark.parametrize("ran_before", [True, False])
def test_a_backward_that_is_due_when_its_context_closes(context, ran_before):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    twin = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    twin.load_state_dict(model.state_dict())
    for _ in range(3 if ran_before else 1):
        fast = staticrt.compile(model, graphs=context)
        x = torch.randn(2, 4)
        loss, expected = fast(x).square().sum(), twin(x).square().sum()
        if ran_before:
            loss.backward(retain_graph=True)
            expected.backward(retain_graph=True)
    context.close()
    loss.backward()
    expected.backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    with pytest.raises(CaptureError, match="after its graph context was closed"):
        fast(torch.randn(2, 4))


@torch.no_grad()
def test_empty_results_are_the_callers():
    compiled = staticrt.compile(lambda x: ((x * 2).t(), x + 1), graphs=True)
    for _ in range(3):
        results = compiled(torch.ones(0, 3))
        assert [y.shape for y in results] == [(3, 0), (0, 3)]
        for y in results:
            y.resize_(2, 2)
