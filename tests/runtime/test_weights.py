"""Weights are seen to change: what is kept of them (packed, folded) follows every kind of update."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from tests.support.threads import in_threads


class Net(nn.Module):
    """Everything that is kept of weights: packed matrices, folded norms, reordered convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False)
        self.norm2 = nn.BatchNorm2d(24)
        self.point = nn.Conv2d(24, 40, 1)
        self.head = nn.Linear(40, 17)
        self.scale = nn.Parameter(torch.randn(17, 17))

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.relu6(self.norm2(self.depthwise(x)))
        x = self.point(x)
        x = self.head(x.permute(0, 2, 3, 1))
        return x @ (self.scale * 0.5).t()


def make():
    torch.manual_seed(0)
    net = Net().eval()
    for norm in (net.norm, net.norm2):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return net


def agree(fast, net, x):
    with torch.no_grad():
        want = net(x)
        got = fast(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    return got


def prepared(fast):
    """Stats of the prepared program used last."""
    return fast._executor.snapshot().traces[0].executable.native.prepared_stats[-1]


def optimizer_step(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()


def adam_step(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, foreach=True)
    net(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()


def load(net):
    net.load_state_dict({k: v * 1.1 if v.is_floating_point() else v for k, v in net.state_dict().items()})


def swap_data(net):
    for parameter in net.parameters():
        parameter.data = parameter.data * 1.5


def swap_twice(net):
    swap_data(net)
    swap_data(net)  # an allocator may give the first address again


def replace(net):
    net.head.weight = nn.Parameter(net.head.weight.detach() * 2)
    net.norm.running_var = net.norm.running_var * 2


def write_data(net):
    for parameter in net.parameters():
        parameter.data.mul_(-1.25)


def write_numpy(net):
    net.head.weight.detach().numpy()[:] *= -2


def one_element(net):
    with torch.no_grad():
        net.point.weight[3, 5, 0, 0] += 1


def one_row_of_data(net):
    net.scale.data[13] -= 3


def one_bias_by_numpy(net):
    net.point.bias.detach().numpy()[29] += 1


def transposed(net):
    net.scale = nn.Parameter(net.scale.detach().t())  # the same storage, sizes and version, other strides


def buffers(net):
    net.norm2.running_mean.add_(0.5)


UPDATES = [
    optimizer_step, adam_step, load, swap_data, swap_twice, replace, write_data, write_numpy, one_element, one_row_of_data,
    one_bias_by_numpy, transposed, buffers,
]  # fmt: skip


@pytest.mark.parametrize("update", UPDATES, ids=lambda f: f.__name__)
def test_updates_are_seen_by_the_next_call(update):
    net = make()
    fast = staticrt.compile(net)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        before = agree(fast, net, x)
    for _ in range(2):
        with torch.enable_grad():
            update(net)
        after = agree(fast, net, x)
        assert not torch.allclose(before, after)
        agree(fast, net, x)
        before = after


def test_norms_are_folded_and_weights_packed_ahead():
    net = make()
    fast = staticrt.compile(net)
    for _ in range(2):
        agree(fast, net, torch.randn(2, 3, 8, 8))
    stats = prepared(fast)
    assert stats["derived_bytes"] > 0
    assert stats["fixed_nodes"] > 0
    assert not any("batch_norm" in name for name, _route in stats["routes"])
    off = staticrt.compile(net, freeze=False)
    for _ in range(2):
        agree(off, net, torch.randn(2, 3, 8, 8))
    assert prepared(off)["derived_bytes"] == prepared(off)["fixed_nodes"] == 0


def test_another_size_sees_the_update_too():
    net = make()
    fast = staticrt.compile(net)
    small, large = torch.randn(2, 3, 8, 8), torch.randn(3, 3, 13, 11)
    for _ in range(3):
        agree(fast, net, small)
        agree(fast, net, large)
    load(net)
    agree(fast, net, large)
    agree(fast, net, small)


@pytest.mark.parametrize("freeze", [True, False])
def test_the_option_freeze(freeze):
    net = make()
    fast = staticrt.compile(net, freeze=freeze)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        agree(fast, net, x)
    assert (prepared(fast)["derived_bytes"] > 0) == freeze
    if not freeze:  # any write at all is seen
        net.head.weight.detach().numpy()[3, 5] += 4
        agree(fast, net, x)


def test_inference_tensors_count_no_versions_and_are_read_anew():
    with torch.inference_mode():
        net = make()
        fast = staticrt.compile(net)
        x = torch.randn(2, 3, 8, 8)
        for _ in range(3):
            agree(fast, net, x)
        net.point.weight[1, 2] = 7.0
        agree(fast, net, x)


class Wide(nn.Module):
    """Weights above the size that is compared whole: mostly convolutions, or mostly matrices."""

    def __init__(self, matrices):
        super().__init__()
        self.stem = nn.Conv2d(16, 48, 3, padding=1)
        self.norm = nn.BatchNorm2d(48)
        self.heads = nn.ModuleList(nn.Linear(48, 1000) for _ in range(matrices))

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return x.sum() + sum(head(x.mean((2, 3))).sum() for head in self.heads), x


@pytest.mark.parametrize("matrices", [0, 2])
def test_every_written_element_of_an_inference_tensor_is_seen(matrices):
    torch.manual_seed(0)
    with torch.inference_mode():
        net = Wide(matrices).eval()
        fast = staticrt.compile(net)
        x = torch.randn(2, 16, 12, 12)
        for _ in range(2):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
        assert (prepared(fast)["fixed_nodes"] > 0) == (matrices == 0)  # packing pays for convolutions
        places = net.stem.weight.view(-1)
        for place in (0, 1, 777, 3001, 6910, 6911):
            places[place] += 5.0
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
        places[3:5] = places[3:5].flip(0)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
        text = str(fast.explain())
    assert f"{6 + 2 * matrices} weights were made inside torch.inference_mode()" in text
    assert "freeze=True" in text


def test_nothing_is_said_of_weights_that_count_their_versions():
    fast = staticrt.compile(make())
    with torch.inference_mode():
        fast(torch.randn(2, 3, 8, 8))
    assert "inference_mode" not in str(fast.explain())


def test_weights_written_by_the_graph_are_not_kept():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(64, 64))
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            self.state.add_(1)
            return self.linear(x) @ (self.state * 2)

    net = Counting().eval()
    other = copy.deepcopy(net)
    fast = staticrt.compile(other)
    x = torch.randn(32, 64)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(other.state, net.state)


def test_threads_agree_while_weights_stand_still():

    net = make()
    fast = staticrt.compile(net)
    x = torch.randn(2, 3, 8, 8)
    want = agree(fast, net, x)
    wrong = []

    def work(_thread):
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(fast(x), want, rtol=1e-4, atol=1e-5):
                    wrong.append(1)

    for _ in range(3):
        load(net)
        want = agree(fast, net, x)
        in_threads(work, range(4))
    assert not wrong


def test_graphs_on_the_cpu_see_updates():
    net = make()
    fast = staticrt.compile(net, graphs=True)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(6):
        agree(fast, net, x)
    for update in (load, one_element, optimizer_step):
        with torch.enable_grad():
            update(net)
        for _ in range(3):
            agree(fast, net, x)


@pytest.mark.parametrize("row", [0, 1, 77, 119, 120])
@pytest.mark.parametrize("strided", [False, True])
def test_a_written_sixteenth_is_seen_wherever_it_lies(row, strided):
    linear = nn.Linear(1024, 128, bias=False).eval()
    if strided:  # a weight that lies between others' elements
        linear.weight = nn.Parameter(torch.randn(128, 2048)[:, ::2])
    fast = staticrt.compile(linear)
    x = torch.randn(4, 1024)
    for _ in range(3):
        agree(fast, linear, x)
    linear.weight.data[row : row + 8] += 1
    agree(fast, linear, x)


@pytest.mark.parametrize("element", [0, 5, 777, 1023])
def test_any_element_of_a_small_weight_is_seen(element):
    linear = nn.Linear(32, 32, bias=False).eval()
    fast = staticrt.compile(linear)
    x = torch.randn(4, 32)
    for _ in range(3):
        agree(fast, linear, x)
    linear.weight.data.view(-1)[element] += 1
    agree(fast, linear, x)
