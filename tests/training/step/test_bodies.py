"""What the function of `staticrt.compile_step` may do besides forward, backward, step: the result is eager's."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt
from staticrt import tuning
from staticrt.runtime.call import Call
from staticrt.training import optim
from tests.support.training_cases import data, mlp, run_both


def accumulating_step(model, optimizer):
    def step(x, y, last):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


def test_accumulation_and_clipping():
    batches = [(*batch, i % 4 == 3) for i, batch in enumerate(data("mlp", 24))]
    step, _ = run_both(mlp, batches, make_step=accumulating_step)
    # Before the first gradient; later ones; the last: no size or number makes another.
    assert len(step._variants) <= 3
    assert (
        sum(
            v._entry.calls + v.fast.fast_calls if hasattr(v.fast, "fast_calls") else 0 for v in step._variants
        )
        >= 0
    )


def test_gradients_kept_and_written_in_place():
    """`zero_grad(set_to_none=False)` keeps the gradient objects."""

    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return lambda x, y: (step(x, y), torch.zeros(()))[1]

    step, _ = run_both(mlp, data("mlp"), make_step=make_step)
    assert len(step._variants) == 1


def test_torchs_zero_grad_of_modules():
    def make_step(model, optimizer):
        def step(x, y):
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    run_both(mlp, data("mlp"), make_step=make_step)


def test_gradient_penalty():
    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            x = x.detach().requires_grad_()
            out = model(x)
            (gx,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
            loss = F.cross_entropy(out, y) + 0.1 * gx.square().sum()
            loss.backward()
            optimizer.step()
            return loss

        return step

    run_both(
        lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)), data("mlp"), make_step=make_step
    )


def test_updates_by_hand():
    def make_step(model, optimizer):
        def step(x, y):
            params = list(model.parameters())
            loss = F.cross_entropy(model(x), y)
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for p, g in zip(params, grads, strict=True):
                    p -= 0.1 * g
            return loss

        return step

    step, _ = run_both(mlp, data("mlp"), "sgd", make_step=make_step, fullgraph=True)
    assert len(step._variants) == 1


def test_moving_average_of_weights_after_the_update():
    def make_step(model, optimizer):
        average = [p.detach().clone() for p in model.parameters()]
        model.average = average

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for a, p in zip(average, model.parameters(), strict=True):
                    a.lerp_(p, 0.1)
            return loss + sum(a.sum() for a in average)

        return step

    run_both(mlp, data("mlp"), make_step=make_step)


def test_weights_clamped_before_and_after_the_update():
    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.99)
            optimizer.step()
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.2, 0.2)
            return loss

        return step

    step, _ = run_both(mlp, data("mlp"), make_step=make_step)
    assert len(step._variants) == 1


def test_two_optimisers_in_turn():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 6), nn.Linear(6, 1)
    eager = copy.deepcopy((generator, critic))
    noise = [torch.randn(8, 4) for _ in range(10)]
    real = torch.randn(8, 6)

    def make(generator, critic, kind):
        of_generator = kind(generator.parameters(), lr=1e-2)
        of_critic = kind(critic.parameters(), lr=1e-2)

        def step(z):
            of_critic.zero_grad()
            loss = critic(generator(z).detach()).mean() - critic(real).mean()
            loss.backward()
            of_critic.step()
            of_generator.zero_grad()
            of_critic.zero_grad()
            (-critic(generator(z)).mean()).backward()
            of_generator.step()
            return loss

        return step

    step = staticrt.compile_step(make(generator, critic, optim.Adam))
    eager_step = make(*eager, torch.optim.Adam)
    for z in noise:
        torch.testing.assert_close(step(z), eager_step(z).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(generator.state_dict(), eager[0].state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(critic.state_dict(), eager[1].state_dict(), rtol=1e-4, atol=1e-5)
    assert len(step._variants) == 1


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x  # wrong on purpose: it must be this that runs


def test_custom_autograd_functions():
    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(Square.apply(model(x)), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    step, _ = run_both(mlp, data("mlp"), make_step=make_step, fullgraph=True)
    assert len(step._variants) == 1


@pytest.mark.parametrize("preserve", [False, True])
def test_checkpointing(preserve):
    """Without the state that the generator had, the second run draws another mask: then the step runs eagerly."""

    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            out = checkpoint(model, x, use_reentrant=False, preserve_rng_state=preserve)
            loss = F.cross_entropy(out, y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, _ = run_both(mlp, data("mlp"), make_step=make_step)
    assert len(step._variants) == (1 if preserve else 0)


def test_autocast():
    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x)
            loss = F.cross_entropy(out.float(), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    make = lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))  # noqa: E731
    step, _ = run_both(make, data("mlp"), "sgd", make_step=make_step, fullgraph=True)
    assert len(step._variants) == 1


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_steps_that_run_eagerly_again_and_again_are_not_looked_at(monkeypatch):
    class Remembers(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    def train():
        torch.manual_seed(0)
        model = Remembers(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    looked_at = []
    original = Call.of
    monkeypatch.setattr(Call, "of", lambda *args: looked_at.append(args) or original(*args))
    fast, slow = staticrt.compile_step(train()), train()
    num_calls = 3 * tuning.EAGER_RUN_CALLS
    for _ in range(num_calls):
        assert torch.equal(fast(torch.ones(2, 4)), slow(torch.ones(2, 4)))
    assert len(looked_at) < num_calls / 2
    looked_at.clear()
    assert torch.equal(fast(torch.ones(3, 4)), slow(torch.ones(3, 4)))
    assert looked_at  # another size
    assert sum(item.calls for item in fast.explain().eager) == num_calls + 1


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_steps_that_freeze_and_thaw_in_turns():
    def train(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x):
            weight = model[0].weight
            weight.requires_grad_(not weight.requires_grad)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return [step(torch.ones(4, 3) * number) for number in range(5)], model[0].weight.requires_grad

    torch.testing.assert_close(train(staticrt.compile_step), train(lambda step: step))
