"""Tensors that are conjugated or negated lazily: kernels that read bytes see their values."""

import pytest
import torch
import torch.nn.functional as F

import staticrt

ROWS = torch.tensor([0, 3])
FUNCTIONS = {
    "spectrum": lambda x: torch.stft(x.conj().flatten(), 8, return_complex=True),
    "pad": lambda x: F.pad(x.conj(), (1, 2)),
    "index": lambda x: x.conj()[ROWS],
    "whole slices": lambda x: x.conj()[:, [0, 2]],
    "whole slices of a part": lambda x: (x * 1).conj().imag[:, [0, 2]],
    "turned": lambda x: x.conj().t()[:].t() * 1,
    "gather": lambda x: x.conj().gather(0, ROWS[:, None].expand(2, 4)),
    "cat": lambda x: torch.cat([x.conj(), x]),
    "stack": lambda x: torch.stack([x, x.conj() * 1]),
    "sum": lambda x: x.conj().sum(0),
    "mean": lambda x: x.conj().mean(1),
    "product": lambda x: x.conj() @ x.mT,
    "pointwise": lambda x: x.conj() * x + x.conj().sin(),
    "imaginary": lambda x: x.conj().imag.cumsum(0) + x.conj().imag.flip(0),
    "sorted": lambda x: x.conj().imag.sort(0)[0],
    "roll": lambda x: x.conj().roll(1, 0),
    "clone": lambda x: x.conj().clone(),
    "where": lambda x: torch.where(x.real > 0, x.conj(), x),
    "views": lambda x: (x.conj()[1:], x.conj().imag, x.mH),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("options", [{}, {"prepared": False}, {"graphs": True}], ids=str)
def test_equals_eager(name, options):
    function = FUNCTIONS[name]
    torch.manual_seed(0)
    plain = torch.randn(5, 4, dtype=torch.complex64)
    for x in (plain, plain.clone().conj()):  # the argument may have the bit itself
        fast = staticrt.compile(function, **options)
        with torch.no_grad():
            for _call in range(3):
                got, want = fast(x), function(x)
                torch.testing.assert_close(got, want)


def test_conjugates_are_prepared():
    fast = staticrt.compile(lambda x: (x.conj() * x).sum(-1).abs())
    x = torch.randn(3, 4, dtype=torch.complex64)
    for _call in range(3):
        torch.testing.assert_close(fast(x), (x.conj() * x).sum(-1).abs())
    counters = fast._executor.snapshot().traces[0].executable.native.cache_counters
    assert (counters["hits"], counters["diverged"]) == (2, 0)
