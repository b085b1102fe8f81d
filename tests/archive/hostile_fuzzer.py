"""Loads and runs hostile `.pt2` files, of staticrt.save and of torch.export.save, in children with limits.

    python tests/archive/hostile_fuzzer.py --mutants 20000 --seed 1

Each mutant must be refused with a Python exception, or give what torch's operators give one by one for the same file. A
crash, a hang, an open file, code that runs, or another result is a finding: it is printed with the number that makes the
mutant again, `--only NUMBER`.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import random
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch.utils import _pytree as pytree

import staticrt
from staticrt.archive.checked_export import load_exported
from tests.support import archive_eager, exported_mutants
from tests.support.archive_body import read_body
from tests.support.archive_mutants import Mutator
from tests.support.hostile_models import MODELS

MEMORY_BYTES = 4 << 30  # that a child may take
SECONDS = 60  # of the wall's clock, for one mutant on a busy machine
BATCH = 200  # mutants of one child


class Seeds:
    """The files that mutants are made of: [(name, own archive, exported archive, inputs)]."""

    def __init__(self):
        self.files = []
        for name, (model, inputs) in MODELS.items():
            torch.manual_seed(0)
            module = model().eval()
            own, exported = io.BytesIO(), io.BytesIO()
            with torch.no_grad():
                compiled = staticrt.compile(module)
                for _ in range(2):
                    compiled(*(x.clone() for x in inputs))
                staticrt.save(compiled, own, inputs, exported_program=False)
                torch.export.save(torch.export.export(module, inputs, strict=False), exported)
            self.files.append((name, own.getvalue(), exported.getvalue(), inputs))


class Judge:
    """Makes mutants, loads and runs them; in a child."""

    def __init__(self, seeds, folder, seed, kinds):
        self.seeds, self.folder, self.seed, self.kinds = seeds, folder, seed, kinds
        self.canary = folder / "canary"
        self.mutator = Mutator(self.canary)
        self.compiles = True
        self.events: list[str] = []
        self.watching = False

    def make(self, number):
        """(kind, file's bytes, inputs, what was changed) of a mutant."""
        rng = random.Random(f"{self.seed}:{number}")
        kind = rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        name, own, exported, inputs = rng.choice(self.seeds.files)
        if kind == "own":
            data, what = self.mutator.mutate(own, rng)
        elif kind == "exported":
            data, what = exported_mutants.mutate(exported, rng, self.mutator)
        else:
            data, what = scribbled(rng.choice((own, exported)), rng)
        return kind, data, inputs, f"{name}: {what}"

    def judge(self, number):
        """ "refused: …", "right", "ran", or "FINDING …"."""
        kind, data, inputs, what = self.make(number)
        before = sorted(os.listdir(self.folder))
        self.events.clear()
        self.watching = True
        try:
            outcome = self._run(data, inputs, what, compiled=self.compiles and number % 4 == 0)
        finally:
            self.watching = False
        if self.events:
            outcome = f"FINDING {self.events[0]}"
        if sorted(os.listdir(self.folder)) != before or self.canary.read_bytes() != b"canary":
            outcome = f"FINDING a file was touched: {os.listdir(self.folder)}"
            self.canary.write_bytes(b"canary")
        return kind, outcome, what

    def _run(self, data, inputs, what, compiled):
        own = _is_own(data)
        try:
            with torch.no_grad():
                torch.manual_seed(0)
                if own:
                    model = staticrt.load(data)
                else:
                    path = self.folder / "mutant.pt2"
                    self.watching = False
                    path.write_bytes(data)
                    self.watching = True
                    try:
                        program = load_exported(path)
                        if not compiled:
                            return "loaded"
                        model = staticrt.compile(program)
                    finally:
                        self.watching = False
                        path.unlink()
                        self.watching = True
                runs = [model(*(x.clone() for x in inputs)) for _ in range(2)]
        except Exception as error:
            return f"refused: {type(error).__name__}: {str(error)[:300]}"
        self.watching = False
        if not own:
            return "ran"
        if "change_info" in what:
            return "ran, with the dtypes that the file declares"
        return self._compare(data, inputs, runs)

    def _compare(self, data, inputs, runs):
        try:
            with torch.no_grad():
                if any(trace.packed for trace in read_body(data).traces):
                    return "ran, with weights that the file's author packed"
                want = archive_eager.run(data, inputs)
        except Exception as error:
            return f"ran, eager not: {type(error).__name__}"
        for run in runs:
            got = pytree.tree_leaves(run)
            tensors = [x for x in want if isinstance(x, torch.Tensor)]
            given = [x for x in got if isinstance(x, torch.Tensor)]
            if len(tensors) != len(given):
                return "ran, other structure"
            for a, b in zip(given, tensors, strict=True):
                try:
                    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
                except AssertionError as error:
                    return f"FINDING wrong: {' '.join(str(error).split())[:200]}"
        return "right"

    def hook(self, event, args):
        """Notes what no loaded file may cause. An audit hook."""
        if not self.watching:
            return
        if event == "open" and isinstance(args[0], (str, bytes)):
            path, mode = os.fsdecode(args[0]), str(args[1] or "r")
            if set(mode) & set("wax+") or str(self.canary) in path:
                self.events.append(f"opens {path} {mode}")
        elif event in (
            "os.system",
            "subprocess.Popen",
            "os.exec",
            "os.posix_spawn",
            "socket.connect",
            "os.remove",
        ):
            self.events.append(f"{event} {args}"[:200])
        elif event == "pickle.find_class" and not str(args[0]).startswith("torch"):
            self.events.append(f"unpickles {args}")


def _is_own(data):
    return b"staticrt/program.bin" in data


def scribbled(data, rng):
    """Bytes changed anywhere, or the end cut off."""
    if rng.random() < 0.2:
        return data[: rng.randrange(len(data))], "cut short"
    changed = bytearray(data)
    places = []
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(changed))
        changed[at] = rng.choice((0, 255, rng.randrange(256)))
        places.append(at)
    return bytes(changed), f"bytes {places[:5]}"


def child(judge, numbers, out):
    """Judges mutants and reports each: {"at": number}, then {"number", "kind", "outcome", "what"}."""
    reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (reserved + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(judge.folder)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)
    warnings.simplefilter("ignore")
    sys.addaudithook(judge.hook)
    for number in numbers:
        os.write(out, json.dumps({"at": number}).encode() + b"\n")
        try:
            kind, outcome, what = judge.judge(number)
        except Exception:
            kind, outcome, what = "?", f"FINDING fault here: {traceback.format_exc()[-700:]}", ""
        line = {"number": number, "kind": kind, "outcome": outcome, "what": what[:600]}
        os.write(out, json.dumps(line).encode() + b"\n")
    os._exit(0)


def run_batch(judge, numbers, seconds):
    """Yields (number, kind, outcome, what); a child that dies is followed by another for the rest."""
    numbers = list(numbers)
    while numbers:
        inner, outer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(inner)
            try:
                child(judge, numbers, outer)
            finally:
                os._exit(99)
        os.close(outer)
        at, done, rest = None, 0, b""
        deadline = time.monotonic() + seconds
        hung = False
        while True:
            ready, _, _ = select.select([inner], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                hung = True
                os.kill(process, signal.SIGKILL)
                break
            chunk = os.read(inner, 1 << 16)
            if not chunk:
                break
            deadline = time.monotonic() + seconds
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "at" in told:
                    at = told["at"]
                else:
                    done += 1
                    yield told["number"], told["kind"], told["outcome"], told["what"]
        os.close(inner)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if done == len(numbers):
            return
        how = f"hung for {seconds} s" if hung else f"crashed with {status}"
        at = numbers[done] if at is None else at
        kind, _data, _inputs, what = judge.make(at)
        yield at, kind, f"FINDING {how}", what
        numbers = numbers[done + 1 :]


def fuzz(numbers, seed, seconds=SECONDS, kinds=None, report=print, compiles=True):
    """Runs these mutants; ({outcome: count}, findings)."""
    kinds = kinds or {"own": 80, "exported": 10, "bytes": 10}
    outcomes: collections.Counter[str] = collections.Counter()
    findings = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "canary").write_bytes(b"canary")
        judge = Judge(Seeds(), folder, seed, kinds)
        judge.compiles = compiles
        for start in range(0, len(numbers), BATCH):
            for number, kind, outcome, what in run_batch(judge, numbers[start : start + BATCH], seconds):
                short = re.split(r": |, ", outcome)[0].split(" ")[0]
                outcomes[f"{kind} {short}"] += 1
                if short == "FINDING":
                    findings.append((number, kind, outcome, what))
                    report(f"{number} ({kind}): {outcome}\n    {what[:500]}")
            if start and start % 2000 == 0:
                report(f"{start} mutants: {dict(outcomes)}")
    return outcomes, findings


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", type=int, action="append", help="make and run these mutants alone")
    parser.add_argument("--kind", choices=["own", "exported", "bytes"], help="mutants of one kind")
    parser.add_argument(
        "--load-only", action="store_true", help="files of torch.export.save are loaded, none is compiled"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that one mutant may take")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    torch.set_num_threads(1)
    numbers = arguments.only or list(range(arguments.mutants))
    start = time.monotonic()
    outcomes, findings = fuzz(
        numbers,
        arguments.seed,
        arguments.seconds,
        kinds={arguments.kind: 1} if arguments.kind else None,
        compiles=not arguments.load_only,
        report=lambda text: print(text, flush=True),
    )
    print(
        f"{sum(outcomes.values())} mutants in {time.monotonic() - start:.0f} s: {dict(sorted(outcomes.items()))}"
    )
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
