"""Hostile archives, a bounded run: `tests/archive/hostile_fuzzer.py` runs as many as wanted."""

import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.archive import hostile_fuzzer
from tests.support.archive_mutants import Mutator


@pytest.mark.parametrize(
    ("kind", "mutants", "refused"), [("own", 60, 30), ("bytes", 20, 12), ("exported", 8, 2)]
)
def test_hostile_files_are_refused_or_right(kind, mutants, refused):
    command = [sys.executable, hostile_fuzzer.__file__, "--seed", "11", "--load-only"]
    command += ["--mutants", str(mutants), "--kind", kind]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    assert result.stdout.endswith("0 findings\n")
    counts = {name: int(count) for name, count in re.findall(rf"'{kind} (\w+)': (\d+)", result.stdout)}
    assert sum(counts.values()) == mutants
    assert counts["refused"] >= refused


def test_what_a_file_causes_is_seen(tmp_path):
    """The audit hook notes files that are written, other processes, and pickles."""
    (tmp_path / "canary").write_bytes(b"canary")
    judge = hostile_fuzzer.Judge(None, tmp_path, 0, {})
    seen = {
        "open": (str(tmp_path / "canary"), "r", 0),
        "os.system": ("true",),
        "pickle.find_class": ("os", "system"),
    }
    for event, args in seen.items():
        judge.events.clear()
        judge.hook(event, args)
        assert not judge.events
        judge.watching = True
        judge.hook(event, args)
        judge.watching = False
        assert len(judge.events) == 1, event


@pytest.mark.parametrize("fault", ["crash", "hang", "touch"])
def test_a_fault_is_a_finding(fault, tmp_path):
    """Break it: children that crash, hang, or write a file."""
    (tmp_path / "canary").write_bytes(b"canary")

    class Faulty(hostile_fuzzer.Judge):
        def make(self, number):
            return "own", b"staticrt/program.bin", (), f"mutant {number}"

        def _run(self, data, inputs, what, compiled):
            if what == "mutant 1":
                self.fail()
            return "right"

        def fail(self):
            if fault == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "hang":
                time.sleep(60)
            elif fault == "touch":
                (tmp_path / "other").write_bytes(b"")

    judge = Faulty(None, tmp_path, 0, {})
    found = [outcome for _n, _kind, outcome, _what in hostile_fuzzer.run_batch(judge, range(3), 3)]
    assert found[0] == found[2] == "right"
    assert found[1].startswith("FINDING")


def test_a_mutant_is_made_again(tmp_path):
    (tmp_path / "canary").write_bytes(b"canary")
    seeds = hostile_fuzzer.Seeds()
    mutator = Mutator(tmp_path / "canary")
    own = seeds.files[0][1]
    first, again = (mutator.mutate(own, random.Random("1:5")) for _ in range(2))
    assert first == again
    assert first[0] != own
