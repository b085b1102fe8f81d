"""The Triton backend, built against a stand-in of the server's headers and run by a stand-in of the server."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

import staticrt
from staticrt.tools.cli.main import main
from tests.archive.test_cpp import configure

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan")


class Rows(torch.nn.Module):
    """Two inputs and two outputs; every size but the width varies."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))

    def forward(self, x, shift):
        y = self.body(x) + shift
        return {"scores": y, "best": y.argmax(-1)}


class Whole(torch.nn.Module):
    """Rows depend on each other: no server may put requests together."""

    def forward(self, x):
        return torch.softmax(x, 0).cumsum(0)


@pytest.fixture(scope="module")
def server():
    # A fixed folder: with a compiler cache a second run costs nothing.
    build = ROOT / "build" / "examples" / "triton_backend"
    cmake, done = configure(
        ROOT / "examples" / "triton_backend", build, "-DSTATICRT_TRITON_TEST=ON", "-DCMAKE_UNITY_BUILD=ON"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([cmake, "--build", str(build)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout
    return build


def ask_signature(words, capsys):
    assert main(["inspect", *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def repository(tmp_path, monkeypatch, capsys):
    """Writes a model into a folder as a server has it: (folder, configuration)."""

    def write(model, example, shapes, **changes):
        folder = tmp_path / type(model).__name__
        (folder / "1").mkdir(parents=True, exist_ok=True)
        archive = folder / "1" / "model.pt2"
        staticrt.save(staticrt.compile(model.eval()), archive, example, exported_program=False)
        words = [str(archive), *(word for shape in shapes for word in ("--shape", shape)), "--triton"]
        (folder / "config.pbtxt").write_text(ask_signature(words, capsys))
        config = {**json.loads(ask_signature([*words, "--json"], capsys)), **changes}
        (folder / "config.json").write_text(json.dumps(config))
        return folder, config

    return write


def run(server, folder, requests, instances=1, code=0):
    done = subprocess.run(
        [
            server / "stand_in_server",
            server / "libtriton_staticrt.so",
            folder,
            folder / "config.json",
            str(instances),
            requests,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    if code == 0:
        assert lines[-1] == "left: 0 errors, 0 messages, 0 responses"
    return lines


def input_values(*sizes, dtype=torch.float32):
    count = torch.Size(sizes).numel()
    values = torch.arange(count, dtype=torch.float64)
    return (values if dtype == torch.int64 else values / max(count, 1)).to(dtype).reshape(sizes)


def outputs(line):
    """The tensors in a line of the stand-in, by name."""
    found = {}
    for name, sizes, values in re.findall(r"(\w+) \[([\d, ]*)\]([^\[A-Z]*)", line):
        shape = [int(size) for size in sizes.split(",") if size.strip()]
        found[name] = torch.tensor([float(v) for v in NUMBER.findall(values)]).reshape(shape)
    return found


def test_requests_of_several_sizes_run_as_one_batch_and_equal_eager(server, repository):
    model = Rows()
    folder, config = repository(
        model, (torch.randn(4, 6), torch.randn(4, 3)), ["x=4x6", "shift=4x3"], max_batch_size=8
    )
    assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [
        ("x", "TYPE_FP32", [6]),
        ("shift", "TYPE_FP32", [3]),
    ]
    assert [(t["name"], t["data_type"]) for t in config["output"]] == [
        ("OUTPUT0", "TYPE_FP32"),
        ("OUTPUT1", "TYPE_INT64"),
    ]
    rows = (2, 1, 3, 5, 7)
    requests = ";".join(f"x=FP32:{n}x6+shift=FP32:{n}x3->OUTPUT1,OUTPUT0" for n in rows)
    lines = run(server, folder, requests, instances=4)
    for n, line in zip(rows, lines, strict=False):
        got = outputs(line)
        with torch.no_grad():
            expected = model(input_values(n, 6), input_values(n, 3))
        torch.testing.assert_close(got["OUTPUT0"], expected["scores"], rtol=1e-4, atol=1e-5)
        assert torch.equal(got["OUTPUT1"].long(), expected["best"])
    assert lines[-2] == f"rows {sum(rows)} good {len(rows)} bad 0"


def test_a_bad_request_does_not_harm_those_beside_it(server, repository):
    model = Rows()
    folder, _config = repository(
        model, (torch.randn(4, 6), torch.randn(4, 3)), ["x=4x6", "shift=4x3"], max_batch_size=8
    )
    good = "x=FP32:2x6+shift=FP32:2x3"
    bad = {
        "x=FP32:2x5+shift=FP32:2x3": "size of 'x' in dimension 1 = 5",
        "x=FP32:2x6": "the request has no input 'shift'",
        "x=INT64:2x6+shift=FP32:2x3": "'x' has dtype Long, expected Float",
        "x=BYTES:2x6+shift=FP32:2x3": "a type that tensors do not have",
        "x=FP32:2x6:40+shift=FP32:2x3": "has 40 bytes, its sizes make 48",
        "x=FP32:2x6:gpu+shift=FP32:2x3": "in GPU memory",
        f"{good}->OUTPUT7": "no output 'OUTPUT7'",
        "x=FP32:2x6+shift=FP32:4x3": "error ",
    }
    requests = ";".join(f"{good};{request}" for request in bad)
    lines = run(server, folder, f"{requests};x=FP32:2x6:split+shift=FP32:2x3/{good}")
    with torch.no_grad():
        expected = model(input_values(2, 6), input_values(2, 3))["scores"]
    for number, text in enumerate(bad.values()):
        torch.testing.assert_close(outputs(lines[2 * number])["OUTPUT0"], expected, rtol=1e-4, atol=1e-5)
        assert lines[2 * number + 1].startswith("error ")
        assert text in lines[2 * number + 1]
    for line in lines[2 * len(bad) : 2 * len(bad) + 2]:
        torch.testing.assert_close(outputs(line)["OUTPUT0"], expected, rtol=1e-4, atol=1e-5)


def test_rows_that_depend_on_each_other_are_not_batched(server, repository):
    folder, config = repository(Whole(), (torch.randn(4, 5),), ["x=4x5"])
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [-1, -1]
    lines = run(server, folder, "x=FP32:2x3;x=FP32:2x3;x=FP32:4x1")
    for line, sizes in zip(lines, [(2, 3), (2, 3), (4, 1)], strict=False):
        expected = torch.softmax(input_values(*sizes), 0).cumsum(0)
        torch.testing.assert_close(outputs(line)["OUTPUT0"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a value"),
        ('{"max_batch_size": 8', "expected '}'"),
        ('{"max_batch_size": "x"}', "max_batch_size is not a whole number"),
        ('{"input": [{"dims": [1]}]}', "an input without a name"),
        ("[" * 1000, "nested too deeply"),
        ('{"name": "\\u12', "a \\u without four digits"),
        ('{"parameters": {"prepare": {"string_value": "1,x"}}}', "parameter prepare is '1,x'"),
        ('{"parameters": {"threads": {"string_value": "0"}}}', "parameter threads is '0'"),
        ('{"default_model_filename": "other.pt2"}', "other.pt2"),
    ],
)
def test_a_wrong_configuration_is_an_error_with_its_reason(server, repository, text, message):
    folder, _config = repository(Whole(), (torch.randn(4, 5),), ["x=4x5"])
    (folder / "config.json").write_text(text)
    line = run(server, folder, "x=FP32:2x3", code=1)[-1]
    assert line.startswith("failed: ")
    assert message in line


def test_a_damaged_archive_is_an_error(server, repository):
    folder, _config = repository(Whole(), (torch.randn(4, 5),), ["x=4x5"])
    archive = folder / "1" / "model.pt2"
    archive.write_bytes(archive.read_bytes()[:-100])
    assert "failed: " in run(server, folder, "x=FP32:2x3", code=1)[-1]


def test_the_stand_in_agrees_with_the_server_s_numbers():
    """Values of triton-inference-server/core's headers (API 1.19) that requests and statistics depend on."""
    header = (ROOT / "examples/triton_backend/test/stand_in/triton/core/tritonbackend.h").read_text()
    body = re.search(r"TRITONSERVER_datatype_enum \{(.*?)\}", header, re.DOTALL).group(1)
    names = [word.strip() for word in body.split(",")]
    assert names.index("TRITONSERVER_TYPE_FP32") == 11
    assert names.index("TRITONSERVER_TYPE_INT64") == 9
    assert names.index("TRITONSERVER_TYPE_BF16") == 14


def test_the_text_form_of_a_configuration(repository):
    folder, _config = repository(Rows(), (torch.randn(4, 6), torch.randn(4, 3)), ["x=4x6", "shift=4x3"])
    text = (folder / "config.pbtxt").read_text()
    assert text.startswith(
        'name: "model"\nbackend: "staticrt"\ndefault_model_filename: "model.pt2"\nmax_batch_size: 16\n'
    )
    assert 'input {\n  name: "x"\n  data_type: TYPE_FP32\n  dims: [6]\n}' in text
    assert 'parameters {\n  key: "prepare"\n  value {\n    string_value: "1,2,3' in text
    assert "instance_group {\n  kind: KIND_CPU\n  count: 1\n}" in text
    assert "dynamic_batching { }" in text
