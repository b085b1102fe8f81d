"""A library's operators that are arithmetic in Python (CompositeImplicitAutograd) are recorded as that arithmetic."""

import torch
from torch.library import Library

import staticrt


def test_it_is_taken_apart():
    library = Library("staticrt_composites", "DEF")
    library.define("scaled(Tensor x, float by) -> Tensor")

    def scaled(x, by):
        return torch.relu(x * by) + 1

    library.impl("scaled", scaled, "CompositeImplicitAutograd")
    compiled = staticrt.compile(lambda x: torch.ops.staticrt_composites.scaled(x, 2.5).sum(-1))
    with torch.no_grad():
        for rows in (3, 3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), (torch.relu(x * 2.5) + 1).sum(-1))
    (trace,) = compiled.explain().traces
    operators = {name for name, _count in trace.operators}
    assert operators == {"aten.mul.Tensor", "aten.relu.default", "aten.add.Tensor", "aten.sum.dim_IntList"}
    del library
