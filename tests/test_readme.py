"""The code and commands of README and docs/ run, and their links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# language of a fence -> run by these tests, or shown only
LANGUAGES = {"python", "console", "cpp", "cmake"}


def steps(path):
    """(language, text) of what a reader would run, in order."""
    return [(kind, text) for kind, text in FENCE.findall(path.read_text()) if kind in ("python", "console")]


# Guides that need a process of their own, run by tests/device, or libraries: tests/examples/test_recipes.py.
ELSEWHERE = {"simulated_device.md", "recipes.md"}


@pytest.mark.parametrize(
    "path", [path for path in DOCS if path.name not in ELSEWHERE], ids=lambda path: path.name
)
def test_a_reader_can_follow_it(path, tmp_path, monkeypatch, capsys):
    """Python blocks share one namespace; one that begins with `# name.py` is that file as well. Lines of console
    blocks that begin with `$ staticrt` are run where those files are; `# exit code N` is what they end with."""
    from staticrt.tools.cli.main import main

    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for kind, text in steps(path):
        if kind == "python":
            file = re.match(r"# (\w+\.py)\n", text)
            if file:
                (tmp_path / file[1]).write_text(text)
            exec(compile(text, str(tmp_path / file[1]) if file else path.name, "exec"), names)
            continue
        for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            assert words[0] == "staticrt", f"{path.name}: {line}: only staticrt is run here"
            expected = re.search(r"# exit code (\d)", line)
            try:
                code = main(words[1:])
            except SystemExit as error:  # --version, --help, wrong arguments
                code = error.code
            assert code == (int(expected[1]) if expected else 0), f"{line}: {capsys.readouterr().err}"


def test_the_readme_shows_what_explain_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(next(text for kind, text in steps(DOCS[0]) if kind == "python"), "README.md", "exec"), {})
    assert "1 traced graph" in capsys.readouterr().out


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_fences_are_of_known_kinds(path):
    assert {kind for kind, _ in FENCE.findall(path.read_text())} <= LANGUAGES


def test_the_api_reference_is_up_to_date():
    # In a process of its own: torch adds methods to a class of optimisers when the first one is made.
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import make_api; print(make_api.render(), end='')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "api.md").read_text() == run.stdout, "run `python docs/make_api.py`"


def test_make_targets_exist():
    commands = re.search(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE).group(1)
    targets = re.findall(r"^make (\w+)", commands, re.MULTILINE)
    assert targets == ["bench", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"{target}:" in makefile for target in targets)


def test_commands_exist_and_are_told():
    from staticrt.tools.cli.main import COMMANDS

    for path in DOCS:
        named = set(re.findall(r"`staticrt (\w+)", path.read_text()))
        assert named <= set(COMMANDS), path.name
    for path in (ROOT / "README.md", ROOT / "docs" / "cli.md"):
        named = set(re.findall(r"(?:`|\$ )staticrt (\w+)", path.read_text()))
        assert named == set(COMMANDS), path.name


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", path.read_text()):
        if target.startswith("http"):
            continue
        linked = (path.parent / target) if target else path
        assert linked.exists(), f"{path.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{path.name}: {target}#{anchor}"


def test_every_guide_is_linked_from_the_readme():
    for path in DOCS[1:]:
        assert f"docs/{path.name}" in README, path.name
