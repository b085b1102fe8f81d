"""Weights swapped under load: each call sees one version."""

import time

import pytest
import torch

import staticrt
from staticrt.errors import InputError
from tests.support.threads import beside


class Two(torch.nn.Module):
    """Returns a constant only if both weights are of one version."""

    def __init__(self, value: float):
        super().__init__()
        self.a = torch.nn.Parameter(torch.full((64,), value))
        self.register_buffer("b", torch.full((64,), value))

    def forward(self, x):
        return x + self.a - self.b, (x * 0 + self.a).sum() / 64


def test_calls_see_one_version_each():
    module = Two(1.0)
    fast = staticrt.compile(module)
    x = torch.zeros(64)
    problems: list[str] = []
    seen: set[float] = set()

    def serve(_thread: int) -> None:
        with torch.no_grad():
            difference, version = fast(x)
        seen.add(float(version))
        if difference.abs().max() != 0:
            problems.append(f"mixed at {version}")

    with beside(serve, range(4)):
        for version in range(2, 200):
            fast.swap_weights({name: torch.full((64,), float(version)) for name in "ab"})
            if version % 50 == 0:  # however busy the machine is, calls end between swaps
                until = time.monotonic() + 60
                while version not in seen and time.monotonic() < until:
                    time.sleep(0.001)
    assert not problems
    assert {50.0, 100.0, 150.0} <= seen
    with torch.no_grad():
        assert float(fast(x)[1]) == 199
    assert float(module.a.detach()[0]) == 199


def test_the_next_call_uses_them_and_nothing_is_captured_again():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).eval()
    other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).eval()
    other[1].running_mean.normal_()
    fast = staticrt.compile(module)
    parameters = list(module.parameters())
    x = torch.randn(5, 8)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        fast.swap_weights(other.state_dict())
        for _ in range(3):
            torch.testing.assert_close(fast(x), other(x))
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    assert len(fast.explain().traces) == 1


def test_tied_weights_and_partial_swaps():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).eval()
    module[1].weight = module[0].weight
    fast = staticrt.compile(module)
    x = torch.randn(3, 4)
    with torch.no_grad():
        fast(x)
        fast.swap_weights({"0.weight": torch.eye(4)}, strict=False)
        assert torch.equal(module[1].weight, torch.eye(4))
        torch.testing.assert_close(fast(x), x + module[0].bias + module[1].bias)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"weight": torch.zeros(4, 4)}, "missing: bias"),
        ({"weight": torch.zeros(4, 4), "bias": torch.zeros(4), "x": torch.zeros(1)}, "unknown: x"),
        ({"weight": torch.zeros(4, 5), "bias": torch.zeros(4)}, "weight"),
        ({"weight": torch.zeros(4, 4).double(), "bias": torch.zeros(4)}, "float64"),
    ],
)
def test_wrong_weights_change_nothing(weights, text):
    module = torch.nn.Linear(4, 4)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(InputError, match=text):
        staticrt.compile(module).swap_weights(weights)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
