"""What is shown of long work: on a terminal and in notebooks, after a second, and nowhere else."""

import io
import os
import pty
import select
import subprocess
import sys
import threading
import time
import types

import pytest
import torch

import staticrt
from staticrt.frontend import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)


def test_a_clock_appears_after_a_while_and_is_cleared(monkeypatch):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    terminal = Terminal()
    with progress.long_work("thinking", stream=terminal):
        while "thinking" not in terminal.getvalue():
            time.sleep(0.01)
    assert "staticrt: thinking … 00:0" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
    assert terminal.getvalue().rsplit("\r", 2)[1].strip() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None], ids=["file", "stderr"])
def test_nothing_is_written_to_what_is_not_a_terminal(at_once, capsys, stream):
    threads = threading.active_count()
    with progress.long_work("thinking", stream=stream):
        assert threading.active_count() == threads
        list(progress.each([1, 2], str, "counting", stream=stream))
    assert capsys.readouterr().err == ""
    assert stream is None or stream.getvalue() == ""


def test_short_work_shows_nothing():
    terminal = Terminal()
    with progress.long_work("thinking", stream=terminal):
        pass
    assert list(progress.each([1, 2, 3], str, "counting", stream=terminal)) == [1, 2, 3]
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("odd", [None, object(), "closed"])
def test_a_stderr_that_is_missing_odd_or_closed(at_once, monkeypatch, odd):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if odd == "closed" else odd)
    with progress.long_work("thinking"):
        assert list(progress.each([1, 2], str, "counting")) == [1, 2]


def test_a_terminal_that_fails_disturbs_nothing(at_once):
    class Gone(Terminal):
        tried = threading.Event()

        def write(self, text):
            self.tried.set()
            raise BrokenPipeError

    gone = Gone()
    with progress.long_work("thinking", stream=gone):
        assert gone.tried.wait(30)


def test_work_inside_of_work_is_not_shown(at_once):
    terminal = Terminal()
    with progress.long_work("outer", stream=terminal), progress.long_work("inner", stream=terminal):
        while "outer" not in terminal.getvalue():
            time.sleep(0.01)
    assert "inner" not in terminal.getvalue()


def test_work_that_raises_ends_its_clock(at_once):
    terminal = Terminal()
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), progress.long_work("thinking", stream=terminal):
        raise ZeroDivisionError
    assert threading.active_count() == before
    with progress.long_work("again", stream=terminal):
        while "again" not in terminal.getvalue():
            time.sleep(0.01)


def test_a_bar_counts_items_and_says_which(at_once):
    terminal = Terminal()
    seen = []
    for item in progress.each(["a", "b", "c"], str.upper, "spelling", stream=terminal):
        seen.append(item)
        time.sleep(0.15)  # tqdm draws at most ten times a second
    text = terminal.getvalue()
    assert "staticrt: spelling" in text
    assert "2/3" in text
    assert seen == ["a", "b", "c"]
    assert ", B" in text or ", C" in text


def test_a_notebook_is_recognised_and_gets_its_widget(monkeypatch):
    assert not progress.in_notebook()
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert progress.in_notebook()
    assert progress.is_seen(None)
    assert not progress.is_seen(io.StringIO())
    from tqdm import notebook, std

    assert notebook.IProgress is None or isinstance(progress.bar(total=1, display=False), notebook.tqdm)
    monkeypatch.setattr(notebook, "IProgress", None)  # ipywidgets is not installed
    assert type(progress.bar(total=1, disable=True)).__mro__[1] is std.tqdm


PROGRAM = """
import sys, time, torch, staticrt
from staticrt.frontend import progress
progress.QUIET_SECONDS = 0.05
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
fast = staticrt.compile(Net().eval(), progress=PROGRESS)
maker = type(fast._executor._maker)
make = maker.make
def slow(self, *args):
    time.sleep(1.5)
    return make(self, *args)
maker.make = slow
with torch.no_grad():
    fast(torch.randn(3))
    fast.prepare_many([torch.empty(n, device="meta") for n in range(2, 9)])
print("done")
"""


def _on_terminal(program, environment=()):
    """What a process writes to a terminal that is its stderr, and its stdout."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, **dict(environment)}
    ) as child:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 300)[0]:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            seen += part
        out = child.stdout.read()
        assert child.wait() == 0, seen
    os.close(ours)
    return seen.decode(), out.decode()


def test_tracing_is_shown_on_a_real_terminal_and_an_option_hides_it():
    seen, out = _on_terminal(PROGRAM.replace("PROGRESS", "True"))
    assert "staticrt: tracing Net … 00:0" in seen
    assert out == "done\n"
    assert _on_terminal(PROGRAM.replace("PROGRESS", "False")) == ("", "done\n")
    assert _on_terminal(PROGRAM.replace("PROGRESS", "True"), {"TQDM_DISABLE": "1"}) == ("", "done\n")


def test_tracing_writes_nothing_to_a_pipe():
    command = [sys.executable, "-c", PROGRAM.replace("PROGRESS", "True")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert (done.stdout, done.stderr) == ("done\n", "")


def split_by_a_print(x):
    y = torch.tanh(x) + 1
    print("in the middle")
    return torch.relu(y) * 2


@pytest.mark.parametrize("needs_grad", [False, True])
def test_what_dynamo_compiles_is_shown(at_once, monkeypatch, needs_grad):
    shown = []
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for is_on in (True, False):
        before = len(terminal.getvalue())
        fast = staticrt.compile(split_by_a_print, progress=is_on, joint_trace=False)
        fast(torch.randn(4, requires_grad=needs_grad))
        shown.append("compiling split_by_a_print" in terminal.getvalue()[before:])
    assert shown == [True, False]


def test_prepare_many_prepares_each_call():
    fast = staticrt.compile(torch.nn.Linear(6, 3).eval())
    with torch.no_grad():
        ready = fast.prepare_many(
            [torch.empty(2, 6), (torch.empty(5, 6, device="meta"),), {"input": torch.empty(9, 6)}]
        )
        assert [bool(r) for r in ready] == [True, True, True]
        misses = sum(graph.misses for graph in fast.metrics().graphs)
        for batch in (2, 5):
            x = torch.randn(batch, 6)
            torch.testing.assert_close(fast(x), torch.nn.functional.linear(x, fast.weight, fast.bias))
    assert sum(graph.misses for graph in fast.metrics().graphs) == misses
