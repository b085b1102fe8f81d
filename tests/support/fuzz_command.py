"""What the commands of the fuzzers that compare with eager share."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import random
import warnings
from collections.abc import Callable, Iterator

import torch


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let nothing but the fuzzer's own lines reach the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def forget(number: int) -> None:
    """After every fiftieth program: drop what Dynamo and dead cycles keep."""
    if number % 50 == 49:
        torch._dynamo.reset()
        gc.collect()


def main(description: str | None, counted: str, run: Callable[[int, int, Callable[[str], None]], int]) -> int:
    """Run a fuzzer from its command line.

    Args:
        description: of the command.
        counted: the option that says how many of what are tried, as `programs`.
        run: takes the seed, that number, and what prints a line; returns how many failed.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument(f"--{counted}", type=int, default=20_000)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with quiet():
        return min(1, run(options.seed, getattr(options, counted), lambda text: print(text, flush=True)))
