"""Types of the C++ extension, one block per bind_*.cpp."""

# bind_planner.cpp
def plan(
    specs: list[tuple[int, int, int]], alignment: int, effort: int
) -> tuple[list[int], int, int, bool]: ...
def plan_groups(specs: list[tuple[int, int, int]], alignment: int) -> tuple[list[int], int, int, bool]: ...
def assign_groups(ranges: list[tuple[int, int]], optimize_memory: bool) -> list[int]: ...
def validate_plan(
    specs: list[tuple[int, int, int]],
    offsets: list[int],
    arena_bytes: int,
    lower_bound: int,
    proved_optimal: bool,
    alignment: int,
) -> None: ...
