"""Two devices, each with a tree, a pool and a generator of its own (upstream: the checklist's "RNG, 2 devices")."""

import pytest
import torch

from staticrt.graphs import GraphContext
from tests.support.graph_harness import device


def draws(function, generator):
    """Ten calls of a function that draws; the calls' results and the generator's state after them."""
    return [function(torch.full((3,), float(k)), generator) for k in range(10)], generator.get_state()


def noisy(x, generator):
    return x + torch.rand(3, generator=generator) * torch.rand(3, generator=generator)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", ["cpu", "cpu_copy"])
def test_each_device_draws_from_its_own_generator(kind):
    """Calls take turns; each device sees what it would alone in eager, before and after both are seeded again."""
    with (
        GraphContext("cpu", backend=device(kind)) as first,
        GraphContext("cpu", backend=device(kind)) as second,
    ):
        functions = [context.wrap(noisy) for context in (first, second)]
        generators = [seeded(1), seeded(2)]
        for _ in range(2):
            expected = [draws(noisy, seeded(seed)) for seed in (1, 2)]
            for generator, seed in zip(generators, (1, 2), strict=True):
                generator.manual_seed(seed)
            got = [[], []]
            for k in range(10):
                for which in (0, 1) if k % 3 else (1, 0):
                    x = torch.full((3,), float(k))
                    got[which].append(functions[which](x, generators[which]).clone())
            for which in (0, 1):
                for one, other in zip(got[which], expected[which][0], strict=True):
                    assert torch.equal(one, other)
                assert torch.equal(generators[which].get_state(), expected[which][1])
        assert [context.explain().captures for context in (first, second)] == [1, 1]


@pytest.mark.parametrize("kind", ["cpu_copy", "copy"])
def test_outputs_of_one_device_are_inputs_of_the_other(kind):
    """Each pool knows its own memory alone: what the other gave out is any input, and stays as it is."""
    ones, others = device(kind), device(kind)
    with GraphContext("cpu", backend=ones) as first, GraphContext("cpu", backend=others) as second:
        f, g = first.wrap(lambda x: x * 2), second.wrap(lambda y: (y + 1, y.t()))
        kept = []
        for k in range(6):
            x = torch.full((2, 3), float(k))
            with first.step(), second.step():
                y = f(x)
                z, view = g(y)
                w = f(z)
            assert torch.equal(z, x * 2 + 1)
            assert torch.equal(w, (x * 2 + 1) * 2)
            assert view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            kept.append((x, y, z, w))
            for old, made, plus, twice in kept:
                assert torch.equal(made, old * 2)
                assert torch.equal(plus, old * 2 + 1)
                assert torch.equal(twice, old * 4 + 2)
        del kept, y, z, view, w, made, plus, twice
    assert [pool.stats().live_blocks for pool in (*ones.pools, *others.pools)] == [0, 0]
