"""A fresh process that loads archives without model code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch


class Stranger:
    """Runs archives in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("stranger.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, archive, calls):
        """Two results for each (args, kwargs): of the first call and of a repeated one."""
        job = {key: str(self.folder / f"{key}.pt") for key in ("calls", "results")}
        torch.save(calls, job["calls"])
        print(json.dumps({"archive": str(archive), **job}), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        assert answer["ok"], answer["text"]
        return torch.load(job["results"])


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    process = Stranger(tmp_path_factory.mktemp("stranger"))
    yield process
    process.process.stdin.close()
    process.process.wait(30)


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield
