"""The texts of the project are short, and what they name exists."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"ARCHITECTURE.md": 10 << 10, "README.md": 8 << 10, "CHANGELOG.md": 4 << 10}
TEXTS = sorted(
    path
    for path in (ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if path.exists()
)
# A path begins with a folder of the repository; `*` and `NAME` stand for any name.
FOLDERS = "csrc|staticrt|passes|ops|models|tests|docs|examples|.ci"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./*-]*)`")


def exists(name):
    name = name.replace("NAME", "*")
    return any(ROOT.glob(name.rstrip("/"))) if "*" in name else (ROOT / name).exists()


@pytest.mark.parametrize("name", LIMITS)
def test_the_short_texts_stay_short(name):
    size = (ROOT / name).stat().st_size
    assert size <= LIMITS[name], f"{name} has {size} bytes, of {LIMITS[name]}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_that_texts_name_exist(path):
    missing = sorted({name for name in PATH.findall(path.read_text()) if not exists(name)})
    assert not missing


def test_files_that_design_texts_name_exist():
    """Also those named without their folder, in pictures and tables."""
    known = {path.name for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.*")}
    for path in (ROOT / "ARCHITECTURE.md", *(ROOT / "docs" / "design").glob("*.md")):
        named = set(re.findall(r"\b[a-z]\w*\.(?:py|cpp|h)\b(?!\.in)", path.read_text()))
        assert named <= known, path.name


def test_a_missing_path_would_be_found():
    assert PATH.findall("see `csrc/planner/nowhere.h` and `passes/pipeline.py`") == [
        "csrc/planner/nowhere.h",
        "passes/pipeline.py",
    ]
    assert not exists("csrc/planner/nowhere.h")
    assert exists("passes/pipeline.py")
    assert exists("csrc/planner/*.h")
    assert not exists("passes/*.h")


def test_every_folder_has_a_row_in_the_architecture():
    rows = set(re.findall(r"^\| `([\w/]+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    python = {path.parent for path in (ROOT / "staticrt").glob("*/**/*.py")}
    cpp = {path.parent for path in (ROOT / "csrc").glob("*/**/*.cpp")}
    folders = {"/".join(path.relative_to(ROOT).parts[:2]) for path in python | cpp}
    assert rows == folders | {"passes", "ops", "models"}


@pytest.fixture
def make_pictures():
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_shown_and_up_to_date(make_pictures):
    folder = ROOT / "docs" / "pictures"
    for name, drawing in make_pictures.drawings().items():
        assert (folder / name).read_text() == drawing.svg(), "run `make docs`"
    texts = "".join(path.read_text() for path in (ROOT / "README.md", *TEXTS))
    for picture in folder.glob("*.svg"):
        assert f"pictures/{picture.name})" in texts, f"no text shows {picture.name}"


def test_a_profile_of_other_routes_is_measured_again(make_pictures, monkeypatch, tmp_path):
    monkeypatch.setattr(make_pictures, "PICTURES", tmp_path)
    monkeypatch.setattr(make_pictures, "PROFILE", tmp_path / "profile.json")
    measured = make_pictures.measured_profile(*make_pictures.compiled_layer())
    make_pictures.PROFILE.write_text(json.dumps(measured | {"call_us": -1.0}))
    make_pictures.main([])
    assert json.loads(make_pictures.PROFILE.read_text())["call_us"] == -1.0
    measured["rows"][0]["route"] = "a route of the past"
    make_pictures.PROFILE.write_text(json.dumps(measured | {"call_us": -1.0}))
    make_pictures.main([])
    shown = json.loads(make_pictures.PROFILE.read_text())
    assert shown["call_us"] > 0
    assert "a route of the past" not in (tmp_path / "profile.svg").read_text()


def test_design_texts_are_listed_and_name_their_tests():
    folder = ROOT / "docs" / "design"
    listed = set(re.findall(r"\]\((\w+)\.md\)", (folder / "README.md").read_text()))
    assert listed == {path.stem for path in folder.glob("*.md")} - {"README"}
    for name in listed:
        assert re.search(r"`tests/[\w/]+\.\w+`", (folder / f"{name}.md").read_text()), name


@pytest.mark.parametrize(
    ("text", "folders", "families"),
    [
        ("allocator", ["csrc/allocator", "tests/csrc/allocator", "tests/memory"], "RBGESPINUV"),
        ("graphs", ["staticrt/graphs", "csrc/graphs", "tests/graphs"], "D"),
        ("training", ["staticrt/training", "tests/training"], "F"),
    ],
)
def test_rules_that_code_cites_are_defined(text, folders, families):
    """A citation is a rule's name in a comment or docstring, or at the beginning of a C++ test's name."""
    rows = re.findall(
        r"^\| ([A-Z]\d[\w, ]*) \|", (ROOT / "docs" / "design" / f"{text}.md").read_text(), re.MULTILINE
    )
    defined = {name for row in rows for name in row.split(", ")}
    cited = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".cpp", ".h", ".py"):
                continue
            for line in path.read_text().splitlines():
                comment = re.search(r'(//|#|"""|^TEST\().*', line)
                if comment and "slot 3:" not in line:  # streams.h draws events named E7, E8
                    cited |= set(re.findall(rf"(?<![\w.`])[{families}][1-9]\d?(?=[ab]?\b|_)", comment[0]))
    assert cited - defined == set()
    assert cited, "nothing cites a rule"
