"""Small outputs lie in blocks that threads keep: to the caller they are tensors like any others."""

import copy
import gc
import io
import queue

import pytest
import torch
from torch import nn

import staticrt
from tests.support import run_fresh
from tests.support.threads import in_threads


class Two(nn.Module):
    """Two outputs, the second a view of the first."""

    def forward(self, x):
        y = torch.square(x) * 2
        return y, y[..., 1:]


@pytest.fixture
def fast():
    compiled = staticrt.compile(Two())
    for _ in range(3):
        compiled(torch.randn(4, 5))
    return compiled


def test_outputs_that_are_held_keep_their_values(fast):
    held = []
    for seed in range(200):
        x = torch.full((4, 5), float(seed % 7))
        held.append((x, *fast(x)))
        if seed % 3 == 0:
            held.pop(len(held) // 2)  # frees a block in the middle
    for x, y, view in held:
        assert torch.equal(y, torch.square(x) * 2)
        assert torch.equal(view, y[..., 1:])
        assert view.data_ptr() == y.data_ptr() + 4


def test_arrays_views_and_storages_outlive_their_tensor(fast):
    x = torch.randn(4, 5)
    want = torch.square(x) * 2
    array = fast(x)[0].numpy()
    view = fast(x)[1]
    storage = fast(x)[0].untyped_storage()
    gc.collect()
    for _ in range(50):
        fast(torch.randn(4, 5))
    torch.testing.assert_close(torch.from_numpy(array), want)
    torch.testing.assert_close(view, want[..., 1:])
    torch.testing.assert_close(torch.tensor([], dtype=torch.float32).set_(storage).reshape(4, 5), want)


def test_outputs_can_be_resized_shared_copied_and_pickled(fast):
    x = torch.randn(4, 5)
    want = torch.square(x) * 2
    grown = fast(x)[0]
    grown.resize_(1000)
    grown[20:] = 1
    torch.testing.assert_close(grown[:20].reshape(4, 5), want)
    shared = fast(x)[0].share_memory_()
    assert shared.is_shared()
    torch.testing.assert_close(shared, want)
    torch.testing.assert_close(copy.deepcopy(fast(x))[1], want[..., 1:])
    file = io.BytesIO()
    torch.save(fast(x), file)
    file.seek(0)
    y, view = torch.load(file)
    torch.testing.assert_close(y, want)
    assert view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    freed = fast(x)[0]
    freed.untyped_storage().resize_(0)
    assert freed.untyped_storage().nbytes() == 0


def test_outputs_made_in_one_thread_and_dropped_in_another(fast):
    made = queue.Queue(maxsize=8)
    wrong = []

    def produce():
        for seed in range(500):
            x = torch.full((4, 5), float(seed))
            made.put((seed, fast(x)))
        made.put(None)

    def consume():
        while (item := made.get()) is not None:
            seed, (y, _) = item
            if not torch.equal(y, torch.square(torch.full((4, 5), float(seed))) * 2):
                wrong.append(seed)

    in_threads(lambda run: run(), [produce, consume])
    assert not wrong


def test_a_memory_profiler_sees_small_outputs(fast):
    x = torch.randn(4, 5)
    with torch.profiler.profile(profile_memory=True) as profile:
        y, _ = fast(x)
    assert sum(event.self_cpu_memory_usage for event in profile.events()) >= y.untyped_storage().nbytes()


def test_outputs_held_at_exit_are_freed_in_peace():
    code = (
        "import threading, torch, staticrt\n"
        "fast = staticrt.compile(torch.nn.Linear(4, 4))\n"
        "with torch.no_grad():\n"
        "    held = [fast(torch.rand(1, 4)) for _ in range(40)]\n"
        "    def work(): held.extend(fast(torch.rand(1, 4)) for _ in range(40))\n"
        "    thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "torch.held_for_ever = held\n"
        "print('right', len(held))\n"
    )
    done = run_fresh(code)
    assert done.stdout.split() == ["right", "80"]


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("features", [(64, 64), (40, 130), (32, 1000), (257, 8)])
def test_few_rows_through_small_weights_follow_them(rows, features):
    linear = nn.Linear(*features).eval()
    fast = staticrt.compile(linear)
    x = torch.randn(rows, features[0])
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), linear(x))
        linear.weight.mul_(-0.5)
        torch.testing.assert_close(fast(x), linear(x))
        linear.weight.data[0, 0] = 100.0
        linear.bias.data.zero_()
        torch.testing.assert_close(fast(x), linear(x))
