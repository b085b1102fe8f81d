"""Results written over dying inputs, and parts of `cat` made in place: same answers, smaller arenas, shown in reports."""

import random

import pytest
import torch
import torch.nn.functional as F

import staticrt


def compiled(function, *inputs, **options):
    """The compiled function, called twice, and the stats and blocks of its only prepared program."""
    fast = staticrt.compile(function, **options)
    with torch.no_grad():
        for _ in range(2):
            fast(*inputs)
    (prepared,) = staticrt._C.prepared_programs(fast._executor.snapshot().traces[0].executable.native)
    return fast, prepared.stats, prepared.blocks


def check(function, *inputs, tolerance=1e-5, **options):
    """Equal to eager, poisoned or not, and twice; returns the stats."""
    with torch.no_grad():
        expected = function(*inputs)
    before = [x.clone() for x in inputs]
    for poison in (False, True):
        fast, stats, blocks = compiled(function, *inputs, poison=poison, **options)
        for _ in range(2):
            with torch.no_grad():
                torch.testing.assert_close(fast(*inputs), expected, rtol=tolerance, atol=tolerance)
    assert all(map(torch.equal, inputs, before))
    check_blocks(blocks, stats["arena_bytes"])
    return stats


def check_blocks(blocks, arena_bytes):
    """What lies in the arena at the same time shares no byte: blocks of a group take turns."""
    inside = [b for b in blocks if b[0] in ("arena", "workspace") and b[4] > 0]
    for i, (_, _, begin, end, size, offset, *_) in enumerate(inside):
        assert offset >= 0
        assert offset + size <= arena_bytes
        for _, _, other_begin, other_end, other_size, other_offset, *_ in inside[:i]:
            if begin < other_end and other_begin < end:
                assert offset + size <= other_offset or other_offset + other_size <= offset


def barrier(x):
    """An operator between two pointwise ones, so that they are calls of their own, in planned memory."""
    return x.flip(0)


def test_a_dying_input_is_written_over():
    def function(x):
        y = barrier(x)  # [64, 64]: 16 KiB
        return barrier(torch.relu(y) * 2 + 1)

    stats = check(function, torch.randn(64, 64))
    assert stats["overwrites"] == 1
    assert stats["arena_bytes"] == 64 * 64 * 4


@pytest.mark.parametrize("norm", ["softmax", "layer_norm", "log_softmax_columns", "group_norm", "batch_norm"])
def test_rows_are_normalised_in_place(norm):
    weight, bias = torch.rand(32), torch.rand(32)
    kinds = {
        "softmax": lambda y: F.softmax(y, -1),
        "layer_norm": lambda y: F.layer_norm(y, (32,), weight, bias),
        "log_softmax_columns": lambda y: F.log_softmax(y, 0),
        "group_norm": lambda y: F.group_norm(y, 4, weight, bias),
        "batch_norm": lambda y: F.batch_norm(y, bias, weight, weight, bias),
    }
    stats = check(lambda x: barrier(kinds[norm](barrier(x))), torch.randn(48, 32))
    assert stats["overwrites"] == 1, stats


def test_an_operand_that_is_read_elsewhere_is_kept():
    # y dies at the norm, but the norm reads its first row as the weight, row after row.
    def function(x):
        y = barrier(x)
        return barrier(F.layer_norm(y, (16,), y[0], y[1]))

    assert check(function, torch.randn(8, 16))["overwrites"] == 0


def test_broadcast_and_transposed_reads_are_kept():
    def broadcast(x):
        y = barrier(x)
        return barrier(y + y[:1])

    def transposed(x):
        y = barrier(x)
        return barrier(y + y.t())

    for function in (broadcast, transposed):
        assert check(function, torch.randn(24, 24))["overwrites"] == 0


def test_a_value_used_later_is_kept():
    def function(x):
        y = barrier(x)
        z = barrier(torch.sigmoid(y))
        return barrier(z * y)

    stats = check(function, torch.randn(40, 8))
    assert stats["overwrites"] == 1  # y or z at the product; not y at the sigmoid


def test_escaping_values_are_kept():
    def function(x):
        y = barrier(x)
        return y, torch.relu(y), y[2:]

    assert check(function, torch.randn(16, 16))["overwrites"] == 0


def test_a_chain_that_stores_an_early_result_keeps_what_it_reads_later():
    # relu(y) is stored by the chain, which reads y once more afterwards.
    def function(x):
        y = barrier(x)
        early = torch.relu(y)
        late = torch.tanh(y) * early + y.clone()
        return barrier(early), barrier(late)

    check(function, torch.randn(70, 70))


def test_integers_divided_by_zero_still_raise_and_are_right():
    def function(x, d):
        y = barrier(x)
        return barrier(torch.div(y, d, rounding_mode="floor") + 1)

    fast, stats, _ = compiled(function, torch.arange(5000), torch.full((5000,), 3))
    assert stats["overwrites"] == 0  # the node runs again where a divisor is 0, on the same input
    divisors = torch.full((5000,), 3)
    divisors[4999] = 0
    with torch.no_grad(), pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fast(torch.arange(5000), divisors)


@pytest.mark.parametrize("dim", [0, 1])
def test_parts_of_cat_are_made_in_place(dim):
    def function(x):
        y, z = barrier(x), barrier(x * 2)
        return barrier(torch.cat([y, z], dim))

    stats = check(function, torch.randn(1, 32, 8, 8))  # batch 1: channels are runs of bytes
    assert stats["parts_in_place"] == 2
    assert stats["arena_bytes"] == 3 * 32 * 64 * 4  # the cat, and x * 2 beside it


def test_stack_is_made_in_place():
    stats = check(lambda x: barrier(torch.stack([barrier(x), barrier(x.sin()), x])), torch.randn(8, 32))
    assert stats["parts_in_place"] == 2  # the third is the caller's


def test_cat_of_pieces_in_rows_is_copied():
    stats = check(lambda x: barrier(torch.cat([barrier(x), barrier(x.sin())], 1)), torch.randn(8, 32))
    assert stats["parts_in_place"] == 0


def test_a_part_that_is_used_later_stays_right():
    def function(x):
        y, z = barrier(x), barrier(x.sin())
        joined = torch.cat([y, z])
        squared = joined * joined  # over the cat's bytes, were y not needed
        return barrier(squared), barrier(y + 1)

    check(function, torch.randn(32, 16))


def test_dense_blocks_grow_in_one_buffer():
    def function(x):
        parts = [barrier(x)]
        for _ in range(4):
            parts.append(barrier(torch.cat(parts)[:16]))
        return barrier(torch.cat(parts))

    stats = check(function, torch.randn(16, 64))
    assert stats["parts_in_place"] >= 5
    assert stats["arena_bytes"] <= 6 * 16 * 64 * 4


def test_reports_say_what_is_in_place():
    def function(x):
        y, z = barrier(x), barrier(x * 2)
        return barrier(torch.relu(barrier(torch.cat([y, z]))))

    fast, stats, blocks = compiled(function, torch.randn(32, 16))
    assert (stats["overwrites"], stats["parts_in_place"]) == (1, 2)
    text = str(fast.explain())
    assert (
        "in place: 1 results over an input that dies there, 2 values made where a later node would copy them"
        in text
    )
    assert {b[6] for b in blocks} == {"", "over", "part of"}


def random_function(seed):
    """A random graph of pointwise operators, norms, cats, slices and views on [rows, 16] tensors."""
    choose = random.Random(seed)
    plan = [(choose.randrange(9), choose.randrange(1 << 30), choose.randrange(1 << 30)) for _ in range(24)]
    keep = {choose.randrange(25) for _ in range(3)}

    def function(x):
        values = [barrier(x)]
        for kind, first, second in plan:
            a, b = values[-1 - first % min(4, len(values))], values[-1 - second % min(4, len(values))]
            if kind == 0:
                made = torch.relu(a) + a
            elif kind == 1:
                made = a * b if a.shape == b.shape else a * b.sum(0)
            elif kind == 2:
                made = torch.cat([a, b])[:8]
            elif kind == 3:
                made = torch.cat([a, b])
            elif kind == 4:
                made = F.layer_norm(a, (16,))
            elif kind == 5:
                made = torch.softmax(a, -1)
            elif kind == 6:
                made = barrier(a)
            elif kind == 7:
                made = a[1:] if len(a) > 8 else a * 2
            else:
                made = torch.stack([a, a.tanh()]).reshape(-1, 16)
            values.append(made[:32])
        return [values[i] for i in sorted(keep)] + [barrier(values[-1])]

    return function


def test_random_graphs_equal_eager_in_poisoned_arenas():
    overwrites = parts = 0
    for seed in range(40):
        torch.manual_seed(seed)
        # Norms of nearly equal numbers make rounding errors larger.
        stats = check(random_function(seed), torch.randn(8, 16), tolerance=1e-4, deterministic=True)
        overwrites += stats["overwrites"]
        parts += stats["parts_in_place"]
    assert overwrites > 40
    assert parts > 40
