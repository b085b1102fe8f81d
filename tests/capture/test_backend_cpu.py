"""CPU graphs: a replay gives what eager gives, reads and writes where it is told, and leaves no trace else."""

import copy
import gc

import pytest
import torch
from torch import nn

from staticrt.capture.backend import get_backend
from staticrt.capture.cpu import CpuGraphCapture
from staticrt.capture.cpu_pool import CpuGraphPool
from staticrt.errors import CaptureError, InputError
from staticrt.native import _C


class Captured:
    """`function(*inputs) -> tensor or tuple`, captured on `inputs`."""

    def __init__(self, function, *inputs):
        self.pool = CpuGraphPool()
        self.graph = get_backend("cpu").new_graph(self.pool)
        with self.graph.capture(inputs=inputs):
            result = function(*inputs)
        self.outputs = result if isinstance(result, tuple) else (result,)

    def __call__(self, *inputs):
        self.graph.replay(inputs)
        return [t.clone() for t in self.outputs]


def check(function, make_inputs, calls=3, **tolerance):
    """Eager against one capture and `calls` replays on fresh inputs."""
    inputs = make_inputs()
    expected = function(*inputs)
    captured = Captured(function, *inputs)
    torch.testing.assert_close(captured.outputs, expected if isinstance(expected, tuple) else (expected,))
    for _ in range(calls):
        inputs = make_inputs()
        expected = function(*inputs)
        got = captured(*inputs)
        torch.testing.assert_close(tuple(got), expected if isinstance(expected, tuple) else (expected,))
    return captured


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(50, 32)
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
        )

    def forward(self, x):
        return self.net(x).softmax(-1)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.net(x).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


MODELS = {
    "transformer": (TransformerBlock, lambda: (torch.randint(50, (2, 7)),)),
    "mlp": (Mlp, lambda: (torch.randn(4, 16),)),
    "cnn": (Cnn, lambda: (torch.randn(2, 3, 8, 8),)),
    "lstm": (Lstm, lambda: (torch.randn(2, 5, 8),)),
}


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", MODELS)
def test_inference_equals_eager(name, guard):
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    model = make_model().eval()
    with guard():
        captured = check(model, make_inputs)
    assert captured.graph.num_kernels > 0
    assert not captured.outputs[0].is_inference() or guard is torch.inference_mode


def training_step(model):
    """loss and gradients, as tensors the caller gets"""
    parameters = list(model.parameters())

    def step(*inputs):
        out = model(*inputs)
        loss = (out.float() ** 2).mean()
        return (loss.detach(), *torch.autograd.grad(loss, parameters))

    return step


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_eager(name):
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    model = make_model()
    reference = copy.deepcopy(model)
    step, eager = training_step(model), training_step(reference)
    inputs = make_inputs()
    want = eager(*inputs)
    captured = Captured(step, *inputs)
    torch.testing.assert_close(captured.outputs, want)
    for _ in range(3):
        inputs = make_inputs()
        torch.testing.assert_close(tuple(captured(*inputs)), eager(*inputs))
    # Buffers, such as BatchNorm's statistics, are updated by replays as by eager.
    torch.testing.assert_close(dict(model.named_buffers()), dict(reference.named_buffers()))


def test_a_whole_training_step_with_an_optimizer():
    torch.manual_seed(0)
    model = Mlp()
    reference = copy.deepcopy(model)

    def make_step(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad(set_to_none=False)
            loss = ((net(x) - 0.5) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    step, eager = make_step(model), make_step(reference)
    x = torch.randn(4, 16)
    for f in (step, eager):
        f(x)  # makes gradients and momentum buffers
    captured = Captured(step, x)
    want = eager(x)
    torch.testing.assert_close(captured.outputs[0], want)
    for _ in range(4):
        x = torch.randn(4, 16)
        torch.testing.assert_close(captured(x)[0], eager(x))
    torch.testing.assert_close(dict(model.named_parameters()), dict(reference.named_parameters()))


def test_inputs_are_rebound_not_copied():
    x = torch.randn(3, 4)
    captured = Captured(lambda a: (a.t()[1:] * 2 + a[0, 1], a.view(-1)[2:5]), x)
    y = torch.randn(3, 4)
    before = y.clone()
    got = captured(y)
    assert torch.equal(got[0], y.t()[1:] * 2 + y[0, 1])
    assert torch.equal(y, before)
    assert captured.graph.stats["shadow_copied_bytes"] == 0
    # The second output is a view of the input of the capture: it is the tree's to rebuild.
    assert torch.equal(captured.outputs[1], x.view(-1)[2:5])


def test_a_rebound_input_may_lie_anywhere_in_its_storage():
    x = torch.randn(2, 3)
    captured = Captured(lambda a: a + 1, x)
    big = torch.randn(10, 3)
    assert torch.equal(captured(big[4:6])[0], big[4:6] + 1)
    tail = torch.randn(20, 3)[3:5]
    captured_tail = Captured(lambda a: a.sum(1), tail)
    assert torch.equal(captured_tail(x)[0], x.sum(1))


def test_inputs_of_one_storage_stay_together():
    base = torch.arange(12.0)
    captured = Captured(lambda a, b: a * b, base[:6], base[6:])
    other = torch.randn(12)
    assert torch.equal(captured(other[:6], other[6:])[0], other[:6] * other[6:])
    with pytest.raises(InputError, match="0 and 1 shared a storage"):
        captured(torch.randn(6), torch.randn(6))
    assert torch.equal(captured(base[:6], base[6:])[0], base[:6] * base[6:])


@pytest.mark.parametrize(
    "wrong",
    [torch.randn(2, 4), torch.randn(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64)],
    ids=["sizes", "strides", "dtype"],
)
def test_another_metadata_is_refused(wrong):
    x = torch.randn(2, 3)
    captured = Captured(lambda a: a.exp(), x)
    with pytest.raises(InputError, match="input 0 has other sizes, strides or dtype"):
        captured(wrong)
    assert torch.equal(captured(x)[0], x.exp())
    with pytest.raises(InputError, match="1 inputs were declared, got 2"):
        captured(x, x)


def test_addresses_stay_and_outputs_can_be_placed_elsewhere():
    x = torch.randn(4, 4)
    captured = Captured(lambda a: (a @ a, (a * 2).relu()), x)
    addresses = [t.data_ptr() for t in captured.outputs]
    assert set(addresses) == captured.pool.live_ptrs()
    for _ in range(3):
        captured.graph.replay([torch.randn(4, 4)])
        assert [t.data_ptr() for t in captured.outputs] == addresses
    kept = [t.clone() for t in captured.outputs]
    captured.graph.bind_outputs(captured.outputs)
    fresh = [torch.empty(4, 4), torch.empty(4, 4)]
    captured.graph.replay([x], fresh)
    assert torch.equal(fresh[0], x @ x)
    assert torch.equal(fresh[1], (x * 2).relu())
    assert all(torch.equal(a, b) for a, b in zip(kept, captured.outputs, strict=True))
    captured.graph.replay([x])
    assert torch.equal(captured.outputs[0], x @ x)  # back at the capture's places
    with pytest.raises(InputError, match="did not make the storage of output 0"):
        captured.graph.bind_outputs([x])
    with pytest.raises(InputError, match="shares its storage"):
        captured.graph.bind_outputs([captured.outputs[0], captured.outputs[0].t()])


def test_replays_neither_allocate_in_the_pool_nor_leave_anything_live():
    x = torch.randn(8, 8)
    captured = Captured(lambda a: (a @ a).softmax(-1).sum(), x)
    live, stats = captured.pool.live_ptrs(), captured.pool.stats()
    for _ in range(3):
        captured.graph.replay([x])
    assert captured.pool.live_ptrs() == live == {captured.outputs[0].data_ptr()}
    assert captured.pool.stats() == stats
    captured.outputs = ()
    assert captured.pool.live_ptrs() == set()
    captured.graph.replay([x])  # its places are free blocks of the pool: they stay mapped
    assert captured.pool.trim() == 0
    captured.graph = None
    gc.collect()
    assert captured.pool.trim() > 0


def test_in_place_operators_write_the_tensor_of_the_replay():
    def f(a, b):
        a.add_(1).mul_(b)
        b[1:].zero_()
        return a.sum()

    a, b = torch.randn(5), torch.randn(5)
    a2, b2 = a.clone(), b.clone()
    captured = Captured(f, a, b)
    assert torch.equal(captured.outputs[0], f(a2, b2))
    assert torch.equal(a, a2)
    assert torch.equal(b, b2)
    assert captured.graph.written_inputs == [0, 1]
    c, d = torch.randn(5), torch.randn(5)
    c2, d2 = c.clone(), d.clone()
    version = c._version
    assert torch.equal(captured(c, d)[0], f(c2, d2))
    assert torch.equal(c, c2)
    assert torch.equal(d, d2)
    assert torch.equal(a, a2)  # the capture's inputs are nobody's any more
    assert c._version > version


def test_a_replay_into_a_saved_tensor_is_noticed_by_autograd():
    w = torch.randn(3, requires_grad=True)
    x = torch.randn(3)
    captured = Captured(lambda a: a.mul_(2), x)
    loss = (w * x).sum()
    captured.graph.replay([x])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_found_elsewhere_are_used_where_they_are():
    scale, counter = torch.tensor(3.0), torch.zeros(())

    def f(a):
        counter.add_(1)
        return a * scale

    x = torch.randn(4)
    captured = Captured(f, x)
    assert counter == 1
    scale.fill_(5)
    version = counter._version
    assert torch.equal(captured(x)[0], x * 5)
    assert counter == 2
    assert counter._version > version


def test_numbers_and_lists_become_constants():
    def f(a):
        bias = torch.tensor([1.0, 2.0, 3.0])
        mask = torch.arange(3) > 0
        filled = torch.zeros(3)
        filled[1:] += a[1:]
        made = torch.tensor([5.0, 6.0, 7.0])
        made.add_(a)
        return a * 2 + bias, torch.where(mask, a, -1.0), filled, made, torch.tensor([7, 8]), a.new_ones(3)

    check(f, lambda: (torch.randn(3),))


def test_constants_survive_other_graphs_in_the_pool():
    x = torch.randn(3)
    captured = Captured(lambda a: (a + torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0])), x)
    with captured.pool.route():
        junk = [torch.full((n,), -1.0) for n in (2, 3, 100, 1000)]
    captured.outputs[1].fill_(9)
    got = captured(x)
    assert torch.equal(got[0], x + torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(got[1], torch.tensor([4.0, 5.0]))
    assert all((t == -1).all() for t in junk)


def test_random_numbers_go_on_as_in_eager():
    generator = torch.Generator()

    def f(a):
        return (
            nn.functional.dropout(a, 0.5, training=True),
            torch.rand(3),
            torch.randn_like(a),
            torch.randint(10, (4,)),
            torch.empty(3).uniform_(),
            torch.bernoulli(torch.full((3,), 0.5)),
            torch.randperm(5),
            torch.rand(2, generator=generator),
            torch.multinomial(torch.ones(4), 2),
        )

    x = torch.ones(6)
    torch.manual_seed(3)
    generator.manual_seed(4)
    want = [f(x) for _ in range(4)]
    after = torch.rand(1)
    torch.manual_seed(3)
    generator.manual_seed(4)
    captured = Captured(f, x)
    got = [tuple(t.clone() for t in captured.outputs)] + [tuple(captured(x)) for _ in range(3)]
    assert torch.equal(torch.rand(1), after)
    for a, b in zip(got, want, strict=True):
        assert [torch.equal(s, t) for s, t in zip(a, b, strict=True)] == [True] * len(b)


def test_batch_norm_updates_its_statistics_once_per_call():
    torch.manual_seed(0)
    norm, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    captured = Captured(norm, torch.randn(5, 4, generator=torch.Generator().manual_seed(1)))
    reference(torch.randn(5, 4, generator=torch.Generator().manual_seed(1)))
    for i in range(3):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i + 2))
        torch.testing.assert_close(captured(x)[0], reference(x).detach())
    torch.testing.assert_close(norm.running_mean, reference.running_mean)
    torch.testing.assert_close(norm.running_var, reference.running_var)
    assert norm.num_batches_tracked == reference.num_batches_tracked == 4


OPERATORS = {
    "clone": lambda a: a.clone(),
    "contiguous": lambda a: a.t().contiguous(),
    "to": lambda a: a.to(torch.float64) + 1,
    "cat": lambda a: torch.cat([a, a * 2], 1),
    "stack": lambda a: torch.stack([a, -a]),
    "split": lambda a: [t * i for i, t in enumerate(a.split(2, 1))][1],
    "index": lambda a: a[torch.tensor([1, 0, 1])],
    "index two": lambda a: a[torch.tensor([1, 0]), torch.tensor([2, 5])],
    "index_put": lambda a: a.clone().index_put_((torch.tensor([0]),), torch.tensor(7.0)),
    "masked_fill": lambda a: a.masked_fill(a > 0, 0),
    "topk": lambda a: tuple(a.topk(2)),
    "sort": lambda a: tuple(a.sort(descending=True)),
    "max": lambda a: tuple(a.max(1)),
    "std": lambda a: a.std(0),
    "var_mean": lambda a: torch.var_mean(a, 1),
    "cumsum": lambda a: a.cumsum(1),
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a),
    "logsumexp": lambda a: a.logsumexp(1),
    "layer_norm": lambda a: nn.functional.layer_norm(a, (6,)),
    "group_norm": lambda a: nn.functional.group_norm(a.view(1, 4, 6), 2),
    "sdpa": lambda a: nn.functional.scaled_dot_product_attention(*[a.view(1, 2, 2, 6)] * 3),
    "conv1d": lambda a: nn.functional.conv1d(a.view(1, 4, 6), torch.ones(2, 4, 3)),
    "max_pool": lambda a: nn.functional.max_pool2d(a.view(1, 1, 4, 6), 2),
    "interpolate": lambda a: nn.functional.interpolate(a.view(1, 1, 4, 6), scale_factor=2.0),
    "pad": lambda a: nn.functional.pad(a, (1, 1), value=3.0),
    "cross_entropy": lambda a: nn.functional.cross_entropy(a, torch.arange(4)),
    "one_hot_free": lambda a: torch.zeros(4, 6).scatter_(1, torch.arange(4).view(4, 1), 1.0) + a,
    "gather": lambda a: a.gather(1, torch.zeros(4, 2, dtype=torch.long)),
    "complex": lambda a: torch.view_as_real(torch.complex(a, -a).conj() * 2j),
    "conj view": lambda a: torch.view_as_real((torch.complex(a, a).conj() + 1).resolve_conj()),
    "fft": lambda a: torch.fft.rfft(a).abs(),
    "linalg": lambda a: torch.linalg.solve(a[:, :4] + 5 * torch.eye(4), a),
    "svdvals": lambda a: torch.linalg.svdvals(a),
    "bfloat16": lambda a: (a.bfloat16() @ a.bfloat16().t()).float(),
    "integer": lambda a: (a * 100).long() // 7 % 5,
    "bool": lambda a: ((a > 0) & (a < 1)).any(1),
    "type promotion": lambda a: (a > 0) + 1.5,
    "number minus": lambda a: 3 - a / 2,
    "foreach": lambda a: tuple(torch._foreach_mul([a, a + 1], 2.0)),
    "out": lambda a: torch.add(a, 1, out=torch.empty(4, 6)),
    "out resized": lambda a: torch.add(a, 1, out=torch.empty(0)),
    "expand": lambda a: a[:1].expand(4, 6) + a,
    "as_strided": lambda a: a.as_strided((3, 2), (1, 6)) * 1.0,
    "transpose_": lambda a: (a * 2).transpose_(0, 1) + 1,
    "empty": lambda a: torch.empty(4, 6).copy_(a),
    "empty size": lambda a: a[:0].sum(0) + a.sum(0),
    "no elements": lambda a: a[:0] * 2,
    "diag write": lambda a: (lambda b: (b.fill_diagonal_(0), b)[1])(a.clone()),
    "lift": lambda a: a * torch.tensor(3) + torch.as_tensor([1.0] * 6),
    "embedding_bag": lambda a: nn.functional.embedding_bag(torch.tensor([[0, 1], [2, 3]]), a),
    "roll": lambda a: a.roll(1, 0),
    "unfold": lambda a: a.unfold(1, 2, 2).sum(-1),
    "batch_norm": lambda a: nn.functional.batch_norm(a, torch.zeros(6), torch.ones(6)),
    "dropout off": lambda a: nn.functional.dropout(a, 0.0) * 2,
    "checkpoint": lambda a: torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=False) + 1,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_equal_eager(name):
    torch.manual_seed(1)
    check(OPERATORS[name], lambda: (torch.randn(4, 6),), calls=2)


def test_replays_are_bitwise_equal_on_the_captured_input():
    torch.manual_seed(2)
    model, x = TransformerBlock().eval(), torch.randint(50, (2, 7))
    with torch.no_grad():
        want = model(x)
        captured = Captured(model, x)
        assert torch.equal(captured(x)[0], want)


UNFIT = {
    "item": (lambda a: a * a.sum().item(), "depend on values"),
    "nonzero": (lambda a: a[a > 0], "depend on values"),
    "unique": (lambda a: a.unique(), "depend on values"),
    "bool": (lambda a: a if a.sum() > 0 else -a, "depend on values"),
    "sparse": (lambda a: a.to_sparse().to_dense(), "depend on values|dense"),
    "seed": (lambda a: (torch.manual_seed(3), a * torch.rand(3))[1], "sets the state of a random"),
    "seed at the end": (lambda a: (a * 2, torch.manual_seed(3))[0], "sets the state of a random"),
    "dropout recomputed": (
        lambda a: (
            torch.utils.checkpoint.checkpoint(
                lambda b: nn.functional.dropout(b, 0.5), a.detach().requires_grad_(), use_reentrant=False
            )
            .sum()
            .backward()
        ),
        "sets the state of a random",
    ),
    "grow": (lambda a: a.clone().resize_(1000), "moved bytes"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_replay_can_repeat_is_refused_and_inputs_are_as_before(name):
    function, reason = UNFIT[name]
    x = torch.ones(4, 3)
    pool = CpuGraphPool()
    graph = get_backend("cpu").new_graph(pool)

    def f(a):
        a.add_(1)
        return function(a)

    with pytest.raises(CaptureError, match=reason), graph.capture(inputs=[x]):
        f(x)
    assert (x == 1).all()
    with pytest.raises(InputError, match="nothing is captured"):
        graph.replay([x])
    gc.collect()
    assert pool.live_ptrs() == set()
    f(x)  # nothing records any more


def test_an_exception_in_the_function_leaves_nothing():
    x, pool = torch.ones(4), CpuGraphPool()
    graph = get_backend("cpu").new_graph(pool)
    made = []

    def f(a):
        made.append(a * 2)
        a.add_(1)
        raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"), graph.capture(inputs=[x]):
        f(x)
    assert (x == 1).all()
    assert pool.live_ptrs() == {made[0].data_ptr()}
    made.clear()
    assert pool.live_ptrs() == set()
    with graph.capture(inputs=[x]):
        y = x * 3
    graph.replay([torch.full((4,), 2.0)])
    assert (y == 6).all()


def test_captures_do_not_nest():
    backend, x = get_backend("cpu"), torch.ones(2)
    outer, inner = (backend.new_graph(CpuGraphPool()) for _ in range(2))
    with outer.capture(inputs=[x]):
        with pytest.raises(InputError, match="do not nest"), inner.capture(inputs=[x]):
            pass
        y = x + 1
    outer.replay([x * 4])
    assert (y == 5).all()


def test_an_error_in_a_replay_is_eagers_and_the_next_replay_works():
    table = torch.randn(4, 3)
    captured = Captured(lambda i: nn.functional.embedding(i, table) * 2, torch.tensor([0, 3]))
    with pytest.raises(IndexError):
        captured(torch.tensor([0, 9]))
    assert torch.equal(captured(torch.tensor([1, 2]))[0], table[1:3] * 2)


def test_a_division_by_zero_raises_as_in_eager():
    captured = Captured(lambda a, b: a // b, torch.tensor([6, 8]), torch.tensor([2, 3]))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        captured(torch.tensor([6, 8]), torch.tensor([0, 3]))
    assert captured(torch.tensor([9, 9]), torch.tensor([2, 3]))[0].tolist() == [4, 3]


def test_graphs_share_a_pool_and_replay_in_any_order():
    pool, backend = CpuGraphPool(), get_backend("cpu")
    x = torch.randn(4)
    first, second = backend.new_graph(pool), backend.new_graph(pool)
    with first.capture(inputs=[x]):
        y = x * 2
    with second.capture(inputs=[y]):
        z = (y + 1).exp()
    a = torch.randn(4)
    first.replay([a])
    second.replay([y])
    assert torch.equal(z, (a * 2 + 1).exp())
    second.replay([a])
    assert torch.equal(z, (a + 1).exp())
    assert torch.equal(y, a * 2)


def test_autocast_is_replayed_as_captured():
    model, x = Mlp(), torch.randn(4, 16)

    def f(a):
        with torch.autocast("cpu", torch.bfloat16):
            return model.net(a)

    with torch.no_grad():
        want = f(x)
        captured = Captured(f, x)
        got = captured(x)[0]
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, want)


def test_a_custom_operator_is_called_as_it_is():
    @torch.library.custom_op("staticrt_test::twice_plus", mutates_args=())
    def twice_plus(a: torch.Tensor, n: int) -> torch.Tensor:
        return a * 2 + n

    @torch.library.custom_op("staticrt_test::bump", mutates_args={"a"})
    def bump(a: torch.Tensor) -> None:
        a += 1

    def f(a):
        b = a * 1
        bump(b)
        return twice_plus(b, 3)

    check(f, lambda: (torch.randn(3),))


def test_dump_names_what_runs(tmp_path):
    captured = Captured(lambda a: torch.fft.rfft(a).abs() + 1, torch.randn(8))
    path = tmp_path / "graph.txt"
    captured.graph.dump(str(path))
    text = path.read_text()
    assert "aten::_fft_r2c, " in text
    assert "aten::add.Tensor" in text
    assert captured.graph.num_kernels == text.count("step ")


def test_views_alone_run_nothing():
    captured = Captured(lambda a: a.t().reshape(-1)[:2].view(2, 1).expand(2, 3), torch.randn(1, 4))
    assert captured.graph.num_kernels == 0


def test_reset_drops_the_record():
    captured = Captured(lambda a: a + 1, torch.ones(2))
    captured.graph.reset()
    with pytest.raises(InputError, match="was reset"):
        captured(torch.ones(2))


def test_a_graph_keeps_constants_and_lets_inputs_go():
    x, found = torch.randn(3), [torch.randn(3)]
    ref, kept = _C.storage_ref(x), _C.storage_ref(found[0])
    captured = Captured(lambda a: a + found[0], x)
    del x
    found.clear()
    gc.collect()
    assert ref.use_count() == 0
    assert kept.is_alive()
    again = torch.zeros(3)
    captured.graph.replay([again])
    captured.graph.reset()
    assert not kept.is_alive()


def test_the_backend():
    backend = get_backend(torch.device("cpu"))
    assert backend is get_backend("cpu")
    assert backend.caps.capture_executes
    assert backend.caps.rebind_inputs
    assert backend.device_count() == 1
    with backend.device_scope(0):
        backend.synchronize(0)
    with pytest.raises(InputError, match="one CPU"):
        backend.synchronize(1)
    assert backend.owns(torch.ones(1))
    assert not backend.owns(torch.ones(1, device="meta"))
    pool = backend.new_pool(0)
    graph = backend.new_graph(pool)
    assert isinstance(graph, CpuGraphCapture)
    assert graph.pool_id() == pool.id
    with backend.warmup_scope(pool, backend.new_stream(0)):
        x = torch.ones(3)
    assert pool.live_ptrs() == {x.data_ptr()}
    backend.register_generator(graph, torch.default_generator)
    backend.join(backend.current_stream(0), backend.new_stream(0))
    with pytest.raises(InputError, match="CPU pool"):
        backend.new_graph(object())
