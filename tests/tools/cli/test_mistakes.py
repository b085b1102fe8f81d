"""Mistakes of a user of the command line get a sentence and an exit code, not a traceback."""

import importlib
import json
import subprocess
import sys

import pytest
import torch

from staticrt.tools.cli.main import main


def test_bench_tells_which_peer_cannot(toy, call):
    code, out, _ = call(
        "bench", "toy_models:Embed", "--shape", "ids=5:int64:10", "--shape", "mask=5x4:bool", "--quick",
        "--seconds", "0.05", "--peers", "eager,torchscript,staticrt", "--json",
    )  # fmt: skip
    rows = {row["peer"]: row for row in json.loads(out)["rows"]}
    assert code == 0
    assert rows["torchscript"]["status"] == "failed"
    assert rows["torchscript"]["reason"]
    assert rows["staticrt"]["status"] == "ok"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "toy_models:Toy"], 2, "the model's argument 'x' is missing"),
        (["run", "toy_models:Nope"], 2, "toy_models has no 'Nope'"),
        (["run", "toy_models:constant"], 2, "neither an nn.Module nor a function"),
        (["run", "toy_models:NeedsWidth"], 2, "missing a required argument: 'width'"),
        (["run", "toy_models:Broken"], 1, "ValueError: no weights"),
        (["run", "nowhere.at_all:Nope"], 2, "there is no module 'nowhere'"),
        (["run", "nothing"], 2, "'nothing' names no model"),
        (["run", "no.onnx"], 2, "there is no such file"),
        (["run", "toy_models.py"], 2, "write toy_models.py:Name"),
        (["run", "no.py:X"], 2, "there is no such file"),
        (["run", "toy_models.py:Wrong", "--shape", "2x5"], 1, "mat1 and mat2 shapes cannot be multiplied"),
        (["run", "toy_models:Toy", "--shape", "z=3"], 2, "the model has no argument 'z'"),
        (["run", "toy_models:Toy", "--shape", "3x"], 2, "is not a shape"),
        (["run", "toy_models:Toy", "--shape", "3x16:float12"], 2, "unknown dtype 'float12'"),
        (["run", "toy_models:Toy", "--shape", "1", "--shape", "2", "--shape", "3"], 2, "3 inputs given"),
        (["run", "toy_models:Toy", "--input", "x=no.npy"], 2, "there is no such file"),
        (["run", "toy_models:Toy", "--input", "x=toy_models.py"], 2, "unknown kind of file"),
        (["run", "toy_models:Toy", "--value", "x=[1"], 2, "not JSON"),
        (["run", "toy_models:Toy", "--init", "[1]"], 2, "expected a JSON object"),
        (["run", "toy_models:Toy", "--init", '{"depth": 2}'], 2, "unexpected keyword argument 'depth'"),
        (
            ["run", "toy_models:Toy", "--shape", "3x16", "--option", "prepard=false"],
            2,
            "did you mean 'prepared'",
        ),
        (["run", "toy_models:Toy", "--shape", "3x16", "--threads", "0"], 2, "expected at least 1"),
        (["run", "toy_models:Toy", "--shape", "3x16", "--save", "x.bin"], 2, "name it .pt"),
        (["profile", "toy_models:Toy", "--shape", "3x16", "--runs", "0"], 2, "expected at least 1"),
        (["profile", "toy_models:Toy", "--shape", "3x16", "--first-call", "--trace", "t"], 2, "has no trace"),
        (["plan"], 2, "no files to plan"),
        (["plan", "no.csv"], 2, "No such file"),
        (["memory", "no.pickle"], 2, "cannot read a snapshot"),
        (
            ["inspect", "toy_models:Toy", "--shape", "3x16", "--draw", "x.gif"],
            2,
            "name it .svg, .html or .png",
        ),
        (
            ["inspect", "toy_models:Toy", "--shape", "3x16", "--draw", "no/x.svg"],
            2,
            "No such file or directory",
        ),
        (["compile", "toy_models:Toy", "-o", "x.zip"], 2, "name it .pt2"),
        (["fly"], 2, "invalid choice: 'fly'"),
    ],
)
def test_mistakes_get_a_sentence(toy, call, words, code, message):
    got, out, err = call(*words)
    assert (got, out) == (code, "")
    assert message in err


def test_damaged_archives_are_refused(toy, call, tmp_path):
    (tmp_path / "bad.pt2").write_bytes(b"not a zip")
    code, _, err = call("run", "bad.pt2")
    assert (code, "not a .pt2 archive" in err) == (2, True)
    module = importlib.import_module("toy_models").Toy().eval()
    torch.export.save(torch.export.export(module, (torch.randn(3, 16),)), "toy.pt2")
    whole = (tmp_path / "toy.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    code, _, err = call("run", "cut.pt2")
    assert (code, "cut.pt2: the archive is cut short" in err) == (2, True)


def test_debug_shows_the_traceback(toy, capsys):
    assert main(["run", "toy_models:Broken", "--debug"]) == 1
    assert 'raise ValueError("no weights")' in capsys.readouterr().err


def test_a_wrong_input_gets_three_lines_and_no_log(toy, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "staticrt", "run", "toy_models:Wrong", "--shape", "2x5"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 1
    first, place, fix = done.stderr.splitlines()
    assert "mat1 and mat2 shapes cannot be multiplied (2x5 and 3x3)" in first
    assert place.startswith("  at:  toy_models.py:")
    assert "--debug" in fix


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("run", "odd.py:Mixed", "--shape", "x=3", "--shape", "x=4"), 2, "'x' is given twice"),
        (("run", "odd.py:Mixed", "--shape", "99999999999x999"), 2, "give smaller sizes"),
        (("run", "odd.py:Mixed", "--shape", "3", "--save", "/no/such/folder/x.pt"), 2, "no such folder"),
        (("run", "odd.py:", "--shape", "3"), 2, "names no model"),
        (("run", ":Mixed", "--shape", "3"), 2, "names no model"),
        (("run", "folder.onnx"), 2, "is a folder"),
        (("run", "."), 2, "is a folder"),
        (("run", "odd.py:Mixed", "--value", "x=[1]"), 1, "TypeError"),
        (("compile", "odd.py:Mixed", "--shape", "3", "-o", "folder.pt2"), 2, "is a folder"),
        (("plan", "missing.csv"), 2, "No such file"),
    ],
)
def test_a_mistake_is_a_sentence_and_with_json_a_document(
    strict_json, odd, call, tmp_path, words, code, text
):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "folder.pt2").mkdir()
    found, out, err = call(*words, "--json")
    assert found == code
    assert text in err
    assert text in strict_json(out)["error"]


def test_an_unforeseen_error_is_a_sentence_too(strict_json, call, monkeypatch):
    import staticrt.tools.cli.env

    def broken():
        raise KeyError("nobody saw this coming")

    monkeypatch.setattr(staticrt.tools.cli.env, "environment", broken)
    code, out, err = call("env", "--json")
    assert code == 1
    assert "KeyError: 'nobody saw this coming'" in err
    assert strict_json(out)["exit_code"] == 1


def test_bench_says_what_is_not_installed_and_what_has_no_part(strict_json, toy, call, monkeypatch):
    from staticrt.models.bench.peers.base import Peer

    monkeypatch.setattr(Peer, "missing", lambda peer: ["openvino"] if peer.name == "openvino" else [])
    words = ("--quick", "--seconds", "0.01", "--peers", "eager,openvino,staticrt", "--json")
    code, out, _ = call("bench", toy, "--shape", "3x16", *words)
    assert code == 0
    rows = {row["peer"]: row for row in strict_json(out)["rows"]}
    assert (rows["openvino"]["status"], rows["openvino"]["reason"]) == (
        "not installed",
        "pip install openvino",
    )
    call("compile", toy, "--shape", "3x16", "-o", "toy.pt2", "--no-export")
    code, out, _ = call("bench", "toy.pt2", "--shape", "3x16", *words)
    rows = {row["peer"]: row["status"] for row in strict_json(out)["rows"]}
    assert (code, rows) == (0, {"eager": "skipped", "openvino": "not installed", "staticrt": "ok"})


def test_wrong_arguments_are_json_where_that_was_asked_for(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compile", "model.onnx", "--json"])
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2
