"""Donated arguments: their bytes are the call's, and every wrong use is an error that says what to do."""

import numpy
import pytest
import torch

import staticrt
from staticrt.errors import InputError, OptionError
from tests.support.threads import in_threads


def step(state, update):
    return torch.tanh(state * 0.9 + update), (update * 2).sum()


def test_a_result_takes_the_bytes_of_a_donated_argument():
    fast = staticrt.compile(step, donate="state")
    update = torch.randn(64, 64)
    state = torch.randn(64, 64)
    with torch.no_grad():
        for _ in range(4):
            expected = step(state, update)
            address, old = state.data_ptr(), state
            state, total = fast(state, update)
            torch.testing.assert_close(state, expected[0])
            # A sum of 4,096 numbers of both signs: its rounding goes with their sizes, not with the result.
            torch.testing.assert_close(total, expected[1], rtol=0, atol=1e-3)
            with pytest.raises(RuntimeError, match="'state' was donated to a compiled call"):
                old + 1
    assert state.data_ptr() == address
    state.add_(1)  # the caller's own, like any result
    assert fast._executor.fast.calls > 0


def test_values_of_the_run_lie_where_the_argument_was():
    def function(x):
        back = torch.arange(x.shape[0]).flip(0)
        y = x.index_select(0, back)  # the argument's last use
        return (y.index_select(1, back).exp().index_select(0, back) + 1).sum()

    x = torch.rand(128, 128)
    arenas = {}
    for donate in ((), ("x",)):
        fast = staticrt.compile(function, donate=donate, poison=True)
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(fast(x.clone()), function(x))
        (prepared,) = staticrt._C.prepared_programs(fast._executor.snapshot().traces[0].executable.native)
        arenas[donate] = prepared.stats["arena_bytes"]
    assert arenas["x",] <= arenas[()] - x.nbytes
    assert prepared.stats["donated_bytes"] >= x.nbytes
    assert "donated" in {block[0] for block in prepared.blocks}
    assert "donated" in str(fast.explain())


@pytest.mark.parametrize("options", [{"prepared": False}, {"executor": "reference"}, {"verify": True}])
def test_every_path_takes_the_argument(options):
    fast = staticrt.compile(step, donate=("state", "update"), **options)
    with torch.no_grad():
        for _ in range(3):
            state, update = torch.randn(4, 4), torch.randn(4, 4)
            expected = step(state, update)
            torch.testing.assert_close(fast(state, update), expected)
            for gone in (state, update):
                with pytest.raises(RuntimeError, match="donated"):
                    gone.sum()


def test_an_eager_call_takes_the_argument():
    def function(x):
        y = x + 1
        print(end="")
        return y * 2

    fast = staticrt.compile(function, donate="x")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(8)
            expected = function(x)
            torch.testing.assert_close(fast(x), expected)
            with pytest.raises(RuntimeError, match="'x' was donated"):
                x.sum()


def test_data_that_decides_otherwise_finds_the_argument_whole():
    def function(x):
        y = torch.tanh(x) + 1
        return y * 2 if x.sum() > 0 else y - 3

    fast = staticrt.compile(function, donate="x")
    with torch.no_grad():
        for sign in (1, 1, -1, 1, -1, -1):
            x = sign * torch.rand(8, 8)
            expected = function(x)
            torch.testing.assert_close(fast(x), expected)
            with pytest.raises(RuntimeError, match="'x' was donated"):
                x.sum()


def test_a_returned_argument_stays():
    def function(x):
        return x.view(-1), x + 1

    fast = staticrt.compile(function, donate="x")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 4)
            view, _ = fast(x)
            assert view.data_ptr() == x.data_ptr()
            torch.testing.assert_close(view, x.view(-1))


def test_containers_are_donated_whole():
    def function(cache, x):
        return {"k": cache["k"] + x, "v": cache["v"] * x}

    fast = staticrt.compile(function, donate="cache")
    x = torch.randn(32)
    with torch.no_grad():
        cache = {"k": torch.randn(32), "v": torch.randn(32)}
        for _ in range(4):
            expected = function(cache, x)
            before = {cache["k"].data_ptr(), cache["v"].data_ptr()}
            cache = fast(cache, x)
            torch.testing.assert_close(cache, expected)
        assert {cache["k"].data_ptr(), cache["v"].data_ptr()} == before


def test_wrong_uses_say_what_to_do():
    fast = staticrt.compile(step, donate="state")
    update = torch.randn(4, 4)
    whole = torch.randn(8, 4)
    same = torch.randn(4, 4)
    cases = [
        (whole[:4], update, "another tensor shares its storage"),
        (
            torch.empty(0).set_(whole.clone().untyped_storage(), 0, (4, 4)),
            update,
            "64 bytes of a storage of 128",
        ),
        (same, same, "has the same storage|shares its storage"),
        (torch.from_numpy(numpy.zeros((4, 4), dtype="float32")), update, "its memory has another owner"),
        (torch.randn(4, 4, requires_grad=True), update, "requires a gradient"),
    ]
    with torch.no_grad():
        for _ in range(2):  # before and after a trace
            for state, other, message in cases:
                with pytest.raises(InputError, match=message):
                    fast(state, other)
                assert state.sum() is not None, "nothing is lost"
            fast(torch.randn(4, 4), update)
    with pytest.raises(OptionError, match="names 'stat', which is not an argument; there are state, update"):
        staticrt.compile(step, donate="stat")
    with pytest.raises(OptionError, match="cannot be combined with graphs"):
        staticrt.compile(step, donate="state", graphs=True)
    with pytest.raises(OptionError, match="takes names of arguments"):
        staticrt.compile(step, donate=[1])


def test_tensors_that_others_hold_are_refused():
    fast = staticrt.compile(step, donate="state")
    update = torch.randn(4, 4)
    weight = torch.randn(4, 4, requires_grad=True)
    for lend in (numpy.from_dlpack, torch.from_dlpack, lambda state: weight * state):
        for _ in range(2):  # before and after the fast path knows the call
            state = torch.randn(4, 4)
            before = state.clone()
            lent = lend(state)
            with torch.no_grad(), pytest.raises(InputError, match=r"holds it|shares its storage"):
                fast(state, update)
            assert torch.equal(state, before)
            del lent
            with torch.no_grad():
                fast(state, update)


def test_a_written_argument_is_refused():
    def function(x):
        x.add_(1)
        return x * 2

    fast = staticrt.compile(function, donate="x")
    with torch.no_grad(), pytest.raises(InputError, match="the model writes it"):
        fast(torch.randn(4))


def test_gradients_are_refused():
    fast = staticrt.compile(torch.nn.Linear(4, 4), donate="input")
    x = torch.randn(2, 4)
    with pytest.raises(InputError, match="needs gradients"):
        fast(x)
    with torch.no_grad():
        fast(x)
    with pytest.raises(RuntimeError, match="donated"):
        x.sum()


def test_a_failed_call_leaves_the_next_one_working():
    def function(x, index):
        return (x * 2)[index] + x.sum()

    fast = staticrt.compile(function, donate="x")
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(16), torch.tensor([1]))
        with pytest.raises((IndexError, RuntimeError)):
            fast(torch.randn(16), torch.tensor([99]))
        x = torch.randn(16)
        expected = function(x, torch.tensor([3]))
        torch.testing.assert_close(fast(x, torch.tensor([3])), expected)


def test_donated_calls_from_many_threads():
    fast = staticrt.compile(step, donate="state")
    update = torch.randn(64, 64)

    def work(seed):
        torch.manual_seed(seed)
        with torch.no_grad():
            state = torch.full((64, 64), float(seed))
            reference = state.clone()
            for _ in range(10):
                state, _ = fast(state, update)
                reference, _ = step(reference, update)
        return torch.allclose(state, reference, atol=1e-5)

    assert all(in_threads(work, range(8)))
