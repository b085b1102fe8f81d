"""Windows of images: their floor divisions are decided by our own sizes, and one trace serves batches and other images."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import staticrt
from staticrt.frontend.tracing import trace as tracing


def partition(x, n):
    batch, height, width, channels = x.shape
    x = x.view(batch, height // n, n, width // n, n, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, n, n, channels)


def reverse(windows, n, height, width):
    x = windows.view(-1, height // n, width // n, n, n, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, height, width, windows.shape[-1])


class Whole(nn.Module):
    """Each stage halves the image, whose windows are whole; one says so by an assertion."""

    def __init__(self, asks):
        super().__init__()
        self.asks = asks
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.mix = nn.Linear(16, 16)

    def forward(self, x):
        for layer in (self.stem, self.down):
            x = layer(x).permute(0, 2, 3, 1)
            _, height, width, _ = x.shape
            if self.asks:
                assert height % 4 == 0
                assert width % 4 == 0
            windows = partition(x, 4)
            windows = windows + self.mix(windows.view(-1, 16, 8).transpose(1, 2)).transpose(1, 2).reshape(
                -1, 4, 4, 8
            )
            x = reverse(windows, 4, height, width).permute(0, 3, 1, 2)
        return x.mean((2, 3)) if self.asks else x.flatten(2)


class Padded(nn.Module):
    """As davit and hieradet: padded to whole windows, then cut to the image again."""

    def forward(self, x):
        _, height, width, _ = x.shape
        right, below = (7 - width % 7) % 7, (7 - height % 7) % 7
        x = F.pad(x, (0, 0, 0, right, 0, below))
        windows = partition(x, 7)
        windows = windows * windows.mean((1, 2), keepdim=True)
        return (
            reverse(windows, 7, height + below, width + right)[:, :height, :width].contiguous().flatten(1, 2)
        )


@pytest.fixture
def without_sympy(monkeypatch):
    def refuse(oblivious):
        raise AssertionError("the trace asks torch's sizes")

    monkeypatch.setattr(tracing, "_shape_env", refuse)


@pytest.mark.parametrize("asks", [False, True])
def test_whole_windows(without_sympy, asks):
    model = Whole(asks).eval()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for batch, height, width in ((1, 32, 32), (2, 32, 32), (3, 64, 48), (1, 16, 96), (2, 31, 64)):
            x = torch.rand(batch, 3, height, width)
            torch.testing.assert_close(compiled(x), model(x))
    explanation = compiled.explain()
    assert len(explanation.traces) == 1
    assert not explanation.eager


def test_an_image_without_whole_windows_raises_as_eager():
    model = Whole(False).eval()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        compiled(torch.rand(1, 3, 32, 32))
        for call in (model, compiled):
            with pytest.raises(RuntimeError, match="invalid for input of size"):
                call(torch.rand(1, 3, 40, 32))
        x = torch.rand(2, 3, 48, 32)
        torch.testing.assert_close(compiled(x), model(x))


def test_padded_windows(without_sympy):
    model = Padded()
    compiled = staticrt.compile(model)
    for batch, height, width in ((1, 14, 21), (2, 14, 21), (2, 15, 20), (1, 6, 5), (3, 7, 7), (1, 1, 7)):
        x = torch.rand(batch, height, width, 5)
        torch.testing.assert_close(compiled(x), model(x))
    explanation = compiled.explain()
    assert not explanation.eager
    assert len(explanation.traces) <= 2


def test_a_copy_stays_a_copy_where_other_sizes_make_a_view(without_sympy):
    """A transposition of one row is contiguous as it is: with two it is copied, and eager's result is not the argument's."""

    def f(x):
        return x.transpose(0, 1).contiguous() * 2

    compiled = staticrt.compile(f)
    for rows in (1, 2, 5):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(compiled.explain().traces) == 1


def test_a_level_of_one_window(without_sympy):
    """Its sizes are known to be numbers; what they are viewed as is written with the sizes of another tensor."""

    def f(x, image):
        for dim, size in ((1, 1), (2, 7), (3, 1), (4, 7)):
            assert x.shape[dim] == size
        height, width = image.shape
        windows = x.transpose(2, 3).reshape(x.shape[0], height // 7 * 7, width // 7 * 7, x.shape[-1])
        return windows * 2

    compiled = staticrt.compile(f)
    for batch, height, width in ((1, 7, 7), (2, 7, 7), (3, 7, 8), (1, 13, 9)):
        x, image = torch.rand(batch, 1, 7, 1, 7, 4), torch.rand(height, width)
        torch.testing.assert_close(compiled(x, image), f(x, image))
    assert not compiled.explain().eager


def test_the_order_of_dimensions_of_equal_strides(without_sympy):
    """Overlapping windows have one stride for both dimensions: their sizes decide the layout of a result, and are guarded."""

    def f(x):
        return x.unfold(0, 3, 1) * 2

    compiled = staticrt.compile(f)
    for length in (4, 5, 10, 3, 6, 4):
        x = torch.rand(length)
        found = compiled(x)
        torch.testing.assert_close(found, f(x))
        assert found.stride() == f(x).stride()
    assert not compiled.explain().eager


class ClampedWindow(nn.Module):
    """A window that the first image may shrink, as Swin of transformers has it; the attribute then stays as it is."""

    def __init__(self):
        super().__init__()
        self.window = 7
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if min(x.shape[1:3]) <= self.window:
            self.window = min(x.shape[1:3])
        return self.linear(x)[:, : self.window, : self.window].sum((1, 2))


@pytest.mark.parametrize("grad", [False, True])
def test_a_size_kept_in_place_of_the_equal_number_is_no_change(grad):
    torch.manual_seed(0)
    model, eager = ClampedWindow(), ClampedWindow()
    eager.load_state_dict(model.state_dict())
    compiled = staticrt.compile(model)
    with torch.set_grad_enabled(grad):
        for shape in (
            (2, 6, 8, 4),
            (2, 6, 8, 4),
            (1, 6, 8, 4),
            (3, 6, 9, 4),
            (2, 5, 8, 4),
            (2, 9, 9, 4),
            (4, 9, 9, 4),
        ):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), eager(x))
            assert (type(model.window), model.window) == (int, eager.window)
    traces = compiled.explain().traces
    assert sum(trace.calls for trace in traces if grad or trace.route == "whole") >= 3
