"""Lazy conjugates and negatives: tensors whose bytes are read through a bit. And operators that write unannounced."""

import copy

import pytest
import torch
from torch import nn

from tests.support.graph_harness import device

DEVICES = ("copy", "rebind", "cpu", "cpu_copy")


def values(k):
    return torch.complex(torch.arange(9.0), torch.arange(9.0, 18.0) * (k + 1)).reshape(3, 3)


FUNCTIONS = {
    "conjugate": lambda z: z.conj() * 1,
    "conjugate of a result": lambda z: (z * 2).conj(),
    "negative of a result": lambda z: (z * 2).conj().imag,
    "product of adjoints": lambda z: (z.mH @ z).real,
    "write into a conjugate": lambda z: (z.clone().conj().mul_(2j), z + 1),
    "copy into a conjugate": lambda z: torch.empty(3, 3, dtype=z.dtype).conj().copy_(z),
    "view of the input beside a result": lambda z: (z.conj(), z * 2, z.conj().imag[1:]),
    "several": lambda z: (z.conj() * 1, z.conj(), (z * 2).conj().imag, torch.view_as_real(z * 3)),
}
INPUTS = {
    "plain": values,
    "conjugate": lambda k: values(k).conj(),
    "negative": lambda k: torch._neg_view(values(k)),
    "both": lambda k: torch._neg_view(values(k).conj()),
}


def bits(outputs):
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return [(t.is_conj(), t.is_neg()) for t in tensors]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("backend", DEVICES)
def test_bits_are_kept(make_tree, backend, name, kind):
    f = FUNCTIONS[name]
    g = make_tree(device(backend), live_outputs="clone", min_kernels=1).wrap(f)
    for k in range(4):
        want, got = f(INPUTS[kind](k)), g(INPUTS[kind](k))
        torch.testing.assert_close(got, want)
        assert bits(got) == bits(want), f"call {k}"


@pytest.mark.parametrize("kind", ["conjugate", "both"])
def test_an_input_that_lies_in_the_pool_keeps_its_bits_when_a_capture_fails(make_tree, kind):
    """The second function fails under capture: it runs plain on inputs that are made again of their storages."""
    tree = make_tree(device("copy"), live_outputs="clone")
    make = tree.wrap(lambda z: {"conjugate": (z * 1).conj(), "both": torch._neg_view((z * 1).conj())}[kind])
    runs = []

    def failing(z):
        runs.append(None)
        if len(runs) == 2:  # after the warmup
            raise ValueError("not under capture")
        return z + 1

    take = tree.wrap(failing)
    for k in range(4):
        with tree.step():
            made = make(values(k))
            torch.testing.assert_close(take(made), made.resolve_conj().resolve_neg() + 1)
    assert "not under capture" in take.context.explain().skips[0].reason


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_counts_each_batch_once(make_tree, backend, training):
    """`native_batch_norm` writes its running statistics although its schema says nothing of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).train(training)
    eager = copy.deepcopy(model)
    f = make_tree(device(backend), live_outputs="clone").wrap(model)
    for _ in range(4):
        x = torch.randn(5, 3)
        with torch.no_grad():
            torch.testing.assert_close(f(x), eager(x))
        for got, want in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(got, want)
    assert f.context.explain().captures == 1
