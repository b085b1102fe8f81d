import pytest
import torch

from staticrt.errors import PassError
from staticrt.passes.dead_code import RemoveDeadCode

aten = torch.ops.aten


def test_unread_calls_go_with_their_arguments(build):
    def body(graph, x):
        dead = graph.call_function(aten.sin.default, (x,))
        graph.call_function(aten.cos.default, (dead,))
        return (graph.call_function(aten.neg.default, (x,)),)

    graph = build(body, [torch.rand(3)])
    assert graph.run(RemoveDeadCode()).count == 2
    assert graph.targets() == ["aten.neg.default"]


def test_random_draws_stay_so_that_later_ones_do_not_change(build):
    def body(graph, x):
        graph.call_function(aten.rand_like.default, (x,))
        return (graph.call_function(aten.rand_like.default, (x,)),)

    graph = build(body, [torch.rand(3)])
    assert not graph.run(RemoveDeadCode()).changed
    assert graph.count(aten.rand_like.default) == 2


def test_idle_dropout_goes_and_active_dropout_stays(build):
    def body(graph, x):
        graph.call_function(aten.dropout.default, (x, 0.5, False))
        graph.call_function(aten.dropout.default, (x, 0.5, True))
        return (x,)

    graph = build(body, [torch.rand(3)])
    assert graph.run(RemoveDeadCode()).count == 1
    (left,) = [n for n in graph.gm.graph.nodes if n.op == "call_function"]
    assert left.args[2] is True


def test_writes_stay(build):
    def body(graph, x, y):
        view = graph.call_function(aten.view.default, (x, [3]))
        graph.call_function(aten.copy_.default, (view, y))
        return (y,)

    graph = build(body, [torch.rand(3), torch.rand(3)])
    assert not graph.run(RemoveDeadCode()).changed
    assert graph.targets() == ["aten.view.default", "aten.copy_.default"]


def test_running_statistics_are_a_write_though_the_schema_is_silent(build):
    def body(graph, x, mean, var):
        graph.call_function(aten.batch_norm.default, (x, None, None, mean, var, True, 0.1, 1e-5, False))
        graph.call_function(aten.batch_norm.default, (x, None, None, mean, var, False, 0.1, 1e-5, False))
        return (x,)

    graph = build(body, [torch.rand(4, 3), torch.zeros(3), torch.ones(3)])
    assert graph.run(RemoveDeadCode()).count == 1
    (left,) = [n for n in graph.gm.graph.nodes if n.op == "call_function"]
    assert left.args[5] is True


def test_assertions_on_data_stay_and_those_that_hold_go(build):
    def body(graph, x):
        condition = graph.call_function(aten.all.default, (x,))
        graph.call_function(aten._assert_async.msg, (condition, "not all true"))
        graph.call_function(aten._assert_scalar.default, (True, "cannot fail"))
        graph.call_function(aten._assert_tensor_metadata.default, (x, None, None, torch.bool))
        return (x,)

    graph = build(body, [torch.ones(3, dtype=torch.bool)])
    assert graph.run(RemoveDeadCode()).count == 2
    assert graph.targets() == [
        "aten.all.default",
        "aten._assert_async.msg",
    ]


def test_a_dead_cond_goes_only_if_its_branches_are_pure(trace):
    def pure(x):
        return x + 1, torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    def random(x):
        return x + 1, torch.cond(x.sum() > 0, lambda x: torch.rand_like(x), lambda x: x.cos(), (x,))

    for function, kept in ((pure, False), (random, True)):
        graph = trace(function, [torch.rand(3)])
        output = graph.gm.graph.output_node()
        output.args = (output.args[0][:1],)
        graph.run(RemoveDeadCode(), [-torch.rand(3)])
        assert (torch.ops.higher_order.cond in [n.target for n in graph.gm.graph.nodes]) == kept


def test_custom_operators_stay(build):
    with torch.library._scoped_library("staticrt_test_dce", "FRAGMENT") as library:
        library.define("launch(Tensor a) -> Tensor")
        library.impl("launch", lambda a: a.clone(), "CompositeExplicitAutograd")

        def body(graph, x):
            graph.call_function(torch.ops.staticrt_test_dce.launch.default, (x,))
            return (x,)

        graph = build(body, [torch.rand(3)])
        assert not graph.run(RemoveDeadCode()).changed


def test_placeholders_stay(build):
    graph = build(lambda graph, x, y: (x,), [torch.rand(1), torch.rand(1)])
    assert not graph.run(RemoveDeadCode()).changed


def test_a_graph_of_modules_is_refused():
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    with pytest.raises(
        PassError, match=r"pass 'remove-dead-code': requires an ATen-level graph, found call_module"
    ):
        RemoveDeadCode()(gm)
