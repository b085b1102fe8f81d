"""A bounded run of the fuzzer; `python -m tests.support.graph_fuzz --steps 100000` runs as long as wanted.

STATICRT_FUZZ_STEPS sets the steps per device and policy here.
"""

import os
import warnings

import pytest

from tests.support import graph_fuzz as fuzz

STEPS = int(os.environ.get("STATICRT_FUZZ_STEPS", "300"))
PROGRAM = 100


@pytest.mark.parametrize(
    ("device", "policy"),
    [("copy", "clone"), ("rebind", "clone"), ("cpu", "clone"), ("cpu_copy", "clone"), ("copy", "error")],
)
def test_random_programs_run_as_eager(device, policy):
    replays = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(STEPS // PROGRAM):
            replays += fuzz.run(20_000 + number, PROGRAM, device=device, live_outputs=policy).replays
    assert replays > 0
