"""Graph splits that raise where eager answers: models that ask whether they are being compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import staticrt


class Asks(nn.Module):
    """Keeps a mask that does nothing while it is compiled, as `transformers` does, and then adds it wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.writes = ""
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = mask.float()[:, :3] if torch.compiler.is_compiling() or not bool(mask.all()) else None
        y = torch.relu(self.linear(x))
        if self.writes == "buffer":
            self.count.add_(1)
        elif self.writes == "list":
            self.seen.append(1)
        shown = repr(y.sum())  # Dynamo cuts here
        if kept is not None:
            y = y + kept
        return y * len(shown[:2])


def _arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8), torch.ones(4, 8, dtype=torch.bool)


def test_eager_answers_in_their_place() -> None:
    torch.manual_seed(0)
    model = Asks().eval()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(6):
            arguments = _arguments()
            torch.testing.assert_close(compiled(*arguments), model(*arguments))
        assert sum(report.calls for report in compiled.explain().eager) == 6


def test_wrong_arguments_raise_what_eager_raises_and_change_nothing() -> None:
    torch.manual_seed(0)
    model = Asks().eval()
    compiled = staticrt.compile(model)
    x, mask = _arguments()
    with torch.no_grad():
        for _ in range(4):
            compiled(x, mask)
        with pytest.raises(RuntimeError, match="must match the size"):
            model(x, ~mask)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="must match the size"):
                compiled(x, ~mask)
            torch.testing.assert_close(compiled(x, mask), model(x, mask))


@pytest.mark.parametrize("kind", ["buffer", "list"])
def test_what_was_written_is_not_written_twice(kind: str) -> None:
    torch.manual_seed(0)
    model = Asks().eval()
    model.writes = kind
    compiled = staticrt.compile(model)
    answered = raised = 0
    with torch.no_grad():
        for _ in range(6):
            before = model.count.item() + len(model.seen)
            try:
                compiled(*_arguments())
                answered += 1
            except Exception:  # the pieces wrote before they raised: eager would write again
                raised += 1
            assert model.count.item() + len(model.seen) == before + 1
    assert answered + raised == 6
    assert answered > 0


def after_printing(x):
    print("runs")
    with torch.compiler.set_stance("default"):
        return x * 2 + 1


def after_a_branch(x):
    y = x * 3 if x.sum() > 0 else x * 2
    torch.compiler.set_stance("default")
    return y


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("model", [after_printing, after_a_branch])
def test_a_model_that_sets_the_stance_of_torch_compile_runs_eagerly(model, gradients):
    """Dynamo refuses that at work, also in the frames that it does not convert."""
    compiled = staticrt.compile(model)
    for sign in (1, -1, 1):
        x = torch.full((2,), float(sign), requires_grad=gradients)
        assert compiled(x).tolist() == model(x).tolist()
    (item,) = compiled.explain().eager
    assert "set_stance" in item.reason
    assert item.calls == 3
