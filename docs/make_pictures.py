"""Writes docs/pictures/*.svg: `python docs/make_pictures.py`; with `--measure` it times the profile again.

The memory plan and the graph are those of a small transformer layer. The bars come from the tables of docs/benchmarks.md, the
profile from docs/pictures/profile.json, so that the same sources always give the same pictures. The profile is also timed again
where its steps or their routes are no longer those of the file.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import staticrt
from staticrt.tools.report.drawing import Drawing

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
PROFILE = PICTURES / "profile.json"
BLUE, GREEN, ORANGE = "#cfe3f5", "#d4edda", "#f8dcc4"


class Layer(torch.nn.Module):
    """Attention and a feed-forward network: float32 [batch, length, 64] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (*x.shape[:2], 3, 4, 16)
        q, k, v = self.qkv(self.norm1(x)).view(heads).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))
        return y


def compiled_layer() -> tuple[Any, torch.Tensor]:
    """A compiled layer after two calls, and its argument."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fast = staticrt.compile(Layer().eval(), deterministic=True)
    x = torch.randn(4, 32, 64)
    with torch.no_grad():
        for _ in range(2):
            fast(x)
    return fast, x


def measured_profile(fast: Any, x: torch.Tensor) -> dict[str, Any]:
    """What the picture of a profile shows."""
    with torch.no_grad():
        report = fast.profile(x)
    rows = [
        {"name": row.name, "op": row.op, "route": row.route, "us": round(row.self_ns / 1e3, 2)}
        for row in report.rows
        if row.self_ns >= 100
    ]
    return {"call_us": round(report.call_ns / 1e3, 2), "torch": torch.__version__, "rows": rows}


def steps(profile: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What a profile is about: its kernels without their times."""
    return [(row["name"], row["op"], row["route"]) for row in profile["rows"] if row["route"]]


def profile_picture(profile: dict[str, Any]) -> Drawing:
    """A bar per step: its share of the call."""
    rows = profile["rows"]
    drawing = Drawing(860, 60 + 22 * len(rows))
    drawing.text(20, 26, f"One call of a transformer layer, {profile['call_us']:.0f} µs, step by step", 14)
    longest = max(row["us"] for row in rows)
    for number, row in enumerate(rows):
        y = 46 + 22 * number
        drawing.text(250, y + 12, f"{row['op']}"[:36], anchor="end")
        width = 330 * row["us"] / longest
        drawing.rectangle(260, y, width, 16, BLUE if row["route"] else ORANGE)
        drawing.text(266 + width, y + 12, f"{row['us']:.1f} µs  {row['route']}")
    return drawing


def tables(path: Path) -> list[list[list[str]]]:
    """The tables of a Markdown file, as rows of cells."""
    found: list[list[list[str]]] = []
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            if not inside:
                found.append([])
            found[-1].append([cell.strip().strip("*") for cell in line.strip("|").split("|")])
        inside = line.startswith("|")
    return found


def benchmark_picture(table: Sequence[Sequence[str]]) -> Drawing:
    """Speed over eager of each peer, per model, on a logarithmic scale."""
    shown = {
        "TorchScript": "#bdbdbd",
        "ONNX Runtime": "#e8c547",
        "OpenVINO": "#9ccc9c",
        "staticrt": "#4a90c4",
    }
    columns = {name: table[0].index(name) for name in shown}
    rows = [row for row in table[2:] if row[0] and all(row[c] for c in columns.values())]
    left, octave, top, step = 130, 100, 66, 43
    drawing = Drawing(left + 700, top + step * len(rows) + 10)
    drawing.text(20, 26, "Speed over eager (logarithmic; bars begin at eager's speed, 1)", 14)
    x = left
    for name, color in shown.items():
        drawing.rectangle(x, 38, 12, 12, color)
        drawing.text(x + 17, 49, name)
        x += 40 + 8 * len(name)

    def place(value: float) -> float:
        return left + octave * math.log2(max(value, 0.5) / 0.5)  # slower than half: drawn as half

    for tick in (0.5, 1, 2, 4, 8, 16, 32):
        at = place(tick)
        drawing.line([(at, top - 4), (at, top + step * len(rows))], "#bbbbbb" if tick == 1 else "#eeeeee")
        drawing.text(at, top - 6, f"{tick:g}", 9, "middle")
    for number, row in enumerate(rows):
        y = top + step * number
        drawing.text(left - 8, y + 24, row[0], anchor="end")
        for place_in_row, (name, color) in enumerate(shown.items()):
            at = y + 3 + 9 * place_in_row
            try:
                value = float(row[columns[name]])
            except ValueError:
                drawing.text(place(1) + 4, at + 8, row[columns[name]], 8)
                continue
            low, high = sorted((place(1), place(value)))
            drawing.rectangle(low, at, max(high - low, 1), 8, color, f"{row[0]}, {name}: {value:g}")
            drawing.text(high + 4, at + 8, f"{value:g}", 8)
    return drawing


STAGES = (
    ("trace", "frontend/  shapes/", "module or function"),
    ("passes", "passes/  ops/", "fx graph, ATen"),
    ("lower", "lowering/", "fx graph, rewritten"),
    ("record, plan, bind", "runtime/  memory/", "Program"),
    ("run", "runtime/", "prepared program"),
)
BESIDE = (
    ("capture, replay", "graphs/", 4),
    ("save, load", "archive/", 3),
    ("forward and backward", "training/", 1),
    ("explain, profile, draw", "tools/", 2),
)


def pipeline_picture() -> Drawing:
    """The stages from module to results, with the folder and what each is given."""
    width, gap, top = 132, 34, 66
    drawing = Drawing(40 + len(STAGES) * (width + gap) + 40, 250)
    drawing.text(20, 26, "From a module to results; executor/ decides for each call how far it goes", 14)
    for number, (name, folder, given) in enumerate(STAGES):
        x = 20 + number * (width + gap)
        drawing.rectangle(x, top, width, 52, BLUE)
        drawing.text(x + width / 2, top + 22, name, 13, "middle")
        drawing.text(x + width / 2, top + 40, folder, 10, "middle")
        drawing.text(x, top - 10, given, 10)
        arrow(drawing, (x + width, top + 26), (x + width + gap, top + 26))
    drawing.text(20 + len(STAGES) * (width + gap) + 4, top + 30, "results", 12)
    for name, folder, stage in BESIDE:
        x = 20 + stage * (width + gap)
        drawing.rectangle(x, 180, width, 46, GREEN)
        drawing.text(x + width / 2, 199, name, 11, "middle")
        drawing.text(x + width / 2, 216, folder, 10, "middle")
        arrow(drawing, (x + width / 2, top + 52), (x + width / 2, 180))
    return drawing


def arrow(drawing: Drawing, begin: tuple[float, float], end: tuple[float, float]) -> None:
    """A horizontal or vertical line with a head."""
    drawing.line([begin, end], "#666666")
    (x, y), right = end, end[0] > begin[0]
    head = [(x, y), (x - 7, y - 4), (x - 7, y + 4)] if right else [(x, y), (x - 4, y - 7), (x + 4, y - 7)]
    drawing.polygon(head, "#666666")


def drawings() -> dict[str, Drawing]:
    """The pictures that depend on files of docs/ alone."""
    return {
        "profile.svg": profile_picture(json.loads(PROFILE.read_text(encoding="utf-8"))),
        "benchmark.svg": benchmark_picture(tables(DOCS / "benchmarks.md")[0]),
        "pipeline.svg": pipeline_picture(),
    }


def main(arguments: Sequence[str]) -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    fast, x = compiled_layer()
    fast.plot_memory(PICTURES / "memory_plan.svg")
    fast.draw(PICTURES / "graph.svg")
    measured, kept = measured_profile(fast, x), json.loads(PROFILE.read_text(encoding="utf-8"))
    if "--measure" in arguments or steps(measured) != steps(kept):
        PROFILE.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    for name, drawing in drawings().items():
        drawing.save(PICTURES / name)


if __name__ == "__main__":
    main(sys.argv[1:])
