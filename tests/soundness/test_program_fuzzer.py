"""A bounded part of the random programs; `python -m tests.soundness.program_fuzzer` runs as many as are asked for."""

import random

import pytest
import torch

import staticrt
from tests.soundness.program_fuzzer import failure, minimise, sizes_of
from tests.soundness.program_grammar import Program, generate

SEEDS = range(5000, 5012)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_gives_eagers_answer(seed):
    program = generate(seed, statements=20)
    assert not program.results or failure(program, "compile", sizes_of(seed)) == "", program.source


@pytest.mark.parametrize("way", ["backend", "archive", "nested", "module"])
def test_a_program_gives_eagers_answer_by_other_ways(way):
    program = generate(5001, statements=12)
    assert failure(program, way, sizes_of(5001)[:2]) == "", program.source


def test_a_program_is_the_same_for_a_seed():
    assert generate(7) == generate(7) != generate(8)


def test_sizes_hold_0_or_1():
    assert all(len(sizes_of(seed)) == 4 and min(map(min, sizes_of(seed))) <= 1 for seed in range(20))


def test_a_difference_is_minimised(monkeypatch):
    right = staticrt.compile

    def wrong(function):
        fast = right(function)
        return lambda *args: [x + 1 if x.dtype == torch.bool else x for x in fast(*args)]

    monkeypatch.setattr(staticrt, "compile", wrong)
    lines = ("v1 = a0 * 2", "v2 = a0 > 0", "v3 = v1 + 1")
    program = Program(("plain",), lines, ("v3", "v2"))
    smaller, sizes = minimise(program, "compile", ((3, 4), (2, 2)))
    assert (smaller.lines, smaller.results, len(sizes)) == (("v2 = a0 > 0",), ("v2",), 1)


def test_a_program_does_not_change_pythons_random_numbers():
    random.seed(0)
    before = random.getstate()
    generate(3)
    assert random.getstate() == before


# What the fuzzer found: kinds of arguments, statements, results, whether gradients are compared.
FOUND = {
    "the error of a view that nothing reads, of memory that overlaps": (
        ("overlapping",),
        ("v2 = torch.relu(a0)", "v4 = v2.t()", "v4.view(-1)[0] = 3", "v6 = torch.relu(a0).any()"),
        ("v6",),
    ),
    "a view of what out= resizes": (
        ("channels_last",),
        (
            "v2 = a0.new_full((2,), 1)",
            "v4 = v2[..., -1]",
            "torch.sort(a0[:1][0], out=(v2, torch.empty(0).long()))",
            "v9 = torch.empty_like(v4).fill_(3)",
        ),
        ("v9",),
    ),
    "results of out= that are read after their source is written": (
        ("plain", "plain"),
        (
            "v1 = torch.sort(a0, out=(a1, torch.empty(a0.shape).long()))",
            "v2 = v1[1]",
            "v3 = v1[0].mul_(2)",
            "a0.zero_()",
        ),
        ("v2", "v3"),
    ),
    "sizes after an in-place view, which Dynamo reads": (
        ("plain", "bools"),
        (
            "v1 = a0 if a0.detach().sum() > 100 else a0 * 2",
            "v2 = v1 * 1",
            "v3 = v2.unsqueeze_(0)",
            "v4 = v3[v2.shape[0] // 2 :]",
            "v5 = v1.add(1)",
            "v6 = v5.t_()",
            "v7 = v5[: v6.shape[0] // 2]",
            "v8 = a1[1:]",
            "v8.as_strided_((1,), (1,))",
            "v9 = v8[v8.shape[0] // 2 :]",
        ),
        ("v4", "v7", "v9"),
        True,
    ),
    "a remainder in a size of a backward": (
        ("plain",),
        (
            "v1 = a0.masked_fill_(a0 > 1, 2)",
            "v11 = v1[: int(a0.sort(-1)[0].abs().sum()) % 3]",
            "v14 = (v11 * 2).chunk(2)",
            "v16 = v14[1]",
            "v18 = v14[0].tensor_split(2)[0]",
            "v20 = v16.to(torch.int32)",
            "v21 = v18 * (v11.shape[0] // 2)",
            "v22 = v16.float().clone().bernoulli_(1.0)",
        ),
        ("v21", "v20"),
        True,
    ),
    "the layout of out= that torch's rule of sort changes": (
        ("plain",),
        ("v1 = (a0 > 0).mT.float()", "torch.sort(a0, out=(v1, torch.empty(0).long()))"),
        ("v1",),
    ),
    "out= of another dtype, in which eager computes": (
        ("plain",),
        (
            "v1 = a0.long()",
            "torch.cumsum(a0, 0, out=v1)",
            "v2 = a0.sum(0).double()",
            "torch.sum(a0.half() * 1000.5, 0, out=v2)",
        ),
        ("v1", "v2"),
    ),
    "out= of another dtype, which eager refuses": (
        ("doubles",),
        ("v1 = a0.float()", "torch.clamp(a0, 0, 1, out=v1)"),
        ("a0",),
    ),
    "a comparison at a tie, which eager's rounding decides": (
        ("array_overlaps", "twice"),
        (
            "v6 = a2 + a0",
            "a3.scatter_(0, torch.zeros_like(a3).long(), v6)",
            "v11 = torch.nn.functional.layer_norm(a3.float(), a3.shape[-1:])",
            "v23 = a1 < v11",
        ),
        ("v23",),
    ),
    "a result that is written after a number was computed from it": (
        ("plain",),
        (
            "v1 = a0.view(-1)",
            "v2 = v1[: int(a0.abs().sum()) % 3]",
            "v1.add_(1)",
            "v3 = a0 * 2",
        ),
        ("v3",),
        True,
    ),
    "inputs of one memory of which a part after a graph break writes one": (
        ("plain",),
        (
            "v1 = a0.reshape(-1)[1:]",
            "v2 = v1[: int(a0.detach().abs().sum()) % 3]",
            "v3 = a0[:, ::2]",
            "v3.mul_(2)",
            "v4 = v2[1:]",
            "v5 = v2.sin()",
        ),
        ("v4", "v5"),
        True,
    ),
}


@pytest.mark.parametrize("way", ["compile", "backend"])
@pytest.mark.parametrize("found", FOUND)
def test_programs_that_differed(found, way):
    program = Program(*FOUND[found])
    assert failure(program, way, ((2, 2), (6, 7), (5, 0), (0, 3), (3, 4))) == "", program.source
