"""What comes back from an archive computes what was saved, and says so where it cannot."""

import io
import time
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, OptionError
from tests.support.saved_archives import Point, archive_bytes, mlp, reload

pytestmark = pytest.mark.usefixtures("no_gradients")


# -- the file ---------------------------------------------------------------------------------------------------
def test_torch_export_opens_the_archive_and_weights_are_stored_once(tmp_path):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    path = tmp_path / "model.pt2"
    staticrt.save(staticrt.compile(model), path, torch.randn(1, 256))
    program = torch.export.load(path)
    for batch in (1, 5):
        x = torch.randn(batch, 256)
        torch.testing.assert_close(program.module()(x), model(x))
        torch.testing.assert_close(staticrt.load(path)(x), model(x))
    weight_bytes = sum(p.nbytes for p in model.parameters())
    assert path.stat().st_size < 1.2 * weight_bytes


def test_weights_lie_at_64_byte_offsets_and_are_mapped(tmp_path):
    path = tmp_path / "model.pt2"
    model = mlp()
    staticrt.save(staticrt.compile(model), path, torch.randn(3, 16))
    with zipfile.ZipFile(path) as archive:
        weights = [info for info in archive.infolist() if "/weight_" in info.filename]
        assert len(weights) == 4
        data = path.read_bytes()
        for info in weights:
            name_size, extra_size = (
                int.from_bytes(data[info.header_offset + at : info.header_offset + at + 2], "little")
                for at in (26, 28)
            )
            assert (info.header_offset + 30 + name_size + extra_size) % 64 == 0
    loaded = staticrt.load(path)
    pages = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    (start, end) = (int(part, 16) for part in pages[0].split()[0].split("-"))
    for tensor in loaded.state_dict().values():
        assert start <= tensor.data_ptr() < end
        assert tensor.data_ptr() % 64 == 0


def test_two_loads_share_the_file_but_not_what_is_written(tmp_path):
    path = tmp_path / "model.pt2"
    model = mlp()
    staticrt.save(staticrt.compile(model), path, torch.randn(3, 16))
    before = path.read_bytes()
    one, two = staticrt.load(path), staticrt.load(path)
    x = torch.randn(2, 16)
    one.state_dict()["0.weight"].zero_()
    torch.testing.assert_close(two(x), model(x))
    assert not torch.allclose(one(x), model(x))
    assert path.read_bytes() == before


def test_same_model_saves_the_same_bytes():
    torch.manual_seed(0)
    model = mlp()
    x = torch.randn(2, 16)
    assert archive_bytes(model, (x,)) == archive_bytes(model, (x,))


def test_saving_over_a_loaded_file_leaves_the_loaded_model_alone(tmp_path):
    path = tmp_path / "model.pt2"
    first, second = mlp(), mlp()
    x = torch.randn(2, 16)
    staticrt.save(staticrt.compile(first), path, (x,), exported_program=False)
    loaded = staticrt.load(str(path))
    staticrt.save(staticrt.compile(second), path, (x,), exported_program=False)
    torch.testing.assert_close(loaded(x), first(x))
    torch.testing.assert_close(staticrt.load(path)(x), second(x))
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt2"]


def test_what_torch_export_cannot_trace_still_saves():
    class Box:
        def __init__(self, value):
            self.value = value

    class TakesBox(nn.Module):
        def forward(self, box):
            return box.value + 1

    x = torch.randn(3)
    with pytest.warns(UserWarning, match=r"torch\.export\.load will not open the archive"):
        data = archive_bytes(TakesBox(), (Box(x),), exported_program=True)
    torch.testing.assert_close(staticrt.load(data, types=[Box])(Box(x)), x + 1)
    with pytest.raises(ArchiveError, match=r"objects of class .*Box.*\n.*\n.*types=\["):
        staticrt.load(data)


# -- calls ------------------------------------------------------------------------------------------------------
def test_what_torch_export_cannot_store_still_saves(tmp_path):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return Point(self.linear(x), x + 1)

    x = torch.randn(2, 4)
    model = Pair().eval()
    compiled = staticrt.compile(model)
    compiled(x)
    for target in (io.BytesIO(), tmp_path / "pair.pt2"):
        with pytest.warns(UserWarning, match=r"torch\.export cannot store .*Pair"):
            staticrt.save(compiled, target)
        found = staticrt.load(target.getvalue() if isinstance(target, io.BytesIO) else target)(x)
        assert type(found) is Point
        torch.testing.assert_close(found, model(x))
    assert [file.name for file in tmp_path.iterdir()] == ["pair.pt2"]


def test_explain_says_what_the_archive_holds():
    loaded = reload(mlp(), (torch.randn(4, 16),))
    loaded(torch.randn(2, 16))
    text = str(loaded.explain())
    assert "input: float32, 2 dimensions" in text
    assert "aten.linear.default ×2" in text
    assert "1 calls" in text
    assert f"torch {torch.__version__}" in text
    assert "LoadedModel" not in repr(loaded)
    with pytest.raises(TypeError, match="cannot be pickled"):
        loaded.__reduce__()


def test_prepared_calls_need_no_python():
    loaded = reload(mlp(), (torch.randn(4, 16),))
    x = torch.randn(4, 16)
    for _ in range(5):
        loaded(x)
    assert loaded._now.fast.calls >= 3


def test_a_thousand_nodes_load_in_20_ms(tmp_path):
    def function(x):
        for i in range(500):
            x = torch.relu(x + i)
        return x

    path = tmp_path / "model.pt2"
    staticrt.save(staticrt.compile(function), path, torch.randn(4), exported_program=False)
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        loaded = staticrt.load(path)
        best = min(best, time.perf_counter() - start)
    assert sum(count for _name, count in loaded._traces[0].report["operators"]) >= 1000
    assert best < 0.020
    x = torch.randn(7)
    torch.testing.assert_close(loaded(x), function(x))


# -- what cannot be saved or loaded -----------------------------------------------------------------------------
def test_nothing_traced_is_an_error():
    with pytest.raises(ArchiveError, match="no trace to save"):
        staticrt.save(staticrt.compile(mlp()), io.BytesIO())
    with pytest.raises(ArchiveError, match=r"takes a result of staticrt\.compile, got Sequential"):
        staticrt.save(mlp(), io.BytesIO())


def test_traces_that_no_longer_hold_are_left_out():
    class Scaled(nn.Module):
        factor = 2.0

        def forward(self, x):
            return x * self.factor

    model = Scaled()
    compiled = staticrt.compile(model)
    x = torch.ones(2)
    compiled(x)
    model.factor = 3.0
    with pytest.raises(ArchiveError, match="no trace to save"):
        staticrt.save(compiled, io.BytesIO(), exported_program=False)
    compiled(x)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    torch.testing.assert_close(staticrt.load(buffer.getvalue())(x), x * 3)


def test_an_unwritable_path_is_an_error(tmp_path):
    compiled = staticrt.compile(mlp())
    with pytest.raises(ArchiveError, match="cannot write archive"):
        staticrt.save(
            compiled, tmp_path / "missing" / "model.pt2", torch.randn(1, 16), exported_program=False
        )


def test_unknown_options_are_errors():
    data = archive_bytes(mlp(), (torch.randn(2, 16),))
    with pytest.raises(OptionError, match="no option 'fast'"):
        staticrt.load(data, fast=True)
    for options in (
        {"prepared": False},
        {"max_prepared": 1, "deterministic": True},
        {"out_variants": False},
        {"verify": True},
    ):
        x = torch.randn(2, 16)
        torch.testing.assert_close(staticrt.load(data, **options)(x), staticrt.load(data)(x))
