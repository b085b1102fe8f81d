"""FSDP2's `fully_shard` and tensor parallel plans: trained as in eager on two gloo ranks, the parts compiled."""

import pytest
import torch

from tests.support.fully_sharded_workers import CASES, refused, trained

PARTS = "compiled between the hooks of fully_shard: first, norm, blocks.0, blocks.1, dropout, last"


@pytest.mark.parametrize("case", CASES)
def test_trains_as_in_eager(ranks, case):
    eager = ranks.run(trained, case, "eager")
    compiled = ranks.run(trained, case, "compiled")
    rtol, atol = (2e-2, 2e-3) if case == "mixed precision" else (1e-4, 1e-5)
    for found, expected in zip(compiled, eager, strict=True):
        for what in ("state", "evaluated"):
            torch.testing.assert_close(found[what], expected[what], rtol=rtol, atol=atol)
        for what in ("seen", "calls", "attributes"):
            assert found[what] == expected[what]
        text = found["explain"]
        if case == "tensor parallel":  # without gradients it is one graph
            assert "_c10d_functional.all_reduce" in text
            assert "not traced with its backward" in text
            continue
        assert "training, native node, joint trace" in text
        if case == "root only":
            assert "compiled between the hooks of fully_shard: FSDPNet" in text
        elif case != "compiled inside":
            assert PARTS in text
        assert ("runs eagerly" in text) == (case in ("checkpointed", "counting"))
        if case == "checkpointed":
            assert "a forward inside torch.utils.checkpoint" in text


def test_a_compiled_module_is_not_sharded(ranks):
    for text in ranks.run(refused):
        assert "staticrt.compile(fully_shard(module))" in text
