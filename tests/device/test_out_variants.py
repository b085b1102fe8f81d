"""Operators that have no out overload of their own to write planned memory with: ours for any device, as eager."""

import pytest
import torch
import torch.nn.functional as F

import staticrt

W = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
B = torch.randn(6, generator=torch.Generator().manual_seed(2))
aten = torch.ops.aten


def _index(x):
    return torch.arange(x.shape[0], device=x.device).clamp(max=2)


# Name -> function of x [n, 5] or [n, 4, 5] and of weights on its device. The last operation makes planned values
# results, so that these come from operators before it.
FUNCTIONS = {
    "aten::linear": lambda x, w, b: F.linear(x, w, b).sigmoid(),
    "aten::linear without bias": lambda x, w, b: F.linear(x, w).sigmoid(),
    "aten::linear of a transposed": lambda x, w, b: F.linear(x.transpose(0, -2), w, b).sigmoid(),
    "aten::matmul": lambda x, w, b: torch.matmul(x, w.t()).sigmoid(),
    "aten::matmul of batches": lambda x, w, b: torch.matmul(x, x.transpose(-1, -2)).sigmoid(),
    "aten::matmul of broadcast batches": lambda x, w, b: torch.matmul(w.expand(2, 1, 6, 5), x.mT).sigmoid(),
    "aten::matmul of vectors": lambda x, w, b: torch.matmul(x, w[0]).sigmoid(),
    "aten::relu": lambda x, w, b: F.relu(x).sigmoid(),
    "aten::hardtanh": lambda x, w, b: F.hardtanh(x, -0.5, 0.25).sigmoid(),
    "aten::add.Scalar": lambda x, w, b: aten.add.Scalar(x, 2, 3).sigmoid(),
    "aten::sub.Scalar": lambda x, w, b: aten.sub.Scalar(x, 0.5).sigmoid(),
    "aten::rsub.Scalar": lambda x, w, b: aten.rsub.Scalar(x, 1.5, 2).sigmoid(),
    "aten::mul.Scalar": lambda x, w, b: aten.mul.Scalar(x, 1.5).sigmoid(),
    "aten::where.self": lambda x, w, b: torch.where(x > 0, x, -1.0 * x).sigmoid(),
    "aten::softmax.int": lambda x, w, b: F.softmax(x, -1).sigmoid(),
    "aten::softmax.int of another dtype": lambda x, w, b: F.softmax(x, 0, dtype=torch.float64).sigmoid(),
    "aten::log_softmax.int": lambda x, w, b: F.log_softmax(x, 1).sigmoid(),
    "aten::stack": lambda x, w, b: torch.stack([x, x + 1], 1).sigmoid(),
    "aten::index_select": lambda x, w, b: x.index_select(1, _index(x)).sigmoid(),
    "aten::embedding": lambda x, w, b: F.embedding(_index(x), w).sigmoid(),
    "aten::clone": lambda x, w, b: x.transpose(0, 1).clone(memory_format=torch.contiguous_format).sigmoid(),
    "aten::_to_copy": lambda x, w, b: x.to(torch.float64).sigmoid(),
    "aten::zeros_like": lambda x, w, b: (torch.zeros_like(x.transpose(0, 1)).cumsum(0) + 1).sigmoid(),
    "aten::ones_like": lambda x, w, b: (torch.ones_like(x).cumsum(0)).sigmoid(),
    "aten::new_full": lambda x, w, b: (x.new_full((x.shape[0], 2), 0.5).cumsum(0)).sigmoid(),
    "aten::full": lambda x, w, b: (torch.full((x.shape[0], 2), 3.0, device=x.device).cumsum(0)).sigmoid(),
}


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_the_answer_is_eagers_and_its_memory_planned(name, rank, order):
    function = FUNCTIONS[name]
    weights = W.to("sim:0"), B.to("sim:0")
    compiled = staticrt.compile(lambda x: function(x, *weights))
    for rows in (3, 3, 3, 7, 7, 1, 1, 0, 0, 7):
        x = torch.randn(rows, *((4,) * (rank - 2)), 5, generator=torch.Generator().manual_seed(rows)).to(
            "sim:0"
        )
        got, expected = compiled(x), function(x, *weights)
        assert got.dtype == expected.dtype
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got.cpu(), expected.cpu())
    report = compiled.explain()
    assert report.eager == ()
    steps = [step for trace in report.traces for signature in trace.signatures for step in signature.steps]
    assert [step for step in steps if ": generic" in step and "arange" not in step] == []


@torch.no_grad()
def test_wrong_operands_raise_as_in_eager():
    w, x = W.to("sim:0"), torch.ones(2, 5, device="sim:0")
    compiled = staticrt.compile(lambda x, w: F.linear(x, w).relu())
    compiled(x, w)
    with pytest.raises(RuntimeError) as eager:
        F.linear(x[:, :3], w)
    with pytest.raises(RuntimeError) as ours:
        compiled(x[:, :3], w)
    assert str(eager.value).splitlines()[0] in str(ours.value)
    torch.testing.assert_close(compiled(x, w).cpu(), F.linear(x, w).relu().cpu())


@pytest.mark.parametrize("dim", [0, 1, 3, 4])
@torch.no_grad()
def test_stacks_keep_the_layout_that_eager_keeps(dim):
    """A stack of tensors in channels last lies as the cat that eager makes."""

    def function(x):
        return torch.stack([x, x + 1], dim)

    compiled = staticrt.compile(function)
    for rows in (2, 2, 2, 1, 1, 0, 3):
        x = torch.randn(rows, 3, 4, 5).to(memory_format=torch.channels_last)
        expected = function(x)
        result = compiled(x.to("sim:0"))
        torch.testing.assert_close(result.cpu(), expected)
        if rows > 1:
            assert result.stride() == expected.stride()
