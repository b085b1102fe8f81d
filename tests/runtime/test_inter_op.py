"""Independent kernels of one call on threads: the same bits as in order."""

import random

import pytest
import torch

import staticrt
from tests.support.threads import in_threads


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prepared_of(fast):
    (prepared,) = staticrt._C.prepared_programs(fast._executor.snapshot().traces[0].executable.native)
    return prepared


def branches(x):
    back = torch.arange(x.shape[0]).flip(0)
    parts = [torch.softmax(torch.tanh(x @ x.t() * k).index_select(0, back), -1) for k in (1, 2, 3, 4)]
    return sum((part @ x).index_select(0, back) for part in parts), parts[1]


def run(function, x, threads, **options):
    fast = staticrt.compile(function, inter_op_threads=threads, deterministic=True, **options)
    with torch.no_grad():
        for _ in range(2):
            result = fast(x)
        return fast, [fast(x) for _ in range(20)] + [result]


def test_branches_give_the_same_bits():
    x = torch.randn(160, 160)
    _, (expected, *_) = run(branches, x, 1)
    for threads in (2, 3):
        fast, results = run(branches, x, threads, poison=True)
        assert prepared_of(fast).stats["parallel_calls"] >= 8
        for result in results:
            assert all(map(torch.equal, result, expected))


def test_a_chain_runs_in_order():
    def chain(x):
        for _ in range(5):
            x = (x @ x).tanh()
        return x

    fast, _ = run(chain, torch.randn(200, 200), 2)
    assert prepared_of(fast).stats["parallel_calls"] == 0


def test_values_of_a_region_share_no_bytes():
    """Who runs beside whom is not known: every value that a region touches lives through all of it."""
    fast, _ = run(branches, torch.randn(160, 160), 2)
    prepared = prepared_of(fast)
    region = max(prepared.regions, key=lambda r: r[1])
    assert region[1] >= 8
    nodes = [node for step in prepared.steps[region[0] : region[0] + region[1]] for node in step[0]]
    first, last = min(nodes), max(nodes)
    inside = [b for b in prepared.blocks if b[0] in ("arena", "workspace") and b[2] <= last and first < b[3]]
    assert len(inside) > 8
    for i, (_, _, _, _, size, offset, *_) in enumerate(inside):
        for _, _, _, _, other_size, other_offset, *_ in inside[:i]:
            assert offset + size <= other_offset or other_offset + other_size <= offset


def test_a_call_that_must_run_again_does():
    def function(x, index):
        wide = [torch.tanh(x @ x.t() * k) for k in (1, 2, 3)]
        return sum(wide) + torch.index_select(x, 0, index)

    fast = staticrt.compile(function, inter_op_threads=2)
    x, index = torch.randn(192, 192), torch.arange(192)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x, index), function(x, index), rtol=1e-4, atol=1e-4)
        with pytest.raises((IndexError, RuntimeError), match="out of range"):
            fast(x, index + 1)
        torch.testing.assert_close(fast(x, index), function(x, index), rtol=1e-4, atol=1e-4)


def test_many_calls_at_once():
    x = torch.randn(128, 128)
    fast, (expected, *_) = run(branches, x, 2)

    def call(_):
        with torch.no_grad():
            return all(map(torch.equal, fast(x), expected))

    assert all(in_threads(lambda _: all(call(i) for i in range(15)), range(4)))


def random_function(seed):
    choose = random.Random(seed)
    plan = [(choose.randrange(5), choose.randrange(1 << 20), choose.randrange(1 << 20)) for _ in range(20)]

    def function(x):
        values = [x, x.flip(0), x.flip(1)]
        for kind, first, second in plan:
            a, b = values[-1 - first % min(6, len(values))], values[-1 - second % min(6, len(values))]
            values.append(
                [lambda a, b: torch.tanh(a @ b), lambda a, b: (a + b).index_select(0, torch.arange(96)), lambda a, b: torch.softmax(a, -1),
                 lambda a, b: torch.cat([a, b])[::2], lambda a, b: a * b][kind](a, b)
            )  # fmt: skip
        return values[-1], values[-4]

    return function


def test_random_graphs_give_the_same_bits():
    x = torch.randn(96, 96)
    beside = 0
    for seed in range(16):
        function = random_function(seed)
        _, (expected, *_) = run(function, x, 1)
        fast, results = run(function, x, 3, poison=True)
        beside += prepared_of(fast).stats["parallel_calls"]
        for result in results:
            assert all(
                torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(result, expected, strict=True)
            )
    assert beside > 50
