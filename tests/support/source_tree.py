"""Reads the package's Python files as syntax trees: their imports, circles among them, parameters, private reads."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# Folders beside staticrt/ that are installed inside it.
MAPPED = ("passes", "ops", "models")
_DOTTED = re.compile(r"staticrt(\.\w+)+(:\w+)?")


@dataclasses.dataclass(frozen=True)
class File:
    """One source file of the package.

    Args:
        module: its name as installed, "staticrt.passes.base".
        path: relative to the repository.
        tree: its syntax tree; of stubs of binary modules an empty one.
    """

    module: str
    path: str
    tree: ast.Module


def module_name(path: str) -> str:
    """ "ops/facts.py" as "staticrt.ops.facts"."""
    parts = path.rsplit(".", 1)[0].split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] == "staticrt" else ["staticrt", *parts])


def read(root: Path) -> dict[str, File]:
    """Module name -> file, for every Python file of the package and the stubs of its binary modules."""
    found = {}
    for folder in ("staticrt", *MAPPED):
        for path in sorted((root / folder).rglob("*.py")):
            relative = path.relative_to(root).as_posix()
            found[module_name(relative)] = File(
                module_name(relative), relative, ast.parse(path.read_text(), relative)
            )
    for name in ("_C", "_build_info"):
        module = f"staticrt.{name}"
        found.setdefault(module, File(module, f"staticrt/{name}.pyi", ast.Module([], [])))
    return found


def from_texts(texts: Mapping[str, str]) -> dict[str, File]:
    """As `read`, from path -> text."""
    files = [File(module_name(path), path, ast.parse(text)) for path, text in texts.items()]
    return {file.module: file for file in files}


def imports(file: File, files: Mapping[str, File]) -> set[str]:
    """Modules of the package that a file imports.

    Imports inside functions and under TYPE_CHECKING count, and so do imports by name: every string that is the name of a
    module ("staticrt.graphs.cpu", "staticrt.graphs.cpu:Backend"), and every f-string that begins with the name of a
    package, which stands for all modules of the package.
    """
    found = {name for name in _written(file, files) if name in files and name != file.module}
    return found


def _written(file: File, files: Mapping[str, File]) -> Iterator[str]:
    docstrings = _docstrings(file.tree)
    inside = {
        id(part) for node in ast.walk(file.tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if not alias.name.startswith("staticrt."):
                    yield alias.name
                else:
                    yield _known(alias.name, files)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.path}:{node.lineno}: relative import; write the full name"
            module = node.module or ""
            top = module.split(".")[0]
            assert top not in MAPPED, f"{file.path}:{node.lineno}: import staticrt.{module}"
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield full if full in files else module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in inside and id(node) not in docstrings and _DOTTED.fullmatch(node.value):
                yield _known(node.value.partition(":")[0], files)
        elif isinstance(node, ast.JoinedStr):
            package = _prefix(node, file.module)
            if package.endswith("."):
                yield from (name for name in files if name.startswith(package))
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from (
                arg.value for arg in node.args if isinstance(arg, ast.Constant) and arg.value == "staticrt"
            )


def _known(name: str, files: Mapping[str, File]) -> str:
    """The module of a dotted name, which may go on with an attribute; "" where only the facade is named."""
    while name not in files and "." in name:
        name = name.rpartition(".")[0]
    return name if name != "staticrt" else ""


def _prefix(node: ast.JoinedStr, module: str) -> str:
    first, rest = node.values[0], node.values[1:]
    if isinstance(first, ast.Constant):
        text = str(first.value)
        return text if re.fullmatch(r"staticrt\.[\w.]*", text) else ""
    own = (
        isinstance(first, ast.FormattedValue)
        and isinstance(first.value, ast.Name)
        and first.value.id == "__name__"
    )
    if own and rest and isinstance(rest[0], ast.Constant) and str(rest[0].value).startswith("."):
        return module + "."
    return ""


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def circles(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            cut = stack.index(module)
            if len(stack) - cut > 1:
                found.append(tuple(sorted(stack[cut:])))
            del stack[cut:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def long_signatures(file: File, most: int) -> set[str]:
    """Functions with more than `most` positional parameters, `self` and `cls` apart."""
    found = set()
    for node in ast.walk(file.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > most:
                found.add(f"{file.module}:{getattr(node, 'name', 'lambda')}")
    return found


def private_members(files: Iterable[File]) -> set[str]:
    """Private names that classes of these files define: attributes set on `self`, methods, annotated fields."""
    found = set()
    for file in files:
        for owner in ast.walk(file.tree):
            if not isinstance(owner, ast.ClassDef):
                continue
            for node in ast.walk(owner):
                if isinstance(node, ast.FunctionDef):
                    found.add(node.name)
                elif (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and _is_self(node.value)
                ):
                    found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_reads(file: File, names: set[str]) -> set[str]:
    """Reads of these private names in other objects than `self`, also by `getattr` and in strings of `vars`.

    A name that a class of the file defines as well belongs to that class.
    """
    names = names - private_members([file])
    found = set()
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Attribute) and node.attr in names and not _is_self(node.value):
            found.add(f"{file.module}:{node.attr}")
        elif isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr", "setattr"):
            for arg in node.args[1:2]:
                if isinstance(arg, ast.Constant) and arg.value in names:
                    found.add(f"{file.module}:{arg.value}")
    return found


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
