"""What `staticrt.compile` takes: exported programs and their files, beside modules and functions."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import staticrt
from staticrt.errors import InputError


class Counting(torch.nn.Module):
    """A model with a buffer that it writes, nested results and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        self.calls += 1
        return {"y": [torch.relu(self.linear(x)) + shift, self.calls.clone()]}


def exported() -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    kwargs = {"shift": torch.ones(3)}
    return torch.export.export(
        Counting().eval(), (torch.randn(2, 4),), kwargs, dynamic_shapes={"x": {0: batch}, "shift": None}
    )


def check(compiled: staticrt.CompiledModule, program: torch.export.ExportedProgram) -> None:
    eager = copy.deepcopy(program.module())  # its buffers are its own
    with torch.no_grad():
        for rows in (2, 5, 2):
            call = (torch.randn(rows, 4),), {"shift": torch.randn(3)}
            torch.testing.assert_close(compiled(*call[0], **call[1]), eager(*call[0], **call[1]))
    assert not compiled.explain().eager
    assert len(compiled.explain().traces) == 1


def test_an_exported_program_is_compiled() -> None:
    program = exported()
    compiled = staticrt.compile(program)
    assert isinstance(compiled, staticrt.CompiledModule)
    check(compiled, program)


@pytest.mark.parametrize("kind", [str, Path])
def test_its_file_is_compiled(tmp_path: Path, kind: type) -> None:
    program = exported()
    torch.export.save(program, tmp_path / "model.pt2")
    check(staticrt.compile(kind(tmp_path / "model.pt2")), program)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        staticrt.compile(tmp_path / "missing.pt2")
    (tmp_path / "text.pt2").write_text("not a zip")
    with pytest.raises(InputError, match=r"torch\.export\.load failed"):
        staticrt.compile(str(tmp_path / "text.pt2"))
    with pytest.raises(InputError, match="from_onnx"):
        staticrt.compile("model.onnx")
    with pytest.raises(InputError, match="got int"):
        staticrt.compile(3)
