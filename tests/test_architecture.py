"""The arrows of ARCHITECTURE.md: which room may know which."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# room -> rooms it may import (itself is always allowed); staticrt.errors and staticrt.native are open to all
PYTHON_ROOMS = {
    "ops": set(),
    "passes": {"ops"},
    "staticrt": {"passes", "ops"},
    "models": {"staticrt", "passes", "ops"},
}
BASE = {"common"}
CSRC_ROOMS = {
    "common": set(),
    "planner": BASE,
    "allocator": BASE,
    "kernels": BASE,
    "program": BASE,
    "runtime": BASE | {"program", "planner", "allocator", "kernels"},
    "capture": BASE | {"program", "planner", "allocator", "kernels"},
    "archive": BASE | {"program", "planner", "kernels", "runtime"},
    "bindings": BASE | {"program", "planner", "allocator", "kernels", "runtime", "capture", "archive"},
}
OPEN = {"staticrt.errors", "staticrt.native", "staticrt._C", "staticrt._build_info"}
FOREIGN = re.compile(r"^(torch|ATen|c10|caffe2|cuda|Python\.h|pybind11)")


def python_room(module: str) -> str | None:
    """The room a dotted import belongs to, or None if it is not ours or open to all."""
    if module.split(".")[0] != "staticrt" or any(module == o or module.startswith(o + ".") for o in OPEN):
        return None
    part = module.split(".")[1] if "." in module else ""
    return part if part in PYTHON_ROOMS else "staticrt"


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            if node.module == "staticrt":
                found += [f"staticrt.{alias.name}" for alias in node.names]
            elif node.module:
                found.append(node.module)
    return found


@pytest.mark.parametrize("room", PYTHON_ROOMS)
def test_python_arrows(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        # The command line is the one place that starts a room above its own.
        allowed = PYTHON_ROOMS[room] | {room} | ({"models"} if path.name == "cli.py" else set())
        for module in imports(path):
            target = python_room(module)
            assert target is None or target in allowed, f"{path}: {room} must not import {module}"
            assert module.split(".")[0] not in ("passes", "ops", "models"), (
                f"{path}: import staticrt.{module}"
            )


@pytest.mark.parametrize("room", CSRC_ROOMS)
def test_csrc_arrows(room):
    for path in sorted((ROOT / "csrc" / room).glob("*.*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        for include in re.findall(r'#include\s+[<"]([^>"]+)[>"]', path.read_text()):
            top = include.split("/")[0]
            if top in CSRC_ROOMS:
                assert top == room or top in CSRC_ROOMS[room], f"{path}: {room} must not include {include}"
            if room in ("planner", "allocator", "common") and path.name not in (
                "driver_cuda.cpp",
                "abi_check.cpp",
            ):
                assert not FOREIGN.match(include), f"{path}: {room} knows no {include}"
            if room != "bindings":
                assert not re.match(
                    r"^(Python\.h|pybind11|torch/csrc/(utils/pybind|autograd/python))", include
                ), f"{path}: only bindings/ knows Python"


def test_arrow_check_sees_a_wrong_import(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from staticrt import compiler\n")
    assert python_room(imports(wrong)[0]) == "staticrt"
    assert python_room("staticrt.passes.base") == "passes"
    assert python_room("staticrt.errors") is None
