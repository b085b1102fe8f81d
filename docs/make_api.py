"""Writes docs/api.md, the reference of the public API, from docstrings: `python docs/make_api.py`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

# section title -> module, and the names it shows: None for its public ones
SECTIONS: tuple[tuple[str, str, tuple[str, ...] | None], ...] = (
    ("staticrt", "staticrt", None),
    ("Reports", "staticrt.tools.report.inspection", ("Tools",)),
    ("Preparing ahead", "staticrt.executor.prepare", ("Readiness",)),
    ("Profiles", "staticrt.tools.report.profile", ("ProfileReport", "ProfileRow", "KindRow", "profile")),
    ("Metrics", "staticrt.tools.report.metrics", ("Metrics", "GraphMetrics", "TimeMetrics")),
    ("Explanations", "staticrt.runtime.explain.explanation", ("Explanation", "TraceReport", "EagerReport")),
    ("Comparisons", "staticrt.tools.report.compare", ("CompareReport", "NodeDifference")),
    (
        "Accelerators",
        "staticrt.api.accelerators",
        ("Accelerator", "available", "find", "register_accelerator"),
    ),
    ("Planner", "staticrt.memory.planner", None),
    ("Autotuning", "staticrt.runtime.autotuning", None),
    ("Memory", "staticrt.memory", None),
    ("Simulated devices", "staticrt.memory.simulated_torch", ("Simulated",)),
    ("Graphs", "staticrt.graphs", None),
    ("Optimisers", "staticrt.training.optim", ("SGD", "Adam", "AdamW")),
    ("Graph passes", "staticrt.passes", None),
    ("Operator facts", "staticrt.ops", None),
    ("Errors", "staticrt.errors", None),
)
HEADER = """# API reference

Generated from docstrings by `python docs/make_api.py`.
"""


def public_names(module: Any) -> list[str]:
    """`__all__`, or what the module itself defines without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def signature(function: Any) -> str:
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(…)"
    text = re.sub(r"<(\w+) object at 0x[0-9a-f]+>", r"<\1>", text)
    # Annotations are strings already; the quotes say nothing to a reader.
    return text.replace("'", "") if "'" in text and '"' not in text else text


def prose(docstring: str) -> str:
    """A docstring as Markdown: sections in bold, arguments as lists, examples as code."""
    lines: list[str] = []
    section = False
    for line in inspect.cleandoc(docstring).splitlines():
        heading = re.fullmatch(r"(Args|Returns|Raises|Attributes|Example|Requires|Ensures):\s*", line)
        if heading:
            section = heading[1] not in ("Example",)
            lines += ["", f"**{heading[1]}**", ""]
        elif (section and re.match(r"    [^\s].*?: ", line)) or (section and re.match(r"    \w+:$", line)):
            name, _, rest = line.strip().partition(": ")
            lines.append(f"- `{name.rstrip(':')}`: {rest}")
        elif section and line.startswith("    "):
            text = line.strip()
            lines.append(f"  {text}" if lines and lines[-1].startswith(("- ", "  ")) else f"- {text}")
        else:
            section = section and not line.strip()
            lines.append(line)
    return "\n".join(lines).strip()


def members(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties that the class itself, or a private base of it, defines and documents."""
    found = []
    private = [base for base in cls.__mro__[1:] if base.__name__.startswith("_")]
    own = {name: value for each in [*reversed(private), cls] for name, value in vars(each).items()}
    for name, value in own.items():
        value = getattr(value, "function", value)  # a tool
        if name.startswith("_") or not inspect.getdoc(value):
            continue
        if hasattr(value, "__wrapped__") or not getattr(value, "__module__", "staticrt").startswith(
            "staticrt"
        ):
            continue  # torch's own, forwarded
        if inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)):
            found.append((name, value))
    return found


def entry(name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        first = (inspect.getdoc(value) or "").splitlines()[0]
        return [f"### `{name}`", "", first, ""]
    if not callable(value):
        return []
    lines = [
        f"### `{name}{'' if _is_error(value) else signature(value)}`",
        "",
        prose(inspect.getdoc(value) or ""),
        "",
    ]
    if inspect.isclass(value):
        for member, function in members(value):
            if isinstance(function, property):
                title = f"`{name}.{member}`"
            else:
                bare = getattr(function, "__func__", function)
                title = f"`{name}.{member}{signature(bare)}`".replace("(self, ", "(").replace("(self)", "()")
            lines += [f"#### {title}", "", prose(inspect.getdoc(function) or ""), ""]
    return lines


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and (issubclass(value, BaseException) or dataclasses.is_dataclass(value))


def options() -> list[str]:
    """The table of `staticrt.compile`'s options."""
    from staticrt.options import OPTIONS

    lines = [
        "## Options",
        "",
        "Keywords of `staticrt.compile`.",
        "",
        "| option | default | what it does |",
        "|---|---|---|",
    ]
    lines += [f"| `{option.name}` | `{option.default!r}` | {option.doc} |" for option in OPTIONS]
    return [*lines, ""]


def render() -> str:
    """The whole reference."""
    lines = [HEADER]
    for title, module_name, names in SECTIONS:
        module = importlib.import_module(module_name)
        lines += [f"## {title}", ""]
        doc = inspect.getdoc(module)
        if doc and names is None:
            lines += [doc.splitlines()[0], ""]
        for name in names or public_names(module):
            lines += entry(name, getattr(module, name))
        if module_name == "staticrt":
            lines += options()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    target = Path(__file__).with_name("api.md")
    target.write_text(render(), encoding="utf-8")
    print(f"written: {target}", file=sys.stderr)
