"""Saved values that a backward computes again before anything else: on graphs written by hand."""

import types

import pytest
import torch

from staticrt.passes.cse import APART
from staticrt.training import budget
from staticrt.training.budget import Cut, delayed, live_bytes, save_less
from staticrt.training.recompute import recompute_cheap_values, saved_bytes
from staticrt.training.work import nanoseconds

aten = torch.ops.aten
KIB16 = 64 * 64 * 4  # one value
RANDOM = (aten.rrelu.default, (0.1, 0.3, True))
IN_PLACE = (aten.relu_.default, ())
PLAIN = (aten.relu.default, ())


def _call(graph, op, *args):
    return graph.call_function(op, args)


def _module(graph):
    module = torch.fx.GraphModule({}, graph)
    for node in module.graph.nodes:
        if node.op != "output":
            node.meta["val"] = torch.empty(64, 64)
    return module


def _backward(names):
    """tangents @ the product of what is saved, in reverse."""
    graph = torch.fx.Graph()
    saved = [graph.placeholder(name) for name in names]
    gradient = graph.placeholder("tangents_1")
    for value in reversed(saved):
        gradient = _call(graph, aten.mul.Tensor, gradient, value)
    graph.output((gradient,))
    return _module(graph)


def _region(op, arguments):
    """a -> square -> op -> its sine; op's result and the sine are saved."""
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    middle = _call(graph, op, _call(graph, aten.mul.Tensor, a, a), *arguments)
    sine = _call(graph, aten.sin.default, middle)
    graph.output((_call(graph, aten.mm.default, sine, a), middle, sine, a))
    return _module(graph), _backward(["middle", "sine", "a_1"])


@pytest.mark.parametrize(("op", "goes"), [(PLAIN, True), (RANDOM, False), (IN_PLACE, False)])
def test_only_what_can_be_repeated_is_computed_again(op, goes):
    forward, backward = _region(*op)
    before = [backward(*forward(a)[1:], a) for a in (torch.ones(64, 64),)] if goes else None
    cut = Cut(forward, backward, 1, ())
    assert cut.saved_bytes == 2 * KIB16
    assert save_less(cut, 0) == goes
    assert cut.saved_bytes == (0 if goes else 2 * KIB16)
    if goes:
        a = torch.ones(64, 64)
        torch.testing.assert_close(backward(*forward(a)[1:], a), before[0])
    assert save_less(cut, KIB16)
    assert cut.saved_bytes == (0 if goes else KIB16)


def test_names_that_must_not_be_computed_again_stay_saved():
    forward, backward = _region(*PLAIN)
    cut = Cut(forward, backward, 1, {"relu_default"})
    assert not save_less(cut, 0)
    assert save_less(cut, KIB16)
    assert cut.saved_bytes == KIB16


@pytest.mark.parametrize(("op", "dropped"), [(PLAIN, 2), (RANDOM, 1), (IN_PLACE, 1)])
def test_cheap_values_are_dropped_if_they_can_be_repeated(op, dropped):
    forward, backward = _region(*op)
    assert len(recompute_cheap_values(forward, backward, 1, (), share=10.0)) == dropped


def test_as_few_as_fit_are_computed_again_the_first_ones():
    graph = torch.fx.Graph()
    a = value = graph.placeholder("a")
    chain = [value := _call(graph, aten.sin.default, value) for _ in range(6)]
    graph.output((_call(graph, aten.mm.default, value, a), *chain))
    forward, backward = _module(graph), _backward([f"s{i}" for i in range(6)])
    a = torch.randn(64, 64)
    want = backward(*forward(a)[1:], a)
    assert save_less(Cut(forward, backward, 1, ()), 2 * KIB16)
    assert saved_bytes(forward, 1) == 2 * KIB16
    kept = [str(node) for node in forward.graph.output_node().args[0][1:]]
    assert kept == ["sin_default_4", "sin_default_5", "a"]
    early = [node for node in backward.graph.nodes if APART in node.meta]
    assert len(early) == 4
    torch.testing.assert_close(backward(*forward(a)[1:], a), want)


def test_a_saved_view_of_a_result_serves_for_the_result():
    """gate = sigmoid(square), result = square; saved: square.t() and gate. The backward takes square, not a * a again."""
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    square = _call(graph, aten.mul.Tensor, a, a)
    turned, gate = _call(graph, aten.t.default, square), _call(graph, aten.sigmoid.default, square)
    graph.output((square, turned, gate))
    forward, backward = _module(graph), _backward(["turned", "gate"])
    a = torch.randn(64, 64)
    want = backward(*forward(a)[1:], a)
    assert save_less(Cut(forward, backward, 1, ()), KIB16)
    assert sum(node.target is aten.mul.Tensor for node in backward.graph.nodes) == 2
    torch.testing.assert_close(backward(*forward(a)[1:], a), want)


def test_live_bytes_of_a_chain_and_of_a_fork():
    """
    chain    a -> mm -> sin -> sin -> mm -> result       sines write over their argument: mm's bytes only
    fork     mm and its sine are both read at the end    two values
    """
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    product = _call(graph, aten.mm.default, a, a)
    sine = _call(graph, aten.sin.default, _call(graph, aten.sin.default, product))
    graph.output((_call(graph, aten.mm.default, sine, a),))
    assert live_bytes(_module(graph)) == KIB16
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    product = _call(graph, aten.mm.default, a, a)
    turned = _call(graph, aten.t.default, product)
    sine = _call(graph, aten.sin.default, product)
    graph.output((_call(graph, aten.mm.default, sine, turned),))
    assert live_bytes(_module(graph)) == 2 * KIB16


def test_a_value_is_computed_where_it_is_read_unless_another_would_be_held_for_it():
    """The tangent's product, read last, moves to the end; the saved value's stays before the last reader of that."""
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    product = _call(graph, aten.mm.default, a, a)
    graph.output((_call(graph, aten.cos.default, product), product))
    forward, graph = _module(graph), torch.fx.Graph()
    saved, tangent = graph.placeholder("product"), graph.placeholder("tangents_1")
    late, held = (_call(graph, aten.mm.default, each, each) for each in (tangent, saved))
    sine = _call(graph, aten.sin.default, _call(graph, aten.mm.default, saved, tangent))
    sums = _call(graph, aten.add.Tensor, _call(graph, aten.mm.default, sine, sine), held)
    graph.output((_call(graph, aten.add.Tensor, sums, late),))
    backward = delayed(Cut(forward, _module(graph), 1, ())).backward
    order = [node.name for node in backward.graph.nodes if node.op == "call_function"]
    assert order == [
        "mm_default_1",
        "mm_default_2",
        "sin_default",
        "mm_default_3",
        "add_tensor",
        "mm_default",
        "add_tensor_1",
    ]


@pytest.mark.parametrize(
    ("after", "chosen"), [({}, 0.1), ({0.5: 70}, 0.5), ({0.5: 70, 0.2: 60}, 0.2), ({0.5: 120, 0.2: 100}, 0.1)]
)
def test_the_cut_that_holds_least_is_taken_once_it_saves_as_little(after, chosen, monkeypatch):
    """`after`: peaks of larger budgets' cuts once they save less; of others that cannot be done."""
    limits = []

    def less(cut, limit):
        limits.append(limit)
        cut.peak_bytes = after.get(cut.budget, 10)
        return cut.budget in after

    monkeypatch.setattr(budget, "save_less", less)
    cuts = {b: types.SimpleNamespace(budget=b, saved_bytes=b * 10, peak_bytes=50) for b in (1.0, 0.5, 0.2)}
    cuts[0.1] = types.SimpleNamespace(budget=0.1, saved_bytes=1, peak_bytes=100)
    assert budget.cut_within(0.1, cuts.__getitem__).budget == chosen
    assert set(limits) == {1}


def test_time_is_spent_once():
    """Half of what two values take is missing: one of them stays."""
    forward, backward = _region(*PLAIN)
    whole = sum(nanoseconds(node) for node in backward.graph.nodes)
    first, second = (
        drop.nanoseconds for drop in recompute_cheap_values(forward, backward, 1, (), share=10.0)
    )
    share = (first + second / 2) / whole
    assert second / whole < share  # alone it would fit
    assert len(recompute_cheap_values(*_region(*PLAIN), 1, (), share=share)) == 1


def test_graphs_that_do_not_fit_together_are_left_alone():
    forward, backward = _region(*PLAIN)
    forward.graph.output_node().args = (forward.graph.output_node().args[0][:3],)  # one value fewer is saved
    assert not save_less(Cut(forward, backward, 1, ()), 0)
    assert _placeholders(backward) == ["middle", "sine", "a_1", "tangents_1"]


def _placeholders(graph):
    return [node.name for node in graph.graph.find_nodes(op="placeholder")]
