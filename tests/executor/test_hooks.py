"""Hooks run in every call, whenever they were registered and whoever registered them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import staticrt


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize("grad", [False, True])
def test_hooks_on_all_modules_come_and_go(grad):
    model, x, seen = small(), torch.randn(3, 8), []
    compiled = staticrt.compile(model)

    def double(_module, _arguments, result):
        seen.append(1)
        return result * 2

    with torch.set_grad_enabled(grad):
        plain = model(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), plain)
        handle = torch_module.register_module_forward_hook(double)
        try:
            doubled = model(x)
            for _ in range(3):
                seen.clear()
                torch.testing.assert_close(compiled(x), doubled)
                assert len(seen) == 4  # three layers and the whole
        finally:
            handle.remove()
        for _ in range(3):
            torch.testing.assert_close(compiled(x), plain)


def test_backward_hooks_registered_after_the_first_step():
    model, x = small(), torch.randn(3, 8)
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    compiled(x).sum().backward()
    seen = {id(model): [], id(eager): []}
    for each in (model, eager):
        each.zero_grad()
        log = seen[id(each)]
        each[0].register_full_backward_hook(lambda _m, _gin, gout, log=log: log.append(gout[0]))
    for _ in range(2):
        compiled(x).sum().backward()
        eager(x).sum().backward()
    assert len(seen[id(eager)]) == 2
    torch.testing.assert_close(seen[id(model)], seen[id(eager)])
    for got, want in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)
