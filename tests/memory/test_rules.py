"""Every rule of the allocator has a test that is named after it (docs/design/allocator.md defines them)."""

import re
from pathlib import Path

import pytest

from tests.support import run_fresh

TESTS = Path(__file__).parents[1] / "csrc" / "allocator"
RULES = {"R": 7, "B": 11, "G": 12, "E": 6, "S": 8, "P": 8, "I": 12, "N": 14, "U": 7, "D": 5}
LATER = {"I8", "I9"}  # peer copies and handles of other processes


def rules_tested() -> set[str]:
    """Rules named at the beginning of a C++ test: `TEST(E6_N4_private_pools_…)` is of E6 and N4."""
    found = set()
    for file in TESTS.glob("*_test.cpp"):
        for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.MULTILINE):
            head = re.match(r"(?:[A-Z]\d+[ab]?_)*", name)
            assert head is not None
            found.update(re.findall(r"[A-Z]\d+", head.group()))
    for name in globals():
        found.update(rule.upper() for rule in re.findall(r"^test_([a-z]\d+)_", name))
    return found


PLAIN_CALLS = """
from staticrt import memory
device = memory.simulated(64 << 20)
free = device.memory_info()[0]
address = device.allocate(1 << 20)
assert device.memory_info()[0] < free
assert device.stats()["allocation.all.allocated"] == 0
device.free(address)
assert device.memory_info()[0] == free
"""


def test_g12_without_caching_every_call_goes_to_the_driver():
    """The variable is read once per process: hence another process."""
    run_fresh(PLAIN_CALLS, variables={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


@pytest.mark.parametrize("family", RULES)
def test_each_rule_has_a_test_of_its_name(family):
    wanted = {f"{family}{n}" for n in range(1, RULES[family] + 1)} - LATER
    assert wanted - rules_tested() == set()
