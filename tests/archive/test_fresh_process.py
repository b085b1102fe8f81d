"""Saving in a process that has imported nothing but staticrt, as a user's script does."""

import subprocess
import sys

import pytest
import torch

import staticrt
from tests.support import run_fresh

SCRIPT = """
import os, sys
import torch, staticrt
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if os.environ.get("STATICRT_TEST_DOUBLE"):
            x = 2 * x
        return self.layer(x).view(-1, 2, 2).transpose(1, 2).reshape(-1, 4)

torch.manual_seed(0)
compiled = staticrt.compile(Model().eval())
with torch.no_grad():
    compiled(torch.ones(2, 4))
staticrt.save(compiled, sys.argv[1], exported_program=sys.argv[2] == "True")
"""


@pytest.mark.parametrize(("exported", "set_before"), [(True, False), (False, True)])
def test_a_trace_is_saved_by_the_imports_that_saving_makes(tmp_path, monkeypatch, exported, set_before):
    """Those of torch.export set a variable of the environment, which this model reads."""
    if set_before:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    else:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    script, path = tmp_path / "script.py", tmp_path / "model.pt2"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(path), str(exported)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        expected = layer(torch.ones(3, 4)).view(-1, 2, 2).transpose(1, 2).reshape(-1, 4)
        torch.testing.assert_close(staticrt.load(path)(torch.ones(3, 4)), expected)


def test_finders_of_modules_are_no_model_code(tmp_path, monkeypatch):
    """Torch imports while it is traced; an editable install's finder then runs, and reads the environment."""
    from staticrt.frontend.reasons import is_user_file

    (tmp_path / "a_finder.py").write_text(
        "class Finder:\n    def find_spec(self, name, path=None, target=None): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import a_finder

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, a_finder.Finder()])
    assert not is_user_file(a_finder.__file__)
    assert is_user_file(str(tmp_path / "model.py"))


def test_an_operator_of_the_users_is_captured_in_its_first_call(tmp_path):
    """What `torch.library.custom_op` returns notes its first call in itself, and is not state of the model."""

    @torch.library.custom_op("staticrt_tests::grow", mutates_args=())
    def grow(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @grow.register_fake
    def _(x):
        return torch.empty_like(x)

    compiled = staticrt.compile(lambda x: grow(x) * 2)
    with torch.no_grad():
        compiled(torch.ones(3))
        staticrt.save(compiled, tmp_path / "grow.pt2", exported_program=False)
        loaded = staticrt.load(tmp_path / "grow.pt2", allow_operators=["staticrt_tests::*"])
        assert loaded(torch.ones(2)).tolist() == [4.0, 4.0]


LOADS = """
import sys
import torch, staticrt
loaded = staticrt.load(sys.argv[1])
assert loaded.prepare(torch.empty(2, 4, device="meta"))
with torch.inference_mode():
    loaded(torch.ones(3, 4))
print(*sorted({"torch._dynamo", "torch._inductor", "sympy", "onnx"} & sys.modules.keys()))
"""


def test_loading_and_running_import_no_compiler(tmp_path):
    """They take some 70 MiB and a second, of every process of a server."""
    path = tmp_path / "model.pt2"
    compiled = staticrt.compile(torch.nn.Linear(4, 4).eval())
    staticrt.save(compiled, path, (torch.ones(2, 4),), exported_program=False)
    done = run_fresh(LOADS, path)
    assert done.stdout.strip() == ""
