"""Tensors on the simulated accelerator in two processes: `memory.share` and `memory.open_shared`."""

import gc
import os
import pickle
import time

import pytest
import torch

import staticrt
from staticrt import memory
from staticrt.errors import AllocatorError, DeviceError, InputError, OutOfMemoryError
from tests.support.sharing_child import Child

MIB = 1 << 20
ORDERS_OF_THEIR_OWN = True  # one stream does all but in one test


@pytest.fixture(scope="module")
def child():
    process = Child()
    yield process
    process.end()


@pytest.fixture(autouse=True)
def nothing_is_left(child):
    yield
    gc.collect()
    assert child.call("state")[:2] == ([(0, 0), (0, 0)], [])
    assert shared() == [(0, 0), (0, 0)]


def shared():
    """Per device: blocks that others have, and blocks of others."""
    return [memory.device(f"sim:{index}")._handle.shared_counts() for index in range(2)]


def allocated(index=0):
    return memory.device(f"sim:{index}").stats()["allocated_bytes.all.current"]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def send(child, tensor, name="x"):
    handle = memory.share(tensor)
    address = child.call("open_as", name, handle)
    handle.close()
    return address


@pytest.mark.parametrize("index", [0, 1])
def test_both_processes_have_the_same_bytes(child, index):
    x = torch.arange(12.0, device=f"sim:{index}").view(3, 4) + 1  # the sum is pending when it is shared
    send(child, x)
    assert child.call("place", "x") == (f"sim:{index}", torch.float32, (3, 4), (4, 1), 0)
    assert torch.equal(child.call("read", "x"), torch.arange(1.0, 13.0).view(3, 4))
    child.call("fill", "x", 5.0)
    assert x.eq(5).all()
    x[1] = 6
    torch.accelerator.synchronize(index)
    assert child.call("read", "x")[1].tolist() == [6] * 4
    child.call("drop", "x")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[2:5, 1::3],
        lambda x: x.t()[4:],
        lambda x: x[7],
        lambda x: x.to(torch.bfloat16)[1:, 2],
        lambda x: torch.complex(x, -x)[3:].conj(),
        lambda x: x.expand(2, 8, 8)[:, 3],
        lambda x: torch.ones(3 * MIB, device="sim:0").view(3, -1)[2, -5:],  # several pages
    ],
)
def test_views(child, make):
    x = make(torch.arange(64.0, device="sim:0").view(8, 8))
    send(child, x)
    assert child.call("place", "x")[2:] == (tuple(x.shape), x.stride(), x.storage_offset())
    assert torch.equal(child.call("read", "x"), x.cpu().resolve_conj())
    child.call("drop", "x")


def test_memory_stays_while_the_other_has_it(child):
    before = allocated()
    x = torch.full((1000,), 3.0, device="sim:0")
    address = x.data_ptr()
    send(child, x)
    del x
    others = [torch.zeros(1000, device="sim:0") for _ in range(20)]
    torch.accelerator.synchronize(0)
    assert address not in [other.data_ptr() for other in others]
    assert child.call("read", "x").eq(3).all()
    del others
    assert allocated() > before
    child.call("drop", "x")
    assert shared() == [(0, 0), (0, 0)]
    assert allocated() == before
    assert torch.zeros(1000, device="sim:0").data_ptr() == address


def test_a_handle_is_an_argument_of_a_process():
    x = torch.full((3,), 2.0, device="sim:0")
    other = Child(2, memory.share(x))
    assert other.call("read", "given").tolist() == [2, 2, 2]
    other.end()


def test_tensors_go_through_pipes(child):
    before = allocated()
    x = torch.arange(6.0, device="sim:1").view(2, 3)
    child.call("keep", "x", x.t())
    assert torch.equal(child.call("read", "x"), torch.arange(6.0).view(2, 3).t())
    child.call("fill", "x", 7.0)
    assert x.eq(7).all()
    child.call("drop", "x")
    parameter = torch.nn.Parameter(torch.ones(2, device="sim:0"))
    child.call("keep", "p", [parameter, {"grad": parameter.grad, "cpu": torch.ones(1)}])
    child.call("drop", "p")
    del parameter
    assert shared() == [(0, 0), (0, 0)]
    assert allocated() == before
    with pytest.raises(AllocatorError, match="has no simulated devices yet"):
        Child(2, x)


def test_more_pages_than_one_message_has_descriptors(child):
    x = torch.empty(520 * MIB, dtype=torch.uint8, device="sim:0")
    x[-1] = 3
    send(child, x[-2:])
    assert child.call("read", "x")[-1] == 3
    child.call("drop", "x")


def test_a_process_that_dies_lets_go():
    before = allocated()
    other = Child()
    x = torch.ones(1000, device="sim:0")
    send(other, x)
    del x
    assert shared()[0] == (1, 0)
    assert allocated() > before
    other.connection.send(("die",))
    other.process.join(60)
    assert other.process.exitcode == 7
    assert shared()[0] == (0, 0)
    assert allocated() == before


def test_an_owner_that_dies_leaves_the_bytes(child):
    other = Child()
    other.call("keep", "y", None)
    other.call("make", "y", 4.0)
    handle = other.call("share", "y")
    y = memory.open_shared(handle)
    handle.close()
    other.connection.send(("die",))
    other.process.join(60)
    assert y.eq(4).all()


def test_a_handle_keeps_the_memory_until_it_is_closed():
    before = allocated()
    handle = memory.share(torch.ones(1000, device="sim:0"))
    assert shared()[0] == (1, 0)
    assert allocated() > before
    handle.close()
    assert shared()[0] == (0, 0)
    assert allocated() == before
    with pytest.raises(AllocatorError, match="token is closed"):
        memory.open_shared(handle)
    with pytest.raises(AllocatorError, match="was closed"):
        pickle.dumps(handle)


def test_opened_twice_it_is_mapped_once(child):
    x = torch.ones(1000, device="sim:0")
    one = send(child, x, "one")
    two = send(child, x[10:], "two")
    assert one == two - 40
    assert child.call("state")[0] == [(0, 1), (0, 0)]
    child.call("drop", "one")
    assert child.call("read", "two").eq(1).all()
    del x
    child.call("fill", "two", 2.0)
    child.call("drop", "two")


def test_in_one_process_it_is_the_tensor_s_own_memory():
    before = allocated()
    x = torch.ones(1000, device="sim:0")
    handle = memory.share(x[3:])
    y = memory.open_shared(handle)
    handle.close()
    assert y.data_ptr() == x.data_ptr() + 12
    address = x.data_ptr()
    del x
    assert torch.zeros(1000, device="sim:0").data_ptr() != address
    assert y.eq(1).all()
    del y
    assert allocated() == before


def test_unmapping_waits_for_the_streams_that_use_it(child):
    x = torch.zeros(1000, device="sim:0")
    send(child, x)
    child.call("fill_late", "x", 9.0)
    child.call("drop", "x")  # the fixture above sees no report of an early unmapping
    assert x.eq(9).all()


def test_memory_that_was_let_go_serves_a_request_that_needs_it(child):
    sim = memory.device("sim:0")
    sim.empty_cache()
    x = torch.zeros(32 * MIB, dtype=torch.uint8, device="sim:0")
    sim.set_limit(bytes=sim.stats()["reserved_bytes.all.current"] + 8 * MIB)
    try:
        send(child, x)
        del x
        with pytest.raises((OutOfMemoryError, torch.OutOfMemoryError)):
            torch.zeros(32 * MIB, dtype=torch.uint8, device="sim:0")
        child.call("drop", "x")
        torch.zeros(32 * MIB, dtype=torch.uint8, device="sim:0")
    finally:
        sim.set_limit()


def test_what_cannot_be_shared(child):
    x = torch.ones(8, device="sim:0", requires_grad=True)
    for wrong in (torch.ones(2), torch.empty(0, device="sim:0"), x * 2, 3):
        with pytest.raises(AllocatorError):
            memory.share(wrong)
    with pytest.raises(AllocatorError, match="is not a handle"):
        memory.open_shared(x)
    with memory.pool(device="sim:0"):
        inside = torch.ones(8, device="sim:0")
    with pytest.raises(DeviceError, match="private pool"):
        memory.share(inside)
    send(child, x.detach())
    with pytest.raises(RuntimeError, match=r"DeviceError: .*another process"):
        child.call("share", "x")
    child.call("drop", "x")


def test_a_parameter_stays_one(child):
    x = torch.nn.Parameter(torch.ones(4, device="sim:0"))
    handle = memory.share(x)
    y = memory.open_shared(pickle.loads(pickle.dumps(handle)))
    handle.close()
    assert isinstance(y, torch.nn.Parameter)
    assert y.requires_grad
    assert y.data_ptr() == x.data_ptr()


def test_a_shared_tensor_is_not_donated(child):
    double = staticrt.compile(lambda x: x * 2 + 1, donate="x")
    with torch.no_grad():
        for _ in range(2):
            double(torch.ones(1000, device="sim:0"))
        x = torch.ones(1000, device="sim:0")
        send(child, x)
        for _ in range(2):
            with pytest.raises(InputError, match=r"cannot donate 'x': .*process"):
                double(x)
        assert child.call("read", "x").eq(1).all()
        assert double(x.clone()).eq(3).all()
        child.call("drop", "x")
        with pytest.raises(RuntimeError, match="cannot be resized"):
            x.resize_(2000)


def test_managed_outputs_are_not_shared(child):
    square = staticrt.compile(lambda x: x @ x + 1, manage_outputs=True)
    x = torch.ones(16, 16, device="sim:0")
    with torch.no_grad():
        for _ in range(3):
            y = None
            square.deallocate_output_tensors()
            y = square(x)
    with pytest.raises(DeviceError, match="manage_outputs"):
        memory.share(y)
    send(child, y.clone())
    del y
    square.deallocate_output_tensors()
    square(x * 2)
    assert child.call("read", "x").eq(17).all()
    child.call("drop", "x")


@pytest.mark.parametrize("is_open", [False, True])
def test_memory_waits_for_the_stream_it_was_opened_on_in_its_own_process(is_open):
    x = torch.zeros(1000, device="sim:0")
    handle = memory.share(x)
    before = memory.open_shared(handle) if is_open else None
    side = torch.Stream("sim:0")
    with side:
        y = memory.open_shared(handle)
        y.fill_(9.0)
    handle.close()
    address = x.data_ptr()
    del x, y, before
    new = torch.zeros(1000, device="sim:0")
    assert new.data_ptr() != address
    torch.accelerator.synchronize(0)
    assert new.eq(0).all()


def test_a_closed_handle_opens_nothing():
    x = torch.ones(8, device="sim:0")
    handle, other = memory.share(x), memory.share(x)
    y = memory.open_shared(handle)
    handle.close()
    with pytest.raises(AllocatorError, match="token is closed"):
        memory.open_shared(handle)  # the block is open, by `y` and `other`
    other.close()
    assert y.eq(1).all()


def test_a_capture_is_not_broken():
    stream = torch.Stream("sim:0")
    x = torch.ones(8, device="sim:0")
    torch.accelerator.synchronize(0)
    raw = memory.device("sim:0")
    with stream, raw.capture(stream.stream_id):
        with pytest.raises(AllocatorError, match="is captured"):
            memory.share(x)
        x.add_(1)


def test_a_process_without_the_device(child):
    x = torch.ones(8, device="sim:1")
    for devices, message in ((0, r"DeviceError: .*no simulated devices"), (1, "sim:1 does not exist")):
        other = Child(devices)
        handle = memory.share(x)
        with pytest.raises(RuntimeError, match=message):
            other.call("open_as", "x", handle)
        handle.close()
        other.end()


def test_ten_thousand_cycles_leave_nothing(child):
    def cycle(times):
        for _ in range(times):
            send(child, torch.ones(16, device="sim:0"))
            child.call("drop", "x")

    cycle(20)
    assert shared() == [(0, 0), (0, 0)]
    files, theirs, bytes_before = open_files(), child.call("state")[2], allocated()
    cycle(10_000)
    assert shared() == [(0, 0), (0, 0)]
    assert allocated() == bytes_before
    assert child.call("state")[2] == theirs
    until = time.monotonic() + 10  # multiprocessing closes the last copy it sent in a thread of its own
    while open_files() != files and time.monotonic() < until:
        time.sleep(0.01)
    assert open_files() == files
