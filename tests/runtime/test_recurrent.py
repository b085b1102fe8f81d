"""nn.LSTM, nn.GRU and nn.RNN run on a kernel of their own, and equal eager."""

import itertools

import pytest
import torch
from torch import nn

import staticrt

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="tanh", **options),
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
ROUTES = {"recurrent: packed weights", "recurrent: parts of the batch"}


def routes(fast):
    return [
        kernel
        for native in fast._executor.natives()
        for stats in native.prepared_stats
        for _node, kernel in stats["routes"]
    ]


def assert_equals_eager(module, *calls, kernel=True):
    """Each call three times: general path, prepared twice; inputs stay as they were."""
    fast = staticrt.compile(module.eval())
    with torch.no_grad():
        for arguments in calls:
            before = torch.utils._pytree.tree_map(torch.clone, arguments)
            expected = module(*arguments)
            for _ in range(3):
                torch.testing.assert_close(fast(*arguments), expected, check_stride=True)
            torch.testing.assert_close(arguments, before, rtol=0, atol=0)
    assert bool(ROUTES.intersection(routes(fast))) == kernel
    return fast


def random_state(module, batch, scale=1.0):
    rows = module.num_layers * (2 if module.bidirectional else 1)
    hidden = torch.randn(rows, batch, module.proj_size or module.hidden_size) * scale
    if isinstance(module, nn.LSTM):
        return hidden, torch.randn(rows, batch, module.hidden_size) * scale
    return hidden


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layers_and_directions_equal_eager(kind, bidirectional, batch_first):
    torch.manual_seed(1)
    for layers, bias in itertools.product((1, 2, 3), (True, False)):
        module = KINDS[kind](7, 19, layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
        x = torch.randn(3, 5, 7)
        state = random_state(module, 3 if batch_first else 5)
        assert_equals_eager(module, (x,), (x, state))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("features", "hidden", "steps", "batch"),
    [(1, 1, 1, 1), (3, 1, 4, 2), (64, 128, 24, 1), (33, 31, 9, 17), (5, 16, 300, 2), (130, 257, 7, 70)],
)
def test_odd_sizes_equal_eager(kind, features, hidden, steps, batch):
    torch.manual_seed(2)
    for batch_first in (False, True):  # the last sizes take several chunks of steps
        module = KINDS[kind](features, hidden, 2, bidirectional=True, batch_first=batch_first)
        x = torch.randn(*((batch, steps) if batch_first else (steps, batch)), features)
        assert_equals_eager(module, (x, random_state(module, batch)))


def test_every_size_of_one_module_is_just_another_signature():
    torch.manual_seed(3)
    module = nn.LSTM(12, 20, 2, batch_first=True, bidirectional=True)
    sizes = [(1, 1), (4, 9), (9, 4), (1, 50), (2, 9)]
    assert_equals_eager(module, *[(torch.randn(*size, 12),) for size in sizes])


def test_no_rows_and_unbatched_inputs_equal_eager():
    module = nn.GRU(4, 6, 2)
    assert_equals_eager(module, (torch.randn(3, 0, 4),))
    assert_equals_eager(module, (torch.randn(3, 4),), (torch.randn(3, 4), torch.randn(2, 6)))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections_equal_eager(bidirectional):
    torch.manual_seed(4)
    module = nn.LSTM(7, 19, 2, proj_size=5, bidirectional=bidirectional)
    x = torch.randn(6, 3, 7)
    assert_equals_eager(module, (x,), (x, random_state(module, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_strided_inputs_and_states_equal_eager(kind):
    torch.manual_seed(5)
    module = KINDS[kind](6, 10, 2, batch_first=True)
    x = torch.randn(8, 4, 12)[:, :, 3:9].transpose(0, 1)  # batch 4, 8 steps
    state = random_state(module, 8)
    state = tuple(s[:, ::2] for s in state) if isinstance(state, tuple) else state[:, ::2]
    fast = staticrt.compile(module.eval())
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x, state), module(x, state))
    assert ROUTES.intersection(routes(fast))


def test_saturated_gates_and_special_values_equal_eager():
    torch.manual_seed(6)
    for kind in KINDS:
        module = KINDS[kind](4, 8)
        for scale in (1e-4, 30.0, 1e4):
            if kind == "relu" and scale > 100:
                continue  # differences of sums of this size are not a measure
            x = torch.randn(1, 2, 4) * scale
            assert_equals_eager(module, (x, random_state(module, 2)))
        x = torch.randn(3, 4, 4)
        x[0, 0, 0], x[1, 1, 1], x[0, 2, 2] = float("nan"), float("inf"), -float("inf")
        fast = staticrt.compile(module.eval())
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(fast(x), module(x), equal_nan=True)


def test_weights_are_followed_when_they_change():
    torch.manual_seed(7)
    module = nn.LSTM(5, 9, 2).eval()
    x = torch.randn(4, 2, 5)
    fast = assert_equals_eager(module, (x,))
    with torch.no_grad():
        for name in ("weight_ih_l0", "weight_hh_l1", "bias_hh_l0", "bias_ih_l1"):
            getattr(module, name).mul_(-0.5)
            torch.testing.assert_close(fast(x), module(x))


def test_what_the_kernel_does_not_cover_equals_eager():
    torch.manual_seed(8)
    assert_equals_eager(nn.LSTM(5, 9).double(), (torch.randn(4, 2, 5).double(),), kernel=False)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 5), [4, 2])
    module = nn.LSTM(5, 9).eval()

    def on_packed(data, sizes):
        return module(nn.utils.rnn.PackedSequence(data, sizes))[0].data

    fast = staticrt.compile(on_packed)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(packed.data, packed.batch_sizes), module(packed)[0].data)


@pytest.mark.usefixtures("num_threads_stays")
def test_several_threads_equal_eager():
    torch.manual_seed(9)
    torch.set_num_threads(2)
    for kind in KINDS:
        module = KINDS[kind](64, 160, 2, bidirectional=True)
        assert_equals_eager(module, (torch.randn(20, 8, 64),))
        assert_equals_eager(KINDS[kind](64, 512), (torch.randn(6, 16, 64),))
