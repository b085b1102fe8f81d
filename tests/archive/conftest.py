"""A fresh process that loads archives without model code."""

import json
import subprocess
import sys

import pytest
import torch

from tests.support import archive_process


class FreshProcess:
    """Runs archives in a new process."""

    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, archive_process.__file__],
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
def fresh_process(tmp_path_factory):
    process = FreshProcess(tmp_path_factory.mktemp("fresh_process"))
    yield process
    process.process.stdin.close()
    process.process.wait(30)
