"""`staticrt bench --scaling`: bounds on the speed-up, computed from how steps are cut."""

import pytest
import torch
from torch import nn

from staticrt.models.bench.scaling import scaling_of

THREADS = (1, 2, 3, 8)


class Serial(nn.Module):
    """Each step is a scan that torch runs in one piece."""

    def forward(self, x):
        for _ in range(3):
            x = torch.cumsum(x, 0) * 0.5
        return torch.cumsum(x, 0)


class Wide(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.softmax(torch.nn.functional.gelu(self.linear(x)), -1)


def test_a_serial_graph_cannot_become_faster():
    found = scaling_of(Serial(), (torch.rand(30_000),), THREADS)
    assert all(bound <= 1 for bound in found.bounds.values())
    assert found.serial_share > 0.5
    assert any("cumsum" in step for step in found.serial_steps)


def test_steps_with_grids_scale_and_the_bound_is_the_same_every_time():
    inputs = (torch.rand(1024, 512),)
    found = scaling_of(Wide(), inputs, THREADS)
    assert found.bounds[1] == 1
    assert found.bounds[2] > 1.9
    assert found.bounds[8] > 6
    assert found.bounds[1] < found.bounds[2] < found.bounds[3] < found.bounds[8]
    assert all(bound <= threads for threads, bound in found.bounds.items())
    assert found.forks >= 2
    assert found == scaling_of(Wide(), inputs, THREADS)


def test_threads_do_not_pay_for_little_work():
    found = scaling_of(Wide(64), (torch.rand(1, 64),), THREADS)
    assert found.forks == 0
    assert set(found.bounds.values()) == {1.0}
    assert found.serial_share == 1
    assert "allocate" not in found.serial_steps


@pytest.mark.usefixtures("num_threads_stays")
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_cut_models_equal_eager(threads):
    import staticrt

    module, x = Wide().eval(), torch.rand(131, 512)
    torch.set_num_threads(threads)
    with torch.no_grad():
        fast = staticrt.compile(module)
        for _ in range(3):
            torch.testing.assert_close(fast(x), module(x))
