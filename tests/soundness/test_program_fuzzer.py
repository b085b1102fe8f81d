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


@pytest.mark.parametrize("way", ["backend", "archive"])
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
