"""`torch.optim.LBFGS`, which calls a closure as often as data decides: its closure is a compiled step, its updates are eager."""

import pytest
import torch
from torch import nn

import staticrt


def _trained(compiled, factor=lambda optimizer: 1.0):
    """Parameters after some updates, and the compiled closure.

    Args:
        compiled: what compiles the closure.
        factor: of the loss.
    """
    torch.manual_seed(0)
    x, y = torch.randn(16, 4).double(), torch.randn(16, 1).double()
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    @compiled
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * factor(optimizer)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).detach() for _update in range(5)]
    return (losses, list(model.parameters()), optimizer.state_dict()["state"]), closure


def test_a_compiled_closure_equals_eager():
    found, closure = _trained(staticrt.compile_step)
    torch.testing.assert_close(found, _trained(lambda closure: closure)[0], rtol=1e-12, atol=1e-13)
    (variant,) = closure._variants
    assert variant.fast.calls > 10
    assert not closure.explain().eager


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_closure_that_reads_the_state_runs_eagerly():
    def factor(optimizer):
        state = optimizer.state.get(optimizer.param_groups[0]["params"][0])
        return 1.0 + 0.1 * state["n_iter"] if state else 1.0

    found, closure = _trained(staticrt.compile_step, factor)
    torch.testing.assert_close(found, _trained(lambda closure: closure, factor)[0], rtol=0, atol=0)
    assert "reads the state of an optimiser" in closure.explain().eager[0].reason


@pytest.mark.filterwarnings("ignore:staticrt")
def test_the_reason_for_a_whole_step_says_what_can_be_compiled():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    @staticrt.compile_step
    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    for _call in range(2):
        step(torch.randn(3, 4))
    (eager,) = step.explain().eager
    assert eager.calls == 2
    assert "staticrt.compile_step of the closure" in eager.reason
