"""What the results of an operator on "sim" will be is asked once for equal arguments, and again for all others."""

import sys

import pytest
import torch
from torch.nn import functional as F

import staticrt
from tests.device.test_sim_operators import compare

ORDERS_OF_THEIR_OWN = True  # one stream: conftest.py


def frames_of_torch(call):
    """Functions of torch, written in Python, that run inside of the call."""
    found = []

    def note(frame, event, _argument):
        if event == "call" and "torch" in frame.f_code.co_filename:
            found.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_a_rule_in_python_runs_once_for_equal_arguments():
    add = torch.ops.aten.add.Tensor
    x, y = torch.randn(2, 19, 3, device="sim"), torch.randn(19, 1, device="sim")
    other = x.clone()
    assert len(frames_of_torch(lambda: add(x, y, alpha=3))) > 10
    assert frames_of_torch(lambda: add(other, y, alpha=3)) == ["OpOverload.__call__"]


def into(op, device, *args, outs=1, dtype=torch.float32, **kwargs):
    """An operator with outputs that it sizes. Without them torch sizes most outputs before the device has the call."""
    empty = tuple(torch.empty(0, dtype=dtype, device=device) for _ in range(outs))
    return op(*args, **kwargs, out=empty if outs > 1 else empty[0])


X = torch.arange(96.0).reshape(2, 4, 3, 4)
# Calls of one operator that differ in one part of their arguments, which the result depends on.
PAIRS = {
    "dtype": [lambda d, t=t: X.to(t).to(d).flip(0) for t in (torch.float32, torch.int32)],
    "sizes": [lambda d, n=n: X.to(d)[:, :n].flip(0) for n in (2, 3)],
    "strides": [
        lambda d, f=f: X.to(memory_format=f).to(d).roll(1, 1)
        for f in (torch.contiguous_format, torch.channels_last)
    ],
    "integer": [lambda d, n=n: F.pixel_shuffle(X.to(d), n) for n in (1, 2)],
    "list": [lambda d, dims=dims: X.to(d).count_nonzero(dims) for dims in ([0, 1], [2, 3])],
    "flag": [lambda d, keep=keep: tuple(X.to(d).median(1, keep)) for keep in (False, True)],
    "floating-point step": [
        lambda d, step=step: into(torch.arange, d, 0.0, 1.0, step) for step in (0.125, 0.25)
    ],
    "number or tensor of the host": [
        lambda d, other=other: X.to(torch.int64).to(d).floor_divide(other)
        for other in (2.5, torch.tensor(2.5, dtype=torch.float64))
    ],
    "text": [
        lambda d, mode=mode: [
            part.contiguous() for part in into(torch.linalg.qr, d, X[0, :, :2, 0].to(d), mode=mode, outs=2)
        ]
        for mode in ("reduced", "complete")
    ],
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_a_call_that_differs_in_one_part_is_asked_again(name, turned):
    first, second = reversed(PAIRS[name]) if turned else PAIRS[name]
    for call in (first, second, first):
        compare(call("sim"), call("cpu"))


def test_the_default_dtype_is_seen():
    x = torch.arange(6, device="sim")
    kept = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            compare(x.floor_divide(2.5), x.cpu().floor_divide(2.5))
        finally:
            torch.set_default_dtype(kept)


def test_the_deterministic_flag_is_seen():
    """A rule that raises under it leaves the call to the CPU's operator, which waits."""
    x = torch.randn(5, 3, device="sim")
    for deterministic in (False, True, False):
        staticrt.memory.simulated.clear_waits()
        torch.use_deterministic_algorithms(deterministic)
        try:
            values = x.median(1)
        finally:
            torch.use_deterministic_algorithms(False)
        assert ("aten::median.dim_values" in staticrt.memory.simulated.waits()) == deterministic
        compare(tuple(values), tuple(x.cpu().median(1)))


def test_the_switch_of_onednn_is_seen():
    """It decides how convolutions lay out their results."""
    x, weight = torch.randn(16, 4, 16, 16).to(memory_format=torch.channels_last), torch.randn(6, 4, 3, 3)
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            compare(F.conv2d(x.to("sim"), weight.to("sim")), F.conv2d(x, weight))


def test_an_equal_call_runs_on_the_device_of_its_arguments():
    for device in ("sim:0", "sim:1", "sim:0"):
        x = torch.arange(15.0, device=device).reshape(3, 5)
        result = torch.hypot(x, x.flip(0))
        assert result.device == torch.device(device)
        assert torch.equal(result.cpu(), torch.hypot(x.cpu(), x.cpu().flip(0)))


def test_an_equal_call_reads_its_own_arguments():
    def call(x, y, number):
        rows, columns = torch.aminmax(x, dim=1)
        x.mul_(number)
        return [rows, columns, torch.cat([x, y, x]), torch.where(x > 20, y, number), x.unfold(0, 2, 1) + 1]

    for step in range(4):
        x, y = torch.arange(18.0).reshape(3, 6) + step, torch.full((3, 6), float(step))
        number = torch.tensor(2.0 + step // 2)
        x_sim, y_sim = x.to("sim"), y.to("sim")
        results = call(x_sim, y_sim, number)
        for got, want in zip([*results, x_sim], [*call(x, y, number), x], strict=True):
            assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("first_shares", [False, True])
def test_arguments_that_share_a_storage_are_another_call(first_shares):
    for shares in (first_shares, not first_shares, first_shares):
        base = torch.arange(8.0, device="sim")
        out = (base if shares else base.clone())[2:6]
        if shares:
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                torch.add(base[:4], 1, out=out)
        else:
            assert torch.add(base[:4], 1, out=out).tolist() == [1, 2, 3, 4]
        assert base.tolist() == list(range(8))
