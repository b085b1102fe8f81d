"""Draws a memory snapshot: allocations over time, and the present blocks of each segment.

Reads the schema of `torch.cuda.memory._snapshot`, from torch or from `staticrt.memory.snapshot`.
"""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staticrt.errors import InputError
from staticrt.memory.units import format_bytes
from staticrt.tools.report.drawing import Drawing, Point, color_of

STATES = {
    "active_allocated": "#4878a8",
    "active_pending_free": "#d8a040",
    "active_awaiting_free": "#d8a040",
    "inactive": "#e4e4e4",
}
MAX_LAYERS = 500  # allocations drawn one by one, the largest ones; all others are one layer
MAX_SEGMENTS = 60

LEFT, WIDTH, TOP, HEIGHT, ROW = 90, 1100, 40, 320, 14


class _DataOnly(pickle.Unpickler):
    """Unpickles plain data only; any class in the file raises."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def load_snapshot(path: str | Path) -> dict[str, Any]:
    """A snapshot from a pickle (as torch and `dump_snapshot` write) or a JSON file.

    Raises:
        InputError: the file cannot be read, or is not a snapshot.
    """
    try:
        data = Path(path).read_bytes()
        found = json.loads(data) if data[:1] == b"{" else _DataOnly(io.BytesIO(data)).load()
    except (OSError, ValueError, EOFError, IndexError, KeyError, pickle.UnpicklingError) as error:
        raise InputError(f"cannot read a snapshot: {error}", at=path) from error
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise InputError(
            "this is not a memory snapshot: it has no list of segments",
            at=path,
            fix="write one with staticrt.memory.dump_snapshot or torch.cuda.memory._dump_snapshot",
        )
    _check_sizes(found, path)
    return found


def _check_sizes(snapshot: dict[str, Any], path: str | Path) -> None:
    """Raise InputError at the first invalid size, because a plot of it would look plausible."""
    for number, segment in enumerate(snapshot["segments"]):
        if not isinstance(segment, dict):
            raise InputError(f"this is not a memory snapshot: segment {number} is {segment!r:.50}", at=path)
        blocks = segment.get("blocks")
        parts = [(f"segment {number}", segment)]
        parts += [
            (f"block {i} of segment {number}", b) for i, b in enumerate(blocks or ()) if isinstance(b, dict)
        ]
        for name, part in parts:
            for key in ("address", "size", "total_size", "allocated_size", "active_size", "requested_size"):
                value = part.get(key, 0)
                if type(value) is not int or not 0 <= value < 1 << 64:
                    raise InputError(
                        f"this is not a memory snapshot: {key} of {name} is {value!r:.50}",
                        at=path,
                        fix="the file is damaged; write it again",
                    )


@dataclass
class Layer:
    """One allocation over time. It is stacked on earlier allocations, and sinks when one of these is freed."""

    size: int
    label: str
    begin: int  # number of the action that made it, 0 if it was there before
    end: int  # number of the action that ended it, or the number of actions
    steps: list[tuple[int, int]]  # (action, bytes below it from then on)


@dataclass
class Timeline:
    """Memory over the recorded actions. Sizes are bytes, times numbers of actions."""

    actions: int
    layers: list[Layer]
    rest: list[tuple[int, int, int]]  # (action, bytes below, bytes) of all small allocations together
    reserved: list[tuple[int, int]]  # (action, bytes) from then on
    peak_bytes: int


def timeline(snapshot: dict[str, Any], device: int = 0, max_layers: int = MAX_LAYERS) -> Timeline:
    """Memory over time from a snapshot's trace. O(actions * layers).

    What the trace does not show (older allocations, a full ring) is taken from the segments.
    """
    traces = snapshot.get("device_traces", [])
    trace = traces[device] if device < len(traces) else []
    segments = [each for each in snapshot["segments"] if each.get("device", 0) == device]
    spans = _spans(trace, segments)
    drawn = sorted(range(len(spans)), key=lambda i: (-spans[i].size, i))[:max_layers]
    shown = set(drawn)

    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        starts.setdefault(span.begin, []).append(i)
        ends.setdefault(span.end, []).append(i)
    stack: list[int] = []
    small = height = peak = 0
    rest: list[tuple[int, int, int]] = []
    for action in sorted({*starts, *ends}):
        going = {i for i in ends.get(action, ()) if spans[i].end < len(trace)}
        small -= sum(spans[i].size for i in going - shown)
        if going & shown:
            stack = [i for i in stack if i not in going]
        coming = starts.get(action, ())
        small += sum(spans[i].size for i in coming if i not in shown)
        stack += [i for i in coming if i in shown]
        height = 0
        for i in stack:
            if not spans[i].steps or spans[i].steps[-1][1] != height:
                spans[i].steps.append((action, height))
            height += spans[i].size
        rest.append((action, height, small))
        peak = max(peak, height + small)
    return Timeline(
        actions=len(trace),
        layers=[spans[i] for i in sorted(shown)],
        rest=rest,
        reserved=_reserved(trace, segments),
        peak_bytes=peak,
    )


def _spans(trace: list[dict[str, Any]], segments: list[dict[str, Any]]) -> list[Layer]:
    """All allocations, in order of their start."""
    spans: list[Layer] = []
    live: dict[int, Layer] = {}
    before: list[Layer] = []
    for number, entry in enumerate(trace):
        if entry["action"] == "alloc":
            span = Layer(entry["size"], _label(entry), number, len(trace), [])
            spans.append(span)
            live[entry["addr"]] = span
        elif entry["action"] == "free_completed":
            if entry["addr"] in live:
                live.pop(entry["addr"]).end = number
            else:
                before.append(Layer(entry["size"], _label(entry), 0, number, []))
    for segment in segments:
        for block in segment["blocks"]:
            address = block.get("address")
            if block["state"].startswith("active") and address not in live:
                before.append(Layer(block["size"], _label(block), 0, len(trace), []))
    return before + spans


def _label(entry: dict[str, Any]) -> str:
    frames = entry.get("frames") or []
    place = f" {Path(frames[0]['filename']).name}:{frames[0]['line']} {frames[0]['name']}" if frames else ""
    note = f" [{entry['user_metadata']}]" if entry.get("user_metadata") else ""
    return f"{format_bytes(entry['size'])}{place}{note}"


def _reserved(trace: list[dict[str, Any]], segments: list[dict[str, Any]]) -> list[tuple[int, int]]:
    sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    steps = [(n, sign[e["action"]] * e["size"]) for n, e in enumerate(trace) if e["action"] in sign]
    level = sum(each["total_size"] for each in segments) - sum(change for _, change in steps)
    levels = [(0, level)]
    for number, change in steps:
        level += change
        levels.append((number, level))
    return levels


def plot(snapshot: dict[str, Any], device: int = 0) -> Drawing:
    """The picture of a snapshot: memory over time above, one bar for each segment below."""
    segments = [each for each in snapshot["segments"] if each.get("device", 0) == device]
    segments.sort(key=lambda s: (tuple(s.get("segment_pool_id", (0, 0))), s["stream"], s["address"]))
    largest = sorted(segments, key=lambda s: (-s["total_size"], s["address"]))[:MAX_SEGMENTS]
    rows = [each for each in segments if any(each is one for one in largest)]
    bottom = TOP + HEIGHT + 60
    drawing = Drawing(LEFT + WIDTH + 20, bottom + ROW * (len(rows) + 2) + 20)
    _draw_timeline(drawing, timeline(snapshot, device))
    _draw_segments(drawing, rows, bottom, len(segments) - len(rows))
    return drawing


def _draw_timeline(drawing: Drawing, line: Timeline) -> None:
    top_bytes = max([line.peak_bytes, *(level for _, level in line.reserved), 1])

    def at(action: float, size: float) -> Point:
        return LEFT + WIDTH * action / max(line.actions, 1), TOP + HEIGHT * (1 - size / top_bytes)

    drawing.text(LEFT, 20, f"memory over {line.actions} actions; peak {format_bytes(line.peak_bytes)}", 14)
    for k in range(5):
        size = top_bytes * k / 4
        drawing.line([at(0, size), at(max(line.actions, 1), size)], "#dddddd")
        drawing.text(LEFT - 6, at(0, size)[1] + 4, format_bytes(size), 10, "end")
    for layer in line.layers:
        lower = _staircase(layer.steps, layer.end if layer.end > layer.begin else layer.begin + 1)
        upper = [(action, size + layer.size) for action, size in reversed(lower)]
        points = [at(action, size) for action, size in [*lower, *upper]]
        drawing.polygon(points, color_of(layer.label), layer.label)
    if any(size for _, _, size in line.rest):
        end = max(line.actions, 1)
        lower = _staircase([(action, below) for action, below, _ in line.rest], end)
        upper = _staircase([(action, below + size) for action, below, size in line.rest], end)
        drawing.polygon(
            [at(*point) for point in [*lower, *reversed(upper)]], "#bbbbbb", "smaller allocations"
        )
    drawing.line([at(*point) for point in _staircase(line.reserved, max(line.actions, 1))], "#c03030")
    drawing.text(LEFT + WIDTH, TOP - 6, "red: reserved from the device", 10, "end")


def _staircase(steps: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Corners of a function that is constant between steps."""
    corners: list[tuple[int, int]] = []
    for k, (action, value) in enumerate(steps):
        stop = steps[k + 1][0] if k + 1 < len(steps) else end
        corners += [(action, value), (max(stop, action), value)]
    return corners


def _draw_segments(drawing: Drawing, rows: list[dict[str, Any]], top: int, left_out: int) -> None:
    held = sum(each["total_size"] for each in rows)
    note = f"; {left_out} smaller segments are not drawn" if left_out else ""
    drawing.text(LEFT, top - 10, f"{len(rows)} segments now, {format_bytes(held)}{note}", 14)
    widest = max((each["total_size"] for each in rows), default=1)
    for k, segment in enumerate(rows):
        y = top + k * ROW
        first, second = segment.get("segment_pool_id", (0, 0))
        drawing.text(LEFT - 6, y + 10, f"{first}_{second} s{segment['stream']}", 10, "end")
        offset = 0
        for block in segment["blocks"]:
            x = LEFT + WIDTH * offset / widest
            width = WIDTH * block["size"] / widest
            title = f"{block['state']} {_label(block)}"
            drawing.rectangle(
                x, y, max(width - 0.5, 0.5), ROW - 3, STATES.get(block["state"], "#888888"), title
            )
            offset += block["size"]
    legend = "blue: in use; orange: freed, still used by a stream; grey: free. Left: pool and stream."
    drawing.text(LEFT, top + len(rows) * ROW + 14, legend, 10)
