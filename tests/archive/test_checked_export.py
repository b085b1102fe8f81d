"""Files of `torch.export.save` that bring code: refused before torch would run it, whoever asks."""

import io
import json
import pickle
import zipfile

import pytest
import torch

import staticrt
from staticrt.archive import operators
from staticrt.archive.checked_export import Untrusted, check_expression, load_exported
from staticrt.errors import InputError
from staticrt.tools.cli.main import main


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        y = torch.cond(y.sum() > 0, lambda z: z + 1, lambda z: z - 1, (y,))
        return {"y": y[:, : x.shape[1] // 2].reshape(-1, 2)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A file that brings nothing but a graph and tensors."""
    path = tmp_path_factory.mktemp("export") / "net.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    torch.export.save(torch.export.export(Net(), (torch.randn(4, 4),), dynamic_shapes=({0: batch},)), path)
    return path


@pytest.fixture
def changed(plain, tmp_path):
    """`changed(edit)`: the file after `edit(entries)`, a dict of name without folder -> bytes."""

    def change(edit):
        with zipfile.ZipFile(plain) as archive:
            entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
        edit(entries)
        path = tmp_path / "changed.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in entries.items():
                archive.writestr(f"net/{name}", data)
        return path

    return change


def model_edit(edit):
    def change(entries):
        model = json.loads(entries["models/model.json"])
        edit(model)
        entries["models/model.json"] = json.dumps(model).encode()

    return change


class Touches:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def nodes_of(model):
    return model["graph_module"]["graph"]["nodes"]


def test_a_plain_file_is_loaded(plain):
    x = torch.randn(6, 4)
    with torch.no_grad():
        want = load_exported(plain).module()(x)
        torch.testing.assert_close(staticrt.compile(plain)(x), want)


@pytest.mark.parametrize(
    "entry", ["data/sample_inputs/model.pt", "data/weights/weight_0", "data/constants/tensor_0"]
)
@pytest.mark.parametrize("kind", ["torch.save", "pickle"])
def test_a_pickle_runs_nothing(changed, tmp_path, entry, kind):
    """Break it: without the check torch.export.load creates the file."""
    mark = tmp_path / "mark"

    def edit(entries):
        buffer = io.BytesIO()
        torch.save((Touches(str(mark)),), buffer) if kind == "torch.save" else buffer.write(
            pickle.dumps(Touches(str(mark)))
        )
        entries[entry] = buffer.getvalue()
        folder = entry.rpartition("/")[0]
        if folder != "data/sample_inputs":
            place = f"{folder}/model_{folder.rpartition('/')[2]}_config.json"
            config = json.loads(entries[place])
            payload = next(
                iter(json.loads(entries["data/weights/model_weights_config.json"])["config"].values())
            )
            config["config"]["linear.weight"] = {
                **payload,
                "path_name": entry.rpartition("/")[2],
                "use_pickle": True,
            }
            entries[place] = json.dumps(config).encode()

    path = changed(edit)
    with pytest.raises(InputError, match="is a pickle of more than tensors"):
        staticrt.compile(path)
    for command in ("run", "inspect"):
        assert main([command, str(path), "--shape", "4x4"]) != 0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda m: nodes_of(m)[0].update(target="torch.hub.load"), "which is not an operator"),
        (lambda m: nodes_of(m)[0].update(target="_operator.methodcaller"), "which is not an operator"),
        (lambda m: nodes_of(m)[0].update(target="torch.ops.aten.from_file.default"), "takes the text 'filename'"),
        (lambda m: nodes_of(m)[0].update(target="torch.ops.mylib.add.default"), "which this torch does not have"),
        (lambda m: nodes_of(m)[0].update(name="x, y=print('run')"), "not an identifier"),
        (lambda m: m.update(guards_code=["__import__('os').getpid() > 0"]), "not an expression of sizes"),
        (lambda m: m["graph_module"]["module_call_graph"][0]["signature"].update(forward_arg_names=["x=print(1)"]),
         "not an identifier"),
        (lambda m: m["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"][0].update(
            as_expr={"expr_str": "__import__('os').getpid()", "hint": {"as_int": 4}}), "not an expression of sizes"),
    ],
)  # fmt: skip
def test_code_in_a_graph_is_refused(changed, edit, reason):
    with pytest.raises(InputError, match=reason):
        load_exported(changed(model_edit(edit)))


def test_compiled_libraries_are_refused(changed):
    path = changed(lambda entries: entries.update({"data/aotinductor/model/x.so": b"\x7fELF"}))
    with pytest.raises(InputError, match="compiled libraries"):
        load_exported(path)


def test_the_error_says_how_to_trust_a_file(changed):
    path = changed(lambda entries: entries.update({"data/sample_inputs/model.pt": pickle.dumps(print)}))
    with pytest.raises(InputError, match=r"staticrt\.compile\(torch\.export\.load\(path\)\)"):
        staticrt.compile(path)


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s77', positive=True, integer=True)",
        "s0*(s1//2) + 1",
        "s0**2",
        "Mod(s0, 8)",
        "Max(1, s0)",
        "-oo",
    ],
)
def test_sizes_are_expressions(text):
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "Pow(Integer(9), Integer(99999999))",
        "LShift(1, 99999999)",
        "1 << 99999999",
        "(lambda: 1)()",
        "s0.__class__",
        "open('x')",
        "[1 for _ in range(9)]",
        "f'{s0}'",
        "s0 if s1 else s2",
        "(",
        "1" + "+1" * 50_000,
    ],
)
def test_other_expressions_are_not(text):
    with pytest.raises(Untrusted):
        check_expression(text)


def test_guards_read_arguments_only():
    check_expression("L['x'].size()[0] == 3", guard=True)
    with pytest.raises(Untrusted):
        check_expression("L['x'].__class__", guard=True)


def test_operators_with_words_are_allowed():
    for target in ("torch.ops.aten.conv2d.padding", "torch.ops.aten.gelu.default", "_operator.floordiv"):
        assert operators.refusal(target) == ""


class Recurrent(torch.nn.Module):
    def __init__(self, kind, **more):
        super().__init__()
        self.layer = getattr(torch.nn, kind)(4, 3, **more)

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("more", [{}, {"batch_first": True, "bidirectional": True, "num_layers": 2}])
def test_recurrent_layers_are_loaded(kind, more, tmp_path):
    model, x = Recurrent(kind, **more), torch.randn(2, 3, 4)
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(model, (x,)), path)
    with torch.no_grad():
        torch.testing.assert_close(staticrt.compile(path)(x), model(x))


def test_projections_are_loaded(tmp_path):
    model, x = Recurrent("LSTM", proj_size=2), torch.randn(2, 3, 4)
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(model, (x,)), path)
    with torch.no_grad():
        torch.testing.assert_close(staticrt.compile(path)(x), model(x))


@pytest.mark.parametrize("sizes", [[1, 3, 0], [1, 7, 3], [1, 3, 300], [3, 3]])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_with_states_of_other_sizes_are_refused(kind, sizes, tmp_path):
    """torch's operator would divide by zero or read beyond its states."""
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Recurrent(kind), (torch.randn(2, 3, 4),)), path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in entries if name.endswith("models/model.json"))
    model = json.loads(entries[name])
    for node in model["graph_module"]["graph"]["nodes"]:
        if node["target"] == "torch.ops.aten.zeros.default":
            node["inputs"][0]["arg"] = {"as_ints": sizes}
    entries[name] = json.dumps(model).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    with pytest.raises(InputError, match="with states of sizes"):
        staticrt.compile(path)
