"""Pointwise operators after a matrix product or convolution are done while its result is in the cache."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import staticrt

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-0.25, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp(max=0.1),
    "hardtanh": F.hardtanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "residual": None,
    "residual, relu": None,
    "scale of a channel": None,
    "scale, residual, relu6": None,
    "shift": None,
}
# Kernels do these before they write an element; measurements may choose BLAS, which leaves them to a loop, and
# Winograd's convolution, which leaves residuals to it.
FINISHED = {
    "relu",
    "relu6",
    "clamp",
    "clamp_min",
    "clamp_max",
    "hardtanh",
    "residual",
    "residual, relu",
    "shift",
    "scale, residual, relu6",
}
LAYERS = {
    "linear": (lambda: nn.Linear(48, 48), (5, 7, 48)),
    "linear without bias": (lambda: nn.Linear(48, 48, bias=False), (64, 48)),
    "1x1": (lambda: nn.Conv2d(16, 16, 1), (2, 16, 9, 11)),
    "3x3": (lambda: nn.Conv2d(16, 16, 3, padding=1), (2, 16, 9, 11)),
    "grouped": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=4), (2, 16, 9, 11)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 5, padding=2, groups=16), (2, 16, 9, 11)),
}


class Net(nn.Module):
    """Three layers, so that images are worth converting; the activation after each."""

    def __init__(self, layer, activation):
        super().__init__()
        self.layers = nn.ModuleList([layer(), layer(), layer()])
        self.activation = activation
        self.gain = nn.Parameter(torch.rand(16, 1, 1) + 0.5)

    def gain_of(self, y):
        return self.gain if y.dim() == 4 else self.gain.flatten().repeat(3)

    def act(self, y, x):
        if self.activation == "residual":
            return y + x
        if self.activation == "residual, relu":
            return F.relu(x + y)
        if self.activation == "scale of a channel":
            return y * self.gain_of(y) - 0.5
        if self.activation == "scale, residual, relu6":
            return F.relu6(y * self.gain_of(y) + self.gain_of(y) + x)
        if self.activation == "shift":
            return self.gain_of(y) + y
        return ACTIVATIONS[self.activation](y)

    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x), x)
        return x


def routes(fast):
    return [
        route
        for _name, route in fast._executor.snapshot().traces[0].executable.native.prepared_stats[-1]["routes"]
    ]


def is_fused(route):
    return "+ tile loop" in route or "finished in registers" in route


def finishes(route, activation):
    if "blas" in route or ("winograd" in route and "residual" in activation):
        return False
    return activation in FINISHED


@pytest.mark.parametrize(("layer", "activation"), list(itertools.product(LAYERS, ACTIVATIONS)))
def test_equals_eager(layer, activation):
    torch.manual_seed(0)
    make, sizes = LAYERS[layer]
    net = Net(make, activation).eval()
    fast = staticrt.compile(net)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(sizes)
        with torch.no_grad():
            got, want = fast(x), net(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert sum(is_fused(route) for route in routes(fast)) == 3, routes(fast)
    for route in filter(is_fused, routes(fast)):
        assert ("finished" in route) == finishes(route, activation)


def test_convolutions_are_finished_in_registers():
    """The test above allows a loop where BLAS computes the product. BLAS computes none of these."""
    for layer in ("3x3", "grouped", "depthwise"):
        for activation in FINISHED:
            make, sizes = LAYERS[layer]
            fast = staticrt.compile(Net(make, activation).eval())
            with torch.no_grad():
                for _call in range(2):
                    fast(torch.randn(sizes))
            fused = list(filter(is_fused, routes(fast)))
            assert len(fused) == 3
            assert all(("finished" in route) == finishes(route, activation) for route in fused), fused


class ReadTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x):
        y = self.linear(x)
        z = F.gelu(y)
        return z @ y.t()


class Returned(ReadTwice):
    def forward(self, x):
        y = self.linear(x)
        return y, F.gelu(y)


class ReadTransposed(ReadTwice):
    def forward(self, x):
        y = self.linear(x)
        return y + y.t()


class OtherType(ReadTwice):
    def forward(self, x):
        return self.linear(x).to(torch.float64) * 2


class Broadcast(ReadTwice):
    def forward(self, x):
        return self.linear(x) + x[:, None]


@pytest.mark.parametrize("net", [ReadTwice, Returned, ReadTransposed, OtherType, Broadcast])
def test_a_result_that_is_needed_as_it_was_is_left_alone(net):
    torch.manual_seed(0)
    net = net().eval()
    fast = staticrt.compile(net)
    x = torch.randn(48, 48)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    assert not any(is_fused(route) for route in routes(fast))


SCALE, SHIFT, WIDE = torch.rand(48), torch.rand(48), torch.rand(64, 48)
# What looks like a chain that a kernel finishes, and is not.
OTHERS = {
    "shift, scale": lambda y: (y + SHIFT) * SCALE,
    "two scales": lambda y: y * SCALE * SCALE,
    "residual, shift": lambda y: y + WIDE + SHIFT,
    "clamp, shift": lambda y: y.relu() + SHIFT,
    "a multiple of the shift": lambda y: torch.add(y, SHIFT, alpha=2),
    "the result twice": lambda y: y + y,
    "the result again": lambda y: y.relu() + y,
    "one number for all": lambda y: y * SCALE[:1],
    "a shift of each row": lambda y: y + WIDE[:, :1],
    "columns of another view": lambda y: y.view(128, 24) * SCALE[:24],
    "rows of another view": lambda y: y.view(32, 96) + WIDE.flatten()[:96],
    "every second number": lambda y: y * WIDE.flatten()[:96:2],
    "a residual laid out otherwise": lambda y: y + WIDE.flatten().view(48, 64).t(),
    "bounds in tensors": lambda y: torch.clamp(y, SCALE, SCALE + SHIFT),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("weight_memory", [0, 1])
def test_other_chains_are_not_finished_in_registers(name, weight_memory):
    torch.manual_seed(0)
    linear, then = nn.Linear(40, 48), OTHERS[name]
    fast = staticrt.compile(lambda x: then(linear(x)), weight_memory=weight_memory, deterministic=True)
    x = torch.randn(64, 40)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), then(linear(x)))
    assert not any("finished" in route for route in routes(fast)), routes(fast)


@pytest.mark.parametrize("layer", ["1x1", "3x3", "depthwise"])
def test_planes_are_scaled_by_channels(layer):
    """Images that are too few to be converted: their columns are pixels, and channels have a number for each row."""
    torch.manual_seed(0)
    conv, gain = LAYERS[layer][0](), torch.rand(16, 1, 1)
    fast = staticrt.compile(lambda x: F.relu(conv(x) * gain + gain))
    x = torch.randn(2, 16, 4, 4)  # as many pixels as channels
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), F.relu(conv(x) * gain + gain), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight_memory", [0, 1])
def test_nan_in_one_row_passes_through(weight_memory):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU6(), nn.Linear(64, 64), nn.ReLU()).eval()
    fast = staticrt.compile(net, weight_memory=weight_memory, deterministic=True)
    x = torch.randn(1, 64)
    x[0, 3] = float("nan")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), equal_nan=True)


@pytest.mark.parametrize("layer", ["3x3", "grouped", "depthwise"])
def test_nan_and_infinity_in_images_pass_through(layer):
    torch.manual_seed(0)
    net = Net(LAYERS[layer][0], "residual, relu").eval()
    fast = staticrt.compile(net)
    x = torch.randn(2, 16, 9, 11)
    x[0, 3, 4, 5], x[1, 2, 0, 0], x[1, 7, 8, 10] = float("nan"), float("inf"), float("-inf")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("weight_memory", [0, 1])
def test_nan_and_infinity_pass_through(weight_memory):
    net = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU6(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU()
    ).eval()
    fast = staticrt.compile(net, weight_memory=weight_memory, deterministic=True)
    x = torch.randn(32, 64)
    x[3, 5], x[4, 6], x[7, 1] = float("nan"), float("inf"), float("-inf")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.usefixtures("num_threads_stays")
def test_poisoned_memory_and_threads():
    torch.manual_seed(0)
    net = Net(LAYERS["3x3"][0], "residual, relu").eval()
    wide = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.SiLU()).eval()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for module, sizes in ((net, (2, 16, 30, 31)), (wide, (128, 256))):
            fast = staticrt.compile(module, poison=True)
            x = torch.randn(sizes)
            with torch.no_grad():
                for _ in range(3):
                    torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("num_threads_stays")
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1300, 300, 40), (5000, 64, 24), (769, 384, 8), (2000, 17, 33)]
)
def test_tall_products_by_blas_are_finished_band_by_band(rows, columns, depth):
    torch.manual_seed(0)
    x, w, bias = torch.randn(rows, depth), torch.randn(depth, columns), torch.randn(columns)

    def function(x, w, bias):
        return torch.nn.functional.gelu(torch.addmm(bias, x, w)) * 2

    fast = staticrt.compile(function, deterministic=True)
    torch.set_num_threads(1)  # several share the rows in BLAS
    with torch.no_grad():
        for _call in range(2):
            torch.testing.assert_close(fast(x, w, bias), function(x, w, bias))
    (stats,) = fast._executor.snapshot().traces[0].executable.native.prepared_stats
    assert [route for _node, route in stats["routes"]] == ["gemm: blas + tile loop"]
