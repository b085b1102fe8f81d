"""The kit for machines with a GPU: its logic, and its checks on the simulated accelerator in place of CUDA."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from staticrt.models.bench.kit import __main__ as kit
from staticrt.models.bench.kit import checks, tools, worker
from staticrt.models.bench.kit.checks import FAILED, PASSED, SKIPPED, Check, Row, Skip

ROOT = Path(__file__).parents[2]


def run_kit(*arguments):
    command = [sys.executable, "-m", "staticrt.models.bench.kit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_a_gpu_the_exit_status_is_2_with_one_line():
    assert not torch.cuda.is_available()
    for command in (["bash", ".ci/cuda", "run"], [sys.executable, "-m", "staticrt.models.bench.kit"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == f"kit: no GPU to run on: torch {torch.__version__} is built without CUDA\n"


def test_the_same_checks_pass_on_sim(tmp_path):
    """One row for each check, as CUDA would have; what only CUDA has is skipped with a reason."""
    target = tmp_path / "results.json"
    sections = ("suite", "memory", "graphs")
    only = [word for section in sections for word in ("--only", section)]
    done = run_kit("--device", "sim", *only, "--output", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [Row(**row) for row in json.loads(target.read_text())["rows"]]
    expected = [(each.section, each.name) for each in worker.all_checks() if each.section in sections]
    assert [(row.section, row.name) for row in rows if row.section != "tools"] == expected
    skipped = {row.name: row.details for row in rows if row.status == SKIPPED}
    assert {row.status for row in rows} == {PASSED, SKIPPED}
    assert set(skipped) == {
        "a replay beside a graph captured by hand",
        "tests marked cuda",
        "compute-sanitizer on the allocator",
    }
    assert all(skipped.values())
    assert f"{len(rows) - 3} passed, 0 failed, 3 skipped" in done.stdout


def test_every_model_of_the_zoo_is_a_check():
    from staticrt.models import zoo

    names = [each.name for each in worker.all_checks() if each.section == "zoo"]
    assert names == [entry.name for entry in zoo.select(None)]


def test_a_run_out_of_time_fails():
    done = run_kit("--device", "sim", "--only", "graphs", "--without-tools", "--seconds", "1")
    assert done.returncode == 1
    assert kit.OUT_OF_TIME in done.stdout
    assert " 0 skipped" in done.stdout


def test_how_one_check_ends(monkeypatch):
    monkeypatch.setattr(checks, "synchronize", lambda device: None)

    def raises(device):
        raise ValueError("two lines\nof text")

    def skips(device):
        raise Skip("no such thing here")

    cases = [(lambda device: "7 µs", PASSED, "7 µs"), (lambda device: None, PASSED, "")]
    cases += [(raises, FAILED, "ValueError: two lines\nof text"), (skips, SKIPPED, "no such thing here")]
    for function, status, details in cases:
        row = checks.run_check(Check("suite", "x", function), torch.device("cpu"))
        assert (row.status, row.details) == (status, details)


@pytest.fixture
def workers(monkeypatch):
    """Three checks, and workers that end as the test says: per worker, how many rows it makes, and its end."""
    all_three = [Check("suite", name, lambda device: None) for name in "abc"]
    monkeypatch.setattr(kit, "all_checks", lambda: all_three)

    def play(*ends):
        planned = iter(ends)

        def work(device, sections, first, target, seconds):
            number, ended = next(planned)
            lines = []
            for each in range(first, min(3, first + number + (ended != "exit status 0"))):
                lines.append({"begun": each})
                if each < first + number:
                    lines.append(Row("suite", "abc"[each], PASSED, "").__dict__)
            target.write_text("\n".join(map(json.dumps, lines)))
            return ended

        monkeypatch.setattr(kit, "_work", work)
        rows = kit._run("sim", ("suite",), 1e9)
        assert next(planned, None) is None
        return [(row.name, row.status, row.details) for row in rows]

    return play


def test_a_check_that_ends_the_process_has_failed_and_the_next_ones_run(workers):
    assert workers((1, "signal 11"), (1, "exit status 0")) == [
        ("a", PASSED, ""),
        ("b", FAILED, "the process ended: signal 11"),
        ("c", PASSED, ""),
    ]
    assert [status for _name, status, _details in workers((2, "signal 6"))] == [PASSED, PASSED, FAILED]


def test_a_process_that_cannot_begin_fails_all_checks_once(workers, monkeypatch):
    monkeypatch.setattr(kit, "_read", lambda target: (None, []))
    assert workers((0, "exit status 1; no module")) == [
        (name, FAILED, "the process ended: exit status 1; no module") for name in "abc"
    ]


def test_a_tool_that_refuses_is_skipped_with_its_reason(monkeypatch, tmp_path):
    tool = tmp_path / "compute-sanitizer"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def row(script):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        return tools.compute_sanitizer("cuda", 20)

    refused = row("echo '========= Error: Device not supported. Please refer to the list'; exit 1")
    assert (refused.status, refused.details) == (
        SKIPPED,
        "Error: Device not supported. Please refer to the list",
    )
    assert row("echo '========= ERROR SUMMARY: 0 errors'").status == PASSED
    found = row("echo '========= ERROR SUMMARY: 3 errors'; exit 9")
    assert (found.status, found.details) == (FAILED, "exit 9: ERROR SUMMARY: 3 errors")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert tools.compute_sanitizer("cuda", 20).details == "compute-sanitizer is not installed"
