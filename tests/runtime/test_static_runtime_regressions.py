"""Six bugs of PyTorch's Static Runtime, which must not be here: each case says what that one does."""

import pytest
import torch

import staticrt

I6, FOUR, F6 = torch.arange(1, 7), torch.full((6,), 4), torch.linspace(0, 1, 6)


def split_squeeze(x):
    a, b = torch.split(x, 1, 1)
    return a.squeeze(1) + b.squeeze(1)


CASES = {
    # raises: the output was made int64
    "int_div": (lambda a, b: torch.div(a, b).clone(), [(I6, FOUR)]),
    # raises from run 2 on
    "softmax_dtype": (lambda x: torch.softmax(x, 0, dtype=torch.half).clone(), [(F6,)]),
    # raises on a new dtype
    "max_dtype": (lambda x: torch.max(x).clone(), [(F6,), (F6.double(),), (I6,)]),
    # silently stays float32
    "relu_mul_dtype": (
        lambda x, y: torch.relu(torch.mul(x, y)).clone(),
        [(F6, F6), (F6.double(), F6.double()), (I6 + 2**24, I6 // I6)],
    ),
    # internal assert when built
    "split_squeeze": (split_squeeze, [(torch.arange(6.0).reshape(3, 2),)]),
}


@pytest.mark.parametrize("prepared", [False, True], ids=["general", "prepared"])
@pytest.mark.parametrize("name", CASES)
def test_matches_eager(name, prepared):
    function, argument_sets = CASES[name]
    compiled = staticrt.compile(function, prepared=prepared)
    for arguments in [a for a in argument_sets for _ in range(3)] + argument_sets:
        before = [t.clone() for t in arguments]
        got, want = compiled(*arguments), function(*arguments)
        torch.testing.assert_close(got, want, check_stride=True)
        assert all(map(torch.equal, arguments, before))
    assert not compiled.explain().eager


def test_gradients_are_never_dropped():
    def function(x):
        return torch.relu(x * 2).sum()

    x = torch.randn(4, requires_grad=True)
    compiled = staticrt.compile(function)
    for _ in range(3):
        got, want = (torch.autograd.grad(f(x), x)[0] for f in (compiled, function))
        torch.testing.assert_close(got, want)
