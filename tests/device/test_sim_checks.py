"""What the device "sim" checks of every operator: reads and writes between streams, bounds, redzones, host accesses."""

import subprocess
import sys

import pytest
import torch

ENABLE = "import torch, staticrt\nfrom staticrt import memory\n"


def process(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENABLE + code], capture_output=True, text=True, timeout=300
    )


def current():
    return torch.accelerator.current_stream()


@pytest.fixture
def side():
    return torch.Stream("sim")


def found(sim):
    """The reports, which are then forgotten."""
    torch.accelerator.synchronize()
    reports = sim.reports
    sim.clear_reports()
    return reports


@pytest.fixture
def x(side):
    """Ones, 8 x 8, known to all streams."""
    made = torch.ones(8, 8, device="sim")
    made.record_stream(side)
    torch.accelerator.synchronize()
    return made


def on(stream, work):
    with stream:
        result = work()
    if isinstance(result, torch.Tensor) and result.is_sim:
        result.record_stream(current())
    return result


def test_two_streams_may_read(sim, side, x):
    kept = [x + 1, on(side, lambda: x * 2), on(side, lambda: x @ x), x.sum()]
    assert found(sim) == []
    del kept


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (lambda x: x[:, :4].zero_(), lambda x: x[:, 4:].zero_(), False),
        (lambda x: x[:, :5].zero_(), lambda x: x[:, 4:].zero_(), True),
        (lambda x: x[::2].zero_(), lambda x: x[1::2].sum(), False),
        (lambda x: x[::2].zero_(), lambda x: x[2::4].sum(), True),
        (lambda x: x.t()[0].zero_(), lambda x: x[:, 1].zero_(), False),
        (lambda x: x.t()[0].zero_(), lambda x: x[3, :1].expand(5).sum(), True),
        (lambda x: x.diagonal().zero_(), lambda x: x[0, 1:].zero_(), False),
        (lambda x: x.diagonal().zero_(), lambda x: x.sum(), True),
        (lambda x: x.view(-1)[10:10].zero_(), lambda x: x.zero_(), False),
        (lambda x: x.sum(), lambda x: x.add_(1), True),
        (lambda x: torch.add(x, 1, out=x), lambda x: x + 1, True),
        (lambda x: torch._foreach_add_([x[0], x[1]], 1), lambda x: x[1:].sum(), True),
        (lambda x: torch._foreach_add_([x[0], x[1]], 1), lambda x: x[2:].sum(), False),
        (lambda x: x.t().transpose(0, 1).detach(), lambda x: x.zero_(), False),
    ],
)
def test_views_race_where_they_overlap(sim, side, x, first, second, races):
    kept = first(x), on(side, lambda: second(x))
    reports = found(sim)
    assert bool(reports) == races
    assert all(report.startswith("race: aten::") for report in reports)
    del kept


def test_a_race_is_reported_whatever_the_order(sim, side, x, order):
    x.add_(1)
    y = on(side, lambda: x * 2)
    (report,) = found(sim)
    assert report.startswith(
        f"race: aten::mul on stream {side.stream_id} reads bytes [0, 256) of allocation #"
    )
    assert report.endswith(
        f", which aten::add on stream 0 writes, and nothing orders the two: let stream {side.stream_id} wait "
        "for an event that stream 0 records after aten::add"
    )
    del y


@pytest.mark.parametrize("joins", [False, True])
def test_the_host_reads_in_the_order_of_its_stream(sim, side, x, joins):
    on(side, lambda: x.add_(1))
    if joins:
        side.synchronize()
    x.cpu()
    x[0, 0].item()
    torch.nonzero(x)
    names = [report.split()[1:4] for report in found(sim)]
    assert bool(names) != joins
    if not joins:
        assert names[0] == ["copy", "to", "the"]
        assert names[1][0] == "aten::_local_scalar_dense"
        assert names[2][0] == "aten::nonzero"


def test_another_device_may_order_two_streams(sim, side, x):
    there = torch.Stream("sim:1")
    x.add_(1)
    there.wait_stream(current())
    side.wait_stream(there)
    on(side, lambda: x.mul_(2))
    current().wait_stream(side)
    assert x.to("sim:1").sum().item() == 8 * 8 * 4
    assert found(sim) == []


def test_unset_and_freed_memory_is_not_a_number(sim):
    x = torch.empty(1000, device="sim")
    assert x.isnan().all().item()
    assert torch.empty(3, dtype=torch.int64, device="sim").tolist() == [-1, -1, -1]
    x.fill_(1)
    seen = torch.empty(0, device="sim").set_(
        torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, 4000), 0, (1000,)
    )
    del x
    assert seen.cpu().isnan().all()
    assert found(sim)[0].startswith("use after free: ")


def test_accesses_out_of_a_tensors_bounds_are_reported(sim, order):
    held = []
    # Where a freed tensor of an earlier test had all these bytes, the report is about that one.
    for _ in range(1000):
        x = torch.ones(1000, device="sim")
        larger = torch.empty(0, device="sim").set_(
            torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, 4096), 0, (1024,)
        )
        held.append(x)
        larger[:1000].add_(1)
        assert found(sim) == []
        larger.add_(1)
        report, redzone = found(sim)
        if not report.startswith("use after free: "):
            break
    assert report.startswith("out of bounds: aten::add on stream 0 writes bytes [0, 4096) of allocation #")
    assert report.endswith(", which has 4000 bytes")
    assert redzone.startswith("redzone: aten::add on stream 0 wrote byte 4000 of allocation #")


@pytest.mark.parametrize("redzone_bytes", [0, 64])
def test_kernels_that_write_past_a_tensor_are_named(redzone_bytes):
    """A custom operator gets plain memory, as kernels do; 1000 floats leave 96 bytes of their block, 1024 none."""
    done = process(
        "import ctypes\n"
        f"memory.simulated.enable(redzone_bytes={redzone_bytes})\n"
        "@torch.library.custom_op('mine::fill', mutates_args=('x',), device_types='cpu')\n"
        "def fill(x: torch.Tensor, count: int) -> None:\n"
        "    ctypes.memset(x.data_ptr(), 0, 4 * count)\n"
        "for size in (1000, 1024):\n"
        "    for count in (size, size + 1):\n"
        "        x = torch.empty(size, device='sim')\n"
        "        fill(x, count)\n"
        "        assert x.sum().item() == 0\n"
        "        print(size, count, memory.device('sim').reports)\n"
        "        memory.device('sim').clear_reports()"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    text = "redzone: mine::fill on stream 0 wrote byte {} of allocation #"
    assert lines[0] == "1000 1000 []"
    assert text.format(4000) in lines[1]
    assert lines[2] == "1024 1024 []"
    assert (text.format(4096) in lines[3]) == (redzone_bytes > 0)


def test_checks_can_be_switched_off():
    done = process(
        "memory.simulated.enable(checks=False)\n"
        "x = torch.ones(1000, device='sim')\n"
        "side = torch.Stream('sim')\n"
        "with side:\n"
        "    y = x + 1\n"
        "before = torch.accelerator.memory_allocated()\n"
        "del x\n"
        "print(before - torch.accelerator.memory_allocated(), memory.device('sim').reports)"
    )
    assert done.stdout.split() == ["4096", "[]"], done.stderr


READ = (
    "import ctypes\n"
    "x = torch.ones(1000, device='sim') + 1\n"
    "torch.accelerator.synchronize()\n"
    "ctypes.c_float.from_address(x.data_ptr() + 40).value\n"
)


def test_an_access_of_the_host_is_explained():
    done = process("memory.simulated.enable()\n" + READ)
    assert done.returncode == -11
    assert "staticrt: the host used address 0x" in done.stderr
    assert " of sim:0, which only work of the device may: byte 40 of allocation #" in done.stderr
    assert "(4000 bytes, of stream 0), last used by aten::add on stream 0." in done.stderr
    assert "copy the tensor to the host first" in done.stderr


def test_the_former_handler_runs_after_it():
    done = process("import faulthandler\nfaulthandler.enable()\nmemory.simulated.enable()\n" + READ)
    assert done.returncode == -11
    assert done.stderr.index("the host used address") < done.stderr.index("Segmentation fault")
    assert "most recent call first" in done.stderr


def test_other_faults_are_not_explained():
    done = process("memory.simulated.enable()\nimport ctypes\nctypes.string_at(8)")
    assert done.returncode == -11
    assert "the host used" not in done.stderr
    done = process("memory.simulated.enable()\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == -11
