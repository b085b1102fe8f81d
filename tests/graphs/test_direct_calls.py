"""Out variants of structured operators: recorded untried, called unboxed, with eager's bits for any values."""

import pytest
import torch
import torch.nn.functional as F

from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.native import _C
from tests.support.graph_harness import Captured


def square(seed, size=6, positive=False):
    x = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return x.abs() + 0.5 if positive else x


INDEX = torch.tensor([[0, 2, 1, 3, 5, 4]])
# name of the operator a replay must run -> function of three matrices
OPERATORS = {
    "exp": lambda a, b, c: a.exp(),
    "clamp_min": lambda a, b, c: a.relu(),  # which is what relu calls
    "mul.Tensor": lambda a, b, c: a * b,
    "mm": lambda a, b, c: a @ b,
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None]),
    "where.self": lambda a, b, c: torch.where(a > 0, b, c),
    "lerp.Tensor": lambda a, b, c: torch.lerp(a, b, c),
    "pow.Tensor_Scalar": lambda a, b, c: a**3,
    "add.Tensor": lambda a, b, c: torch.add(a, b, alpha=3),
    "sub.Tensor": lambda a, b, c: torch.sub(a, 2.5),
    "threshold_backward": lambda a, b, c: torch.ops.aten.threshold_backward(a, b, 0.25),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=2),
    "addmm": lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2),
    "baddbmm": lambda a, b, c: torch.baddbmm(a[None], b[None], c[None], alpha=0.1),
    "hardtanh": lambda a, b, c: F.hardtanh(a, -0.5, 0.25),
    "softplus": lambda a, b, c: F.softplus(a, 2, 1),
    "elu": lambda a, b, c: F.elu(a, 0.3),
    "tril": lambda a, b, c: a.tril(-1),
    "_softmax": lambda a, b, c: a.softmax(1),
    "_log_softmax": lambda a, b, c: a.log_softmax(0),
    "glu": lambda a, b, c: F.glu(a, 1),
    "gather": lambda a, b, c: a.gather(0, INDEX),
    "gelu": lambda a, b, c: F.gelu(a, approximate="tanh"),
    "gelu_backward": lambda a, b, c: torch.ops.aten.gelu_backward(a, b, approximate="none"),
    "leaky_relu": lambda a, b, c: F.leaky_relu(a, 0.2),
    "cumsum": lambda a, b, c: a.cumsum(0),
    "sum.dim_IntList": lambda a, b, c: a.sum(1),
    "mean.dim": lambda a, b, c: a.mean((0, 1), keepdim=True),
    "cat": lambda a, b, c: torch.cat([a, b]),
    "max.dim": lambda a, b, c: a.max(1)[0] + a.max(0)[1],
    "silu": lambda a, b, c: F.silu(a.t()),
    "bitwise_and.Tensor": lambda a, b, c: (a > 0) & (b > 0),
}
UNBOXED = set(OPERATORS) - {"tril", "cumsum", "sum.dim_IntList", "mean.dim", "cat", "max.dim"}
# These run on an iterator that is built once. A number among the arguments (sub) is converted to a tensor at each call.
KEPT = {
    *("exp", "clamp_min", "mul.Tensor", "add.Tensor", "threshold_backward", "addcmul", "addcdiv"),
    *("softplus", "elu", "gelu", "gelu_backward", "leaky_relu", "silu"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_replay_on_other_values_gives_eagers_bits(name):
    function = OPERATORS[name]
    inputs = [square(1), square(2), square(3)]
    graph = _C.CpuGraph(CpuGraphPool().native, False)
    with torch.no_grad():
        graph.begin(inputs)
        captured = function(*inputs)
        assert graph.end() == ""
        graph.bind_outputs([captured])
        assert torch.equal(captured, function(*inputs))
        route = [line for line in graph.describe().splitlines() if f"aten::{name}," in line]
        assert route, graph.describe()
        assert ("unboxed" in route[0]) == (name in UNBOXED - KEPT), route
        assert ("iterator kept" in route[0]) == (name in KEPT), route
        assert "out variant" in route[0]
        others = [square(11), square(12).mul_(3), square(13, positive=True)]
        (replayed,) = graph.replay_new(others)
        want = function(*others)
        assert replayed.stride() == want.stride()
        assert torch.equal(replayed, want)


def test_no_step_of_a_dense_network_copies_results():
    layers = [torch.nn.Linear(16, 16) for _ in range(3)]
    x = torch.randn(4, 16)
    graph = _C.CpuGraph(CpuGraphPool().native, False)
    with torch.no_grad():
        graph.begin([x])
        y = x
        for layer in layers:
            y = layer(y).relu()
        assert graph.end() == ""
    assert graph.stats["shadow_copied_bytes"] == 0
    assert graph.stats["calls"] == 0
    assert graph.stats["out"] == 6


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_an_out_variant_of_another_layout_is_not_trusted():
    """cholesky.out writes another layout than cholesky gives: it is tried, and not kept."""
    x = square(5)
    x = x @ x.t() + torch.eye(6)
    graph = _C.CpuGraph(CpuGraphPool().native, False)
    with torch.no_grad():
        graph.begin([x])
        y = torch.cholesky(x)
        assert graph.end() == ""
        graph.bind_outputs([y])
        (again,) = graph.replay_new([x * 4])
        assert torch.equal(again, torch.cholesky(x * 4))
        assert again.stride() == y.stride()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64, torch.bool]
)
@pytest.mark.parametrize(
    "shapes",
    [((6, 6), (6, 6)), ((6, 1), (1, 6)), ((6, 6), ()), ((), ()), ((3000, 40), (40,))],
    ids=str,
)
def test_kept_iterators_follow_their_inputs(dtype, shapes):
    """Broadcast, expanded, transposed and large operands, each replay at other places."""

    def function(a, b):
        return [
            *(a + b, a * b, torch.add(a, a), (a + b).t() * 2 if (a + b).dim() == 2 else a * 2),
            *((a.exp(), b.sin() - a.tanh(), a / b) if dtype is not torch.bool else ()),
            *((torch.maximum(a, b), a.relu()) if not (dtype.is_complex or dtype is torch.bool) else ()),
        ]

    def make(seed):
        generator = torch.Generator().manual_seed(seed)
        return [(torch.randn(shape, generator=generator) * 3).to(dtype) for shape in shapes]

    graph = _C.CpuGraph(CpuGraphPool().native, False)
    with torch.no_grad():
        inputs = make(0)
        graph.begin(inputs)
        captured = function(*inputs)
        assert graph.end() == ""
        graph.bind_outputs([c if c._base is None else c._base for c in captured])
        kept = "iterator kept" in graph.describe()
        assert kept == (dtype in (torch.float32, torch.float64, torch.int64))
        for seed in (1, 2, 3):
            others = make(seed)
            for got, want in zip(graph.replay_new(others), function(*others), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("num_threads_stays")
def test_a_kept_iterator_uses_as_many_threads_as_there_are_now():
    x = torch.randn(1 << 18)
    graph = _C.CpuGraph(CpuGraphPool().native, False)
    with torch.no_grad():
        torch.set_num_threads(1)
        graph.begin([x])
        y = x.exp()
        assert graph.end() == ""
        graph.bind_outputs([y])
        for threads in (2, 1, 3):
            torch.set_num_threads(threads)
            other = torch.randn(1 << 18)
            assert torch.equal(graph.replay_new([other])[0], other.exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
def test_a_scale_that_rounds_on_other_values_only(name, dtype):
    """1 + 0.1 · 1 is the same with one rounding as with two; of most numbers it is not, in tails and broadcasts."""
    operator = getattr(torch, name)
    for sizes in ((512, 512), (7, 7), (7, 1), (1003, 1)):
        for scale in (0.1, -1.7):
            ones = [torch.ones(size, dtype=dtype) for size in sizes]
            captured = Captured(lambda a, b, scale=scale: operator(a, b, alpha=scale), *ones)
            for seed in range(3):
                generator = torch.Generator().manual_seed(seed)
                a, b = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
                assert torch.equal(captured(a, b)[0], operator(a, b, alpha=scale))
