"""Calls that are served in C++ (`FastCall`), whichever capture they belong to."""

import torch

import staticrt


@torch.no_grad()
def test_captures_told_apart_by_sizes_only_are_all_served_without_python():
    """Arguments of both look alike to a call tree; which program they belong to its prepared signatures say."""

    def function(x):
        return x * 2 if x.shape[0] == 1 else x - 1

    compiled = staticrt.compile(function)
    inputs = [torch.randn(1, 3), torch.randn(4, 3), torch.randn(1, 5), torch.randn(2, 3)]
    for _ in range(2):
        for x in inputs:
            assert torch.equal(compiled(x), function(x))
    assert len(compiled.explain().captures) == 2
    before = compiled._engine.fast.calls
    for x in (*inputs, *inputs[::-1]):
        assert torch.equal(compiled(x), function(x))
    assert compiled._engine.fast.calls == before + 8
