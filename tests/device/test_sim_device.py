"""The device "sim" to torch: switching it on, memory, generators, autograd, serialisation."""

import copy
import io
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import staticrt
from tests.support.threads import in_threads

ENABLE = "import torch, staticrt\n"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "simulated_device.md"


def process(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENABLE + code], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("torch.ones(1, requires_grad=True).sum().backward()", "before the first backward"),
        ("torch.utils.rename_privateuse1_backend('npu')", "is taken by 'npu'"),
        ("staticrt.memory.simulated.enable()", "enabled already"),
    ],
)
def test_enable_refuses_what_would_break_later(before, message):
    done = process(
        f"{before}\ntry:\n    staticrt.memory.simulated.enable()\nexcept Exception as error:\n    print(error)"
    )
    assert message in done.stdout, done.stderr


def test_operators_can_run_when_enqueued():
    done = process(
        "staticrt.memory.simulated.enable(synchronous=True)\n"
        "x = torch.ones(3, device='sim') + 1\n"
        "print(staticrt.memory.device('sim').pending(0), x.tolist())"
    )
    assert done.stdout.strip() == "0 [2.0, 2.0, 2.0]", done.stderr


def test_the_host_cannot_read_device_memory():
    done = process(
        "import ctypes\n"
        "staticrt.memory.simulated.enable()\n"
        "x = torch.ones(3, device='sim')\n"
        "torch.accelerator.synchronize()\n"
        "print(ctypes.c_float.from_address(x.data_ptr()).value)"
    )
    assert done.returncode == -11
    assert done.stdout == ""


def test_a_child_process_gets_an_error():
    done = process(
        "import os\n"
        "staticrt.memory.simulated.enable()\n"
        "x = torch.ones(3, device='sim')\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        x + 1\n"
        "        torch.accelerator.synchronize()\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
        "    os._exit(0)\n"
        "os.wait()"
    )
    assert "belongs to the process that this one was forked from" in done.stdout, done.stderr


def test_names():
    x = torch.ones(2, device="sim:1")
    assert str(x.device) == "sim:1"
    assert x.is_sim
    assert torch.accelerator.current_accelerator().type == "sim"
    assert torch.accelerator.device_count() == torch.sim.device_count() == 2
    with torch.accelerator.device_index(1):
        assert torch.empty(1, device="sim").device.index == 1
    with pytest.raises(RuntimeError, match="sim:7 does not exist: there are 2"):
        torch.empty(1, device="sim:7")


def test_memory_comes_from_the_allocator_of_that_name(sim):
    before = sim.stats()["allocated_bytes.all.current"]
    x = torch.empty(1000, device="sim")
    assert sim.stats()["allocated_bytes.all.current"] - before == 4096
    assert torch.accelerator.memory_allocated(0) == before + 4096
    assert torch.accelerator.memory_reserved(0) == sim.stats()["reserved_bytes.all.current"]
    assert any(block["address"] == x.data_ptr() for s in sim.snapshot()["segments"] for block in s["blocks"])
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(1 << 40, device="sim")
    del x
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(0) <= sim.total_bytes


def test_numbers_do_not_depend_on_when_streams_move(sim):
    def draw(order):
        staticrt.memory.simulated.order(order, 1)
        torch.manual_seed(5)
        first = torch.randn(7, device="sim")
        dropped = torch.dropout(torch.ones(50, device="sim"), 0.5, True)
        state = torch.sim.get_rng_state()
        last = torch.rand(3, device="sim")
        torch.sim.set_rng_state(state)
        assert torch.equal(torch.rand(3, device="sim").cpu(), last.cpu())
        return torch.cat([first, dropped, last]).cpu()

    drawn = draw("needed")
    assert torch.equal(drawn, draw("random"))
    assert 10 < int((drawn[7:57] == 0).sum()) < 40
    generator = torch.Generator("sim").manual_seed(3)
    a = torch.rand(4, device="sim", generator=generator)
    assert torch.equal(a.cpu(), torch.rand(4, device="sim", generator=generator.manual_seed(3)).cpu())


def test_storages_are_resized_and_shared():
    x = torch.arange(6.0, device="sim")
    x.resize_(9)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    y = torch.empty(0, device="sim").set_(x.untyped_storage(), 2, (2, 2), (1, 2))
    assert y.tolist() == [[2, 4], [3, 5]]
    y.zero_()
    assert x[:6].tolist() == [0, 1, 0, 0, 0, 0]
    assert torch.empty(3, device="sim").set_(y).data_ptr() == y.data_ptr()
    assert y.set_().numel() == 0
    z = torch.ones(4, device="sim")
    z.untyped_storage().resize_(0)
    assert z.untyped_storage().nbytes() == 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.embed = nn.Linear(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().flatten(2)
        x = nn.functional.gelu(self.embed(x))
        x = x + self.attention(x, x, x)[0]
        return self.head(x.mean(1))


def train(device, order="needed"):
    staticrt.memory.simulated.order(order.partition("-")[0], 2)
    torch.manual_seed(0)
    net = Net()
    inputs = [torch.randn(2, 3, 4, 4) for _ in range(3)]
    net = net.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x in inputs:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x.to(device)), torch.tensor([1, 3], device=device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.cpu() for loss in losses], [p.detach().cpu() for p in net.parameters()]


def test_training_equals_the_cpus(order):
    torch.testing.assert_close(train("sim:0", order), train("cpu"), rtol=1e-4, atol=1e-5)


def test_backward_runs_on_a_thread_of_the_engine():
    threads = []

    class Remember(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            threads.append(threading.get_ident())
            return gradient * 2

    x = torch.ones(3, device="sim:1", requires_grad=True)
    side = torch.Stream("sim:1")
    side.wait_stream(torch.accelerator.current_stream(1))
    with side:
        Remember.apply(x).sum().backward()
    torch.accelerator.synchronize(1)
    assert x.grad.tolist() == [2, 2, 2]
    assert threads
    assert threads[0] != threading.get_ident()


def test_saving_and_copying():
    net = nn.Linear(3, 2).to("sim:1")
    twin = copy.deepcopy(net)
    assert twin.weight.device == net.weight.device
    assert torch.equal(twin.weight.cpu(), net.weight.cpu())
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    for where, device in ((None, "sim:1"), ("cpu", "cpu"), ("sim:0", "sim:0")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert str(loaded["weight"].device) == device
        assert torch.equal(loaded["weight"].cpu(), net.weight.cpu())


def test_threads_have_streams_of_their_own(order):
    def work(seed):
        stream = torch.Stream("sim")
        with stream:
            x = torch.full((100,), float(seed), device="sim")
            for _ in range(20):
                x = x * 2 - x
            assert x.tolist() == [seed] * 100

    in_threads(work, range(8))


def test_the_guide_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 9
    done = process("".join(blocks))
    assert done.returncode == 0, done.stderr


def test_bytes_that_are_shared_until_somebody_writes_them():
    x = torch.arange(4.0, device="sim:1")
    written, copied, taken = (torch._lazy_clone(x) for _ in range(3))
    written.add_(1)
    copied.copy_(torch.zeros(4))
    before = torch.accelerator.memory_stats(1)["allocated_bytes.all.current"]
    taken.data_ptr()  # the current device is sim:0
    assert torch.accelerator.memory_stats(1)["allocated_bytes.all.current"] == before + 512
    assert (x.tolist(), written.tolist(), copied.tolist(), taken.tolist()) == (
        [0, 1, 2, 3],
        [1, 2, 3, 4],
        [0, 0, 0, 0],
        [0, 1, 2, 3],
    )


def test_shared_bytes_are_held_for_a_stream_too(sim):
    side = torch.Stream("sim:0")
    x = torch.ones(1000, device="sim:0")
    y = torch._lazy_clone(x)
    address = torch._C._data_address(x)
    sim.enqueue(side.stream_id)
    y.record_stream(side)
    del x, y
    assert torch._C._data_address(torch.ones(1000, device="sim:0")) != address
