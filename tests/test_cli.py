"""`staticrt COMMAND`: what it prints, exit codes, and that user mistakes get a sentence, not a traceback."""

import contextlib
import importlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from staticrt.cli import COMMANDS, main

TOY = """
import torch

class Toy(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.a = torch.nn.Linear(16, width)
        self.b = torch.nn.Linear(width, 4)

    def forward(self, x, scale=2.0):
        return self.b(torch.relu(self.a(x)) * scale)

class Embed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids, mask):
        return {"rows": self.table(ids) * mask, "count": ids.shape[0]}

class Wrong(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(3, 3)

class Broken(torch.nn.Module):
    def __init__(self):
        raise ValueError("no weights")

class NeedsWidth(torch.nn.Module):
    def __init__(self, width):
        super().__init__()

def add(x, y):
    return x + y, torch.zeros(2)

constant = 3
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_models.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    sys.modules.pop("toy_models", None)
    return "toy_models:Toy"


@pytest.fixture
def call(capsys):
    """Exit code, stdout, stderr of a command."""

    def run(*words):
        try:
            code = main(list(words))
        except SystemExit as error:
            code = error.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_exit_codes(command, call):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "exit codes: 0 done" in out
    assert "--json" in out


def test_help_names_every_command(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(f"\n    {name}" in out for name in COMMANDS)
    assert call("--version")[1].startswith("staticrt 0.")


def test_run_prints_results_and_checks_them(toy, call):
    code, out, _ = call("run", toy, "--shape", "x=3x16", "--check")
    assert code == 0
    assert "float32[3, 4]" in out
    assert "check: equal to eager" in out


def test_run_json_describes_every_output(toy, call):
    code, out, _ = call(
        "run", "toy_models:Embed", "--shape", "ids=5:int64:10", "--shape", "mask=5x4:bool", "--json"
    )
    assert code == 0
    rows, count = json.loads(out)["outputs"]
    assert (rows["name"], rows["dtype"], rows["sizes"]) == ("['rows']", "float32", [5, 4])
    assert rows["min"] <= rows["mean"] <= rows["max"]
    assert count == {"name": "['count']", "value": 5}


def test_inputs_come_from_files_and_values(toy, call, tmp_path):
    x = torch.arange(48.0).reshape(3, 16)
    np.save("x.npy", x.numpy())
    torch.save(x, "x.pt")
    sums = set()
    for given in ("x.npy", "x=x.npy", "x=x.pt"):
        code, _, err = call("run", toy, "--input", given, "--value", "scale=3.0", "--save", "out.pt")
        assert code == 0, err
        sums.add(torch.load("out.pt").sum().item())
    assert len(sums) == 1


def test_files_and_functions_are_models_too(toy, call, tmp_path):
    code, out, _ = call(
        "run", str(tmp_path / "toy_models.py") + ":add", "--shape", "3", "--shape", "3", "--json"
    )
    assert code == 0
    assert [o["sizes"] for o in json.loads(out)["outputs"]] == [[3], [2]]


def test_exported_programs_bring_their_inputs(toy, call):
    module = importlib.import_module("toy_models").Toy().eval()
    torch.export.save(torch.export.export(module, (torch.randn(3, 16),)), "toy.pt2")
    for words in (
        ("run", "toy.pt2", "--check"),
        ("inspect", "toy.pt2"),
        ("run", "toy.pt2", "--shape", "3x16"),
    ):
        code, out, err = call(*words)
        assert code == 0, err
        assert "toy.pt2" in out or "captured graph" in out


def test_inspect_profile_plan_memory(toy, call, tmp_path):
    shape = ("--shape", "x=3x16")
    code, out, _ = call("inspect", toy, *shape, "--details", "--metrics", "--draw", "graph.html")
    assert code == 0
    assert "1 captured graph" in out
    assert "linear_default … mul_tensor" in out
    assert (tmp_path / "graph.html").exists()
    document = json.loads(call("inspect", toy, *shape, "--json", "--metrics")[1])
    assert document["explain"]["captures"][0]["nodes"] == 4
    assert document["metrics"]["graphs"][0]["nodes"]["total"] == 4

    code, out, _ = call("profile", toy, *shape, "--runs", "2", "--trace", "trace.json")
    assert code == 0
    assert "relu+mul" in out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert json.loads(call("profile", toy, *shape, "--runs", "2", "--json")[1])["runs"] == 2
    for by in ("op", "kind", "line"):
        assert call("profile", toy, *shape, "--runs", "2", "--by", by)[0] == 0

    code, out, _ = call("plan", toy, *shape)
    assert code == 0
    assert "arena 384 B" in out
    (graph,) = json.loads(call("plan", toy, *shape, "--json")[1])["graphs"]
    assert graph["arena_bytes"] == 3 * 32 * 4  # the matrix product and its pointwise operators are one step
    assert {b["kind"] for b in graph["blocks"]} == {"arena", "output"}

    code, out, _ = call("memory", toy, *shape, "-o", "memory.svg")
    assert code == 0
    assert (tmp_path / "memory.svg").read_text().startswith("<svg")
    assert json.loads(call("memory", toy, *shape, "--json")[1])["written"] == ["Toy_memory.svg"]


@pytest.fixture
def onnx_file(toy, tmp_path):
    pytest.importorskip("onnx", reason="needs the package onnx")
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("data.in", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    nodes = [helper.make_node("Relu", ["data.in"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    onnx.save(model, tmp_path / "two.onnx")
    return "two.onnx"


def test_a_shape_without_dtype_has_the_models(toy, call, tmp_path):
    pytest.importorskip("onnx", reason="needs the package onnx")
    import onnx
    from onnx import TensorProto, helper

    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 2])
    graph = helper.make_graph([helper.make_node("Add", ["ids", "ids"], ["y"])], "g", [ids], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "ids.onnx")
    embed = ("--shape", "ids=3:int64", "--shape", "mask=3x4")
    assert call("compile", "toy_models:Embed", *embed, "-o", "embed.pt2")[0] == 0
    for words in (("ids.onnx", "--shape", "ids=4x2"), ("ids.onnx", "--shape", "4x2")):
        code, out, err = call("run", *words, "--json")
        assert code == 0, err
        assert json.loads(out)["outputs"][0]["dtype"] == "int64"
    for words in (("ids=5", "mask=5x4"), ("5", "5x4"), ("mask=5x4", "5")):
        code, out, err = call("run", "embed.pt2", "--shape", words[0], "--shape", words[1], "--json")
        assert code == 0, err
    code, _, err = call("run", "ids.onnx", "--shape", "ids=4x2:float32")
    assert code == 2


def test_onnx_files_are_models(onnx_file, call, tmp_path):
    code, out, err = call("run", onnx_file, "--shape", "data.in=3x8", "--check", "--json")
    assert code == 0, err
    assert json.loads(out)["outputs"][0]["sizes"] == [3, 8]
    assert json.loads(out)["check"] == {"ok": True}
    code, out, _ = call("inspect", onnx_file, "--shape", "3x8")
    assert code == 0
    assert "data.in: float32[" in out
    code, _, err = call("run", onnx_file)
    assert code == 2
    assert "argument 'data.in', float32[batch, 8]" in err
    (tmp_path / "cut.onnx").write_bytes((tmp_path / onnx_file).read_bytes()[:40])
    code, _, err = call("run", "cut.onnx", "--shape", "3x8")
    assert code == 2
    assert "cut.onnx" in err


def test_bench_measures_a_model_of_the_users(toy, call, tmp_path):
    words = (
        "bench",
        toy,
        "--shape",
        "x=3x16",
        "--quick",
        "--seconds",
        "0.05",
        "--peers",
        "eager,torchscript,staticrt",
    )
    code, out, err = call(*words)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[3:]] == ["eager", "torchscript", "staticrt"]
    code, out, _ = call(*words, "--json")
    document = json.loads(out)
    assert document["inputs"] == ["float32[3, 16]"]
    for row in document["rows"]:
        assert row["status"] == "ok"
        assert 0 < row["p50_us"] <= row["p90_us"] <= row["p99_us"]
        assert row["speedup"] == pytest.approx(document["rows"][0]["p50_us"] / row["p50_us"])
    assert call(*words, "--json", "raw.json")[0] == 0
    assert json.loads((tmp_path / "raw.json").read_text())["model"] == "Toy"


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


def test_env_says_what_an_issue_needs(call):
    code, out, _ = call("env", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["torch"]["version"] == torch.__version__ == found["build"]["torch"]
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["machine"]["cpus"] >= 1
    assert f"python: {sys.version.split()[0]}" in call("env")[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "toy_models:Toy"], 2, "nothing is given for the model's argument 'x'"),
        (["run", "toy_models:Nope"], 2, "toy_models has no 'Nope'"),
        (["run", "toy_models:constant"], 2, "neither an nn.Module nor a function"),
        (["run", "toy_models:NeedsWidth"], 2, "missing a required argument: 'width'"),
        (["run", "toy_models:Broken"], 1, "ValueError: no weights"),
        (["run", "nowhere.at_all:Nope"], 2, "there is no module 'nowhere'"),
        (["run", "nothing"], 2, "'nothing' names no model"),
        (["run", "no.onnx"], 2, "there is no such file"),
        (["run", "no.py:X"], 2, "there is no such file"),
        (["run", "toy_models.py:Wrong", "--shape", "2x5"], 1, "mat1 and mat2 shapes cannot be multiplied"),
        (["run", "toy_models:Toy", "--shape", "z=3"], 2, "the model has no argument 'z'"),
        (["run", "toy_models:Toy", "--shape", "3x"], 2, "is no shape"),
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


def test_compile_writes_archives_that_every_command_takes(toy, call, tmp_path):
    code, out, err = call("compile", toy, "--shape", "x=3x16", "-o", "toy.pt2", "--json")
    assert code == 0, err
    assert json.loads(out)["bytes"] == (tmp_path / "toy.pt2").stat().st_size
    results = set()
    for model in (toy, "toy.pt2"):
        code, out, err = call("run", model, "--shape", "x=5x16", "--seed", "7", "--json")
        assert code == 0, err
        results.add(json.loads(out)["outputs"][0]["sizes"][0])
    assert results == {5}
    for words in (("inspect",), ("profile", "--runs", "1"), ("plan",), ("memory", "-o", "m.svg")):
        code, _, err = call(words[0], "toy.pt2", "--shape", "x=3x16", *words[1:])
        assert code == 0, err
    code, _, err = call("run", "toy.pt2", "--shape", "x=3x16", "--check")
    assert code == 2
    assert "no eager form" in err
    whole = (tmp_path / "toy.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    assert call("run", "cut.pt2", "--shape", "x=3x16")[0] == 2


def test_damaged_archives_are_refused(toy, call, tmp_path):
    (tmp_path / "bad.pt2").write_bytes(b"not a zip")
    code, _, err = call("run", "bad.pt2")
    assert (code, "not a .pt2 archive" in err) == (2, True)
    module = importlib.import_module("toy_models").Toy().eval()
    torch.export.save(torch.export.export(module, (torch.randn(3, 16),)), "toy.pt2")
    whole = (tmp_path / "toy.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    code, _, err = call("run", "cut.pt2")
    assert (code, "cut.pt2" in err) == (2, True)


def test_debug_shows_the_traceback(toy, capsys):
    assert main(["run", "toy_models:Broken", "--debug"]) == 1
    assert 'raise ValueError("no weights")' in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal_after_a_second_and_nowhere_else():
    import io
    import time

    from staticrt.commands.progress import progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        with progress("thinking", stream):
            pass
        assert stream.getvalue() == ""
    with progress("thinking", terminal):
        time.sleep(1.2)
    assert "thinking … 1 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_it_is_a_program_of_its_own(toy, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "staticrt", "run", toy, "--shape", "x=3x16", "--check"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "equal to eager" in done.stdout


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


ODD = """
import torch

class Talks(torch.nn.Module):
    def forward(self, x):
        print("hello")
        return x + 1

class Mixed(torch.nn.Module):
    def forward(self, x):
        return {"y": x + 1, "kind": "mixed", "none": None, "nan": float("nan"), "low": -float("inf")}
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    return "odd.py"


def _strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "words",
    [("run",), ("inspect",), ("profile", "--runs", "2")],
    ids=lambda words: words[0],
)
def test_json_is_all_that_stdout_gets_although_the_model_prints(odd, call, words):
    code, out, err = call(*words, f"{odd}:Talks", "--shape", "3", "--json")
    assert code == 0
    assert isinstance(_strict(out), dict)
    assert "hello" in err


def test_results_without_a_json_form_are_compared_and_described(odd, call):
    code, out, _ = call("run", f"{odd}:Mixed", "--shape", "3", "--check", "--json")
    assert code == 0
    document = _strict(out)
    assert document["check"] == {"ok": True}
    values = {output["name"]: output.get("value") for output in document["outputs"]}
    assert (values["['nan']"], values["['low']"], values["['kind']"]) == ("nan", "-inf", "mixed")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("run", "odd.py:Mixed", "--shape", "x=3", "--shape", "x=4"), 2, "'x' is given twice"),
        (("run", "odd.py:Mixed", "--shape", "99999999999x999"), 2, "give smaller sizes"),
        (("run", "odd.py:Mixed", "--shape", "3", "--save", "/no/such/folder/x.pt"), 2, "no such folder"),
        (("run", "odd.py:", "--shape", "3"), 2, "names no model"),
        (("run", ":Mixed", "--shape", "3"), 2, "names no model"),
        (("run", "folder.onnx"), 2, "is a folder"),
        (("run", "odd.py:Mixed", "--value", "x=[1]"), 1, "TypeError"),
        (("compile", "odd.py:Mixed", "--shape", "3", "-o", "folder.pt2"), 2, "is a folder"),
        (("plan", "missing.csv"), 2, "No such file"),
    ],
)
def test_a_mistake_is_a_sentence_and_with_json_a_document(odd, call, tmp_path, words, code, text):
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "folder.pt2").mkdir()
    found, out, err = call(*words, "--json")
    assert found == code
    assert text in err
    assert text in _strict(out)["error"]


def test_an_unforeseen_error_is_a_sentence_too(call, monkeypatch):
    import staticrt.commands.env

    def broken():
        raise KeyError("nobody saw this coming")

    monkeypatch.setattr(staticrt.commands.env, "environment", broken)
    code, out, err = call("env", "--json")
    assert code == 1
    assert "KeyError: 'nobody saw this coming'" in err
    assert _strict(out)["exit_code"] == 1


def test_archives_are_not_compiled_again(toy, call):
    assert call("compile", toy, "--shape", "3x16", "-o", "toy.pt2", "--no-export")[0] == 0
    code, _, err = call("compile", "toy.pt2", "--shape", "3x16", "-o", "again.pt2")
    assert code == 2
    assert "compiled already" in err


def test_an_archive_of_an_onnx_model_takes_the_models_names(onnx_file, call):
    assert call("compile", onnx_file, "--shape", "data.in=2x8", "-o", "two.pt2")[2] == ""  # no warning
    for shape in ("data.in=5x8", "5x8"):
        code, out, err = call("run", "two.pt2", "--shape", shape)
        assert code == 0, err
        assert "float32[5, 8]" in out
    assert isinstance(torch.export.load("two.pt2"), torch.export.ExportedProgram)


def test_bench_says_what_is_not_installed_and_what_has_no_part(toy, call, monkeypatch):
    from staticrt.models.bench.peers.base import Peer

    monkeypatch.setattr(Peer, "missing", lambda peer: ["openvino"] if peer.name == "openvino" else [])
    words = ("--quick", "--seconds", "0.01", "--peers", "eager,openvino,staticrt", "--json")
    code, out, _ = call("bench", toy, "--shape", "3x16", *words)
    assert code == 0
    rows = {row["peer"]: row for row in _strict(out)["rows"]}
    assert (rows["openvino"]["status"], rows["openvino"]["reason"]) == (
        "not installed",
        "pip install openvino",
    )
    call("compile", toy, "--shape", "3x16", "-o", "toy.pt2", "--no-export")
    code, out, _ = call("bench", "toy.pt2", "--shape", "3x16", *words)
    rows = {row["peer"]: row["status"] for row in _strict(out)["rows"]}
    assert (code, rows) == (0, {"eager": "skipped", "openvino": "not installed", "staticrt": "ok"})


def test_peers_run_an_exported_program(toy, call):
    module = importlib.import_module("toy_models").Toy().eval()
    torch.export.save(torch.export.export(module, (torch.randn(3, 16),)), "toy.pt2")
    words = ("--quick", "--seconds", "0.01", "--peers", "torchscript,staticrt", "--json")
    code, out, _ = call("bench", "toy.pt2", *words)
    assert code == 0
    assert [row["status"] for row in _strict(out)["rows"]] == ["ok", "ok"]


def test_an_interrupt_while_a_command_is_imported(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["env"]) == 130


def test_a_terminal_that_lacks_characters(monkeypatch, tmp_path):
    (tmp_path / "model.py").write_text("import torch\nmodel = torch.nn.Linear(4, 3)\n")
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["inspect", f"{tmp_path}/model.py:model", "--shape", "2x4"]) == 0
    assert b"addmm" in stream.buffer.getvalue() or b"linear" in stream.buffer.getvalue()


def test_no_stdout_at_all(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert main(["env"]) == 0


def test_a_full_disk_is_said_once(monkeypatch, capfd):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["env", "--json"]) == 2
        assert "No space left" in capfd.readouterr().err
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_wrong_arguments_are_json_where_that_was_asked_for(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compile", "model.onnx", "--json"])
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2
