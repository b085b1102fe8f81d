"""`staticrt bench` from end to end: workers, rows, gates, tables, wrong use."""

import argparse
import json
import os
import signal
import sys
import time

import pytest

from staticrt.errors import OptionError
from staticrt.models import zoo
from staticrt.models.bench import command, peers
from staticrt.models.bench import job as jobs
from staticrt.models.bench import measure as measurement
from staticrt.models.bench.job import Job, Setting
from staticrt.models.bench.progress import Progress
from staticrt.models.bench.runner import Runner

SETTING = Setting(threads=1, seconds=0.02, block_seconds=0.002, min_rounds=2, timeout=60.0)


# Peers that go wrong, each in its own way; written to a module that workers import.
BAD_PEERS = """
import ctypes, time
import torch
from staticrt.models.bench.peers import Peer

def raises(module, arguments, threads):
    raise ValueError("no such kernel\\nsecond line")

def crashes(module, arguments, threads):
    ctypes.string_at(0)

def leaves(module, arguments, threads):
    import os
    os._exit(7)

def hangs(module, arguments, threads):
    def call(*inputs):
        time.sleep(1000)
    return call

def errs(module, arguments, threads):
    return lambda *inputs: module(*inputs) * 1.01

def errs_later(module, arguments, threads):
    seen = []
    def call(*inputs):
        seen.append(1)
        return module(*inputs) + (len(seen) > 30)
    return call

def overwrites(module, arguments, threads):
    out = module(*arguments)
    def call(*inputs):
        return out.copy_(module(*inputs))
    return call

def writes_input(module, arguments, threads):
    def call(*inputs):
        answer = module(*inputs)
        inputs[0].copy_((inputs[0] * 2**20).round() / 2**20)
        return answer
    return call

def keeps_memory(module, arguments, threads):
    held = torch.ones(8 << 20)
    def call(*inputs):
        scratch = torch.ones(16 << 20)
        return module(*inputs) + 0 * held[0]
    return call

def kills_parent(module, arguments, threads):
    import os, signal
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)

KILLS_PARENT = Peer("kp", kills_parent)
RAISES, CRASHES, LEAVES, HANGS = Peer("r", raises), Peer("c", crashes), Peer("l", leaves), Peer("h", hangs)
ERRS, ERRS_LATER, OVERWRITES = Peer("e", errs), Peer("el", errs_later), Peer("o", overwrites)
WRITES_INPUT, KEEPS_MEMORY = Peer("w", writes_input), Peer("k", keeps_memory)
MISSING = Peer("m", raises, packages=(("no-such-package", "no_such_package"),))
NOT_A_PEER = 3
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    (folder / "bad_peers.py").write_text(BAD_PEERS)
    sys.path.insert(0, str(folder))
    with Runner(threads=1) as shared:
        yield shared
    sys.path.remove(str(folder))
    sys.modules.pop("bad_peers", None)


def measure(runner, peer, model="mlp", setting=SETTING):
    cpus = tuple(measurement.allowed_cpus()[-1:])
    return runner.run(Job(jobs.PAIR, setting, model, peer, cpus))


def test_a_good_peer_gives_a_whole_row(runner):
    row = measure(runner, "torchscript")
    assert (row["status"], row["reason"]) == (jobs.OK, None)
    assert row["max_abs_error"] < 1e-5
    assert row["speedup"] > 1.0, "TorchScript beats eager where all cost is overhead"
    assert row["rounds"] == len(row["raw"]["rounds"]) >= 2
    assert 0 < row["first_answer_s"] < row["total_s"]
    assert len(row["cpus"]) == 1
    assert row["candidate_ns"] < row["baseline_ns"] < 1e6


def test_static_runtime_runs(runner):
    row = measure(runner, "static_runtime")
    assert (row["status"], row["reason"]) == (jobs.OK, None)


def test_eager_against_itself_is_level(runner):
    row = measure(runner, "eager")
    assert row["status"] == jobs.OK
    assert row["max_abs_error"] == 0.0
    assert 0.5 < row["speedup"] < 2.0


@pytest.mark.parametrize(
    ("peer", "status", "reason"),
    [
        ("RAISES", jobs.FAILED, "ValueError: no such kernel"),
        ("CRASHES", jobs.CRASHED, "ended by SIGSEGV while preparing"),
        ("LEAVES", jobs.CRASHED, "ended with exit code 7 while preparing"),
        ("ERRS", jobs.WRONG, "output 0 is off by "),
        ("ERRS_LATER", jobs.WRONG, "output 0 is off by 1"),
        ("OVERWRITES", jobs.OVERWRITTEN, "a later call changed an answer that the caller still held"),
        ("WRITES_INPUT", jobs.WROTE_INPUT, "an argument was changed"),
    ],
)
def test_a_peer_that_goes_wrong_is_a_row_that_says_so(runner, peer, status, reason):
    row = measure(runner, f"bad_peers:{peer}")
    assert row["status"] == status
    assert row["reason"].startswith(reason)
    assert measure(runner, "eager")["status"] == jobs.OK, "the next job is unharmed"


def test_a_peer_that_ends_the_server_is_a_row_too(runner):
    row = measure(runner, "bad_peers:KILLS_PARENT")
    assert (row["status"], row["reason"]) == (jobs.CRASHED, "took the fork server along while preparing")
    assert measure(runner, "eager")["status"] == jobs.OK, "the next job has a new server"


def test_workers_share_the_jobs_and_rows_keep_their_order(runner):
    document = {"limits": None, "models": {}, "rows": []}
    entries = zoo.select(["mlp", "wide_deep"])
    saved = []
    done = measurement.measure(
        document, entries, ["torchscript", "eager"], SETTING, 2, lambda: saved.append(len(document["rows"]))
    )
    assert done
    assert [(r["model"], r["peer"]) for r in document["rows"]] == [
        *(("mlp", "torchscript"), ("mlp", "eager"), ("wide_deep", "torchscript"), ("wide_deep", "eager"))
    ]
    assert {r["status"] for r in document["rows"]} == {jobs.OK}
    assert list(document["models"]) == ["mlp", "wide_deep"]
    assert document["limits"]["status"] == jobs.OK
    assert len(saved) == 2
    assert len({tuple(r["cpus"]) for r in document["rows"]}) <= 2
    assert all(len(r["cpus"]) == 1 for r in document["rows"])


def test_a_peer_that_hangs_is_ended(runner):
    setting = Setting(threads=1, seconds=0.02, block_seconds=0.002, min_rounds=2, timeout=3.0)
    row = measure(runner, "bad_peers:HANGS", setting=setting)
    assert row["status"] == jobs.TIMEOUT
    assert row["reason"].startswith("not done after 3 s while ")
    assert row["total_s"] < 30
    assert measure(runner, "eager")["status"] == jobs.OK


def test_memory_held_and_peak_are_told_apart(runner):
    row = measure(runner, "bad_peers:KEEPS_MEMORY")
    if row["steady_peak_bytes"] is None:
        pytest.skip("this system does not tell the peak of resident memory")
    mib = 1 << 20
    assert row["eager_peak_bytes"] < 4 * mib
    assert 31 * mib <= row["held_bytes"] < 48 * mib
    assert 95 * mib <= row["steady_peak_bytes"] < 112 * mib


def arguments(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


ROW_FIELDS = {
    *("model", "peer", "status", "reason", "total_s", "speedup", "basis", "wall_speedup", "cpu_speedup"),
    *("clean_speedup", "spread", "rounds", "clean_rounds", "baseline_ns", "candidate_ns", "max_abs_error"),
    *("max_rel_error", "first_answer_s", "steady_s", "eager_peak_bytes", "prepare_peak_bytes", "held_bytes"),
    *("steady_peak_bytes", "facts", "cpus", "raw"),
}


def test_the_command_prints_tables_and_keeps_whole_json(runner, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    target = tmp_path / "deep" / "out.json"
    wanted = "eager,torchscript,bad_peers:RAISES,bad_peers:MISSING"
    code = command.main(
        arguments(
            "--models",
            "mlp",
            "--peers",
            wanted,
            "--quick",
            "--seconds",
            "0.02",
            "--details",
            "--json",
            str(target),
        )
    )
    printed = capsys.readouterr().out
    document = json.loads(target.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))

    assert code == 0
    assert document["format"] == command.FORMAT
    assert document["complete"] is True
    assert document["environment"]["versions"]["torch"]
    assert document["environment"]["cpu"]
    assert document["environment"]["variables"]["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY=passive" in printed
    assert document["limits"]["status"] == jobs.OK
    assert document["limits"]["gemm_flops_per_s"] > 1e9
    assert document["models"]["mlp"]["flops"] == 24576
    rows = {row["peer"]: row for row in document["rows"]}
    assert list(rows) == wanted.split(",")
    assert set(rows["eager"]) == set(rows["torchscript"]) == ROW_FIELDS
    assert set(rows["torchscript"]["raw"]["rounds"][0]["candidate"]) == {
        *("calls", "wall_ns", "cpu_ns", "preemptions")
    }
    assert rows["bad_peers:MISSING"]["reason"] == "not installed: no-such-package"
    for text in ("mlp", "GFLOP/s", "1 thread", "Raw results: ", "ValueError: no such kernel", "absent"):
        assert text in printed
    assert not list(target.parent.glob("*.part"))


def test_several_numbers_of_threads_are_runs_and_what_more_threads_gain(tmp_path, monkeypatch, capsys):
    def measured(document, entries, names, setting, workers, save):
        assert workers == 1
        document["rows"] = [
            {**dict.fromkeys(ROW_FIELDS), "model": entry.name, "peer": name, "status": jobs.OK, "facts": {}}
            | {"speedup": 1.0, "first_answer_s": 0.1, "candidate_ns": 3000 / (setting.threads + index)}
            for entry in entries
            for index, name in enumerate(names)
        ]
        save()
        return True

    monkeypatch.setattr(command, "measure", measured)
    monkeypatch.setattr(command, "allowed_cpus", lambda: [0, 1])
    target = tmp_path / "out.json"
    words = ("--models", "mlp", "--peers", "eager,staticrt", "--threads", "1,2", "--json", str(target))
    assert command.main(arguments(*words)) == 0
    runs = json.loads(target.read_text())["runs"]
    printed = capsys.readouterr().out
    assert [run["setting"]["threads"] for run in runs] == [1, 2]
    assert all(run["complete"] and len(run["rows"]) == 2 for run in runs)
    gains = printed[printed.index("Gain from 1 to 2 threads") :]
    assert "2.00" in gains  # eager: 3000 / 1 over 3000 / 2
    assert "1.50" in gains  # ours: 3000 / 2 over 3000 / 3
    assert printed.count("Speed: eager's time") == 2


def test_several_numbers_of_threads_are_for_the_zoo(capsys):
    with pytest.raises(OptionError, match="measures the zoo\n  fix: give one number with --train"):
        command.main(arguments("--train", "--threads", "1,2"))
    with pytest.raises(SystemExit):
        arguments("--threads", "1,two")
    assert "expected numbers separated by commas" in capsys.readouterr().err


def test_an_interrupt_ends_the_worker_and_keeps_what_is_measured(runner, tmp_path, monkeypatch, capsys):
    asked = []

    class Interrupted(Runner):
        def run(self, job):
            asked.append(job)
            if len(asked) == 3:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            return {"status": jobs.FAILED, "reason": "not tried", "total_s": 0.0}

    monkeypatch.setattr(measurement, "Runner", Interrupted)
    target = tmp_path / "out.json"
    words = ("--models", "mlp,unet", "--peers", "eager", "--json", str(target))
    assert command.main(arguments(*words)) == command.INTERRUPTED
    assert json.loads(target.read_text())["complete"] is False
    assert "interrupted: incomplete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--models", "mpl"), r"no model matches 'mpl'\n  fix: choose from mlp"),
        (("--peers", "torch_script"), r"no peer matches 'torch_script'\n  fix: choose from torchscript"),
        (("--peers", "no_such_module:PEER"), "peer 'no_such_module:PEER' cannot be loaded: No module named"),
        (("--peers", "bad_peers:NOT_A_PEER"), "'bad_peers:NOT_A_PEER' is a int, expected a Peer"),
        (("--threads", "0"), r"--threads 0: this process may use \d+ CPUs\n  fix: give a number from 1 to"),
        (("--threads", "100000"), "--threads 100000"),
        (("--workers", "0"), r"--workers 0 with --threads 1: this process may use \d+ CPUs\n  fix: give"),
        (("--seconds", "-1"), "--seconds -1: expected seconds above 0"),
        (("--timeout", "0"), "--timeout 0: expected seconds above 0"),
        (("--seed", "-3"), "--seed -3: expected a number of at least 0"),
        (("--models", "mlp", "--json", "/proc/no/such/place.json"), "--json .*: cannot be written"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(runner, monkeypatch, words, message):
    monkeypatch.setattr(measurement, "Runner", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(OptionError, match=message):
        command.main(arguments(*words))


def test_an_empty_list_of_names_is_refused(capsys):
    with pytest.raises(SystemExit):
        arguments("--models", ",")
    assert "expected names separated by commas" in capsys.readouterr().err


def test_quick_leaves_slow_peers_out_unless_named():
    assert "inductor" in peers.select()
    assert peers.select(quick=True) == ["eager", "torchscript", "static_runtime", "onnxruntime", "staticrt"]
    assert peers.select(["inductor*"], quick=True) == ["inductor", "inductor_max"]


class Terminal:
    def __init__(self, *, is_terminal):
        self.text = ""
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_the_bar_shows_on_a_terminal_and_results_everywhere():
    terminal, pipe = Terminal(is_terminal=True), Terminal(is_terminal=False)
    for stream in (terminal, pipe):
        progress = Progress(4, stream)
        progress.advance()
        progress.show("mlp × eager")
        progress.say("mlp: 2.00")
        progress.show("resnet × eager")
        progress.finish()
    assert "1/4" in terminal.text
    assert ", mlp × eager" in terminal.text
    assert "\r[   0 s] mlp: 2.00\n" in terminal.text
    assert terminal.text.rsplit("\r", 2)[1].strip() == ""  # the bar is cleared
    assert terminal.text.endswith("\r")
    assert pipe.text == "[   0 s] mlp: 2.00\n"


def test_the_command_line_knows_bench(capsys):
    from staticrt.tools.cli.main import main

    assert main(["bench", "--models", "mpl"]) == 2
    assert "staticrt bench: no model matches 'mpl'\n  fix: choose from mlp" in capsys.readouterr().err
