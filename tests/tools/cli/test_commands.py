"""`staticrt COMMAND`: what it prints, exit codes, and that user mistakes get a sentence, not a traceback."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from staticrt.tools.cli.main import COMMANDS


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
        assert "toy.pt2" in out or "traced graph" in out


def test_inspect_profile_plan_memory(toy, call, tmp_path):
    shape = ("--shape", "x=3x16")
    code, out, _ = call("inspect", toy, *shape, "--details", "--metrics", "--draw", "graph.html")
    assert code == 0
    assert "1 traced graph" in out
    assert "linear_default … mul_tensor" in out
    assert (tmp_path / "graph.html").exists()
    document = json.loads(call("inspect", toy, *shape, "--json", "--metrics")[1])
    assert document["explain"]["traces"][0]["nodes"] == 4
    assert document["metrics"]["graphs"][0]["nodes"]["total"] == 4

    code, out, _ = call("profile", toy, *shape, "--runs", "2", "--trace", "trace.json")
    assert code == 0
    assert "relu+mul" in out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert json.loads(call("profile", toy, *shape, "--runs", "2", "--json")[1])["runs"] == 2
    code, out, _ = call("profile", toy, *shape, "--first-call", "--limit", "3")
    assert code == 0
    assert "first call" in out
    assert json.loads(call("profile", toy, *shape, "--first-call", "--json")[1])["phases"]
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


def test_env_says_what_an_issue_needs(call):
    code, out, _ = call("env", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["torch"]["version"] == torch.__version__ == found["build"]["torch"]
    assert found["torch"]["threads"] == torch.get_num_threads()
    assert found["machine"]["cpus"] >= 1
    assert f"python: {sys.version.split()[0]}" in call("env")[1]


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


def test_peers_run_an_exported_program(strict_json, toy, call):
    module = importlib.import_module("toy_models").Toy().eval()
    torch.export.save(torch.export.export(module, (torch.randn(3, 16),)), "toy.pt2")
    words = ("--quick", "--seconds", "0.01", "--peers", "torchscript,staticrt", "--json")
    code, out, _ = call("bench", "toy.pt2", *words)
    assert code == 0
    assert [row["status"] for row in strict_json(out)["rows"]] == ["ok", "ok"]
