"""The Python face of the planner; its algorithms are tested in tests/csrc/planner."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from staticrt.errors import InternalError, OptionError, PlanError
from staticrt.memory import planner


def test_group_is_reused_only_after_last_use():
    """
    node   0    1    2    3    4
    a      [=========)
    b           [=========)
    c                [=========)    takes a's bytes, never b's
    """
    specs = [(0, 2, 64), (1, 3, 64), (2, 4, 64)]
    plan = planner.plan(specs)
    planner.validate(specs, plan)
    assert plan.offsets[0] == plan.offsets[2]
    assert (plan.arena_bytes, plan.lower_bound, plan.proved_optimal) == (128, 128, True)


def test_objects_tuples_and_numpy_rows_give_the_same_plan():
    @dataclass
    class Value:
        begin: int
        end: int
        size_bytes: int

    rows = [(0, 3, 100), (1, 2, 30), (2, 5, 700)]
    want = planner.plan(rows)
    assert planner.plan([Value(*row) for row in rows]) == want
    assert planner.plan(np.array(rows)) == want
    assert planner.plan(iter(rows)) == want


def test_no_specs_and_size_zero_take_no_room():
    assert planner.plan([]) == planner.ArenaPlan([], 0, 0, True)
    plan = planner.plan([(0, 9, 0), (0, 9, 1)])
    assert plan == planner.ArenaPlan([0, 0], 64, 64, True)


@pytest.mark.parametrize(
    ("specs", "options", "parts"),
    [
        ([(0, 1, 8), (5, 5, 8)], {}, ["live range [5, 5) is empty", "spec 1", "fix:"]),
        ([(6, 5, 8)], {}, ["live range [6, 5) is empty"]),
        ([(0, 1, -8)], {}, ["-8 bytes is negative", "spec 0"]),
        ([(0, 1, 8)], {"alignment": 48}, ["alignment 48 is not a power of two"]),
        ([(0, 1, 8)], {"alignment": 0}, ["alignment 0 is not"]),
        ([(0, 1, 8)], {"alignment": -64}, ["alignment -64 is not"]),
        ([(0, 1, 2**62), (4, 5, 2**62)], {}, ["sum to more than", "spec 1"]),
        ([(0, 1, 2**63 - 1)], {}, ["sum to more than", "spec 0"]),
        ([(0, 1, 2**63)], {}, ["64-bit", "spec 0"]),
        ([(0, 1)], {}, ["is not a spec", "spec 0"]),
        ([(0, 1, 1.5)], {}, ["is not a spec"]),
        ([7], {}, ["is not a spec"]),
    ],
)
def test_errors_name_spec_value_and_fix(specs, options, parts):
    with pytest.raises(PlanError) as caught:
        planner.plan(specs, **options)
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.fix


def test_unknown_effort_is_refused():
    with pytest.raises(OptionError, match="'huge' is unknown"):
        planner.plan([(0, 1, 8)], effort="huge")


def test_validate_refuses_a_plan_moved_by_one_alignment():
    specs = [(0, 2, 64), (1, 3, 64)]
    plan = planner.plan(specs)
    wrong = replace(plan, offsets=[64, 64])
    with pytest.raises(InternalError, match="specs 0 and 1"):
        planner.validate(specs, wrong)


def test_largest_sizes_that_fit_in_64_bits_are_planned():
    specs = [(0, 1, 2**62), (1, 2, 2**62 - 64)]
    plan = planner.plan(specs)
    planner.validate(specs, plan)
    assert plan.arena_bytes == 2**62


def test_groups_are_a_baseline():
    specs = [(0, 2, 64), (2, 4, 640), (1, 3, 64)]
    groups = planner.plan_groups(specs)
    planner.validate(specs, groups)
    assert planner.plan(specs).arena_bytes <= groups.arena_bytes


def test_dynamic_plan_is_valid_for_ten_thousand_random_size_vectors():
    seed = 17
    print("seed", seed)
    random = np.random.default_rng(seed)
    for _ in range(50):
        begins = random.integers(0, 40, size=30)
        rows = [(int(b), int(b + 1 + random.integers(0, 12)), int(random.integers(0, 5000))) for b in begins]
        dynamic = planner.DynamicPlan(rows)
        for _ in range(200):
            sizes = [int(size) for size in random.integers(0, 10000, size=30)]
            placed = dynamic.place(sizes)
            planner.validate([(b, e, size) for (b, e, _), size in zip(rows, sizes, strict=True)], placed)


def test_conflicts_need_no_intervals():
    plan = planner.plan_conflicts([64, 64, 64, 64], [(0, 1), (1, 2), (2, 3), (3, 0)])
    assert (plan.arena_bytes, plan.lower_bound, plan.proved_optimal) == (128, 128, True)
    with pytest.raises(PlanError, match="names no value"):
        planner.plan_conflicts([64], [(0, 1)])


def test_dynamic_plan_refuses_odd_sizes():
    dynamic = planner.DynamicPlan([(0, 1, 8), (0, 1, 8)])
    with pytest.raises(PlanError, match="1 sizes for 2 values"):
        dynamic.place([1])
    with pytest.raises(PlanError, match="negative"):
        dynamic.place([1, -1])
