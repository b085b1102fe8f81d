"""What no replay can repeat fails its capture, and leaves everything as it was."""

import gc

import pytest
import torch
from torch import nn

from staticrt.errors import CaptureError, InputError
from staticrt.graphs.backend import get_backend
from staticrt.graphs.cpu_pool import CpuGraphPool

UNFIT = {
    "item": (lambda a: a * a.sum().item(), "depend on values"),
    "nonzero": (lambda a: a[a > 0], "depend on values"),
    "unique": (lambda a: a.unique(), "depend on values"),
    "bool": (lambda a: a if a.sum() > 0 else -a, "depend on values"),
    "sparse": (lambda a: a.to_sparse().to_dense(), "depend on values|dense"),
    "seed": (lambda a: (torch.manual_seed(3), a * torch.rand(3))[1], "sets the state of a random"),
    "seed at the end": (lambda a: (a * 2, torch.manual_seed(3))[0], "sets the state of a random"),
    "dropout recomputed": (
        lambda a: (
            torch.utils.checkpoint.checkpoint(
                lambda b: nn.functional.dropout(b, 0.5), a.detach().requires_grad_(), use_reentrant=False
            )
            .sum()
            .backward()
        ),
        "sets the state of a random",
    ),
    "grow": (lambda a: a.clone().resize_(1000), "moved bytes"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_replay_can_repeat_is_refused_and_inputs_are_as_before(name):
    function, reason = UNFIT[name]
    x = torch.ones(4, 3)
    pool = CpuGraphPool()
    graph = get_backend("cpu").new_graph(pool)

    def f(a):
        a.add_(1)
        return function(a)

    with pytest.raises(CaptureError, match=reason), graph.capture(inputs=[x]):
        f(x)
    assert (x == 1).all()
    with pytest.raises(InputError, match="nothing is captured"):
        graph.replay([x])
    gc.collect()
    assert pool.live_ptrs() == set()
    f(x)  # nothing records any more


def test_an_exception_in_the_function_leaves_nothing():
    x, pool = torch.ones(4), CpuGraphPool()
    graph = get_backend("cpu").new_graph(pool)
    made = []

    def f(a):
        made.append(a * 2)
        a.add_(1)
        raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"), graph.capture(inputs=[x]):
        f(x)
    assert (x == 1).all()
    assert pool.live_ptrs() == {made[0].data_ptr()}
    made.clear()
    assert pool.live_ptrs() == set()
    with graph.capture(inputs=[x]):
        y = x * 3
    graph.replay([torch.full((4,), 2.0)])
    assert (y == 6).all()


def test_captures_do_not_nest():
    backend, x = get_backend("cpu"), torch.ones(2)
    outer, inner = (backend.new_graph(CpuGraphPool()) for _ in range(2))
    with outer.capture(inputs=[x]):
        with pytest.raises(InputError, match="do not nest"), inner.capture(inputs=[x]):
            pass
        y = x + 1
    outer.replay([x * 4])
    assert (y == 5).all()
