"""Two gloo ranks on loopback: collectives inside compiled graphs, and DDP around them."""

import pytest
import torch
from torch import fx

from staticrt.errors import InputError
from staticrt.interop.distributed import check_groups, group_names
from staticrt.ops import facts
from staticrt.passes.effects import is_pure
from tests.support.distributed_workers import (
    compiled_data_parallel,
    data_parallel,
    ordered,
    tensor_parallel,
    weights,
)


def test_tensor_parallel_mlp_equals_one_process(ranks):
    first, second, x = weights()
    expected = torch.relu(x @ first) @ second
    for found in ranks.run(tensor_parallel):
        for compiler in ("compile", "backend"):
            for result in found[compiler]:
                torch.testing.assert_close(result, expected[: len(result)], rtol=1e-4, atol=1e-4)
        assert "_c10d_functional.all_reduce" in found["explain"]
        assert "StaticExecutable" in found["explain"]


def test_collectives_are_never_removed_merged_or_reordered(ranks):
    for found in ranks.run(ordered):
        for result in found["results"]:
            torch.testing.assert_close(result, found["expected"])
        assert "_c10d_functional.all_reduce.default ×3" in found["explain"]


def test_ddp_around_a_compiled_model_equals_eager_ddp(ranks):
    results = ranks.run(data_parallel)
    for found in results:
        for eager, compiled in found["grads"]:
            torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
        assert found["regions"] == [3]
    # Reduced over ranks: both have the same.
    torch.testing.assert_close(results[0]["grads"], results[1]["grads"])


def test_compiled_ddp_equals_eager_ddp(ranks):
    ranks = ranks.run(compiled_data_parallel)
    for found in ranks:
        for kind, ways in found.items():
            eager, fast = ways["eager"], ways["compiled"]
            for way in ("compiled", "backend"):
                for what in ("outputs", "grads", "state"):
                    torch.testing.assert_close(ways[way][what], eager[what], rtol=1e-4, atol=1e-5)
                assert ways[way]["calls"] == eager["calls"], kind
            assert fast["module"]
            assert fast["keys"] == [f"module.{name}" for name in fast["state"]]
            assert "training, native node" in fast["explain"]
            assert "needs gradients" not in fast["explain"]  # no training call ran eagerly
            assert "graph break" not in fast["explain"]
    for kind in ranks[0]:
        results = [found[kind]["compiled"] for found in ranks]
        torch.testing.assert_close(*[result["grads"] for result in results])  # reduced over ranks
        assert results[0]["outputs"][0].ne(results[1]["outputs"][0]).any()


def graph_with(group: str) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    reduced = graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", group))
    graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (reduced,))
    graph.output((x,))
    return fx.GraphModule({}, graph)


def test_facts():
    gm = graph_with("0")
    for node in [n for n in gm.graph.nodes if n.op == "call_function"]:
        assert not is_pure(node)
    known = facts(torch.ops._c10d_functional.all_reduce.default)
    assert [(alias.output, alias.arg, alias.may) for alias in known.aliases] == [(0, 0, True)]


def test_groups_are_named_and_checked():
    assert group_names(graph_with("tp")) == ("tp",)
    check_groups(())
    with pytest.raises(InputError, match="uses process group 'tp', which this process does not have"):
        check_groups(group_names(graph_with("tp")))
