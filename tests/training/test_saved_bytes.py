"""What a region saves for its backward: never more than eager, nor than upstream's minimum cut."""

import copy

import pytest
import torch
from torch import nn
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint

from staticrt.api.backend import staticrt_backend
from staticrt.models.bench.train_memory import _upstream, saved_bytes
from staticrt.training.recompute import recompute_cheap_values
from tests.support import random_regions
from tests.support.training_cases import ACTIVATION_MODELS, Gated

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("name", ACTIVATION_MODELS)
def test_no_more_than_eager_and_minimum_cut(name):
    make, sizes = ACTIVATION_MODELS[name]
    model, x = make(), torch.randn(*sizes)
    saved = [
        saved_bytes(run, x, model)
        for run in (
            torch.compile(model, backend="staticrt", dynamic=False),
            model,
            torch.compile(model, backend=_upstream(min_cut_rematerialization_partition), dynamic=False),
        )
    ]
    assert 0 < saved[0] <= min(saved[1:]), saved


def test_a_checkpoint_saves_nothing_but_its_inputs(compiler):
    """Not even what is computed of an input that eager would not save."""

    def function(x):
        return checkpoint(lambda x: (x.exp() * 2).sin(), x, use_reentrant=False)

    x = torch.randn(64, 48, requires_grad=True)
    compiled = compiler(function, double_backward=False)
    assert saved_bytes(compiled, x, nn.Identity()) == saved_bytes(function, x, nn.Identity()) == 0
    (got,), (want,) = (torch.autograd.grad(run(x).sum(), x) for run in (compiled, function))
    torch.testing.assert_close(got, want)


def test_masks_of_maxima_are_made_in_the_backward_as_in_eager(compiler):
    """Upstream keeps the mask, which has the size of what was reduced; eager keeps both sides of the comparison."""

    def function(x):
        rows = x.amax(0)
        return rows.exp().amin(0) + x.abs().sum()

    x = torch.randn(64, 48, requires_grad=True)
    model = nn.Identity()
    compiled = compiler(function, double_backward=False)
    assert saved_bytes(compiled, x, model) <= saved_bytes(function, x, model)
    (got,), (want,) = (torch.autograd.grad(run(x), x) for run in (compiled, function))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", [{}, {"draws": True}])
def test_random_regions_save_no_more_than_eager(kind, monkeypatch):
    monkeypatch.setattr(
        random_regions, "SHAPES", ((40, 60), (60,), (1, 60), (40, 1), (60, 60), (40, 60), (2, 20, 60))
    )
    compared = 0
    for seed in [*range(8), 125, 126, 134, 145]:
        gm, leaves, moved = random_regions.region(seed, steps=20, **kind)
        options = {"double_backward": False, "min_region_nodes": 1}
        compiled = staticrt_backend(gm, random_regions.arguments_of(leaves, moved), options=options)
        want, got = (_kept(run, random_regions.arguments_of(leaves, moved)) for run in (gm.forward, compiled))
        assert got <= want, (seed, kind, got, want)
        compared += want > 0
    assert compared >= 6


def _kept(function, arguments):
    """Bytes of the storages that a call keeps for its backward, but those of its arguments and results."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = function(*arguments)
    for tensor in [*results, *arguments]:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_computed_again_gives_eagers_gradients(dynamic):
    model = Gated().double()
    theirs = copy.deepcopy(model)
    compiled = torch.compile(model, backend="staticrt", dynamic=dynamic)
    for rows in (64, 64, 48):
        x = torch.randn(rows, 16, dtype=torch.double)
        for run in (compiled, theirs):
            run(x).square().sum().backward()
        for a, b in zip(model.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def _region(share):
    """A forward and a backward of gate = sigmoid(a), result = gate * b; saved: a, gate, b."""
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    aten = torch.ops.aten
    square = graph.call_function(aten.mul.Tensor, (a, a))
    gate = graph.call_function(aten.sigmoid.default, (square,))
    product = graph.call_function(aten.mul.Tensor, (gate, b))
    total = graph.call_function(aten.mm.default, (product, b))
    graph.output((total, square, gate, product, b))
    forward = torch.fx.GraphModule({}, graph)
    graph = torch.fx.Graph()
    saved = {name: graph.placeholder(name) for name in ("square", "gate", "product", "b")}
    tangent = graph.placeholder("tangents_1")
    left = graph.call_function(aten.mm.default, (tangent, saved["b"]))
    right = graph.call_function(aten.mm.default, (saved["product"], left))
    gated = graph.call_function(aten.mul.Tensor, (right, saved["gate"]))
    graph.output((graph.call_function(aten.mul.Tensor, (gated, saved["square"])),))
    backward = torch.fx.GraphModule({}, graph)
    for module in (forward, backward):
        for node in module.graph.nodes:
            if node.op != "output":
                node.meta["val"] = torch.empty(64, 64)
    arguments = torch.randn(64, 64), torch.randn(64, 64)
    gradient = torch.randn(64, 64)
    want = backward(*forward(*arguments)[1:], gradient)
    unrepeatable = {"mul_tensor", "mul_tensor_1"} if share is None else set()
    dropped = recompute_cheap_values(
        forward, backward, 1, unrepeatable, share=1.0 if share is None else share
    )
    saved_now = forward(*arguments)[1:]
    torch.testing.assert_close(backward(*saved_now, gradient), want)
    return [[node.name for node in drop.saved] for drop in dropped], len(saved_now)


def test_values_go_as_long_as_time_lasts():
    """`square` cannot go: its input is not saved. `product` comes from `gate` and `b`, `gate` from `square`."""
    dropped, left = _region(share=1.0)
    assert sorted(dropped) == [["mul_tensor_1"], ["sigmoid_default"]]
    assert left == 2
    assert _region(share=0.0) == ([], 4)


def test_what_cannot_be_repeated_stays():
    assert _region(share=None) == ([["sigmoid_default"]], 3)


@pytest.mark.parametrize("name", ACTIVATION_MODELS)
def test_a_smaller_budget_never_saves_more(name):
    make, sizes = ACTIVATION_MODELS[name]
    model, x = make(), torch.randn(*sizes)
    saved = []
    for budget in (1.0, 0.5, 0.2, 0.1, 0.0):
        torch._dynamo.reset()
        fast = torch.compile(
            model, backend="staticrt", dynamic=False, options={"activation_memory_budget": budget}
        )
        saved.append(saved_bytes(fast, x, model))
    assert saved == sorted(saved, reverse=True), saved
    assert saved[-1] < saved[0] / 2, saved
