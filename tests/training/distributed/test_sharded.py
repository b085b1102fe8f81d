"""Two gloo ranks: DTensors and tensor parallelism trained compiled, and collectives that write their tensors."""

import torch

from tests.support.sharded_workers import sharded, small_buckets, written


def test_tensor_parallel_training_equals_eager(ranks):
    for found in ranks.run(sharded):
        for compiler in ("compile", "backend"):
            torch.testing.assert_close(found[compiler], found["eager"], rtol=1e-4, atol=1e-5)
        assert len(found["regions"]) >= 3
        assert not any(failed for _calls, failed in found["regions"])


def test_collectives_that_write_are_waited_for(ranks):
    for found in ranks.run(written):
        for result in found["results"]:
            torch.testing.assert_close(result, found["expected"])
        assert "1 traced graph" in found["explain"]
        torch.testing.assert_close(found["step"], found["eager"], rtol=1e-4, atol=1e-5)
        eager = found["unsupported"]
        for result in eager["results"]:
            torch.testing.assert_close(result, eager["expected"])
        assert "c10d.reduce_.default, a collective without a functional form" in eager["explain"]


def test_small_buckets_of_data_parallelism(ranks):
    for found in ranks.run(small_buckets):
        for kind in ("inside", "around"):
            torch.testing.assert_close(found[kind], found["eager"], rtol=1e-4, atol=1e-5)
