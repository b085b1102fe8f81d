"""Private names of torch in staticrt's sources, found by syntax tree; `.ci/lint` compares them with `private_names.txt`.

`python tests/support/private_names.py` does so and prints their number; --write brings the folders up to date. A name that
is not in the list is added by hand.
"""

from __future__ import annotations

import ast
import collections
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("staticrt", "passes", "ops", "models")
PRIVATE_MODULE = "staticrt/torch_private.py"
LIST = Path(__file__).with_suffix(
    ".txt"
)  # per line: a private name that other modules use, the folders that use it


def is_private(name: str) -> bool:
    """Whether a dotted name of torch has a part that starts with one underscore."""
    parts = name.split(".")
    return parts[0] == "torch" and any(part.startswith("_") and not part.endswith("__") for part in parts)


def private_names(source: str) -> set[str]:
    """Full names of torch's private modules, functions, classes and operators that a module's source names.

    Attributes of objects (`tensor._version`) have no full name, and do not count.
    """
    tree = ast.parse(source)
    known: dict[str, str] = {}  # local name -> full name
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
                found.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.add(f"{node.module}.{alias.name}")
    inner: set[ast.AST] = set()  # parts of a longer name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node not in inner and (name := _full_name(node, known)):
                found.add(name)
            inner.add(node.value)
    names = {_without_members(name) for name in found if is_private(name)}
    return {name for name in names if not any(other.startswith(name + ".") for other in names)}


def _full_name(node: ast.expr, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        base = _full_name(node.value, known)
        return f"{base}.{node.attr}" if base else None
    return known.get(node.id) if isinstance(node, ast.Name) else None


def _without_members(name: str) -> str:
    """Members of a class, and overloads of an operator, are not names of their own."""
    parts = name.split(".")
    if parts[1] == "ops":
        return ".".join(parts[:4])
    last = max(i for i, part in enumerate(parts) if part.startswith("_") and not part.endswith("__"))
    for i in range(last, len(parts)):
        if parts[i] != "_C" and parts[i].lstrip("_")[:1].isupper():
            return ".".join(parts[: i + 1])
    return name


def users() -> dict[str, set[str]]:
    """Private name -> the source files that name it."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in private_names(path.read_text()):
                found[name].add(str(path.relative_to(ROOT)))
    return found


def listed() -> dict[str, str]:
    """The list: name -> folders."""
    return dict(line.split(": ") for line in LIST.read_text().splitlines())


def folders(files: set[str]) -> str:
    """The folders of files that use a name, apart from `torch_private` itself."""
    parts = [path.removesuffix(".py").split("/") for path in files if path != PRIVATE_MODULE]
    return " ".join(sorted({part[1] if part[0] == "staticrt" else part[0] for part in parts}))


def differences(found: dict[str, set[str]], table: dict[str, str]) -> list[str]:
    """What the list lacks, or says wrongly."""
    used = {name: folders(files) for name, files in found.items() if folders(files)}
    return [
        *(
            f"{name} is not listed; {', '.join(sorted(found[name]))} uses it"
            for name in sorted(used.keys() - table.keys())
        ),
        *(f"{name} is listed, but not used" for name in sorted(table.keys() - used.keys())),
        *(
            f"{name} is used by {used[name]}, not by {table[name]}: --write corrects it"
            for name in sorted(used.keys() & table.keys())
            if used[name] != table[name]
        ),
    ]


def write(found: dict[str, set[str]], table: dict[str, str]) -> None:
    """Brings the folders in the list up to date and drops names that are not used."""
    rows = [(name, folders(found.get(name, set()))) for name in table]
    LIST.write_text("".join(f"{name}: {used}\n" for name, used in rows if used))


def main() -> int:
    found = users()
    if "--write" in sys.argv:
        write(found, listed())
    wrong = differences(found, listed())
    for line in wrong:
        print(f"{LIST.relative_to(ROOT)}: {line}", file=sys.stderr)
    print(f"{len(found)} private names of torch, {len(listed())} of them used outside of {PRIVATE_MODULE}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
