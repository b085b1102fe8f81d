"""Sizes of models that Dynamo cuts: constants at first, symbols once a second size comes."""

import random

import torch

import staticrt


def cut(x):
    y = (x * 2).relu()
    random.random()  # nothing that a graph replays
    return y.sum(0) + y.shape[0]


def test_a_third_size_needs_no_trace():
    fast = staticrt.compile(cut)
    made = []
    with torch.no_grad():
        for n in (3, 4, 5, 9, 3):
            x = torch.randn(n, 6)
            assert torch.equal(fast(x), cut(x))
            made.append(len(fast.explain().traces))
    assert made[0] == 2  # before and after the cut
    assert made[1] == made[-1]


def test_sizes_are_symbols_at_once_where_asked():
    fast = staticrt.compile(cut, dynamic=True)
    made = []
    with torch.no_grad():
        for n in (3, 4, 5):
            x = torch.randn(n, 6)
            assert torch.equal(fast(x), cut(x))
            made.append(len(fast.explain().traces))
    assert made[0] == made[-1]
