"""Which torch a build fits: one lower bound for all, and one error where build and torch differ."""

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import staticrt
from staticrt.errors import InternalError
from staticrt.native import binary_release
from tests.support import run_fresh

ROOT = Path(__file__).resolve().parents[1]


def load_native(monkeypatch, built_with, path):
    """A second copy of staticrt.native, beside a build for another torch."""
    info = types.SimpleNamespace(TORCH_VERSION=built_with, __file__=str(path))
    monkeypatch.setitem(sys.modules, "staticrt._build_info", info)
    monkeypatch.setattr(staticrt, "_build_info", info, raising=False)
    spec = importlib.util.spec_from_file_location("native_copy", Path(staticrt.__file__).parent / "native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lower_bound_stands_in_pyproject_alone():
    pyproject = (ROOT / "pyproject.toml").read_text()
    (bound,) = re.findall(r'"torch([<>=~!][^"]*)"', pyproject)
    assert re.fullmatch(r">=\d+\.\d+", bound), "a lower bound, no upper one"
    least = bound[2:]
    numbers = ", ".join(least.split("."))
    for file in (".ci/dev", "csrc/CMakeLists.txt", "csrc/cmake/build_backend.py", "staticrt/native.py"):
        text = (ROOT / file).read_text()
        assert f">={least}" not in text.replace(" ", ""), f"{file} reads the bound from pyproject.toml"
        assert f"({numbers})" not in text, f"{file} reads the bound from pyproject.toml"
    read = re.search(r"^least=.*$", (ROOT / ".ci" / "dev").read_text(), re.MULTILINE).group()
    done = subprocess.run(["bash", "-c", f"{read}; echo $least"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == numbers


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.13.0+cpu", "2.13"),
        ("2.14.1", "2.14"),
        ("2.15.0+cu132", "2.15"),
        ("2.16.0.dev20261101+cpu",) * 2,
        ("2.16.0a0+git1",) * 2,
    ],
)
def test_builds_fit_a_release(version, release):
    assert binary_release(version) == release


def test_another_build_of_the_same_release_fits(monkeypatch):
    release = binary_release(torch.__version__)
    module = load_native(monkeypatch, f"{release}.7+cu999", staticrt.__file__)
    assert module._C is sys.modules["staticrt._C"]


def test_another_torch_is_one_error_with_both_versions_and_the_command(monkeypatch, tmp_path):
    with pytest.raises(InternalError) as installed:
        load_native(monkeypatch, "2.9.1+cpu", Path(staticrt.__file__))
    assert f"built for torch 2.9.1+cpu, but torch {torch.__version__} is installed" in str(installed.value)
    assert "pip install --no-build-isolation --no-deps --force-reinstall ." in str(installed.value)
    with pytest.raises(InternalError) as editable:
        load_native(monkeypatch, "2.9.1+cpu", tmp_path / "site-packages" / "staticrt" / "_build_info.py")
    assert f"-e '{Path(staticrt.__file__).parents[1]}'" in str(editable.value)


def test_the_build_backend_takes_the_installed_torch(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("backend", ROOT / "csrc" / "cmake" / "build_backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    monkeypatch.chdir(ROOT)
    folder = str(Path(torch.__file__).resolve().parent)
    assert backend._required_torch() == []
    assert backend._settings({"build-dir": "x"}) == {
        "build-dir": "x",
        "cmake.define.STATICRT_TORCH_DIR": folder,
    }
    # In pip's own environment imports do not find it, and its folder does not lie where a package would be installed.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(backend.sysconfig, "get_path", lambda name, vars: str(tmp_path))
    (required,) = backend._required_torch()
    assert re.fullmatch(r"torch>=\d+\.\d+", required)
    assert backend._settings(None) == {}
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").touch()
    assert backend._required_torch() == []
    assert backend._settings(None) == {"cmake.define.STATICRT_TORCH_DIR": str(tmp_path / "torch")}


def test_metadata_needs_no_compiler(monkeypatch, tmp_path):
    code = "import build_backend, sys; print(build_backend.prepare_metadata_for_build_wheel(sys.argv[1]))"
    done = run_fresh(code, tmp_path, variables={"PYTHONPATH": str(ROOT / "csrc" / "cmake")})
    text = (tmp_path / done.stdout.split()[-1] / "METADATA").read_text()
    assert "License-Expression: BSD-3-Clause" in text
    assert "License-File: LICENSE" in text
