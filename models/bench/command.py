"""`staticrt bench`: the zoo, or one model of the user's, against every peer."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from staticrt.errors import OptionError
from staticrt.frontend.progress import long_work
from staticrt.models import zoo
from staticrt.models.bench import gates as gates_module
from staticrt.models.bench.environment import environment
from staticrt.models.bench.job import Setting
from staticrt.models.bench.measure import allowed_cpus, measure
from staticrt.models.bench.peers import select
from staticrt.models.bench.report import render, render_gains, render_gates
from staticrt.models.bench.user_model import bench_model
from staticrt.tools.cli.loading import MODEL_HELP, add_model_options, compile_options
from staticrt.tools.cli.output import print_json

STDOUT = Path("-")
FORMAT = 1  # of the JSON; rises when a field changes its meaning
FULL = {"seconds": 3.0, "block_seconds": 0.02, "min_rounds": 7, "timeout": 900.0}
QUICK = {"seconds": 0.15, "block_seconds": 0.005, "min_rounds": 3, "timeout": 120.0}
QUICK_WORKERS = 2
# Benchmarks of parts, each a module with `main(quick) -> (rows, table)`; with `--gates`, a row
# whose "verdict" is "MISSED" fails.
SUITES = {
    "micro": ("staticrt.models.bench.micro", "the executor: one node, one call, preparation, arenas"),
    "scaling": (
        "staticrt.models.bench.scaling",
        "the bound on each model's speed-up by 1 to 64 threads, computed",
    ),
    "soak": (
        "staticrt.models.bench.soak",
        "a million calls of random sizes from 8 threads: errors, memory, latency",
    ),
    "devices": (
        "staticrt.models.bench.devices",
        "the zoo on the simulated device, and on CUDA where there is one: answers, arenas, waits, enqueueing",
    ),
    "graphs": ("staticrt.models.bench.graphs", "captured graphs: one operator of a replay, storages"),
}
INTERRUPTED = 130  # exit code after Ctrl-C, as a shell gives it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `staticrt bench`."""
    names = ", ".join(entry.name for entry in zoo.ENTRIES)
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"instead of the zoo: {MODEL_HELP}")
    add_model_options(parser, shared=False)
    parser.add_argument(
        "--models", type=_words, metavar="NAMES", help=f"names, patterns or tags, by comma: {names}"
    )
    parser.add_argument(
        "--peers",
        type=_words,
        metavar="NAMES",
        help=f"names or patterns, by comma: {', '.join(select())}; or package.module:attribute",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="pairs measured at a time (default 1; with --quick 2 if CPUs allow)",
    )
    parser.add_argument(
        "--threads",
        type=_counts,
        default=(1,),
        metavar="N",
        help="CPUs per peer (default 1); several by comma: a run each, and what more threads gain",
    )
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="raw results (of the zoo by default results/bench-….json); without FILE or with -: print them instead",
    )
    parser.add_argument("--quick", action="store_true", help="short rounds, and only peers that start fast")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and inputs (default 0)")
    parser.add_argument("--seconds", type=float, metavar="S", help="of timing per model and peer")
    parser.add_argument("--timeout", type=float, metavar="S", help="a worker may take in all")
    parser.add_argument("--details", action="store_true", help="also rounds, spread, errors of every pair")
    for suite, (_module, what) in SUITES.items():
        parser.add_argument(
            f"--{suite}", action="store_true", help=f"instead of the zoo: {what}, with targets"
        )
    parser.add_argument(
        "--train",
        action="store_true",
        help="training steps instead: eager, AOT eager, staticrt, whole steps; with --models those of the zoo alone",
    )
    parser.add_argument("--inductor", action="store_true", help="with --train: Inductor too")
    parser.add_argument("--gates", action="store_true", help="also the targets; exit code 1 if one is missed")


def main(arguments: argparse.Namespace) -> int:
    """Measure, print the tables, keep the JSON; the exit code.

    Raises:
        OptionError: an unknown model or peer, or a number out of range.
    """
    for suite in SUITES:
        if getattr(arguments, suite):
            return _run_suite(suite, arguments)
    if arguments.train or arguments.model is not None:
        if len(arguments.threads) > 1:
            raise OptionError(
                "--threads with several numbers measures the zoo",
                fix="give one number with --train or with a model of yours",
            )
        arguments.threads = arguments.threads[0]
        return _run_training(arguments) if arguments.train else bench_model(arguments)
    return _run_zoo(arguments)


def _run_zoo(arguments: argparse.Namespace) -> int:
    """One run for each number of threads; the JSON of several has them under "runs"."""
    entries = zoo.select(arguments.models)
    peers = select(arguments.peers, quick=arguments.quick)
    plans = [(_setting(arguments, count), _workers(arguments, count)) for count in arguments.threads]
    target = _target(arguments.json)
    documents: list[dict[str, Any]] = []
    missed = False
    for setting, workers in plans:
        document: dict[str, Any] = {
            "format": FORMAT,
            "environment": environment(peers, setting.threads, workers),
            "setting": asdict(setting),
            "quick": bool(arguments.quick),
            "peers": peers,
            "complete": False,
            "limits": None,
            "models": {},
            "rows": [],
        }
        documents.append(document)
        whole = document if len(plans) == 1 else {"format": FORMAT, "runs": documents}
        is_complete = measure(document, entries, peers, setting, workers, partial(_save, whole, target))
        gates = gates_module.check(document["rows"])
        document["gates"] = [asdict(gate) for gate in gates]
        document["complete"] = is_complete
        missed = missed or any(gate.verdict == gates_module.MISSED for gate in gates)
        _save(whole, target)
        if target != STDOUT:
            print(render(document, details=arguments.details))
            if arguments.gates:
                print(f"\n{render_gates(gates)}")
            print()
        if not is_complete:
            break
    if target == STDOUT:
        print_json(whole)
    else:
        if len(documents) > 1:
            print(f"{render_gains(documents)}\n")
        print(f"Raw results: {target}" + ("" if is_complete else " (interrupted: incomplete)"))
    if not is_complete:
        return INTERRUPTED
    return int(arguments.gates and missed)


def _run_suite(name: str, arguments: argparse.Namespace) -> int:
    target = _target(arguments.json, name)
    with long_work(f"bench --{name}"):
        rows, table = importlib.import_module(SUITES[name][0]).main(bool(arguments.quick))
    _save({"format": FORMAT, "suite": name, "environment": environment((), 1, 1), "rows": rows}, target)
    print(f"{table}\n\nRaw results: {target}")
    return int(arguments.gates and any(row["verdict"] == gates_module.MISSED for row in rows))


def _run_training(arguments: argparse.Namespace) -> int:
    from staticrt.models.bench.threads import threads_set
    from staticrt.models.bench.train import measure_training, render_training
    from staticrt.models.bench.train_costs import measure_compile, measure_two_operators, render_costs
    from staticrt.models.bench.train_first import measure_first_calls, render_first_calls
    from staticrt.models.bench.train_memory import measure_memory, render_memory
    from staticrt.models.bench.train_zoo import check_zoo, measure_zoo, render_zoo

    target = _target(arguments.json)
    seconds = arguments.seconds or (0.3 if arguments.quick else 3.0)
    document: dict[str, Any] = {"format": FORMAT, "environment": environment([], arguments.threads, 1)}
    rows: list[dict[str, Any]] = []
    tables: list[str] = []
    gates: list[gates_module.Gate] = []
    with threads_set(arguments.threads), long_work("bench --train"):
        if not arguments.models:
            rows = document["training"] = measure_training(seconds=seconds, inductor=arguments.inductor)
            first = document["first_calls"] = measure_first_calls(
                [row["model"] for row in rows],
                threads=arguments.threads,
                runs=1 if arguments.quick else 3,
                inductor=arguments.inductor,
            )
            costs = document["costs"] = {
                "two_operators_us": measure_two_operators(),
                "compile_s": measure_compile(),
            }
            tables += [render_training(rows), render_first_calls(first), render_costs(costs)]
            document["memory"] = [] if arguments.quick else measure_memory()
            tables += [render_memory(document["memory"])] if document["memory"] else []
        if arguments.models or not arguments.quick:
            document["zoo"] = measure_zoo(
                zoo.select(arguments.models), seconds=seconds, inductor=arguments.inductor
            )
            tables.append(render_zoo(document["zoo"]))
            gates = check_zoo(document["zoo"])
            document["gates"] = [asdict(gate) for gate in gates]
            if arguments.gates:
                tables.append(render_gates(gates))
    _save({**document, "complete": True}, target)
    print("\n\n".join([*tables, f"Raw results: {target}"]))
    missed = any(row["speedup"]["whole step"] < row["target"] for row in rows)
    return int(arguments.gates and (missed or any(gate.verdict == gates_module.MISSED for gate in gates)))


def _setting(arguments: argparse.Namespace, threads: int) -> Setting:
    allowed = len(allowed_cpus())
    if not 1 <= threads <= allowed:
        raise OptionError(
            f"--threads {threads}: this process may use {allowed} CPUs",
            fix=f"give a number from 1 to {allowed}",
        )
    if arguments.seed < 0:
        raise OptionError(f"--seed {arguments.seed}: expected a number of at least 0")
    values: dict[str, Any] = dict(QUICK if arguments.quick else FULL)
    for name in ("seconds", "timeout"):
        given = getattr(arguments, name)
        if given is not None and not given > 0:
            raise OptionError(f"--{name} {given:g}: expected seconds above 0")
        values[name] = values[name] if given is None else given
    return Setting(threads=threads, seed=arguments.seed, options=compile_options(arguments), **values)


def _workers(arguments: argparse.Namespace, threads: int) -> int:
    most = len(allowed_cpus()) // threads
    if arguments.workers is None:
        return min(QUICK_WORKERS, most) if arguments.quick else 1
    if not 1 <= arguments.workers <= most:
        raise OptionError(
            f"--workers {arguments.workers} with --threads {threads}: "
            f"this process may use {len(allowed_cpus())} CPUs",
            fix=f"give --workers a number from 1 to {most}",
        )
    return int(arguments.workers)


def _target(asked: Path | None, name: str = "bench") -> Path:
    """Where the JSON goes; checked before hours of measuring."""
    if asked == STDOUT:
        return asked
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    target = asked if asked is not None else Path("results", f"{name}-{stamp}.json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    except OSError as error:
        raise OptionError(f"--json {target}: cannot be written: {error.strerror}") from error
    return target


def _save(document: dict[str, Any], target: Path) -> None:
    """Write whole or not at all, so that an interrupted run leaves readable JSON."""
    if target == STDOUT:
        return  # printed at the end
    partial = target.with_name(target.name + ".part")
    partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    partial.replace(target)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(word) for word in _words(text)))
    except ValueError:
        raise argparse.ArgumentTypeError("expected numbers separated by commas") from None


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError("expected names separated by commas")
    return words
