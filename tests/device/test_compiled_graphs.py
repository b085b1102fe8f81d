"""`staticrt.compile(model, graphs=True)` and `mode="reduce-overhead"` with tensors on the simulated accelerator."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.graphs import GraphContext, close_default_contexts, default_context
from staticrt.graphs.generations import reset_marks

SIM = torch.device("sim:0")


class Attention(nn.Module):
    """Arenas, views, a result that is a view, and one that is an argument."""

    def __init__(self):
        super().__init__()
        self.project, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x):
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        out = x + weights @ v
        return out, weights[:, 0], x


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)
        )

    def forward(self, x):
        return self.layers(x).mean((2, 3))


MODELS = {
    "perceptron": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), lambda n: (n, 8)),
    "attention": (Attention(), lambda n: (2, n, 16)),
    "convolutions": (Convolutions(), lambda n: (n, 3, 8, 8)),
}


@pytest.fixture(autouse=True)
def contexts():
    yield
    reset_marks()
    torch._dynamo.reset()
    close_default_contexts()


def pair(name):
    model, size = MODELS[name]
    twin = copy.deepcopy(model).eval()
    return copy.deepcopy(twin).to(SIM), twin, size


def flat(result):
    return result if isinstance(result, tuple) else (result,)


def compare_kept(kept):
    """Compare results of the device with the CPU's, after all calls."""
    for got, expected in kept:
        for one, other in zip(flat(got), flat(expected), strict=True):
            torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("name", MODELS)
def test_results_equal_the_cpus_and_are_the_callers(name, order):
    """Two sizes in turn: warmup, capture, replays; every result of every call keeps its value."""
    model, twin, size = pair(name)
    compiled = staticrt.compile(model, graphs=True)
    kept = []
    with torch.no_grad():
        for number in range(10):
            x = torch.randn(size(3 + number % 2))
            kept.append((compiled(x.to(SIM)), twin(x)))
    compare_kept(kept)
    report = default_context(SIM).explain()
    assert report.captures == 2
    assert sum(node.replays for node in report.nodes) == 6
    assert report.skips == ()
    assert "6 replays" in str(compiled.explain())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("entry", ["compile", "reduce-overhead"])
def test_training_equals_the_cpus(name, entry, order):
    model, twin, size = pair(name)
    model.train(), twin.train()
    if entry == "compile":
        compiled = staticrt.compile(model, graphs=True)
    else:
        compiled = torch.compile(model, backend="staticrt", mode="reduce-overhead")
    optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (model, twin)]
    for _ in range(6):
        x = torch.randn(size(3))
        losses = []
        for run, optimizer, given in zip((compiled, twin), optimizers, (x.to(SIM), x), strict=True):
            optimizer.zero_grad()
            loss = flat(run(given))[0].square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(*losses)
    for one, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(one.cpu(), other)
    assert sum(node.replays for node in default_context(SIM).explain().nodes) >= 6


def test_reduce_overhead_means_graph_trees(order):
    model, twin, size = pair("attention")
    compiled = torch.compile(model, backend="staticrt", mode="reduce-overhead")
    kept = []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(size(5))
            kept.append((compiled(x.to(SIM)), twin(x)))
    for got, expected in kept:
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other)
    assert sum(node.replays for node in default_context(SIM).explain().nodes) == 4


def test_other_modes_and_the_cpu_have_no_graphs():
    with torch.no_grad():
        for mode in ("default", "max-autotune", "max-autotune-no-cudagraphs"):
            torch._dynamo.reset()
            f = torch.compile(lambda x: x.sin() + 1, backend="staticrt", mode=mode)
            for _ in range(3):
                f(torch.ones(3, device=SIM))
        f = torch.compile(lambda x: x.cos() + 1, backend="staticrt", mode="reduce-overhead")
        for _ in range(3):
            f(torch.ones(3))
    assert default_context(SIM).explain().captures == 0
    assert default_context("cpu").explain().captures == 0


def test_steps_are_marked_by_torch_too():
    """From the first mark on only marks separate steps: what is held from one step to the next moves out at marks."""
    context = default_context(SIM)
    f = torch.compile(lambda x: x * 2 + 1, backend="staticrt", mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            f(torch.ones(4, device=SIM))
        moved = context.explain().rehomed_bytes
        torch.compiler.cudagraph_mark_step_begin()
        first = f(torch.ones(4, device=SIM))
        number = context.generations.number()
        torch.compiler.cudagraph_mark_step_begin()
        assert context.generations.number() == number - 1
        assert context.generations.may_start()
        second = f(torch.zeros(4, device=SIM))
    assert context.explain().rehomed_bytes == moved + 16
    assert first.tolist() == [3] * 4
    assert second.tolist() == [1] * 4


def test_arenas_lie_in_the_pool():
    """A captured program uses memory of the graph alone, and its arena is free for other graphs afterwards."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]).to(SIM)

    def forward(x):
        return (torch.sin(x @ x.t()) @ x).cos().sum(0) + model(x).sum(0)

    with GraphContext(SIM) as context, torch.no_grad():
        compiled = staticrt.compile(forward, graphs=context)
        for _ in range(3):
            for rows in (2048, 1024, 1536):  # arenas of more than 10 MiB have segments of their size
                out = compiled(torch.ones(rows, 64, device=SIM))
        torch.testing.assert_close(out.cpu(), forward(torch.ones(1536, 64, device=SIM)).cpu())
        report = context.explain()
        assert report.captures == 3
        assert report.memory.live_blocks == 0
        eager_bytes = (2048 * 2048 * 2 + 2048 * 64 * 8) * 4
        assert report.memory.reserved_bytes <= 2 * eager_bytes + (4 << 20)
        # Programs that run uncaptured have arenas of their own, which graphs do not touch.
        plain = staticrt.compile(forward)
        x = torch.randn(300, 64)
        for _ in range(3):
            got = plain(x.to(SIM))
            compiled(torch.ones(2048, 64, device=SIM))
        torch.testing.assert_close(got.cpu(), forward(x.to(SIM)).cpu())


def test_data_that_decides_runs_uncaptured_and_says_so():
    def forward(x):
        return x[x > 0].sum() + x

    compiled = staticrt.compile(forward, graphs=True)
    with torch.no_grad():
        for number in range(4):
            x = torch.arange(-2.0, 4.0) + number
            torch.testing.assert_close(compiled(x.to(SIM)).cpu(), forward(x))
    report = default_context(SIM).explain()
    assert report.captures == 0
    assert all("makes the host wait" in skip.reason for skip in report.skips)
    assert report.skips


def test_an_operator_that_waits_keeps_its_function_uncaptured():
    def forward(a, b):
        return torch.linalg.solve(a, b) + 1

    compiled = staticrt.compile(forward, graphs=True)
    with torch.no_grad():
        for _ in range(5):
            a, b = torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(4, 2)
            torch.testing.assert_close(compiled(a.to(SIM), b.to(SIM)).cpu(), forward(a, b))
    report = default_context(SIM).explain()
    assert report.captures == 0
    assert "makes the host wait for its stream, which a capture forbids" in report.skips[0].reason
    assert "aten::linalg_solve" in report.skips[0].reason


def test_weights_that_change_and_move(order):
    model, twin, size = pair("perceptron")
    compiled = staticrt.compile(model, graphs=True)
    with torch.no_grad():
        for number in range(12):
            if number in (4, 8):
                for m in (model, twin):
                    m[0].weight.mul_(-1.5)
            if number == 6:
                model[2].weight.data = model[2].weight.data.clone()
            x = torch.randn(size(3))
            torch.testing.assert_close(compiled(x.to(SIM)).cpu(), twin(x))
    assert default_context(SIM).explain().captures == 2


def test_a_weight_that_comes_to_the_address_of_an_earlier_one(order):
    """A replay reads it there: no report."""
    twin = nn.Linear(64, 64)
    model = copy.deepcopy(twin).to(SIM)
    compiled = staticrt.compile(model, graphs=True)
    x = torch.randn(3, 64)

    def check():
        torch.testing.assert_close(compiled(x.to(SIM)).cpu(), twin(x))

    with torch.no_grad():
        for _ in range(3):
            check()
        address = model.weight.data_ptr()
        model.weight.data = model.weight.data + 1
        twin.weight.data = twin.weight.data + 1
        check()
        new = torch.empty(64, 64, device=SIM)
        assert new.data_ptr() == address
        model.weight.data = new.copy_(twin.weight.data * 2)
        twin.weight.data = twin.weight.data * 2
        captures = default_context(SIM).explain().captures
        check()
        assert default_context(SIM).explain().captures == captures


def test_moved_to_another_device():
    model, twin, size = pair("perceptron")
    compiled = staticrt.compile(model, graphs=True)
    x = torch.randn(size(3))
    with torch.no_grad():
        for device in ("sim:0", "sim:1", "cpu", "sim:0"):
            compiled.to(device)
            for _ in range(4):
                torch.testing.assert_close(compiled(x.to(device)).cpu(), twin(x))
        with pytest.raises(RuntimeError, match="same device"):
            compiled(x.to("sim:1"))
        torch.testing.assert_close(compiled(x.to(SIM)).cpu(), twin(x))
