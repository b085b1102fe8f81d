"""Processes of a gloo group over loopback that run one function after another: they start once for many tests."""

from __future__ import annotations

import datetime
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).parents[2]
SECONDS_TO_ANSWER = 300.0  # of a worker, also where many processes share few cores


class Ranks:
    """`world` processes; a context manager, which stops them.

    Args:
        world: number of processes.
        timeout: seconds after which a collective that waits for another rank raises.
    """

    def __init__(self, world: int, timeout: float = 60.0) -> None:
        # The processes import by name and inherit `sys.path`, which lacks the repository if `pytest` itself was called.
        # It comes last, because it also holds `staticrt` without its compiled library.
        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))
        self.world = world
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        context = mp.get_context("spawn")
        self.processes: list[Any] = []
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world, self._folder.name, timeout, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self.processes.append(process)

    def run(self, worker: Callable[..., Any], *args: Any) -> list[Any]:
        """`worker(rank, *args)` in every process. Returns the results in the order of ranks.

        Raises:
            AssertionError: a worker raised; the message holds its traceback.
        """
        answers = self.answers(worker, *args)
        failed = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if isinstance(answer, str)]
        assert not failed, "\n".join(failed)
        return [result for (result,) in answers]

    def answers(self, worker: Callable[..., Any], *args: Any) -> list[tuple[Any] | str]:
        """As `run`; for a worker that raised its traceback, for a process that ended "ended"."""
        for pipe in self._pipes:
            pipe.send((worker, args))
        answers: list[tuple[Any] | str] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                assert pipe.poll(SECONDS_TO_ANSWER), f"rank {rank} does not answer"
                done, data = pipe.recv()
            except (EOFError, ConnectionResetError):
                answers.append("ended")
                continue
            answers.append((torch.load(io.BytesIO(data), weights_only=False),) if done else data)
        return answers

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_error: object) -> None:
        for pipe in self._pipes:
            pipe.close()  # a process whose pipe is closed ends
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def _serve(rank: int, world: int, folder: str, timeout: float, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout),
    )
    while True:
        try:
            worker, args = pipe.recv()
        except EOFError:
            os._exit(0)  # without a goodbye to ranks that may be gone
        try:
            data = io.BytesIO()
            torch.save(worker(rank, *args), data)
            pipe.send((True, data.getvalue()))
        except Exception:
            pipe.send((False, traceback.format_exc()))
        finally:
            torch._dynamo.reset()
