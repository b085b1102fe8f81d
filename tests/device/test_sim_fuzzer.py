"""A bounded run of the fuzzer; `python -m tests.device.sim_fuzzer --programs 10000` runs as long as wanted.

STATICRT_FUZZ_PROGRAMS sets the number of programs here.
"""

import os

from tests.device import sim_fuzzer
from tests.support import fuzz_command

ORDERS_OF_THEIR_OWN = True  # each program has one: conftest.py
PROGRAMS = int(os.environ.get("STATICRT_FUZZ_PROGRAMS", "12"))


def test_random_programs_survive_a_failing_driver():
    failures = []
    with fuzz_command.quiet():
        assert sim_fuzzer.run(1_000, PROGRAMS, failures.append) == 0, "\n".join(failures)
    assert sim_fuzzer.FAULTED.total() > 0
