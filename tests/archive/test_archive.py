"""What comes back from an archive computes what was saved, and says so where it cannot."""

import collections
import dataclasses
import io
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, GradError, InputError, OptionError


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def archive_bytes(model, example_inputs, *calls, exported_program=False, **options):
    """The archive of a compiled model after these calls."""
    compiled = staticrt.compile(model)
    for args in calls:
        compiled(*args)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, example_inputs, exported_program=exported_program, **options)
    return buffer.getvalue()


def reload(model, example_inputs, *calls, **options):
    return staticrt.load(archive_bytes(model, example_inputs, *calls), **options)


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


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


def test_other_sizes_need_no_other_capture():
    model = mlp()
    loaded = reload(model, (torch.randn(4, 16),))
    for batch in (4, 1, 9, 4):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(loaded(x), model(x))
        torch.testing.assert_close(loaded(input=x), model(x))
    torch.testing.assert_close(loaded(torch.ones(16, 5).t()), model(torch.ones(16, 5).t()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ((torch.randn(4, 15),), r"size of 'input' in dimension 1 = 15"),
        ((torch.randn(4, 16).double(),), r"'input' has dtype Double, expected Float"),
        ((torch.randn(16),), r"'input' has 1 dimensions, \[16\], expected 2"),
        ((3,), r"'input' is no tensor"),
        (("x",), r"'input' is no tensor"),
        ((torch.randn(4, 16), 1), r"captured were"),
        ((), r"captured were"),
        ((object(),), r"'input' is a object"),
        ((1 << 70,), r"more than 64 bits"),
        ((torch.randn(4, 16).to_sparse(),), r"no dense CPU tensor"),
    ],
)
def test_calls_outside_the_captures_are_errors_that_say_why(call, message):
    loaded = reload(mlp(), (torch.randn(4, 16),))
    x = torch.randn(2, 16)
    expected = loaded(x)
    with pytest.raises(InputError, match=message):
        loaded(*call)
    torch.testing.assert_close(loaded(x), expected)


def test_size_conditions_of_the_model_are_kept():
    class Branches(nn.Module):
        def forward(self, x, y):
            if x.shape[0] * 2 > y.shape[0] and x.shape[1] % 4 == 0:
                return x.sum() + y.sum()
            return x.sum() - y.sum()

    model = Branches()
    loaded = reload(model, (torch.ones(6, 8), torch.ones(7)))
    for rows, columns, other in ((6, 8, 7), (9, 4, 17), (5, 12, 3)):
        x, y = torch.randn(rows, columns), torch.randn(other)
        torch.testing.assert_close(loaded(x, y), model(x, y))
    for rows, columns, other in ((6, 9, 7), (3, 8, 7)):
        with pytest.raises(InputError, match="does not hold"):
            loaded(torch.ones(rows, columns), torch.ones(other))
    both = reload(model, (torch.ones(6, 8), torch.ones(7)), (torch.ones(2, 8), torch.ones(7)))
    for rows in (2, 6):
        x, y = torch.randn(rows, 8), torch.randn(7)
        torch.testing.assert_close(both(x, y), model(x, y))


def test_every_capture_is_saved():
    model = mlp()
    doubled = mlp().double()
    compiled = staticrt.compile(lambda module, x: x * 2 if module == "double" else x + 1)
    x = torch.randn(3)
    compiled("double", x)
    compiled("other", x)
    compiled("double", x.int())
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    torch.testing.assert_close(loaded("double", x), x * 2)
    torch.testing.assert_close(loaded("other", x), x + 1)
    torch.testing.assert_close(loaded("double", x.int()), x.int() * 2)
    with pytest.raises(InputError, match="captured as the constant"):
        loaded("third", x)
    assert model is not doubled


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    name: str


class Nested(nn.Module):
    def forward(self, pair, /, *rest, scale=2.0, options=None, **more):
        a, b = pair
        total = a * scale + b["inner"][0]
        for item in rest:
            total = total + item
        if options is not None and options["negate"]:
            total = -total
        for item in more.values():
            total = total + item
        return {"total": total, "parts": [a, (b["inner"][0], None, 3)], "point": Point(total * 2, "label")}


def test_nested_arguments_and_results():
    model = Nested()
    t = torch.randn
    args = ((t(2, 3), {"inner": [t(2, 3)]}), t(2, 3), t(3))
    kwargs = {"scale": 0.5, "options": {"negate": True}, "z": t(2, 1), "b": t(1)}
    compiled = staticrt.compile(model)
    compiled(*args, **kwargs)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    for _ in range(3):
        got, expected = loaded(*args, **kwargs), model(*args, **kwargs)
        torch.testing.assert_close(got["total"], expected["total"])
        assert list(got) == ["total", "parts", "point"]
        assert got["parts"][0] is args[0][0]
        assert got["parts"][1][1:] == (None, 3)
        assert type(got["point"]) is Point
        assert got["point"].y == "label"
        torch.testing.assert_close(got["point"].x, expected["point"].x)
    shuffled = {name: kwargs[name] for name in ("b", "options", "z", "scale")}
    torch.testing.assert_close(loaded(*args, **shuffled)["total"], model(*args, **kwargs)["total"])
    with pytest.raises(InputError, match=r"'options\['negate'\]' is false, captured as the constant true"):
        loaded(*args, **{**kwargs, "options": {"negate": False}})


def test_positional_keyword_and_default_arguments_are_the_same_call():
    class Named(nn.Module):
        def forward(self, x, y=None, *, flag=True, power=2):
            out = x**power if flag else x
            return out if y is None else out + y

    model = Named()
    x, y = torch.randn(3), torch.randn(3)
    loaded = reload(model, (x, y))
    for call in (
        lambda m: m(x, y),
        lambda m: m(x, y=y),
        lambda m: m(y=y, x=x),
        lambda m: m(x, y, flag=True),
        lambda m: m(x, y, power=2, flag=True),
    ):
        torch.testing.assert_close(call(loaded), call(model))
    with pytest.raises(InputError):
        loaded(x, y, flag=False)
    with pytest.raises(InputError):
        loaded(x, y, x)
    with pytest.raises(InputError):
        loaded(x, y, nonsense=1)


def test_dataclasses_come_back_where_the_caller_names_them():
    class MakesResult(nn.Module):
        def forward(self, x):
            return Result(x + 1, "sum")

    x = torch.randn(3)
    compiled = staticrt.compile(MakesResult())
    if not isinstance(compiled(x), Result) or compiled.explain().eager:
        with pytest.raises(ArchiveError, match="no capture"):
            staticrt.save(compiled, io.BytesIO())
        return
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    got = staticrt.load(buffer.getvalue(), types=[Result])(x)
    assert (type(got), got.name) == (Result, "sum")


def test_int_arguments_that_became_symbols():
    class Repeats(nn.Module):
        def forward(self, x, n):
            return x.repeat(n) * n

    model = Repeats()
    x = torch.randn(3)
    loaded = reload(model, None, (x, 2), (x, 3), (x, 4))
    for n in (2, 3, 4, 7):
        torch.testing.assert_close(loaded(x, n), model(x, n))


def test_a_callers_list_is_changed_as_by_the_model():
    class Appends(nn.Module):
        def forward(self, items):
            items.append(items[0] * 2)
            return len(items)

    x = torch.randn(2)
    loaded = reload(Appends(), ([x.clone()],))
    for _ in range(2):
        items = [x]
        assert loaded(items) == 2
        torch.testing.assert_close(items[1], x * 2)


def test_functions_and_closed_over_tensors():
    weight = torch.randn(4, 4)

    def function(x, *, bias):
        return x @ weight + bias

    compiled = staticrt.compile(function)
    x, bias = torch.randn(2, 4), torch.randn(4)
    compiled(x, bias=bias)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer)
    torch.testing.assert_close(staticrt.load(buffer.getvalue())(x, bias=bias), function(x, bias=bias))


# -- state ------------------------------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        self.count.add_(x.sum(0))
        self.scratch.mul_(2)
        return self.norm(x) + self.count * self.scratch


def test_buffers_that_the_model_writes_are_state_of_the_loaded_model(tmp_path):
    model = Counter().train()
    x = torch.randn(4, 3)
    path = tmp_path / "model.pt2"
    compiled = staticrt.compile(model)
    compiled(x)
    staticrt.save(compiled, path)
    one, two = staticrt.load(path), staticrt.load(path)
    before = path.read_bytes()
    for _ in range(3):
        torch.testing.assert_close(one(x), model(x))
    assert list(one.state_dict()) == [
        *dict(model.named_parameters()),
        *(n for n in dict(model.named_buffers()) if n != "scratch"),
    ]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value)
    assert dict(two.named_buffers())["scratch"].item() == 2.0
    assert path.read_bytes() == before


def test_a_model_loaded_in_inference_mode_is_like_any_other():
    model = Counter().train()
    x = torch.randn(4, 3)
    data = archive_bytes(model, (x,))
    with torch.inference_mode():
        loaded = staticrt.load(data)
        torch.testing.assert_close(loaded(x), model(x))
    for _ in range(2):
        torch.testing.assert_close(loaded(x), model(x))
    assert not any(tensor.is_inference() for tensor in loaded.state_dict().values())


def test_load_state_dict_is_seen_by_the_next_call():
    model, other = mlp(), mlp()
    x = torch.randn(2, 16)
    loaded = reload(model, (x,))
    for _ in range(3):
        torch.testing.assert_close(loaded(x), model(x))
    loaded.load_state_dict(other.state_dict())
    for _ in range(2):
        torch.testing.assert_close(loaded(x), other(x))
    with pytest.raises(InputError, match=r"missing .*'0\.bias'"):
        loaded.load_state_dict({"0.weight": torch.zeros(32, 16)})
    with pytest.raises(InputError, match=r"0.weight has shape \[1\], expected \[32, 16\]"):
        loaded.load_state_dict({"0.weight": torch.zeros(1)}, strict=False)
    torch.testing.assert_close(loaded(x), other(x))


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("row", self.embed.weight.detach()[3])

        def forward(self, tokens):
            return self.head(self.embed(tokens)) + self.row.sum()

    model = Tied().eval()
    tokens = torch.tensor([[1, 2, 3]])
    loaded = reload(model, (tokens,))
    torch.testing.assert_close(loaded(tokens), model(tokens))
    state = loaded.state_dict()
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    state["head.weight"].mul_(2)
    model.embed.weight.data.mul_(2)
    torch.testing.assert_close(state["row"], model.row)
    torch.testing.assert_close(loaded(tokens), model(tokens))


def test_random_operators_draw_as_the_model_does():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).train()

    def function(x):
        return model(x) + torch.randn(x.shape[0], 8)

    x = torch.randn(4, 8)
    loaded = reload(function, (x,))
    for seed in range(4):
        torch.manual_seed(seed)
        expected = function(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(loaded(x), expected)


def test_control_flow():
    def function(x, limit):
        halved = torch.cond(x.sum() > 0, lambda x: x / 2, lambda x: -x, (x,))

        def grow(i, value):
            return i + 1, value * 2

        steps, value = torch.while_loop(
            lambda i, value: value.abs().max() < limit, grow, (torch.tensor(0), halved)
        )
        return steps, value

    x = torch.randn(3, 4).abs()
    loaded = reload(function, (x, torch.tensor(50.0)))
    for sign in (1, -1, 1):
        for limit in (2.0, 50.0):
            expected = function(sign * x, torch.tensor(limit))
            got = loaded(sign * x, torch.tensor(limit))
            torch.testing.assert_close(got, expected)


def test_an_argument_that_is_written_must_not_share_memory():
    def function(x, y):
        x.add_(1)
        return x * y

    loaded = reload(function, (torch.ones(3), torch.ones(3)))
    x, y = torch.ones(3), torch.full((3,), 2.0)
    torch.testing.assert_close(loaded(x, y), torch.full((3,), 4.0))
    torch.testing.assert_close(x, torch.full((3,), 2.0))
    for _ in range(2):
        with pytest.raises(InputError, match="shares memory"):
            loaded(x, x.view(3))
        with pytest.raises(InputError, match="'y' and 'x' are the same tensor"):
            loaded(x, x)


# -- environment ------------------------------------------------------------------------------------------------


def triple(library, schema):
    """Registers archive_test::triple with this schema."""
    library.define(f"triple{schema}")
    library.impl("triple", lambda x, *_rest: x * 3, "CompositeExplicitAutograd")
    torch.library.register_fake("archive_test::triple", lambda x, *_rest: torch.empty_like(x), lib=library)


def test_custom_operators_must_be_registered_as_they_were():
    def function(x):
        return torch.ops.archive_test.triple(x) + 1

    x = torch.ones(4)
    with torch.library._scoped_library("archive_test", "DEF") as library:
        triple(library, "(Tensor x) -> Tensor")
        data = archive_bytes(function, (torch.ones(3),))
        loaded = staticrt.load(data)
        for _ in range(3):
            assert loaded(x).tolist() == [4.0] * 4
        del loaded
    with pytest.raises(
        ArchiveError, match="calls operator 'archive_test::triple', which is not registered"
    ) as absent:
        staticrt.load(data)
    assert "fix: import the package" in str(absent.value)
    with torch.library._scoped_library("archive_test", "DEF") as library:
        triple(library, "(Tensor x, int k=3) -> Tensor")
        with pytest.raises(ArchiveError, match="with another schema") as other:
            staticrt.load(data)
        assert "saved: archive_test::triple(Tensor x) -> Tensor" in str(other.value)


def test_calls_that_need_gradients_are_errors():
    loaded = reload(mlp(), (torch.randn(2, 16),))
    with torch.enable_grad():
        x = torch.randn(2, 16, requires_grad=True)
        with pytest.raises(GradError, match=r"'input' requires gradients"):
            loaded(x)
        assert not loaded(x.detach()).requires_grad
    loaded(x)


def test_autocast_is_part_of_a_capture():
    weight = torch.randn(16, 16)

    def model(x):
        return x @ weight

    x = torch.randn(2, 16)
    loaded = reload(model, (x,))
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(InputError, match="captured with autocast off, the call has it at cpu:BFloat16"):
            loaded(x)
        cast = reload(model, (x,))
        torch.testing.assert_close(cast(x), model(x))
    with pytest.raises(InputError, match="captured with autocast cpu:BFloat16, the call has it off"):
        cast(x)


def test_threads():
    model = mlp()
    loaded = reload(model, (torch.randn(4, 16),))
    inputs = [torch.randn(batch, 16) for batch in (1, 2, 3, 5, 8, 13, 21, 34)]
    expected = [model(x) for x in inputs]
    failures = []

    def work(number):
        with torch.no_grad():
            for k in range(200):
                index = (number + k) % len(inputs)
                if not torch.allclose(loaded(inputs[index]), expected[index], atol=1e-5):
                    failures.append(index)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_explain_says_what_the_archive_holds():
    loaded = reload(mlp(), (torch.randn(4, 16),))
    loaded(torch.randn(2, 16))
    text = str(loaded.explain())
    assert "input: float32, 2 dimensions" in text
    assert "aten.linear.default ×2" in text
    assert "1 calls" in text
    assert f"torch {torch.__version__}" in text
    assert "LoadedModel" not in repr(loaded)
    with pytest.raises(TypeError, match="not pickled"):
        loaded.__reduce__()


def test_prepared_calls_need_no_python():
    loaded = reload(mlp(), (torch.randn(4, 16),))
    x = torch.randn(4, 16)
    for _ in range(5):
        loaded(x)
    assert loaded._fast.calls >= 3


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
    assert sum(count for _name, count in loaded._captures[0].report["operators"]) >= 1000
    assert best < 0.020
    x = torch.randn(7)
    torch.testing.assert_close(loaded(x), function(x))


# -- what cannot be saved or loaded -----------------------------------------------------------------------------


def test_nothing_captured_is_an_error():
    with pytest.raises(ArchiveError, match="no capture to save"):
        staticrt.save(staticrt.compile(mlp()), io.BytesIO())
    with pytest.raises(ArchiveError, match=r"takes what staticrt\.compile returned, got Sequential"):
        staticrt.save(mlp(), io.BytesIO())


def test_captures_that_no_longer_hold_are_left_out():
    class Scaled(nn.Module):
        factor = 2.0

        def forward(self, x):
            return x * self.factor

    model = Scaled()
    compiled = staticrt.compile(model)
    x = torch.ones(2)
    compiled(x)
    model.factor = 3.0
    with pytest.raises(ArchiveError, match="no capture to save"):
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
