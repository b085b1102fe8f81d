"""State of threads and of the process around operators of "sim": autocasting, the CPU's random numbers, arguments."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.errors import AllocatorError, InputError


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_on_accelerators(dtype):
    x = torch.randn(4, 4, device="sim")
    with torch.autocast("sim", dtype=dtype):
        assert (x @ x).dtype == dtype
        assert F.linear(x, x).dtype == dtype
        assert F.softmax(x.to(dtype), -1).dtype == torch.float32
        assert (x.to(dtype) + x).dtype == torch.float32
        assert torch.cat([x.to(dtype), x]).dtype == torch.float32
        assert torch.full((2,), 1.0, device="sim").dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x.sigmoid(), x.sigmoid())
        with torch.autocast("sim", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32
    expected = (x.cpu().to(dtype) @ x.cpu().to(dtype)).float()
    with torch.autocast("sim", dtype=dtype):
        torch.testing.assert_close((x @ x).float().cpu(), expected)


def test_training_under_autocast():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x, target = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])

    def gradients(device):
        net.to(device).zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x.to(device)).float(), target.to(device))
        loss.backward()
        return [p.grad.cpu() for p in net.parameters()]

    torch.testing.assert_close(gradients("sim"), gradients("cpu"), rtol=2e-2, atol=2e-3)


@torch.no_grad()
def test_compiled_calls_under_autocast_are_eager():
    model = nn.Linear(8, 8).to("sim")
    compiled = staticrt.compile(model)
    x = torch.randn(4, 8, device="sim")
    for _ in range(3):
        assert compiled(x).dtype == torch.float32
        with torch.autocast("sim", dtype=torch.bfloat16):
            y = compiled(x)
            assert y.dtype == torch.bfloat16
            assert torch.equal(y.cpu(), model(x).cpu())
    assert "torch.autocast('sim') is on" in str(compiled.explain())


def test_the_cpus_random_numbers_are_left_alone():
    """Another thread draws from the CPU's default generator while dropout runs."""
    x = torch.ones(1 << 16, device="sim", requires_grad=True)
    torch.manual_seed(3)
    expected = torch.rand(20000)
    torch.manual_seed(3)
    drawn = []
    thread = threading.Thread(target=lambda: drawn.extend(torch.rand(100) for _ in range(200)))
    thread.start()
    while thread.is_alive():
        F.dropout(x, 0.5).cpu()
    thread.join()
    torch.manual_seed(3)
    assert torch.equal(torch.cat(drawn), torch.cat([torch.rand(100) for _ in range(200)]))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    F.dropout(x, 0.5).cpu()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.rand(20000), expected)


def test_generators_of_other_devices_are_refused(sim):
    x = torch.zeros(3, device="sim")
    theirs = torch.Generator().manual_seed(1)
    state = theirs.get_state()
    for draw in (
        lambda: x.uniform_(generator=theirs),
        lambda: torch.rand(3, device="sim", generator=theirs),
        lambda: torch.multinomial(x + 1, 2, generator=theirs),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
            draw()
    assert torch.equal(theirs.get_state(), state)
    assert x.tolist() == [0, 0, 0]
    with torch.Stream("sim") as stream, sim.capture(stream.stream_id) as graph:
        for device in ("cpu", "sim:1"):
            with pytest.raises(InputError, match=f"generator is one of {device}; give one of sim:0"):
                graph.register_generator(torch.Generator(device))
    graph.close()


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_is_the_cpus(p):
    x = torch.randn(1000, device="sim")
    y, mask = torch.native_dropout(x, p, True)
    kept = mask.cpu()
    assert abs(kept.float().mean().item() - (1 - p)) < 0.06
    scale = 1 / (1 - p) if p < 1 else 0.0
    torch.testing.assert_close(y.cpu(), x.cpu() * kept * scale)
    y, mask = torch.native_dropout(x, p, False)
    assert torch.equal(y.cpu(), x.cpu())
    assert mask.all().item()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (2, "sim:2 does not exist"),
        (-1, "sim:-1 does not exist"),
        ("sim:7", "sim:7 does not exist"),
        ("cuda", "'cuda' is not a simulated device"),
        ("nonsense", "'nonsense' is not a simulated device"),
        (1.5, "1.5 is not a simulated device"),
        (True, "True is not a simulated device"),
    ],
)
def test_waits_checks_its_argument(device, message):
    simulated = staticrt.memory.simulated
    for call in (simulated.waits, simulated.clear_waits):
        with pytest.raises(AllocatorError, match=message):
            call(device)


def test_messages_name_the_device_as_programs_do():
    assert torch.ones(1, device="sim").type() == "torch.sim.FloatTensor"


@pytest.mark.parametrize("swap", [False, True])
def test_shared_parameters_stay_shared_where_torch_swaps_them(swap):
    """The reference page says so of `Module.to`."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(3, 3)
            self.second = torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight

    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        model = Tied().to("sim:0")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert (model.first.weight is model.second.weight) == swap


def test_empty_tensors_draw_nothing():
    """Torch's dropout makes no call for them, and a trace of it makes one."""
    nothing = torch.empty(0, 3, device="sim:0")
    drawn = []
    for draw in (lambda: None, lambda: torch.native_dropout(nothing, 0.5, True), nothing.normal_):
        torch.manual_seed(0)
        draw()
        drawn.append(torch.rand(1, device="sim:0").item())
    assert len(set(drawn)) == 1
    torch.manual_seed(0)
    torch.rand(3, out=torch.empty(0, device="sim:0"))
    assert torch.rand(1, device="sim:0").item() != drawn[0]
