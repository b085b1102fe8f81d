"""Whole steps with the CTC loss: its lengths in tensors or lists, targets padded or concatenated, a batch or one sequence."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt

TIMES, CLASSES = 9, 5


def _padded(rows, longest):
    lengths = torch.randint(1, longest + 1, (rows,))
    return torch.randint(1, CLASSES, (rows, longest)), torch.full((rows,), TIMES), lengths


def _concatenated(rows, longest):
    targets, times, lengths = _padded(rows, longest)
    return targets.flatten()[: int(lengths.sum())], times, lengths.int()


def _in_lists(rows, longest):
    targets, times, _lengths = _padded(rows, longest)
    return targets, times.tolist(), [longest] * rows


def _too_long(rows, longest):
    """A target of equal classes needs blanks between them, more than there are times: its loss is infinite."""
    targets = torch.ones(rows, longest + 2, dtype=torch.long)
    return targets, [TIMES] * rows, [longest + 2, *[longest] * (rows - 1)]


def _one_sequence(_rows, longest):
    return torch.randint(1, CLASSES, (longest,)), torch.tensor(TIMES), torch.tensor(longest)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (_padded, {}),
        (_concatenated, {"reduction": "sum", "zero_infinity": True}),
        (_in_lists, {}),
        (_in_lists, {"reduction": "none", "blank": CLASSES - 1}),
        (_too_long, {"zero_infinity": True}),
        (_too_long, {"reduction": "none", "zero_infinity": True}),
        (_one_sequence, {"reduction": "none"}),
    ],
)
def test_steps_equal_eager(given, options):
    """The longest target changes from call to call, and with it the table that the forward saves."""
    torch.manual_seed(0)
    eager = nn.Linear(6, CLASSES).double()
    model = copy.deepcopy(eager)
    rows = () if given is _one_sequence else (3,)
    found = []
    for run, compiled in ((eager, False), (model, True)):
        optimizer = torch.optim.SGD(run.parameters(), lr=0.1)

        def train(x, targets, times, lengths, run=run, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.ctc_loss(run(x).log_softmax(-1), targets, times, lengths, **options)
            loss.sum().backward()
            optimizer.step()
            return loss

        step = staticrt.compile_step(train, fullgraph=True) if compiled else train
        torch.manual_seed(1)
        found.append(
            [step(torch.randn(TIMES, *rows, 6).double(), *given(3, 4)).detach() for _call in range(4)]
        )
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-13, atol=1e-14)
    assert not step.explain().eager
    assert len(step.explain().traces) == (2 if given is _concatenated else 1)  # of other sizes


@pytest.mark.parametrize("given", [_padded, _in_lists])
def test_a_compiled_model_equals_eager(given):
    class Recogniser(nn.Linear):
        def forward(self, x, *rest):
            return F.ctc_loss(super().forward(x).log_softmax(-1), *rest)

    torch.manual_seed(0)
    model = Recogniser(6, CLASSES).double()
    compiled = staticrt.compile(model)
    for with_gradients in (False, False, True, True):
        arguments = (torch.randn(TIMES, 3, 6).double(), *given(3, 4))
        with torch.set_grad_enabled(with_gradients):
            results = []
            for run in (compiled, model):
                loss = run(*arguments)
                gradients = torch.autograd.grad(loss, model.parameters()) if with_gradients else ()
                results.append((loss.detach(), *gradients))
        torch.testing.assert_close(*results, rtol=1e-13, atol=1e-14)
    assert [each.route for each in compiled.explain().traces] == ["whole", "training"]
    assert not compiled.explain().eager
