"""What a repository promises in several files agrees: licence, versions of linters, commands."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10: pytest brings the package that became tomllib
    import tomli as tomllib

from staticrt.native import binary_release

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_licence_is_the_one_that_the_metadata_names():
    project = PROJECT["project"]
    assert project["license"] == "BSD-3-Clause"
    (name,) = project["license-files"]
    assert (ROOT / name).read_text().startswith("BSD 3-Clause License")
    assert project["authors"][0]["name"] in (ROOT / name).read_text()


def test_one_place_holds_the_versions_of_linters():
    pinned = dict(
        entry.split("==") for entry in PROJECT["project"]["optional-dependencies"]["lint"] if "==" in entry
    )
    assert pinned.keys() == {"ruff", "mypy", "clang-format"}
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    entries = re.findall(r"entry: (\S+)", hooks)
    assert len(entries) == hooks.count("- id:") == hooks.count("language: system")
    assert set(entries) <= {f".venv/bin/{name}" for name in pinned} | {".ci/lint"}
    assert not re.search(r"\brev:|https?:", hooks), "hooks run what pyproject.toml names"


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"\.PHONY: (.*)", makefile).group(1).split()
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[1] for line in done.stdout.splitlines()] == targets


def test_python_files_install_without_pip(tmp_path):
    script = ROOT / "csrc" / "cmake" / "install_python.cmake"
    subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={tmp_path}", "-P", str(script)], check=True)
    for folder, inside in (("staticrt", ""), ("passes", "passes"), ("ops", "ops"), ("models", "models")):
        files = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
        there = {
            path.relative_to(tmp_path / "staticrt" / inside)
            for path in (tmp_path / "staticrt" / inside).rglob("*.py")
        }
        assert files <= there
    assert (tmp_path / "staticrt" / "py.typed").exists()
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("torch", "required"),
    [
        ("2.13.0+cpu", "torch==2.13.*"),
        ("2.15.1", "torch==2.15.*"),
        ("2.16.0.dev20261101", "torch==2.16.0.dev20261101"),
    ],
)
def test_published_wheels_require_the_torch_that_they_fit(torch, required):
    spec = importlib.util.spec_from_file_location("wheel_script", ROOT / ".ci" / "wheel.py")
    wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheel)
    assert wheel.binary_release(torch) == binary_release(torch)
    metadata = "Name: staticrt\nVersion: 0.1.0\nRequires-Dist: torch>=2.11\nRequires-Dist: torch-tensorrt; extra == 'tensorrt'\n"
    assert wheel.pin(metadata, "0.1.0+torch2.13", torch) == (
        f"Name: staticrt\nVersion: 0.1.0+torch2.13\nRequires-Dist: {required}\nRequires-Dist: torch-tensorrt; extra == 'tensorrt'\n"
    )
