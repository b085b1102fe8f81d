"""Functions that write their inputs. Numbers: upstream's scenarios (skips, warnings)."""

import warnings

import pytest
import torch

from staticrt.graphs.generations import mark_step_begin
from staticrt.graphs.policy import Policy
from tests.support.fake_graph_backend import FakeBackend
from tests.support.graph_harness import device, empty


def plus_one(args):
    return [empty(args)[0] + 1]


def add_two(args):
    (x,) = empty(args)
    x.add_(2)
    return [x]


def test_a_written_input_runs_plain_and_a_buffer_is_captured(tree):
    f = tree.boxed(add_two, mutated_inputs=(0,), stack_traces=["  x.add_(2)\n"])
    with pytest.warns(UserWarning, match=r"mutation on input: input 0 .* \(found from x.add_\(2\)\)"):
        f([torch.ones(10)])
    assert tree.manager.all_roots() == []

    def module(args):
        buffer, x = empty(args)
        buffer.add_(x)
        return [buffer + x]

    g = tree.boxed(module, static_inputs=(0,), mutated_inputs=(0,))
    buffer, twin = torch.ones(10), torch.ones(10)
    for _ in range(4):
        out = g([buffer, torch.ones(10)])[0]
        twin += 1
        assert torch.equal(out, twin + 1)
        assert torch.equal(buffer, twin)
    assert tree.captures == 1


def test_out_arguments_are_writes(tree):
    f = tree.boxed(
        lambda args: (lambda a, b, out: [torch.logical_xor(a, b, out=out)])(*empty(args)), mutated_inputs=(2,)
    )
    a, b, out = torch.tensor([True, False]), torch.tensor([True, True]), torch.zeros(2, dtype=torch.bool)
    with pytest.warns(UserWarning, match="mutation on input"):
        f([a, b, out])
    assert out.tolist() == [False, True]


def test_path_tensors_may_be_written_then_an_eager_one_may_not(tree):
    f, mut = tree.boxed(plus_one), tree.boxed(add_two, mutated_inputs=(0,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            mark_step_begin()
            x = torch.rand(4)
            y = f([x])[0]
            assert torch.equal(mut([y])[0], x + 1 + 2)
    assert tree.skips() == 0
    mark_step_begin()
    x = torch.rand(4)
    y = f([x])[0].clone()
    with pytest.warns(UserWarning, match="mutation on input"):
        mut([y])
    assert torch.equal(y, x + 1 + 2)
    assert tree.skips() == 1


def test_support_off_skips_and_warns_once(make_tree):
    tree = make_tree(mutation=False)
    f, mut = tree.boxed(plus_one), tree.boxed(add_two, mutated_inputs=(0,))
    with pytest.warns(UserWarning, match="the policy does not capture functions that write inputs") as caught:  # noqa: PT031
        for _ in range(3):
            mark_step_begin()
            x = torch.rand(4)
            assert torch.equal(mut(f([x]))[0], x + 1 + 2)
    assert len([w for w in caught if "mutation on input" in str(w.message)]) == 1
    assert tree.manager.mutation_warnings == 1


def test_each_function_warns_once(tree):
    f, mut = tree.boxed(plus_one), tree.boxed(add_two, mutated_inputs=(0,))
    with pytest.warns(UserWarning, match="mutation on input") as caught:  # noqa: PT031
        mut([torch.rand(4)])
        for _ in range(3):
            mark_step_begin()
            y = f([torch.rand(4)])[0]
            mut([y])
        mut([y.clone()])
    assert len([w for w in caught if "mutation on input" in str(w.message)]) == 1


def test_a_constant_that_is_written(tree):
    counter = torch.zeros(1)

    def f(args):
        (x,) = empty(args)
        counter.add_(1)
        return [x + counter]

    f = tree.boxed(f, constants=(counter,))
    for number in range(1, 5):
        assert f([torch.zeros(1)])[0].item() == number
        assert counter.item() == number


def test_a_written_input_that_shares_memory_runs_plain(tree):
    base = torch.ones(4)
    f = tree.boxed(
        lambda args: (lambda b, v: [b.add_(1), v * 2])(*empty(args)), mutated_inputs=(0,), static_inputs=(0,)
    )
    with pytest.warns(UserWarning, match="shares memory with input 1"):  # noqa: PT031
        for number in range(2, 5):
            _b, twice = f([base, base[:2]])
            assert torch.equal(twice, torch.full((2,), number * 2.0))


def test_bound_graphs_write_wherever_the_caller_is(make_tree):
    tree = make_tree(FakeBackend("rebind"), Policy())
    f = tree.boxed(add_two, mutated_inputs=(0,))
    for number in range(4):
        x = torch.full((3,), float(number))
        out = f([x])[0]
        assert out is x
        assert torch.equal(x, torch.full((3,), number + 2.0))
    assert tree.captures == 1
    assert tree.skips() == 0


@pytest.mark.parametrize(("warmup", "inference"), [(True, False), (True, True), (False, False)])
def test_a_write_that_nobody_named_reaches_the_caller(make_tree, copying, warmup, inference):
    tree = make_tree(copying, Policy(warmup=warmup))

    runs = 0

    def f(args):
        nonlocal runs
        runs += 1
        a, b = empty(args)
        a.add_(b)
        return [a * b]

    g = tree.boxed(f, input_names=["a", "b"])
    with torch.inference_mode(inference), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(4):
            a, b = torch.full((3,), float(number)), torch.full((3,), 2.0)
            (out,) = g([a, b])
            assert torch.equal(a, torch.full((3,), number + 2.0))
            assert torch.equal(out, a * b)
    assert tree.captures == 0
    assert all("input 0 (a)" in skip.reason for skip in tree.ctx.explain().skips)
    assert runs == 4 + (not warmup)  # the write is found once


def test_an_unnamed_write_to_a_static_input_is_captured(make_tree, copying):
    tree = make_tree(copying, Policy())

    def f(args):
        total, x = empty(args)
        total.add_(x)
        return [total * 2]

    g = tree.boxed(f, static_inputs=(0,))
    total, twin = torch.zeros(3), torch.zeros(3)
    for _ in range(5):
        (out,) = g([total, torch.ones(3)])
        twin += 1
        assert torch.equal(total, twin)
        assert torch.equal(out, twin * 2)
    assert tree.captures == 1


def through_data(x, y):
    x.data.add_(y)
    return x * 2


def other_data(x, y):
    x.data = y
    return x * 2


def set_to(x, y):
    x.set_(y)
    return x + 1


def turned(x, y):
    x.t_()
    return x + 1


def one_dimension_more(x, y):
    x.unsqueeze_(0)
    return x @ y


def made_inside(x, y):
    x.data = y + 1
    return x * 2


@pytest.mark.parametrize(
    "function",
    [through_data, other_data, set_to, turned, one_dimension_more, made_inside],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("warmup", [True, False])
def test_what_a_function_does_to_the_tensor_itself(make_tree, warmup, function):
    """Captured calls leave arguments as eager does: their bytes, shapes, and what memory they lie in."""
    for name in ("cpu", "cpu_copy"):
        if function is through_data and name == "cpu_copy" and not warmup:
            continue  # a capture computes nothing there, so that nothing could be compared
        tree = make_tree(device(name), Policy(warmup=warmup))
        f = tree.wrap(function)
        kept = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(5):
                x, y = torch.arange(4.0).view(2, 2) + number, torch.full((2, 2), 3.0)
                twin_x, twin_y = x.clone(), y.clone()
                assert torch.equal(f(x, y), function(twin_x, twin_y))
                assert x.stride() == twin_x.stride()
                assert (x.data_ptr() == y.data_ptr()) == (twin_x.data_ptr() == twin_y.data_ptr())
                kept.append((x, twin_x))
                for value, twin in kept:
                    assert torch.equal(value, twin)
        if function is not through_data:
            assert tree.captures == 0
            assert "input 0 (x) another shape or other memory" in str(tree.ctx.explain())
        del x, y, kept, value


def test_an_output_that_the_function_closes_over(make_tree):
    for name in ("cpu", "cpu_copy"):
        for constants in (False, True):
            tree = make_tree(device(name), Policy())
            total, twin = torch.zeros(3), torch.zeros(3)

            def f(args, total=total):
                (x,) = empty(args)
                total.add_(x)
                return [total]

            f = tree.boxed(f, constants=(total,) if constants else ())
            for _ in range(5):
                x = torch.rand(3)
                twin += x
                (out,) = f([x])
                assert out is total
                assert torch.equal(total, twin)
            assert tree.captures == constants
            if not constants:
                assert "memory that the capture did not allocate" in str(tree.ctx.explain())
