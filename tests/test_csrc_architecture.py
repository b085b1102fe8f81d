"""The layers of csrc/: which folder includes which, and what only some folders know."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[1] / "csrc"

BASE = {"common"}
# folder -> folders it may include; itself is always allowed
MAY_INCLUDE = {
    "common": set(),
    "planner": BASE,
    "allocator": BASE,
    "kernels": BASE,
    "program": BASE,
    "device": BASE | {"allocator"},
    "runtime": BASE | {"program", "planner", "device", "kernels"},
    "graphs": BASE | {"program", "planner", "allocator", "kernels"},
    "simulated": BASE | {"allocator", "device"},
    "archive": BASE | {"program", "planner", "device", "kernels", "runtime", "staticrt"},
    "staticrt": set(),  # the public header
    "bindings": BASE
    | {
        "program",
        "planner",
        "allocator",
        "device",
        "kernels",
        "runtime",
        "graphs",
        "simulated",
        "archive",
        "staticrt",
    },
}
# folder -> its own folders in layers, lowest first: a folder includes its own layer and those before it. Folders of one layer
# ("core pools graphs": one class, Allocator, over three folders) may include each other.
LAYERS: dict[str, tuple[str, ...]] = {
    "allocator": ("core pools graphs sharing", "drivers", "simulated", "process"),
    "kernels": (
        *("registry", "scalar", "trees", "optimizer", "pointwise", "reduction", "data_movement"),
        *("gemm", "conv", "pooling", "attention", "random", "recurrent", "dispatched"),
    ),
    "runtime": ("general", "record", "prepare execution_plan trace", "call", "autograd"),
}
# Files that include what lies above them, and why.
UPWARD = {
    "runtime/general/control_flow.cpp": "runtime/call/executable.h",  # bodies of control flow are executables
    "runtime/trace/trace.cpp": "runtime/call/executable.h",  # a trace keeps the executable that ran
}
NO_TORCH = ("common", "planner", "allocator")
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|cuda|Python\.h|pybind11)")
PYTHON = re.compile(r"^(Python\.h|pybind11|torch/csrc/(utils/pybind|autograd/python))")
# Files that include torch although their folder knows none: the driver of CUDA, the check of torch's ABI.
KNOW_TORCH = {"driver_cuda.cpp", "abi_check.cpp"}


def forbidden(path, text):
    """Includes of a file that the tables forbid.

    Args:
        path: relative to csrc/, "kernels/gemm/blocks.h".
    """
    folder, *inner = path.split("/")[:-1]
    found = []
    for include in re.findall(r'#include\s+[<"]([^>"]+)[>"]', text):
        other, *rest = include.split("/")
        if other in MAY_INCLUDE and other != folder and other not in MAY_INCLUDE[folder]:
            found.append(include)
        if other == folder and inner and len(rest) > 1:
            layer = {name: i for i, names in enumerate(LAYERS.get(folder, ())) for name in names.split()}
            if layer.get(rest[0], 0) > layer.get(inner[0], 0) and UPWARD.get(path) != include:
                found.append(include)
        if folder in NO_TORCH and TORCH.match(include) and path.rsplit("/", 1)[1] not in KNOW_TORCH:
            found.append(include)
        if folder != "bindings" and PYTHON.match(include):
            found.append(include)
    return found


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_includes_go_down(folder):
    paths = [path for path in sorted((CSRC / folder).rglob("*.*")) if path.suffix in (".h", ".cpp")]
    assert paths
    for path in paths:
        found = forbidden(path.relative_to(CSRC).as_posix(), path.read_text())
        assert not found, f"{path} must not include {found}"


def test_every_folder_is_in_the_tables():
    folders = {path.name for path in CSRC.iterdir() if path.is_dir() and any(path.rglob("*.h"))}
    assert folders == set(MAY_INCLUDE)
    for folder, order in LAYERS.items():
        listed = sorted(name for names in order for name in names.split())
        assert listed == sorted(path.name for path in (CSRC / folder).iterdir() if path.is_dir()), folder
    for path, include in UPWARD.items():
        assert f'#include "{include}"' in (CSRC / path).read_text(), f"{path} is an exception no longer"


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("planner/a.h", "runtime/call/b.h"),
        ("kernels/registry/a.h", "kernels/gemm/b.h"),
        ("kernels/gemm/a.cpp", "kernels/conv/b.h"),
        ("allocator/drivers/a.cpp", "allocator/process/b.h"),
        ("runtime/prepare/a.cpp", "runtime/call/b.h"),
        ("allocator/core/deep/a.cpp", "ATen/ATen.h"),
        ("runtime/call/a.cpp", "pybind11/pybind11.h"),
        ("graphs/a.cpp", "runtime/call/b.h"),
        ("runtime/call/a.cpp", "simulated/b.h"),
    ],
)
def test_a_wrong_include_is_found(path, include):
    assert forbidden(path, f'#include "common/check.h"\n#include "{include}"\n') == [include]
    assert not forbidden(f"bindings/{path}", f'#include "{include}"\n')
