"""What autograd sees of captured outputs: gradients that accumulate, traces of errors, tensors that are kept to be returned again."""

import pytest
import torch

import staticrt
from staticrt.graphs import GraphContext, default_context, defaults, override
from staticrt.graphs.policy import Policy
from tests.support.graph_harness import Trained, cube, device, empty


@pytest.mark.parametrize("kind", ["cpu", "cpu_copy"])
def test_gradients_accumulate_in_place_unless_a_graph_is_made(kind):
    """What a caller holds as .grad is added to, or left alone, as in eager."""
    torch._dynamo.reset()

    def run(f, create_graph):
        x = torch.randn(5, 5, requires_grad=True)
        y, gradient = f(x), torch.ones(5, 5)
        y.backward(gradient, retain_graph=True)
        held, before = x.grad, x.grad.clone()
        y.backward(gradient, create_graph=create_graph)
        return held, before

    with GraphContext("cpu", backend=device(kind)) as context:
        f = staticrt.compile(lambda x: x * 2 + 2, graphs=context)
        for _ in range(3):
            held, before = run(f, create_graph=False)
            assert torch.equal(held, before * 2)
            held, before = run(f, create_graph=True)
            assert torch.equal(held, before)
        assert context.explain().captures > 0
        del f


def test_what_a_training_step_made_says_where(tree):
    """Use after an overwrite names the line that made the output, of the forward and of the backward."""

    def forward(args):
        (x,) = empty(args)
        return [x * x, x * 2]

    f = Trained(
        tree,
        forward,
        lambda args: (lambda double, g: [double * g])(*empty(args)),
        stack_traces=["  File model.py, line 7\n", None],
    )
    x = torch.ones(3, requires_grad=True)
    out = f(x)
    out.sum().backward()
    gradient, x.grad = x.grad, None
    f(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"accessing tensor output .* File model.py, line 7"):
        out + 1
    with pytest.raises(RuntimeError, match=r"accessing gradient tensor output .* File model.py, line 7"):
        gradient + 1


def test_a_kept_output_is_known_to_torch_once(make_tree):
    """`_add_cached_tensor` counts nothing: what was entered twice and removed once is no longer known."""
    tree = make_tree(device("cpu_copy"))
    f = tree.boxed(cube)
    for _ in range(4):
        out = f([torch.ones(4)])[0]
    node = tree.node
    node.fill_caches()
    node.fill_caches()
    assert torch._C._is_cached_tensor(out)
    assert node.cached_outputs[0] is out
    node.drop_caches()
    assert not torch._C._is_cached_tensor(out)
    assert torch.equal(out, torch.ones(4))


def test_two_forwards_that_save_their_inputs(tree):
    """What is saved of the caller's own is not a block of the pool: two outputs are."""

    def forward(args):
        (x,) = empty(args)
        return [x * x * x, x]

    def backward(args):
        x, gradient = empty(args)
        return [3 * x * x * gradient]

    first, second = Trained(tree, forward, backward), Trained(tree, forward, backward)
    x = torch.full((3,), 2.0, requires_grad=True)
    out = first(x)
    out2 = second(out)
    assert tree.live() == 2
    assert tree.ctx.generations.pending
    out2.sum().backward()
    assert not tree.ctx.generations.pending
    assert torch.equal(x.grad, torch.full((3,), 9 * 2.0**8))
    x.grad = None


def test_threads_without_pythons_locals_find_the_context_of_the_caller(monkeypatch):
    """Autograd's threads copy what the caller's thread stashed, and have no locals of their own."""
    mine = default_context()
    monkeypatch.delattr(defaults._local, "contexts")
    assert default_context() is mine
    defaults.close_default_contexts()
    assert mine.closed
    monkeypatch.undo()
    other = default_context()
    assert other is not mine
    other.close()
    assert default_context() is not other
    defaults.close_default_contexts()


@pytest.mark.parametrize("captured", [True, False])
def test_overrides_reach_every_part_of_a_module_with_breaks(captured):
    """Parts around a graph break, and frames that are called from others."""
    torch._dynamo.reset()

    def inner(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2

    def outer(x):
        y = inner(x + 1)
        torch._dynamo.graph_break()
        return inner(y) - 1

    with GraphContext("cpu") as context:
        f = torch.compile(outer, backend="staticrt", options={"graphs": context})
        for _ in range(3):
            x = torch.randn(4)
            with override(captured):
                torch.testing.assert_close(f(x), outer(x))
        report = context.explain()
        assert (report.captures > 1) == captured
        assert {skip.reason for skip in report.skips} == (set() if captured else {"an override says so"})
        before = report.captures
        # As a decorator of what is compiled.
        torch.testing.assert_close(override(not captured)(f)(x), outer(x))
        assert (context.explain().captures > before) != captured
        del f
    torch._dynamo.reset()


def test_an_override_inside_what_is_compiled():
    torch._dynamo.reset()

    def f(x):
        y = x * 2
        with override(False):
            y = y.exp()
        return y + 1

    with GraphContext("cpu") as context:
        compiled = torch.compile(f, backend="staticrt", options={"graphs": context})
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), f(x))
        del compiled
    torch._dynamo.reset()


def test_sizes_are_warned_of_once_per_function(make_tree):
    tree = make_tree(device("cpu"), Policy(max_sizes_unwarned=1))
    first, second = (tree.wrap(lambda x, n: x * n, name=name) for name in ("first", "second"))
    with pytest.warns(UserWarning, match="2 distinct sizes") as caught:  # noqa: PT031
        for size in (2, 3, 4):
            first(torch.ones(size), size)
            second(torch.ones(size), size)
    messages = [str(w.message) for w in caught if "distinct sizes" in str(w.message)]
    assert [message.split()[1] for message in messages] == ["first", "second"]
