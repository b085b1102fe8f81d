"""What fails in a backward leaves nothing behind: running out of memory, then again."""

import gc

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import OutOfMemoryError


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))


@pytest.mark.parametrize("retain", [False, True])
def test_out_of_memory_in_a_backward_then_again(compiler, retain):
    net = _net()
    compiled = compiler(net)
    small, large = torch.randn(2, 64), torch.randn(2048, 64)
    for _ in range(3):
        compiled(small).sum().backward()
    compiled(large)  # the forward's arena is there; the backward's is not
    gc.collect()
    net.zero_grad()
    failures = []
    for _ in range(4):
        loss = compiled(large).square().mean()
        staticrt.memory.empty_cache(device="cpu")
        reserved = staticrt.memory.stats("cpu")["reserved_bytes.all.current"]
        staticrt.memory.set_limit(bytes=reserved, device="cpu")
        try:
            loss.backward(retain_graph=retain)
        except OutOfMemoryError as error:
            failures.append((str(error), [p.grad for p in net.parameters()]))
        finally:
            staticrt.memory.set_limit(device="cpu")
        net.zero_grad()
        del loss
    assert failures
    for message, gradients in failures:
        assert "arena of a compiled program" in message
        assert gradients == [None] * 6  # nothing was accumulated by halves
    for _ in range(3):
        gradients = []
        for run in (compiled, net):
            net.zero_grad()
            run(large).square().mean().backward()
            gradients.append([p.grad.clone() for p in net.parameters()])
        torch.testing.assert_close(*gradients)


def test_a_graph_whose_backward_ran_out_of_memory_can_be_used_again(compiler):
    net = _net()
    compiled = compiler(net)
    large = torch.randn(2048, 64)
    compiled(torch.randn(2, 64)).sum().backward()
    losses = [compiled(large).square().mean() for _ in range(3)]
    staticrt.memory.empty_cache(device="cpu")
    reserved = staticrt.memory.stats("cpu")["reserved_bytes.all.current"]
    staticrt.memory.set_limit(bytes=reserved, device="cpu")
    failed = []
    try:
        for loss in losses:
            try:
                loss.backward(retain_graph=True)
            except OutOfMemoryError:
                failed.append(loss)
    finally:
        staticrt.memory.set_limit(device="cpu")
    assert failed
    for loss in failed:
        net.zero_grad()
        loss.backward()
        got = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        net(large).square().mean().backward()
        torch.testing.assert_close(got, [p.grad for p in net.parameters()])
