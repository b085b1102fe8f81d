import torch

from staticrt.passes.cse import MergeEqualCalls
from tests.passes.calls import call

aten = torch.ops.aten


def test_equal_calls_are_merged_through_their_readers(trace):
    graph = trace(lambda x: (x * 2).relu() + (x * 2).relu(), [torch.randn(4)])
    assert graph.run(MergeEqualCalls()).count == 2
    assert graph.targets() == ["aten.mul.Tensor", "aten.relu.default", "aten.add.Tensor"]


def test_defaults_and_keywords_are_the_same_argument(build):
    def body(graph, x):
        a = call(graph, aten.add.Tensor, x, x)
        b = call(graph, aten.add.Tensor, x, x, alpha=1)
        return (call(graph, aten.mul.Tensor, a, b),)

    assert build(body, [torch.rand(3)]).run(MergeEqualCalls()).count == 1


def test_numbers_of_other_type_or_sign_are_other_arguments(build):
    def body(graph, x):
        parts = [call(graph, aten.mul.Tensor, x, n) for n in (0.0, -0.0, 0, False, 1, 1.0, True)]
        return (call(graph, aten.stack.default, parts),)

    assert not build(body, [torch.arange(3)]).run(MergeEqualCalls()).changed


def test_random_calls_are_never_merged(build):
    def body(graph, x):
        a, b = (call(graph, aten.rand_like.default, x) for _ in "ab")
        c, d = (call(graph, aten.dropout.default, x, 0.5, True) for _ in "cd")
        return (call(graph, aten.sub.Tensor, a, b), call(graph, aten.sub.Tensor, c, d))

    assert not build(body, [torch.rand(30)]).run(MergeEqualCalls()).changed


def test_memory_that_is_not_filled_is_never_merged(build):
    def body(graph, x):
        a, b = (call(graph, aten.empty.memory_format, [3]) for _ in "ab")
        a, b = call(graph, aten.copy.default, a, x), call(graph, aten.copy.default, b, x)
        return (call(graph, aten.sub.Tensor, a, b),)

    graph = build(body, [torch.rand(3)])
    graph.run(MergeEqualCalls())
    assert graph.count(aten.empty.memory_format) == 2


def test_a_write_between_two_calls_keeps_them_apart(build):
    def body(graph, x, y):
        a = call(graph, aten.sin.default, x)
        call(graph, aten.copy_.default, call(graph, aten.view.default, x, [3]), y)
        b = call(graph, aten.sin.default, x)
        c = call(graph, aten.sin.default, x)
        return (call(graph, aten.sub.Tensor, a, b), call(graph, aten.sub.Tensor, b, c))

    graph = build(body, [torch.rand(3), torch.rand(3)])
    assert graph.run(MergeEqualCalls()).count == 1
    assert graph.count(aten.sin.default) == 2


def test_a_result_that_is_written_later_stays_apart(build):
    def body(graph, x):
        a, b = (call(graph, aten.sin.default, x) for _ in "ab")
        call(graph, aten.add_.Tensor, b, 1)
        return (call(graph, aten.sub.Tensor, a, b),)

    graph = build(body, [torch.rand(3)])
    assert not graph.run(MergeEqualCalls()).changed


def test_two_fresh_outputs_stay_two_tensors(build):
    def direct(graph, x):
        return tuple(call(graph, aten.sin.default, x) for _ in "ab")

    def viewed(graph, x):
        return tuple(call(graph, aten.view.default, call(graph, aten.sin.default, x), [3]) for _ in "ab")

    for body in (direct, viewed):
        graph = build(body, [torch.rand(3)])
        graph.run(MergeEqualCalls())
        assert graph.count(aten.sin.default) == 2


def test_one_output_and_one_inner_value_are_merged(build):
    def body(graph, x):
        a, b = (call(graph, aten.sin.default, x) for _ in "ab")
        return (a, call(graph, aten.sum.default, b))

    assert build(body, [torch.rand(3)]).run(MergeEqualCalls()).count == 1


def test_two_returned_views_stay_two_tensors_of_one_storage(build):
    def body(graph, x):
        return tuple(call(graph, aten.view.default, x, [6]) for _ in "ab")

    assert not build(body, [torch.rand(2, 3)]).run(MergeEqualCalls()).changed


def test_reshapes_that_copy_are_not_made_aliases_of_each_other(build):
    def body(graph, x):
        return tuple(
            call(graph, aten.view.default, call(graph, aten.reshape.default, x, [6]), [6]) for _ in "ab"
        )

    assert not build(body, [torch.rand(2, 3).t()]).run(MergeEqualCalls()).changed


def test_size_calls_are_merged(trace):
    def model(x):
        return x.view(x.shape[0], -1) * x.shape[0], x.reshape(x.shape[0], -1)

    batch = torch.export.Dim("batch", min=2)
    graph = trace(model, [torch.rand(4, 3, 2)], {"args": ({0: batch},)})
    graph.run(MergeEqualCalls(), [torch.rand(7, 3, 2)])
    assert graph.count(aten.sym_size.int) <= 1


def test_results_of_several_outputs(build):
    import operator

    def body(graph, x):
        parts = []
        for _ in "ab":
            pair = call(graph, aten.var_mean.correction, x, [0])
            parts += [call(graph, operator.getitem, pair, i) for i in (0, 1)]
        return (call(graph, aten.stack.default, parts),)

    graph = build(body, [torch.rand(4, 3)])
    assert graph.run(MergeEqualCalls()).count == 3


def test_equal_results_of_several_that_leave_the_graph_keep_their_own_memory():
    import staticrt

    fast = staticrt.compile(lambda x: (x.max(0)[0], x.max(0)[0], x.sort()[1], x.sort()[1], x.unbind()[0]))
    for _ in range(3):
        first, second, third, fourth, row = fast(torch.rand(4, 3))
        assert first.data_ptr() != second.data_ptr()
        assert third.data_ptr() != fourth.data_ptr()
        assert row.shape == (3,)


def test_equal_views_of_several_that_leave_the_graph_stay_two_tensors():
    import staticrt

    fast = staticrt.compile(
        lambda x: (x.unbind()[0], x.unbind()[0], (x * 2).split(1)[0], (x * 2).split(1)[0])
    )
    for _ in range(3):
        first, second, third, fourth = fast(torch.rand(1, 3))
        assert first is not second
        assert third is not fourth
        assert first.data_ptr() == second.data_ptr()
