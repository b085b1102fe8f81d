import pytest
import torch
from torch import nn
from torch.nn import functional as F

from staticrt.passes.channels_last import ChannelsLast, is_channels_last

aten = torch.ops.aten


def fixed(graph):
    return frozenset({**graph.names("PARAMETER"), **graph.names("BUFFER")})


def convs(graph):
    return [n for n in graph.gm.graph.nodes if n.target in (aten.conv2d.default, aten.convolution.default)]


class Chain(nn.Module):
    """Three convolutions with all that carries their layout on."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(8, 12, 3, padding=1)
        self.second = nn.Conv2d(12, 12, 3, padding=1, groups=3)
        self.third = nn.Conv2d(24, 8, 1)
        self.gain = nn.Parameter(torch.rand(12, 1, 1))

    def forward(self, x):
        y = F.relu(self.first(x)) * self.gain + 1
        y = F.max_pool2d(torch.cat([y, F.hardswish(self.second(y))], 1), 2)
        return self.third(y)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.chain = Chain()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.chain(x), 1), 1))


def test_a_region_is_converted_at_its_borders_only(trace):
    graph = trace(Chain().eval(), [torch.randn(2, 8, 12, 14)])
    assert graph.run(ChannelsLast(fixed(graph))).changed
    assert all(is_channels_last(n.meta["val"]) for n in convs(graph))
    assert graph.count(aten.clone.default) == 2  # in and out


def test_what_reads_any_layout_needs_no_conversion(trace):
    graph = trace(Classifier().eval(), [torch.randn(2, 8, 12, 14)])
    assert graph.run(ChannelsLast(fixed(graph))).changed
    assert graph.count(aten.clone.default) == 1


def test_symbolic_sizes(trace):
    dims = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    graph = trace(Classifier().eval(), [torch.randn(2, 8, 12, 14)], dynamic=dims)
    assert graph.run(ChannelsLast(fixed(graph)), [torch.randn(3, 8, 20, 18)]).changed


def test_images_that_are_channels_last_already_stay(trace):
    x = torch.randn(2, 8, 12, 14).contiguous(memory_format=torch.channels_last)
    graph = trace(Chain().eval(), [x])
    graph.run(ChannelsLast(fixed(graph)))
    assert graph.count(aten.clone.default) == 0


class Written(nn.Module):
    """The border's image is returned too, and read by an operator with a layout of its own."""

    def __init__(self):
        super().__init__()
        self.chain = Chain()

    def forward(self, x):
        y = self.chain(x)
        return y, y.as_strided((3, 3), (1, 2)), y.flatten(1)


def test_other_readers_see_the_layout_they_saw(trace):
    graph = trace(Written().eval(), [torch.randn(2, 8, 12, 14)])
    assert graph.run(ChannelsLast(fixed(graph))).changed
    output = graph.gm.graph.output_node().args[0][0]
    assert output.target is aten.clone.default
    assert output.meta["val"].is_contiguous()


STAYS = {
    "one convolution between two borders": (lambda: nn.Conv2d(8, 8, 3), (2, 8, 9, 9)),
    "images of one dimension": (lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.Conv1d(4, 4, 3)), (2, 4, 9)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(4, 4, 1), nn.Conv3d(4, 4, 1)), (2, 4, 5, 5, 5)),
    "float64": (lambda: Chain().double(), (2, 8, 12, 14)),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays_where_it_must(trace, name):
    make, sizes = STAYS[name]
    dtype = torch.float64 if name == "float64" else torch.float32
    graph = trace(make().eval(), [torch.randn(sizes, dtype=dtype)])
    assert not graph.run(ChannelsLast(fixed(graph))).changed


def test_live_weights_are_left_alone(trace):
    graph = trace(Chain().eval(), [torch.randn(2, 8, 12, 14)])
    assert not graph.run(ChannelsLast(frozenset())).changed


class Decoder(nn.Module):
    """Upsampling to a symbolic size between convolutions."""

    def __init__(self, **how):
        super().__init__()
        self.how = how
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.Conv2d(24, 8, 3, padding=1)

    def forward(self, x):
        y = F.interpolate(F.relu(self.middle(self.down(x))), size=x.shape[2:], **self.how)
        return self.up(torch.cat([y, x], 1))


@pytest.mark.parametrize("how", [{}, {"mode": "nearest-exact"}, {"mode": "bilinear"}], ids=str)
def test_upsampling_to_a_symbolic_size_stays_channels_last(trace, how):
    dims = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    graph = trace(Decoder(**how).eval(), [torch.randn(2, 8, 12, 14)], dynamic=dims)
    assert graph.run(ChannelsLast(fixed(graph)), [torch.randn(3, 8, 20, 18)]).changed
    assert all(is_channels_last(n.meta["val"]) for n in convs(graph))
    assert graph.count(aten.clone.default) == 2  # in and out


class TransposedDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(8, 12, 3, padding=1)

    def forward(self, x):
        return self.last(F.relu(self.up(F.relu(self.first(x)))))


def test_a_transposed_convolution_stays_inside_its_region(trace):
    dims = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    graph = trace(TransposedDecoder().eval(), [torch.randn(2, 8, 12, 14)], dynamic=dims)
    assert graph.run(ChannelsLast(fixed(graph)), [torch.randn(3, 8, 20, 18)]).changed
    assert graph.count(aten.clone.default) == 2  # in and out


class PickedPixels(nn.Module):
    """Rows and columns picked by number between convolutions, as ONNX's Resize to a symbolic size does."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x):
        rows = torch.arange(x.shape[2] * 2) // 2
        columns = torch.arange(x.shape[3] * 2) // 2
        y = torch.index_select(F.relu(self.middle(self.first(x))), 2, rows)
        return self.last(torch.index_select(y, -1, columns))


def test_picking_rows_and_columns_stays_inside_its_region(trace):
    dims = ({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},)
    graph = trace(PickedPixels().eval(), [torch.randn(2, 8, 6, 7)], dynamic=dims)
    assert graph.run(ChannelsLast(fixed(graph)), [torch.randn(3, 8, 10, 9)]).changed
    assert all(is_channels_last(n.meta["val"]) for n in convs(graph))
    assert graph.count(aten.clone.default) == 2  # in and out
