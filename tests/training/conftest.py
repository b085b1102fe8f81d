"""Both autograd nodes, for tests that hold for each."""

import copy

import pytest
import torch

# name -> how a function is compiled through it
ENTRIES = {
    name: lambda function, node=node, **options: torch.compile(
        function, backend="staticrt", options={"backward_node": node, **options}
    )
    for name, node in {"aot": "aot", "native where it fits": "auto"}.items()
}


@pytest.fixture(params=ENTRIES)
def compiler(request):
    """`compiler(function, **options)` compiles for training."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield ENTRIES[request.param]
    torch._dynamo.reset()


@pytest.fixture
def against_eager(compiler):
    """`against_eager(module or function, make_inputs)`: three calls, forward and backward, equal to eager's.

    make_inputs(call) gives the arguments of a call, from the seed that the fixture sets. Values, gradients of
    arguments and parameters, dtypes, strides, buffers and written arguments are compared.
    """

    def check(model, make_inputs, loss=None, calls=3, rtol=1e-4, atol=1e-5, **options):
        theirs = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model
        compiled = compiler(model, **options)
        for call in range(calls):
            results = []
            for run, owner in ((compiled, model), (theirs, theirs)):
                torch.manual_seed(call)
                arguments = make_inputs(call)
                torch.manual_seed(100 + call)
                out = run(*arguments)
                total = (loss or _sum)(out)
                total.backward()
                tensors = list(arguments)
                if isinstance(owner, torch.nn.Module):
                    tensors += [*owner.parameters(), *owner.buffers()]
                results.append((out, tensors, [getattr(t, "grad", None) for t in tensors]))
            (got, mine, my_grads), (want, others, their_grads) = results
            assert_same(got, want, rtol, atol)
            assert_same(mine, others, rtol, atol)
            assert_same(my_grads, their_grads, rtol, atol)
        return compiled

    return check


def _sum(out):
    leaves = torch.utils._pytree.tree_leaves(out)
    return sum(
        (leaf * leaf).sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )


def assert_same(got, want, rtol=1e-4, atol=1e-5):
    """Equal values, dtypes, sizes, strides, requires_grad, and None in the same places."""
    got_leaves, got_spec = torch.utils._pytree.tree_flatten(got)
    want_leaves, want_spec = torch.utils._pytree.tree_flatten(want)
    assert got_spec == want_spec
    for g, w in zip(got_leaves, want_leaves, strict=True):
        if not isinstance(w, torch.Tensor):
            assert type(g) is type(w)
            assert g == w
            continue
        assert isinstance(g, torch.Tensor), (g, w)
        assert (g.dtype, g.shape, g.requires_grad) == (w.dtype, w.shape, w.requires_grad)
        assert not g.is_inference()
        if w.numel() > 1:
            assert g.stride() == w.stride()
        torch.testing.assert_close(g.detach(), w.detach(), rtol=rtol, atol=atol, equal_nan=True)
