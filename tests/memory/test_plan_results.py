"""A plan unpacks, and `plan` takes its options in order or by name."""

from staticrt.memory.planner import plan


def test_a_plan_unpacks() -> None:
    offsets, arena_bytes, lower_bound, proved_optimal = plan([(0, 2, 100), (1, 3, 64)])
    assert (offsets, arena_bytes, lower_bound, proved_optimal) == ([0, 128], 192, 192, True)


def test_options_come_in_order_or_by_name() -> None:
    specs = [(0, 2, 100), (1, 3, 65)]
    assert plan(specs, 1, "high") == plan(specs, alignment=1, effort="high")
    assert plan(specs, 1).arena_bytes == 165
