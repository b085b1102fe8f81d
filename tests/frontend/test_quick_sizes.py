"""A first answer does without sympy; what our sizes cannot answer is traced with torch's."""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import staticrt
from staticrt.runtime import executable
from staticrt.shapes.size_env import NeedsShapeEnv, SizeEnv


class Uncovered(nn.Module):
    """An operator without a rule of ours, then Python that would hide the end of an attempt."""

    def __init__(self, hide):
        super().__init__()
        self.hide = hide

    def forward(self, x):
        if not self.hide:
            return torch.logcumsumexp(x, -1)
        try:
            return torch.logcumsumexp(x, -1)
        except BaseException:
            return x * 0


@pytest.mark.parametrize("hide", [False, True])
def test_what_has_no_rule_is_captured_with_torchs_sizes(hide):
    model = Uncovered(hide).eval()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for shape in ((2, 3), (5, 7), (4, 1)):
            x = torch.rand(shape)
            torch.testing.assert_close(compiled(x), model(x))
    explanation = compiled.explain()
    assert len(explanation.traces) == 1
    assert not explanation.eager


def test_a_pass_that_has_to_ask_torch(monkeypatch):
    """The graph is traced again; what the first attempt made of it is forgotten."""
    run, calls = executable.run_pipeline, []

    def once(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise NeedsShapeEnv("a question of a pass")
        return run(*args, **kwargs)

    monkeypatch.setattr(executable, "run_pipeline", once)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for rows in (2, 5):
            x = torch.rand(rows, 3)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(calls) == 2
    assert len(compiled.explain().traces) == 1


class Unpadded(nn.Module):
    """Convolutions that shrink the picture, whose layout a pass changes after the sizes were settled."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(32, 32, 3), nn.ReLU()
        )
        self.first = nn.Conv2d(32, 64, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 1)
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x):
        x = self.stem(x)
        return self.norm(torch.relu(self.first(x)) * torch.sigmoid(self.second(x))).mean((2, 3))


class Flattened(nn.Module):
    """A view between a layer and a norm, whose last dimensions are equal where another has one element."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.linear(x).view(x.shape[0], 4, 2, -1))


class PaddedWindows(nn.Module):
    """Windows of padded pictures, and pictures of windows, one after another with other windows."""

    def forward(self, x):
        for window in (8, 4, 7, 3):
            batch, height, width, channels = x.shape
            x = x + 1
            padded = F.pad(
                x, (0, 0, 0, (window - width % window) % window, 0, (window - height % window) % window)
            )
            rows, columns = padded.shape[1:3]
            windows = padded.view(batch, rows // window, window, columns // window, window, channels)
            windows = windows.transpose(2, 3).reshape(-1, window, window, channels)
            windows = windows * windows.sum((1, 2), keepdim=True).sigmoid()
            count = windows.shape[0] // (rows * columns // window // window)
            x = windows.view(count, rows // window, columns // window, window, window, -1)
            x = x.transpose(2, 3).reshape(count, rows, columns, -1)[:, :height, :width].contiguous()
        return x


class Folded(nn.Module):
    """Blocks of pictures weighed, folded and multiplied by places between the rows, every third column anew."""

    def forward(self, x):
        blocks = F.unfold(x, 3, padding=1, stride=2)
        x = F.fold(blocks.softmax(1), x.shape[2:], 3, padding=1, stride=2)
        places = torch.arange(0.5, x.shape[3])
        y = x * places
        y[..., ::3] = x[..., ::3] * 2
        return y


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Folded, [(2, 3, 8, 10), (3, 2, 9, 7), (1, 4, 12, 12)]),
        (Unpadded, [(1, 3, 75, 75), (2, 3, 51, 64), (3, 3, 40, 16), (2, 3, 15, 15)]),
        (Flattened, [(2, 4, 3, 8), (3, 4, 1, 8), (1, 4, 5, 8)]),
        (PaddedWindows, [(2, 65, 50, 3), (3, 48, 64, 3), (2, 33, 99, 3)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_our_sizes_are_enough(model, shapes, monkeypatch):
    gave_up = []
    give_up = SizeEnv.give_up
    monkeypatch.setattr(SizeEnv, "give_up", lambda env, what: (gave_up.append(what), give_up(env, what)))
    model = model().eval()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for shape in shapes:
            x = torch.rand(shape)
            torch.testing.assert_close(compiled(x), model(x))
    assert not [what for what in gave_up if isinstance(what, str)]
    assert len(compiled.explain().traces) == 1
    assert "s0_2" in str(compiled.explain())  # these are named otherwise by torch


class Windows(nn.Module):
    """Padding to whole windows, as shifted-window transformers do."""

    def forward(self, x):
        batch, height, width, channels = x.shape
        x = nn.functional.pad(x, (0, 0, 0, -width % 4, 0, -height % 4))
        _, tall, wide, _ = x.shape
        parts = x.view(batch, tall // 4, 4, wide // 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        parts = parts.reshape(-1, 16, channels).softmax(1)
        joined = parts.view(batch, tall // 4, wide // 4, 4, 4, channels).permute(0, 1, 3, 2, 4, 5)
        return joined.reshape(batch, tall, wide, channels)[:, :height, :width].contiguous()


class Branches(nn.Module):
    """Sizes decide what is computed."""

    def forward(self, x):
        if x.shape[0] > 3 and x.shape[1] % 2 == 0:
            return x[:, ::2] * x.shape[0]
        if x.shape[0] == x.shape[1]:
            return x.t() + max(x.shape[0], 2)
        return x[-1:] - min(x.shape[1] // 2, 4)


class Slices(nn.Module):
    def forward(self, x, y):
        length = min(x.shape[1], y.shape[1])
        return x[:, -length:] + y[:, :length], x[:, 1:-1], torch.cat([x, y], 1)[:, : x.shape[1] + 1]


def random_shapes(rank, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 11, (rank,), generator=generator).tolist() for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", [Windows(), Branches()], ids=lambda m: type(m).__name__)
def test_every_size_gives_what_eager_gives(model, seed):
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for shape in random_shapes(4 if isinstance(model, Windows) else 2, 25, seed):
            x = torch.rand(shape)
            expected, actual = model(x), compiled(x)
            torch.testing.assert_close(actual, expected)
            assert actual.stride() == expected.stride() or actual.numel() < 2 or 1 in actual.shape


@pytest.mark.parametrize("seed", range(3))
def test_slices_of_every_size(seed):
    model = Slices()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for rows, first, second in random_shapes(3, 25, seed):
            x, y = torch.rand(rows, first), torch.rand(rows, second)
            torch.testing.assert_close(compiled(x, y), model(x, y))


@torch.library.custom_op("staticrt_tests::rows_of", mutates_args=())
def rows_of(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.shape[0] + 1, table.shape[1])


@rows_of.register_fake
def _(x, table):
    assert x.dim() == 2
    return x.new_empty(x.shape[0] + 1, table.shape[1])


def test_an_operator_of_others_is_told_by_the_rule_that_came_with_it(monkeypatch):
    monkeypatch.setattr("staticrt.frontend.tracing.trace._shape_env", None)  # torch's own sizes

    def function(x, table):
        return (rows_of(x * 2, table) + 1).sum(0), x.shape[0]

    fast = staticrt.compile(function)
    for n in (3, 5, 4):
        x, table = torch.randn(n, 4), torch.randn(6, 7)
        got, want = fast(x, table), function(x, table)
        assert torch.equal(got[0], want[0])
        assert got[1] == want[1]
    (traced,) = fast.explain().traces
    assert traced.calls == 3


@torch.no_grad()
def test_a_slice_up_to_a_ratio_of_sizes_is_no_number_that_data_decides():
    """Images scaled and pasted into a canvas, as detectors do: torch's rule makes such a slice a size of its own."""

    def pasted(x):
        scale = 8.0 / min(x.shape[-2:])
        y = nn.functional.interpolate(x, scale_factor=scale, recompute_scale_factor=True)
        canvas = x.new_zeros(1, 3, 32, 32)
        canvas[..., : y.shape[-2], : y.shape[-1]].copy_(y)
        return canvas

    compiled = staticrt.compile(pasted)
    for height, width in ((16, 20), (20, 16), (12, 14), (16, 20)):
        x = torch.randn(1, 3, height, width)
        assert torch.equal(compiled(x), pasted(x))
    explanation = compiled.explain()
    assert not explanation.eager
    assert not explanation.notes


LIBRARY = """
import functools


@functools.lru_cache(256)
def sizes(shape, axes):
    return shape[0] * shape[1], shape[2]


def _apply_recipe(x, axes):
    try:
        found = sizes(tuple(x.shape), axes)
    except TypeError:
        found = sizes.__wrapped__(tuple(x.shape), axes)
    return x.reshape(found) * 2
"""


@pytest.mark.parametrize(("name", "traces"), [("einops.einops", 1), ("other", 3)])
@torch.no_grad()
def test_einops_does_without_its_cache_for_symbolic_sizes(tmp_path, name, traces):
    """A number that is hashed is a constant of the trace, since a model could catch the TypeError that a symbol raises.
    einops catches it and computes the same without its cache."""
    library = types.ModuleType(name)
    exec(compile(LIBRARY, str(tmp_path / "einops.py"), "exec"), vars(library))

    def model(x):
        return library._apply_recipe(x, ()) + 1

    compiled = staticrt.compile(model)
    for sizes in ((2, 3, 4), (3, 5, 4), (2, 2, 6), (3, 5, 4)):
        x = torch.randn(sizes)
        assert torch.equal(compiled(x), model(x))
    explanation = compiled.explain()
    assert len(explanation.traces) == traces
    assert not explanation.eager


def test_paths_dropped_in_training_need_none_of_torchs_sizes(monkeypatch):
    """As timm's DropPath, which draws in place."""

    class DropPath(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) * x.new_empty(x.shape[0], 1).bernoulli_(0.5).div_(0.5)

    gave_up = []
    monkeypatch.setattr(SizeEnv, "give_up", lambda env, what: gave_up.append(what))
    model = DropPath()
    compiled = staticrt.compile(model)
    for rows in (8, 5, 11):
        x = torch.randn(rows, 4)
        torch.manual_seed(rows)
        expected = model(x)
        torch.manual_seed(rows)
        torch.testing.assert_close(compiled(x), expected)
    assert not gave_up
    assert len(compiled.explain().traces) == 2  # of constant sizes, and of symbols
    assert not compiled.explain().eager


def _overlapping_chunks(x):
    """As Longformer cuts its keys: sizes divided as tensors, and windows of strided memory."""
    x = x.transpose(0, 1)
    x = x.view(x.size(0), torch.div(x.size(1), 4, rounding_mode="trunc"), 4, x.size(2))
    sizes, strides = list(x.shape), list(x.stride())
    sizes[1], strides[1] = sizes[1] * 2 - 1, strides[1] // 2
    count = torch.div(x.size(1) * 4, 2, rounding_mode="floor") - 1
    return x.as_strided(sizes, strides) * count + x.new_ones(count + 1).sum()


def test_sizes_divided_as_tensors_are_our_own(monkeypatch):
    reasons = []
    upstream = SizeEnv.give_up

    def give_up(self, reason, *rest):
        reasons.append(reason)
        return upstream(self, reason, *rest)

    monkeypatch.setattr(SizeEnv, "give_up", give_up)
    compiled = staticrt.compile(_overlapping_chunks)
    for steps, batch in ((8, 3), (12, 5), (16, 2), (8, 1), (4, 2)):
        x = torch.randn(steps, batch, 6)
        torch.testing.assert_close(compiled(x), _overlapping_chunks(x), rtol=0, atol=0)
    assert not reasons
    assert 1 <= len(compiled.explain().traces) <= 3
    assert not compiled.explain().eager


def test_a_number_of_a_tensor_that_was_written_is_not_that_of_the_sizes():
    def function(x):
        count = torch.div(x.size(0), 2, rounding_mode="trunc")
        same = count.view(1)
        same.add_(1)
        return x.new_ones(int(count)), torch.div(-x.size(0), 3, rounding_mode="trunc")

    compiled = staticrt.compile(function)
    for size in (8, 10, 7):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
