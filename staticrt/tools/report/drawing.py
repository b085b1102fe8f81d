"""A drawing of polygons, lines and texts in pixels, written as SVG or, with matplotlib, as PNG."""

from __future__ import annotations

import colorsys
import hashlib
import html
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from staticrt.errors import OptionError

Point = tuple[float, float]


@dataclass(frozen=True)
class Polygon:
    points: tuple[Point, ...]
    fill: str
    title: str = ""  # shown when the pointer rests on it (SVG)


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    color: str


@dataclass(frozen=True)
class Text:
    at: Point
    text: str
    size: int = 11
    anchor: str = "start"  # start, middle or end of the text is at the point


@dataclass
class Drawing:
    """Shapes in drawing order. x goes right, y goes down, in pixels."""

    width: int
    height: int
    shapes: list[Polygon | Line | Text] = field(default_factory=list)

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, title: str = "") -> None:
        corners = ((x, y), (x + width, y), (x + width, y + height), (x, y + height))
        self.shapes.append(Polygon(corners, fill, title))

    def polygon(self, points: Sequence[Point], fill: str, title: str = "") -> None:
        self.shapes.append(Polygon(tuple(points), fill, title))

    def line(self, points: Sequence[Point], color: str) -> None:
        self.shapes.append(Line(tuple(points), color))

    def text(self, x: float, y: float, text: str, size: int = 11, anchor: str = "start") -> None:
        self.shapes.append(Text((x, y), text, size, anchor))

    def svg(self) -> str:
        """The drawing as an SVG document."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif">',
            f'<rect width="{self.width}" height="{self.height}" fill="white"/>',
        ]
        for shape in self.shapes:
            if isinstance(shape, Polygon):
                title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
                lines.append(
                    f'<polygon points="{_points(shape.points)}" fill="{shape.fill}">{title}</polygon>'
                )
            elif isinstance(shape, Line):
                lines.append(
                    f'<polyline points="{_points(shape.points)}" fill="none" stroke="{shape.color}"/>'
                )
            else:
                lines.append(
                    f'<text x="{shape.at[0]:.1f}" y="{shape.at[1]:.1f}" font-size="{shape.size}" '
                    f'text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
                )
        return "\n".join([*lines, "</svg>", ""])

    def save(self, path: str | Path) -> None:
        """Write the file; its ending chooses the format.

        Raises:
            OptionError: it is neither .svg, .html nor .png, or .png without matplotlib.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".svg":
            Path(path).write_text(self.svg(), encoding="utf-8")
        elif suffix == ".html":
            title = html.escape(Path(path).stem)
            page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{title}</title>\n{self.svg()}'
            Path(path).write_text(page, encoding="utf-8")
        elif suffix == ".png":
            self._save_png(path)
        else:
            raise OptionError(f"cannot draw into {str(path)!r}", fix="name it .svg, .html or .png")

    def _save_png(self, path: str | Path) -> None:
        if not png_possible():
            raise OptionError("PNG needs matplotlib", fix="pip install matplotlib, or write .svg or .html")
        # By name: matplotlib is optional, also for the type checker.
        matplotlib: Any = importlib.import_module("matplotlib.figure")
        dots = 100
        figure = matplotlib.Figure(figsize=(self.width / dots, self.height / dots), dpi=dots)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        axes.axis("off")
        for shape in self.shapes:
            if isinstance(shape, Polygon):
                axes.fill(*zip(*shape.points, strict=True), color=shape.fill, linewidth=0)
            elif isinstance(shape, Line):
                axes.plot(*zip(*shape.points, strict=True), color=shape.color, linewidth=1)
            else:
                align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
                axes.text(*shape.at, shape.text, fontsize=shape.size * 72 / dots, ha=align, va="baseline")
        figure.savefig(path)


def color_of(label: str) -> str:
    """A colour that depends on the label alone."""
    digest = hashlib.md5(label.encode(), usedforsecurity=False).digest()
    light, strength = 0.5 + digest[1] / 1280, 0.35 + digest[2] / 850
    red, green, blue = colorsys.hls_to_rgb(digest[0] / 256, light, strength)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def png_possible() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
