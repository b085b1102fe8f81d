"""The example program, built with CMake against the installed package, computes what Python does, without Python."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import staticrt

ROOT = Path(__file__).resolve().parents[2]


class TwoResults(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def forward(self, x, scale=2.0):
        y = self.body(x)
        return {"logits": y * scale, "best": (y.argmax(-1), None)}


def configure(source, build, *definitions):
    tools = str(Path(sys.executable).parent)
    cmake = shutil.which("cmake", path=f"{tools}:/usr/bin:/usr/local/bin") or shutil.which("cmake")
    ninja = shutil.which("ninja", path=f"{tools}:/usr/bin:/usr/local/bin") or shutil.which("ninja")
    command = [cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    ccache = shutil.which("ccache")
    if ccache:
        command.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    command += [
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={staticrt.cmake_prefix_path}",
        *definitions,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    return cmake, done


@pytest.fixture(scope="module")
def program():
    # A fixed folder: with a compiler cache a second run costs nothing.
    build = ROOT / "build" / "examples" / "cpp"
    cmake, done = configure(ROOT / "examples" / "cpp", build)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([cmake, "--build", str(build)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return build / "run_model"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("cpp") / "model.pt2"
    torch.manual_seed(0)
    model = TwoResults().eval()
    with torch.no_grad():
        staticrt.save(staticrt.compile(model), path, torch.randn(2, 6), exported_program=False)
    return model, path


def run(program, *args):
    # No variable that could lead it to Python or to torch: the build alone says where libraries are.
    return subprocess.run(
        [str(program), *map(str, args)], capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )


@pytest.mark.parametrize("batch", [1, 5])
def test_outputs_equal_those_of_python(program, saved, batch):
    model, path = saved
    done = run(program, path, batch, 6)
    assert done.returncode == 0, done.stderr
    header, logits, best = done.stdout.splitlines()
    assert header == "input x: Float, 2 dimensions"
    x = (torch.arange(batch * 6, dtype=torch.float32) / (batch * 6)).reshape(batch, 6)
    with torch.no_grad():
        expected = model(x)
    for line, tensor in ((logits, expected["logits"]), (best, expected["best"][0])):
        sizes, values = line.rsplit("]", 1)
        assert sizes == str(list(tensor.shape))[:-1]
        got = torch.tensor([float(value) for value in values.split()], dtype=torch.float64)
        torch.testing.assert_close(got, tensor.double().flatten(), rtol=1e-5, atol=1e-6)


def test_the_program_needs_no_python(program):
    libraries = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    assert "libstaticrt_core.so" in libraries
    assert not re.search(r"libpython|torch_python|not found", libraries), libraries


def test_errors_are_exceptions(program, saved, tmp_path):
    _model, path = saved
    wrong = run(program, path, 2, 5)
    assert wrong.returncode == 4
    assert "cannot run: the call fits no trace of TwoResults" in wrong.stderr
    assert "size of 'x' in dimension 1 = 5" in wrong.stderr
    missing = run(program, tmp_path / "none.pt2", 2, 6)
    assert (missing.returncode, "cannot open archive" in missing.stderr) == (3, True)
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(path.read_bytes()[:-100])
    assert "archive is cut short" in run(program, cut, 2, 6).stderr


def test_another_torch_is_refused_at_configure_time(tmp_path):
    torch_folder = tmp_path / "torch"
    (torch_folder / "lib").mkdir(parents=True)
    (torch_folder / "lib" / "libtorch_cpu.so").touch()
    (torch_folder / "version.py").write_text("__version__ = '2.9.1'\n")
    _cmake, done = configure(
        ROOT / "examples" / "cpp", tmp_path / "build", f"-DSTATICRT_TORCH_DIR={torch_folder}"
    )
    assert done.returncode != 0
    assert f"staticrt was built for torch {torch.__version__}, but" in re.sub(r"\s+", " ", done.stderr)


def test_the_header_says_what_the_package_has():
    header = Path(staticrt.cmake_prefix_path).parents[1] / "include" / "staticrt" / "staticrt.h"
    assert header.read_text() == (ROOT / "csrc" / "staticrt" / "staticrt.h").read_text()
    assert "Python.h" not in header.read_text()
