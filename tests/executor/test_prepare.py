"""`compiled.prepare(...)`: the first call is a prepared one, and nothing of the model has run before it."""

import pytest
import torch
import torch.nn.functional as F

import staticrt
from staticrt.models.zoo import get, select
from staticrt.native import _C
from tests.support.threads import in_threads


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        return self.head(y.mean((2, 3))).softmax(-1), y.flatten(1)[:, ::2]


def native_of(compiled):
    (entry,) = compiled._executor.snapshot().traces
    return entry.executable.native


def records_of(compiled):
    (program,) = _C.prepared_programs(native_of(compiled))
    return program.values, program.stats


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_first_call_is_prepared(device):
    net = Net().eval()
    fast = staticrt.compile(net)
    x = torch.randn(2, 3, 9, 7)
    with torch.no_grad():
        ready = fast.prepare(x if device == "cpu" else torch.empty_like(x, device="meta"))
        assert ready
        assert ready.reason == ""
        assert "ready: arena" in str(ready)
        assert ready.arena_bytes >= ready.lower_bound_bytes > 0
        assert ready.packed_bytes >= 0
        result = fast(x)
        torch.testing.assert_close(result, net(x))
        assert [t.stride() for t in result] == [t.stride() for t in net(x)]
    counters = native_of(fast).cache_counters
    assert (counters["hits"], counters["misses"], counters["prepared"]) == (1, 0, 1)
    assert _C.rare_times(native_of(fast))["general_runs"] == 0
    again = fast.prepare(x)
    assert again == ready
    assert native_of(fast).cache_counters["prepared"] == 1


@pytest.mark.parametrize("name", [entry.name for entry in select()])
def test_zoo_plans_are_those_of_a_run(name):
    entry = get(name)
    module, inputs = entry.build(), entry.inputs()
    with torch.no_grad():
        ran, ahead = (
            staticrt.compile(module, deterministic=True),
            staticrt.compile(module, deterministic=True),
        )
        ran(*inputs)
        ready = ahead.prepare(*inputs)
        if name == "control_flow":
            assert not ready
            assert "control flow decides" in ready.reason
            return
        assert ready, ready.reason
        assert records_of(ahead) == records_of(ran)
        torch.testing.assert_close(ahead(*inputs), ran(*inputs), rtol=0, atol=0)


def test_nothing_runs():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return F.dropout(self.norm(x), 0.5)

    module = Counts().train()
    fast = staticrt.compile(module)
    x = torch.randn(3, 4)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random, kept = torch.get_rng_state(), x.clone()
    with torch.no_grad():
        assert fast.prepare(x)
        assert torch.equal(torch.get_rng_state(), random)
        assert torch.equal(x, kept)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        torch.manual_seed(3)
        got = fast(x)
    assert module.calls == 1
    module.load_state_dict(before)
    torch.manual_seed(3)
    with torch.no_grad():
        assert torch.equal(got, module(x))


def test_aliases_and_writes_are_planned():
    def function(x, y):
        x.add_(1)
        z = y.reshape(-1)
        z += 2
        return x[1:], z.view(2, -1), torch.cat([x, y]).t().contiguous()

    fast = staticrt.compile(function)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    mine, eager = (x.clone(), y.clone()), (x.clone(), y.clone())
    assert fast.prepare(*mine)
    assert torch.equal(mine[0], x)
    assert torch.equal(mine[1], y)
    results, wanted = fast(*mine), function(*eager)
    for got, want in zip((*results, *mine), (*wanted, *eager), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == want.stride()
    assert results[0].data_ptr() == mine[0][1:].data_ptr()
    assert native_of(fast).cache_counters["misses"] == 0


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x[x > 0].sum(), "data, or an operator outside torch, decides its result"),
        (lambda x: x.nonzero().float().mean(), "data, or an operator outside torch"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "control flow"),
        (lambda x: x + 1 if x.sum() > 0 else x - 1, "data decides"),
        (lambda x: x + float(str(x.sum().item())[:3]), "not traced whole"),
    ],
)
def test_what_only_a_run_shows_says_so(function, reason):
    fast = staticrt.compile(function)
    x = torch.tensor([1.0, -2.0, 3.0])
    ready = fast.prepare(x)
    assert not ready
    assert reason in ready.reason
    assert str(ready).startswith("not ready: ")
    assert ready.arena_bytes is None
    for _call in range(3):
        torch.testing.assert_close(fast(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        torch.logical_and,
        torch.logical_or,
        torch.logical_xor,
        torch.logaddexp,
        torch.logaddexp2,
        torch.heaviside,
        lambda x, y: torch.copysign(y, x),
    ],
)
def test_broadcast_results_are_planned_as_the_cpu_lays_them_out(function):
    """torch's meta device gives these row-major strides where the CPU follows the permuted operand."""
    x, y = torch.randn(10, 1, 5), torch.randn(5, 10).t()
    fast = staticrt.compile(function)
    assert fast.prepare(x, y)
    for _call in range(2):
        assert fast(x, y).stride() == function(x, y).stride()
        assert torch.equal(fast(x, y), function(x, y))


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2, lambda x: 3 + x, lambda x: (x * 2).transpose(0, 1), lambda x: x.long() // 3 * 2],
)
def test_strides_of_one_element_are_the_cpus(function):
    """A dimension of one element has any stride: the CPU's kernels keep it where the meta device's rules do not."""
    x = torch.empty(0).set_(torch.randn(50).untyped_storage(), 0, (1, 10, 5), (1, 5, 1))
    fast = staticrt.compile(function)
    assert fast.prepare(x)
    for _call in range(2):
        assert fast(x).stride() == function(x).stride()
        assert torch.equal(fast(x), function(x))


def test_integers_that_zeros_do_not_divide_are_planned():
    x = torch.empty(0, dtype=torch.int64).set_(
        torch.arange(1, 51).untyped_storage(), 0, (1, 10, 5), (1, 5, 1)
    )
    fast = staticrt.compile(torch.floor_divide)
    assert fast.prepare(x, x)
    assert torch.equal(fast(x, x), torch.floor_divide(x, x))


def test_a_tensor_of_bools_may_be_indexed():
    """Only a mask among the indices makes sizes depend on data; attention masks of padded batches are indexed."""
    mask, rows, columns = torch.rand(4, 6) > 0.5, torch.tensor([[3], [0]]), torch.arange(5)

    def function(m, i, j):
        return m[i, j].float() * 2

    fast = staticrt.compile(function)
    assert fast.prepare(mask, rows, columns)
    for _call in range(2):
        assert torch.equal(fast(mask, rows, columns), function(mask, rows, columns))
        assert torch.equal(fast(~mask, rows, columns), function(~mask, rows, columns))
    selects = staticrt.compile(lambda m, x: x[m].sum())
    assert not selects.prepare(mask, mask.float())
    for chosen in (mask, ~mask, torch.zeros_like(mask)):
        assert selects(chosen, mask.float()) == mask.float()[chosen].sum()


def test_modes_without_prepared_programs():
    x = torch.randn(3)
    assert "switched off" in staticrt.compile(torch.sin, prepared=False).prepare(x).reason
    assert "outside the runtime" in staticrt.compile(torch.sin, executor="reference").prepare(x).reason
    for options in (
        {"graphs": True},
        {"poison": True},
        {"verify": True},
        {"freeze": False},
        {"manage_outputs": True},
    ):
        fast = staticrt.compile(lambda a: a.sin() * 2, **options)
        with torch.no_grad():
            assert fast.prepare(x)
            assert torch.equal(fast(x), x.sin() * 2)


def test_gradients_are_another_matter():
    net = Net()
    fast = staticrt.compile(net.eval())
    x = torch.randn(2, 3, 4, 4)
    assert fast.prepare(x)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x))
    assert native_of(fast).cache_counters["misses"] == 0


def test_example_inputs_prepare():
    x = torch.randn(4, 3)
    fast = staticrt.compile(lambda a: (a @ a.t()).relu(), (x,))
    assert native_of(fast).cache_counters["prepared"] == 1
    torch.testing.assert_close(fast(x), (x @ x.t()).relu())


def test_bad_calls():
    fast = staticrt.compile(lambda a, b: a + b, fullgraph=True)
    with pytest.raises(staticrt.errors.TraceError):
        fast.prepare(torch.ones(2), torch.ones(3))
    lenient = staticrt.compile(lambda a, b: a + b)
    assert "not traced whole" in lenient.prepare(torch.ones(2), torch.ones(3)).reason
    assert "not traced whole" in lenient.prepare(torch.ones(2)).reason
    assert torch.equal(lenient(torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


def test_a_module_with_a_method_of_that_name_keeps_it():
    class Own(torch.nn.Module):
        def prepare(self, x):
            return "mine"

        def forward(self, x):
            return x + 1

    fast = staticrt.compile(Own())
    assert fast.prepare(3) == "mine"
    assert staticrt.tools.report.inspection.Tools.prepare(fast, torch.ones(2))


def test_loaded_models_prepare(tmp_path):
    net = Net().eval()
    path = tmp_path / "net.pt2"
    x = torch.randn(2, 3, 9, 7)
    with torch.no_grad():
        staticrt.save(staticrt.compile(net), path, example_inputs=(x,))
        loaded = staticrt.load(path)
        other = torch.empty(5, 3, 8, 8, device="meta")
        assert loaded.prepare(other)
        assert "fits no trace" in loaded.prepare(x.double()).reason
        got = loaded(torch.ones(5, 3, 8, 8))
        torch.testing.assert_close(got, net(torch.ones(5, 3, 8, 8)))
    counters = loaded._traces[0].native.executable.cache_counters
    assert (counters["misses"], counters["prepared"]) == (0, 1)


def test_threads():
    net = Net().eval()
    fast = staticrt.compile(net)
    inputs = [torch.randn(1 + i % 4, 3, 6, 6) for i in range(12)]

    def work(x):
        with torch.no_grad():
            assert fast.prepare(x)
            torch.testing.assert_close(fast(x), net(x))

    in_threads(work, inputs)
    assert native_of(fast).cache_counters["prepared"] == 4
