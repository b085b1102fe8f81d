"""Calls of sizes that are new: served without Python's executor, on the general path, with eager's answers."""

import pytest
import torch

import staticrt


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def rows(n):
    return torch.randn(n, 8)


def natives(fast):
    return fast.__inspectable__().natives()


def fast_calls(fast):
    return fast.__inspectable__().fast.calls


@pytest.fixture
def warm():
    """A model, and its compiled form after two sizes and without gradients."""
    with torch.no_grad():
        model = Small().eval()
        fast = staticrt.compile(model)
        for n in (5, 6):
            fast(rows(n))
        yield model, fast


def served_fast(fast, model, *arguments):
    """Whether the call was, and gave eager's answer."""
    before = fast_calls(fast)
    torch.testing.assert_close(fast(*arguments), model(*arguments))
    return fast_calls(fast) > before


def test_a_new_size_needs_neither_a_preparation_nor_the_executor(warm):
    model, fast = warm
    prepared = sum(native.cache_counters["prepared"] for native in natives(fast))
    for n in range(7, 60):
        assert served_fast(fast, model, rows(n))
    assert sum(native.cache_counters["prepared"] for native in natives(fast)) == prepared


def test_a_size_that_comes_again_is_prepared(warm):
    model, fast = warm
    native = natives(fast)[-1]
    begin = native.cache_counters
    for prepared, hits in ((0, 0), (1, 0), (1, 1)):
        assert served_fast(fast, model, rows(40))
        now = native.cache_counters
        assert (now["prepared"] - begin["prepared"], now["hits"] - begin["hits"]) == (prepared, hits)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, None],
        lambda x: x[:0],
        lambda x: x[:1],
        lambda x: x.clone().requires_grad_(),
        lambda x: torch.nn.Parameter(x.clone()),
    ],
    ids=["dtype", "strides", "dims", "empty", "one", "gradient", "parameter"],
)
def test_a_call_that_differs_in_more_than_sizes_has_eagers_answer(warm, change):
    model, fast = warm
    x = change(rows(31))
    if x.dtype == torch.float64:
        with pytest.raises(RuntimeError, match="dtype"):
            fast(x)
        return
    result = fast(x)
    torch.testing.assert_close(result, model(x))
    assert result.requires_grad == model(x).requires_grad
    fast(rows(32))  # a new trace clears the fast path
    assert served_fast(fast, model, rows(33))


def test_conditions_on_sizes_are_checked():
    def model(x):
        return x * 2 if x.shape[0] > 20 else x + 1

    fast = staticrt.compile(model)
    with torch.no_grad():
        for n in (5, 6, 7, 30, 31, 8, 32, 9, 21, 20):
            x = rows(n)
            assert torch.equal(fast(x), model(x)), n
    assert fast_calls(fast) >= 4


def test_conditions_on_a_number_are_checked():
    def model(x, n):
        return x * n if n > 3 else x - n

    fast = staticrt.compile(model)
    with torch.no_grad():
        for n in (5, 6, 7, 2, 8, 1, 9, 0, -4):
            x = rows(n + 10)
            assert torch.equal(fast(x, n), model(x, n)), n


def test_weights_of_other_sizes_are_seen(warm):
    model, fast = warm
    for module in (model.first, model.second):
        module.weight.data = torch.randn_like(module.weight).t().contiguous().t()
    assert torch.equal(fast(rows(33)[:0]), model(rows(33)[:0]))
    torch.testing.assert_close(fast(x := rows(33)), model(x))
    model.first.weight.data = torch.randn(24, 8)
    model.first.bias.data = torch.randn(24)
    model.second.weight.data = torch.randn(4, 24)
    torch.testing.assert_close(fast(x := rows(34)), model(x))


def test_an_error_of_a_new_size_is_eagers():
    def model(x, y):
        return torch.relu(x) @ y

    fast = staticrt.compile(model)
    with torch.no_grad():
        for n in (5, 6, 7):
            fast(torch.randn(4, n), torch.randn(n, 3))
        for _ in range(2):
            with pytest.raises(RuntimeError) as expected:
                model(torch.randn(4, 9), torch.randn(10, 3))
            with pytest.raises(RuntimeError) as raised:
                fast(torch.randn(4, 9), torch.randn(10, 3))
            assert str(expected.value).splitlines()[0] in str(raised.value)
        assert served_fast(fast, model, torch.randn(4, 11), torch.randn(11, 3))


def test_random_numbers_and_writes_are_eagers():
    def drops(x):
        return torch.nn.functional.dropout(x, 0.5)

    def writes(x):
        return x.add_(1).sum()

    with torch.no_grad():
        for model in (drops, writes):
            fast = staticrt.compile(model)
            for n in (5, 6, 7, 8, 9):
                x = rows(n)
                other = x.clone()
                torch.manual_seed(n)
                expected = model(other)
                torch.manual_seed(n)
                assert torch.equal(fast(x), expected)
                assert torch.equal(x, other)


def test_the_body_of_a_loop_at_new_sizes():
    def model(x):
        def unfinished(step, _state):
            return step < 4

        def refine(step, state):
            return step + 1, torch.tanh(state @ state.t() @ state)

        return torch.ops.higher_order.while_loop(
            unfinished, refine, (torch.zeros((), dtype=torch.int64), x), ()
        )

    with torch.no_grad():
        fast = staticrt.compile(model)
        for n in (5, 6, 7, 8, 9, 9, 9):
            x = rows(n)
            for ours, eager in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(ours, eager)
