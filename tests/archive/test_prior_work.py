"""What an archive keeps of work done before saving: packed weights and kernels chosen."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import staticrt
import staticrt.runtime.autotuning

pytestmark = pytest.mark.usefixtures("no_gradients")

X = torch.linspace(-1, 1, 2 * 3 * 20 * 20).reshape(2, 3, 20, 20)


def convolution():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)).eval()


def saved(model, calls=2, **options):
    compiled = staticrt.compile(model)
    for _ in range(calls):
        compiled(X)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, (X,), exported_program=False, **options)
    return buffer.getvalue()


def packed(loaded):
    """Bytes of packed weights: (in the archive, in use)."""
    natives = [trace.native for trace in loaded._traces]
    return sum(n.packed_bytes for n in natives), sum(n.executable.taken_bytes for n in natives)


def expect(loaded, model):
    for _ in range(3):
        torch.testing.assert_close(loaded(X), model(X), rtol=1e-4, atol=1e-5)


def test_packed_weights_are_taken_at_the_first_call():
    model = convolution()
    loaded = staticrt.load(saved(model))
    held, taken = packed(loaded)
    assert held > 0
    assert taken == 0
    expect(loaded, model)
    assert packed(loaded) == (held, held)
    assert f"packed weights: {held} bytes in the archive, {held} of them in use" in str(loaded.explain())


@pytest.mark.parametrize("when", ["before the first call", "between calls"])
@pytest.mark.parametrize("how", ["load_state_dict", "numpy"])
def test_weights_that_change_are_packed_anew(when, how):
    model = convolution()
    loaded = staticrt.load(saved(model))
    if when == "between calls":
        expect(loaded, model)
    if how == "load_state_dict":
        other = convolution()
        for parameter in other.parameters():
            parameter.mul_(-0.5)
        loaded.load_state_dict(other.state_dict())
    else:
        other = model
        for weights in (model.state_dict(), loaded.state_dict()):
            array = weights["0.weight"].numpy()
            np.multiply(array, -0.5, out=array)
    expect(loaded, other)


def test_archives_without_them_are_smaller_and_as_right():
    model = convolution()
    small = saved(model, packed_weights=False)
    assert len(small) < len(saved(model)) - packed(staticrt.load(saved(model)))[0] // 2
    loaded = staticrt.load(small)
    expect(loaded, model)
    assert packed(loaded) == (0, 0)
    assert "packed weights" not in str(loaded.explain())


def test_packed_weights_of_other_values_are_left_out():
    model = convolution()
    compiled = staticrt.compile(model)
    compiled(X)
    compiled(X)
    model[0].weight.mul_(2.0)  # packed: the old values
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    assert packed(loaded)[0] == 0
    expect(loaded, model)


def test_traces_share_equal_packed_weights():
    model = nn.LSTM(64, 64).eval()
    compiled = staticrt.compile(model)
    x = torch.randn(5, 2, 64)
    state = (torch.randn(1, 2, 64), torch.randn(1, 2, 64))
    for _ in range(2):
        compiled(x)
        compiled(x, state)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    held, _taken = packed(loaded)
    weights = sum(p.nbytes for p in model.parameters())
    assert len(loaded._traces) == 2
    assert held > 1.9 * weights  # each trace has its own
    assert len(buffer.getvalue()) < held // 2 + weights + 40_000
    torch.testing.assert_close(loaded(x, state), model(x, state))
    torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize(
    ("name", "layers", "row"),
    [
        ("format1", [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)], (3, 4, 4)),
        (
            "format2",
            [nn.Linear(6, 4), nn.ReLU()],
            (6,),
        ),  # no word of which arguments are one tensor, or empty
        ("format3", [nn.Linear(6, 4), nn.ReLU(), nn.Softmax(-1)], (6,)),  # no memory plans
        ("format4", [nn.Linear(6, 4), nn.Tanh()], (6,)),  # no names of devices
        ("format5", [nn.Linear(6, 4), nn.Sigmoid()], (6,)),  # no word of whether code asks for strides
    ],
)
def test_archives_of_older_formats_are_read(name, layers, row):
    data = Path(__file__).with_name(f"{name}.pt2").read_bytes()
    if not torch.__version__.startswith("2.13."):
        with pytest.raises(staticrt.errors.ArchiveError, match="saved with torch"):
            staticrt.load(data)
        return
    model = nn.Sequential(*layers).eval()
    for p in model.parameters():
        p.copy_((torch.arange(p.numel()) % 7 - 3).reshape(p.shape) / 8)
    loaded = staticrt.load(data)
    for batch in (1, 3, *([0] if name == "format2" else [])):
        x = torch.randn(batch, *row)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


def matmul_kernels():
    """Kernels of a fresh model with one matrix product, whose shape no other test has."""
    fast = staticrt.compile(nn.Linear(96, 161).eval())
    for _ in range(2):
        fast(torch.ones(23, 96))
    (entry,) = next(iter(fast._executor.snapshot().keyed.values()))
    return [name for _node, name in entry.executable.native.prepared_stats[0]["routes"]]


def test_routes_are_pinned_from_a_file(tmp_path):
    path = tmp_path / "routes.json"
    before = staticrt.runtime.autotuning.measured()
    chosen = matmul_kernels()
    (own,) = set(staticrt.runtime.autotuning.measured()) - set(before)
    staticrt.runtime.autotuning.save(path)
    data = json.loads(path.read_text())
    kernels = {}
    for choice in range(-1, 9):  # some of them fit the shape, and are taken, whatever was measured
        data["routes"] = [{"kind": own.kind, "key": own.key, "choice": choice}]
        path.write_text(json.dumps(data))
        assert staticrt.runtime.autotuning.load(path) == 1
        kernels[choice] = matmul_kernels()
    assert kernels[own.choice] == chosen
    assert len({str(names) for names in kernels.values()}) > 1


def test_routes_of_another_machine_are_refused(tmp_path):
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({"machine": "AVX9, a processor", "routes": []}))
    with pytest.raises(staticrt.errors.OptionError, match="measured on AVX9, a processor, this is"):
        staticrt.runtime.autotuning.load(path)
    assert staticrt.runtime.autotuning.load(path, any_machine=True) == 0
    for text in ("{", "[]", '{"machine": "m", "routes": [{"kind": 1, "key": [], "choice": 0}]}'):
        path.write_text(text)
        with pytest.raises(staticrt.errors.OptionError, match="no routes"):
            staticrt.runtime.autotuning.load(path)


def resident_bytes(path):
    """Bytes of a file's mappings that are in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and first == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def test_weights_that_were_only_checked_are_not_kept_in_memory(tmp_path):
    path = tmp_path / "model.pt2"
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).eval()
    x = torch.ones(2, 1024)
    staticrt.save(staticrt.compile(model), path, (x,), exported_program=False)
    loaded = staticrt.load(path)
    assert path.stat().st_size > 8_000_000
    assert resident_bytes(path) < 2_000_000  # all 8.4 MB were read, for their checksums
    torch.testing.assert_close(loaded(x), model(x))
    assert resident_bytes(path) > 8_000_000


def test_weights_written_by_the_model_stay_after_a_second_load(tmp_path):
    path = tmp_path / "model.pt2"
    model = nn.Linear(1024, 1024).eval()
    x = torch.ones(2, 1024)
    staticrt.save(staticrt.compile(model), path, (x,), exported_program=False)
    first = staticrt.load(path)
    first.load_state_dict({name: torch.zeros_like(value) for name, value in first.state_dict().items()})
    second = staticrt.load(path)
    assert first(x).abs().max() == 0
    torch.testing.assert_close(second(x), model(x))


# -- memory plans -------------------------------------------------------------------------------------------------


def branching():
    """Values of several sizes whose lives overlap: a plan that is worth a search."""
    torch.manual_seed(0)

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolutions = nn.ModuleList(nn.Conv2d(3, 4 + 3 * i, 3, padding=i) for i in range(6))

        def forward(self, x):
            parts = [convolution(x).sin().softmax(-1) for convolution in self.convolutions]
            return sum(part.flatten(2).cumsum(-1).mean((1, 2)) for part in parts)

    return Branching().eval()


def plans(loaded):
    """Memory plans: (in the archive, of them in use, searched for here)."""
    natives = [trace.native for trace in loaded._traces]
    stats = [program for native in natives for program in native.executable.prepared_stats]
    used, made = (sum(program[key] for program in stats) for key in ("known_plans", "searched_plans"))
    return sum(native.num_plans for native in natives), used, made


def arenas(executable):
    return [stats["arena_bytes"] for stats in executable.prepared_stats]


@pytest.mark.parametrize("calls", [0, 2])
def test_the_first_call_after_loading_plans_nothing(calls):
    """Calls before saving made the plans, or saving itself with its example inputs."""
    model = branching()
    data = saved(model, calls)
    loaded = staticrt.load(data)
    held, used, made = plans(loaded)
    assert held > 0
    assert (used, made) == (0, 0)
    expect(loaded, model)
    assert plans(loaded) == (held, held, 0)
    assert f"memory plans: {held} in the archive, {held} of them in use, 0 made here" in str(loaded.explain())
    own = staticrt.compile(model)
    own(X)
    (entry,) = next(iter(own._executor.snapshot().keyed.values()))
    assert arenas(loaded._traces[0].native.executable) == arenas(entry.executable.native)


def test_other_sizes_are_planned_anew():
    model = branching()
    loaded = staticrt.load(saved(model))
    torch.testing.assert_close(loaded(X[:1]), model(X[:1]), rtol=1e-4, atol=1e-5)
    held, used, made = plans(loaded)
    assert held > 0
    assert used == 0
    assert made > 0


def test_plans_of_branches_that_data_decides_are_kept():
    class Choice(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: (x.sin() @ x).exp() @ x, lambda x: x.cos(), (x,))

    compiled = staticrt.compile(Choice())
    x = torch.rand(16, 16)
    for _ in range(2):
        compiled(x)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    assert plans(loaded)[0] > 0
    torch.testing.assert_close(loaded(x), compiled(x))
