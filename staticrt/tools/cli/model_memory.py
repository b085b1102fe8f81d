"""The planned memory of a model, as text, JSON or a picture."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

from tabulate import tabulate

from staticrt.errors import InputError
from staticrt.memory.units import format_bytes
from staticrt.tools.cli.call import call
from staticrt.tools.cli.loading import LoadedModel, prepare_model
from staticrt.tools.cli.output import print_json
from staticrt.tools.report.arena_plot import ArenaLayout, draw_layout, find_layout
from staticrt.tools.report.inspection import inspectable

_MOST_ROWS = 40


def _layouts(args: argparse.Namespace) -> tuple[LoadedModel, list[tuple[str, ArenaLayout]]]:
    """The layouts of all graphs of a model, after it ran."""
    loaded, compiled, inputs, keywords = prepare_model(args)
    for _ in range(2):
        call(f"compiling {loaded.name}", compiled, *inputs, **keywords)
    graphs = inspectable(compiled).graphs()
    if not graphs:
        raise InputError(
            f"nothing of {loaded.name} was compiled, so no memory is planned",
            at="; ".join(item.reason for item in compiled.explain().eager) or None,
            fix="`staticrt inspect` shows what runs eagerly and why",
        )
    return loaded, [find_layout(graphs, number, -1) for number in range(len(graphs))]


def plan_model(args: argparse.Namespace) -> int:
    loaded, layouts = _layouts(args)
    if args.json:
        graphs = [{"graph": name, **_numbers(layout)} for name, layout in layouts]
        print_json({"model": loaded.name, "graphs": graphs})
        return 0
    for name, layout in layouts:
        print(f"{loaded.name}, {name}: {_summary(layout)}")
        blocks = sorted(layout.blocks, key=lambda b: (-b.size, b.begin, b.name))
        rows = [
            [b.name, b.kind, b.size, b.offset if b.offset >= 0 else "", f"{b.begin}–{b.end - 1}", b.detail]
            for b in blocks[:_MOST_ROWS]
        ]
        print(tabulate(rows, ["value", "kind", "bytes", "offset", "nodes", "what"], disable_numparse=True,
                       colalign=("left", "left", "right", "right", "right", "left") if rows else None))  # fmt: skip
        if len(blocks) > _MOST_ROWS:
            print(f"… and {len(blocks) - _MOST_ROWS} smaller ones: --json lists all")
    return 0


def draw_model(args: argparse.Namespace) -> int:
    loaded, layouts = _layouts(args)
    asked = Path(args.output or f"{re.sub(r'[^A-Za-z0-9]+', '_', Path(loaded.name).stem)}_memory.svg")
    written = []
    for number, (name, layout) in enumerate(layouts):
        path = asked if number == 0 else asked.with_name(f"{asked.stem}_{number}{asked.suffix}")
        draw_layout(f"{loaded.name}, {name}", layout).save(path)
        written.append(str(path))
    if args.json:
        graphs = [{"graph": name, **_numbers(layout)} for name, layout in layouts]
        print_json({"model": loaded.name, "graphs": graphs, "written": written})
        return 0
    for name, layout in layouts:
        print(f"{loaded.name}, {name}: {_summary(layout)}")
    for place in written:
        print(f"written: {place}")
    return 0


def _summary(layout: ArenaLayout) -> str:
    return (
        f"arena {format_bytes(layout.arena_bytes)}, lower bound {format_bytes(layout.lower_bound_bytes)}, "
        f"peak with outputs {format_bytes(layout.peak_bytes)}, {len(layout.blocks)} values of {len(layout.nodes)} nodes"
    )


def _numbers(layout: ArenaLayout) -> dict[str, Any]:
    return {
        "arena_bytes": layout.arena_bytes,
        "lower_bound_bytes": layout.lower_bound_bytes,
        "peak_bytes": layout.peak_bytes,
        "nodes": len(layout.nodes),
        "blocks": [dataclasses.asdict(block) for block in layout.blocks],
    }
