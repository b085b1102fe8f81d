"""Archives saved on one device and loaded on another, from Python."""

import copy
import io
import zipfile

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, InputError, OptionError
from tests.support import run_fresh


class Net(nn.Module):
    """Weights, a buffer that calls write, a constant, a tensor made of nothing, attention and a view."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.narrow = nn.Linear(32, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, scale=2.0):
        self.calls.add_(1)
        h = self.norm(torch.tanh(self.wide(x))) + torch.arange(32, device=x.device) * 0.1
        h = h.view(1, x.shape[0], 4, 8).transpose(1, 2)
        h = nn.functional.scaled_dot_product_attention(h, h, h).transpose(1, 2).reshape(x.shape[0], 32)
        return {"y": self.narrow(h) * scale, "best": h.argmax(-1), "none": None}


def saved(model, x, graphs=False, **options):
    file = io.BytesIO()
    with torch.no_grad():
        compiled = staticrt.compile(model, graphs=graphs)
        staticrt.save(compiled, file, (x,), exported_program=False, **options)
    return file.getvalue()


def check(loaded, model, device):
    with torch.no_grad():
        for rows in (4, 4, 7, 4, 7, 2):
            x = torch.randn(rows, 16)
            result, expected = loaded(x.to(device)), model(x)
            assert result["y"].device == result["best"].device == torch.device(device)
            assert result["none"] is None
            torch.testing.assert_close(result["y"].cpu(), expected["y"])
            assert torch.equal(result["best"].cpu(), expected["best"])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("there", ["cpu", "sim:1", "sim", None])
@pytest.mark.parametrize("here", ["cpu", "sim:0"])
def test_a_model_saved_on_one_device_runs_on_another(model, here, there, order):
    data = saved(copy.deepcopy(model).to(here), torch.randn(4, 16).to(here))
    loaded = staticrt.load(data, device=there)
    where = torch.device({"sim": "sim:0", None: here}.get(there, there))
    for tensor in loaded.state_dict().values():
        assert tensor.device == where
    check(loaded, model, where)
    assert loaded.state_dict()["calls"].item() == 6
    for signature in loaded.explain().traces[0].signatures:
        assert [device for device, _bytes in signature.arenas] == [str(where)]


def test_a_model_that_captures_graphs_is_saved_without_them(model):
    data = saved(copy.deepcopy(model).to("sim:0"), torch.randn(4, 16).to("sim:0"), graphs=True)
    check(staticrt.load(data, device="cpu"), model, torch.device("cpu"))


def test_weights_are_moved_once_and_stay_shared(model, sim):
    model.narrow.bias = nn.Parameter(model.wide.bias.detach()[:8])  # a view of another's bytes
    with torch.no_grad():
        compiled = staticrt.compile(model)
        compiled(torch.randn(4, 16))
        compiled(torch.randn(4, 16), scale=3.0)
    file = io.BytesIO()
    staticrt.save(compiled, file, exported_program=False)
    del compiled
    before = torch.accelerator.memory_stats(0)["allocation.all.allocated"]
    loaded = staticrt.load(file.getvalue(), device="sim:0")
    made = torch.accelerator.memory_stats(0)["allocation.all.allocated"] - before
    state = loaded.state_dict()
    storages = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    assert len(storages) == len(state) - 1
    assert (
        state["narrow.bias"].untyped_storage().data_ptr() == state["wide.bias"].untyped_storage().data_ptr()
    )
    assert made == len(storages) + len(loaded.explain().traces)  # each trace has the result of arange, too


@pytest.mark.parametrize("here", ["cpu", "sim:0"])
def test_weights_that_torch_export_reads_as_well_are_stored_once(here):
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8)).eval()
    model[1].bias = nn.Parameter(model[0].bias.detach()[:8])  # a view of another's bytes
    model, file = model.to(here), io.BytesIO()
    with torch.no_grad():
        staticrt.save(staticrt.compile(model), file, (torch.randn(4, 16).to(here),), packed_weights=False)
    with zipfile.ZipFile(file) as archive:
        assert [name for name in archive.namelist() if "staticrt/weights/" in name] == []
    exported = torch.export.load(io.BytesIO(file.getvalue())).state_dict
    loaded = staticrt.load(file.getvalue()).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded[name], value)
        assert torch.equal(exported[name], value)


def test_weights_written_on_the_device_are_seen(model):
    loaded = staticrt.load(saved(model, torch.randn(4, 16)), device="sim:0")
    check(loaded, model, "sim:0")
    with torch.no_grad():
        for weight in (model.wide.weight, loaded.state_dict()["wide.weight"]):
            weight.mul_(0.5)
    check(loaded, model, "sim:0")
    loaded.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(1)
    check(loaded, model, "sim:0")


def test_weights_are_swapped_on_the_device(model, tmp_path):
    path, other = tmp_path / "model.pt2", tmp_path / "other.pt2"
    path.write_bytes(saved(model, torch.randn(4, 16)))
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(0.5)
    other.write_bytes(saved(model, torch.randn(4, 16)))
    loaded = staticrt.load(path, device="sim:0")
    for weights in (model.state_dict(), other):
        loaded.swap_weights(weights)
        check(loaded, model, "sim:0")
        assert {tensor.device for tensor in loaded.state_dict().values()} == {torch.device("sim:0")}


def test_an_archive_of_another_device_is_not_swapped_in(model):
    loaded = staticrt.load(saved(model, torch.randn(4, 16)))
    there = saved(copy.deepcopy(model).to("sim:0"), torch.randn(4, 16, device="sim:0"))
    with pytest.raises(InputError, match=r"'calls' is float32\[1\] on sim:0, expected float32\[1\]\n"):
        loaded.swap_weights(there)
    check(loaded, model, "cpu")


def test_arguments_on_the_wrong_device_are_named(model):
    loaded = staticrt.load(saved(model, torch.randn(4, 16)), device="sim:0")
    with pytest.raises(InputError, match="'x' is on cpu, expected on sim:0"):
        loaded(torch.randn(4, 16))
    with pytest.raises(InputError, match="'x' is on sim:1, expected on sim:0"):
        loaded(torch.randn(4, 16, device="sim:1"))
    assert "x: float32, 2 dimensions on sim:0" in str(loaded.explain())


def test_devices_that_do_not_exist_are_refused(model):
    data = saved(model, torch.randn(4, 16))
    with pytest.raises(ArchiveError, match="cannot be loaded on sim:7"):
        staticrt.load(data, device="sim:7")
    with pytest.raises(ArchiveError, match="cannot be loaded on cuda"):
        staticrt.load(data, device="cuda")
    with pytest.raises(OptionError, match="device is 'nowhere'"):
        staticrt.load(data, device="nowhere")


def test_two_devices_load_only_as_they_were_saved(order):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16).to("sim:0")
            self.second = nn.Linear(16, 16).to("sim:1")

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)).to("sim:1")) + 1

    model = Two().eval()
    data = saved(model, torch.randn(4, 16, device="sim:0"))
    with pytest.raises(ArchiveError, match="tensors on sim:0, sim:1; cpu cannot take the place of all"):
        staticrt.load(data, device="cpu")
    loaded = staticrt.load(data)
    with torch.no_grad():
        for rows in (4, 4, 5):
            x = torch.randn(rows, 16, device="sim:0")
            torch.testing.assert_close(loaded(x).cpu(), model(x).cpu())


def test_a_process_without_the_device_loads_it_on_the_cpu(model, tmp_path):
    path, inputs = tmp_path / "model.pt2", tmp_path / "x.pt"
    path.write_bytes(saved(copy.deepcopy(model).to("sim:1"), torch.randn(4, 16, device="sim:1")))
    x = torch.randn(3, 16)
    torch.save(x, inputs)
    script = """
import sys, torch, staticrt
try:
    staticrt.load(sys.argv[1])
except staticrt.errors.ArchiveError as error:
    assert "on sim:1, a device that this process does not have" in str(error), error
else:
    raise AssertionError("loaded")
torch.save(staticrt.load(sys.argv[1], device="cpu")(torch.load(sys.argv[2]))["y"], sys.argv[3])
"""
    run_fresh(script, path, inputs, tmp_path / "y.pt")
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "y.pt"), model(x)["y"])


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_recurrent_layers_move(layer):
    torch.manual_seed(0)
    model = layer(6, 5, num_layers=2, bidirectional=True).eval()
    for here, there in (("cpu", "sim:0"), ("sim:0", "cpu")):
        data = saved(copy.deepcopy(model).to(here), torch.randn(3, 2, 6).to(here))
        loaded = staticrt.load(data, device=there)
        for steps in (3, 3, 7):
            x = torch.randn(steps, 2, 6)
            with torch.no_grad():
                y, state = loaded(x.to(there))
                torch.testing.assert_close(
                    (y.cpu(), *map(torch.Tensor.cpu, state)), (lambda y, s: (y, *s))(*model(x))
                )


def test_an_operator_of_the_cpu_alone_runs_on_the_device_that_calls_the_cpus_kernels():
    with torch.library._scoped_library("device_archive_test", "FRAGMENT") as library:
        library.define("host_only(Tensor x) -> Tensor")
        library.impl("host_only", lambda x: x + 1, "CPU")
        library.impl("host_only", lambda x: torch.empty_like(x), "Meta")

        def function(x):
            return torch.ops.device_archive_test.host_only(x) * 2

        data = saved(function, torch.randn(3))
        allowed = ["device_archive_test::*"]
        assert staticrt.load(data, allow_operators=allowed)(torch.ones(3)).tolist() == [4, 4, 4]
        loaded = staticrt.load(data, allow_operators=allowed, device="sim:0")
        assert loaded(torch.ones(3, device="sim:0")).cpu().tolist() == [4, 4, 4]
