"""The example learns, and its compiled step has the loss curve of the eager one."""

import importlib.util
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "examples" / "train_char_model.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_char_model", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compiled_training_has_the_loss_curve_of_eager(example):
    model, losses = example.train(60, compiled=True)
    eager_model, expected = example.train(60, compiled=False)
    torch.testing.assert_close(losses[:20], expected[:20], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses, expected, rtol=2e-2, atol=2e-2)  # rounding grows with the steps
    assert losses[-1] < 0.8 * losses[0]
    for p, q in zip(model.parameters(), eager_model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0.1, atol=0.02)


def test_batches_are_sums(example):
    x, y = example.make_batch(20, torch.Generator().manual_seed(0))
    for line, last in zip(x.tolist(), y[:, -1].tolist(), strict=True):
        text = "".join(example.ALPHABET[code] for code in [*line, last])
        a, rest = text.split("+")
        b, total = rest.rstrip(";").split("=")
        assert int(a) + int(b) == int(total)
    assert torch.equal(x[:, 1:], y[:, :-1])
