import torch

from staticrt.passes.merge_sizes import MergeSizes

aten = torch.ops.aten
BATCH = torch.export.Dim("batch", min=3)


def test_one_node_for_each_expression(trace):
    def model(x, y):
        z = torch.cat([x, y])
        a = x.shape[0] * 2 + z.shape[0]
        b = y.shape[0] * 2 + z.relu().shape[0]
        return z.new_full((a,), 1.0), z.new_full((b, x.relu().shape[0]), 2.0), a

    graph = trace(model, [torch.rand(5), torch.rand(5)], {"args": ({0: BATCH}, {0: BATCH})})
    graph.run(MergeSizes(), [torch.rand(8), torch.rand(8)])
    sizes = [
        n.meta["val"].node.expr for n in graph.gm.graph.nodes if isinstance(n.meta.get("val"), torch.SymInt)
    ]
    assert len(sizes) == len(set(sizes))


def test_different_expressions_stay(trace):
    def model(x, y):
        return x.new_full((y.shape[0],), 1.0), y.new_full((x.shape[0],), 2.0)

    other = torch.export.Dim("other", min=3)
    graph = trace(model, [torch.rand(5), torch.rand(6)], {"args": ({0: BATCH}, {0: other})})
    assert not graph.run(MergeSizes(), [torch.rand(8), torch.rand(3)]).changed


def test_a_static_size_is_written_into_its_readers(build):
    def body(graph, x):
        size = graph.call_function(aten.sym_size.int, (x, 0))
        return (graph.call_function(aten.mul.Tensor, (x, size)), size)

    graph = build(body, [torch.rand(6)])
    assert graph.run(MergeSizes()).count == 1
    (mul,) = [n for n in graph.gm.graph.nodes if n.target is aten.mul.Tensor]
    assert mul.args[1] == 6
