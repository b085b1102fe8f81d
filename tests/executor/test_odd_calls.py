"""Calls that a user makes sooner or later, and no benchmark does: each equals eager."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import InputError


def both(function, compiled, *args):
    """Eager's and the compiled result, or the types of what they raise."""
    return [outcome(call, *args) for call in (function, compiled)]


def outcome(call, *args):
    """A result, or the type of what is raised."""
    try:
        return call(*args)
    except Exception as error:
        return type(error)


@torch.no_grad()
def test_one_tensor_as_two_arguments():
    def same(a, b):
        return (a + b, a is b)

    compiled = staticrt.compile(same)
    x, y = torch.randn(3), torch.randn(3)
    for args in ((x, x), (x, y), (x, x), (x, x.view(3)), (x, y), (x, x)):
        want, got = both(same, compiled, *args)
        assert torch.equal(got[0], want[0])
        assert got[1] is want[1]


@torch.no_grad()
def test_one_tensor_among_many_arguments():
    def pairs(*tensors):
        return [a is b for a in tensors for b in tensors], sum(tensors)

    compiled = staticrt.compile(pairs)
    tensors = [torch.randn(2) for _ in range(12)]
    for args in (tensors, [*tensors[:11], tensors[3]], tensors, [*tensors[:11], tensors[3]]):
        want, got = both(pairs, compiled, *args)
        assert got[0] == want[0]
        assert torch.equal(got[1], want[1])


@torch.no_grad()
def test_self_attention_takes_its_short_way_and_cross_attention_its_own():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    compiled = staticrt.compile(model)
    for length in (4, 5, 4):
        x, y = torch.randn(2, length, 8), torch.randn(2, length, 8)
        for args in ((x, x, x), (x, y, y), (x, y, x)):
            torch.testing.assert_close(compiled(*args), model(*args))


@torch.no_grad()
def test_an_archive_does_not_take_two_arguments_for_one(tmp_path):
    compiled = staticrt.compile(lambda a, b: a + b)
    x = torch.randn(3)
    compiled(x, x)
    staticrt.save(compiled, tmp_path / "model.pt2", exported_program=False)
    loaded = staticrt.load(tmp_path / "model.pt2")
    torch.testing.assert_close(loaded(x, x), x + x)
    with pytest.raises(InputError, match="traced was one for both"):
        loaded(x, x.clone())


SIZE_BRANCHES = {
    "numel": lambda x, one: one * 2 if x.numel() else one - 1,
    "length": lambda x, one: one * 2 if x.shape[0] == 0 else one - 1,
    "single": lambda x, one: one * 2 if x.shape[0] == 1 else one - 1,
    "product": lambda x, one: one * 2 if x.shape[0] * x.shape[1] > 0 else one - 1,
    "contiguous": lambda x, one: one * 2 if x.t().is_contiguous() else one - 1,
    "not": lambda x, one: one * 2 if not x.shape[0] else one - 1,
    "in": lambda x, one: one * 2 if x.shape[0] in (0, 1) else one - 1,
    "square": lambda x, one: one * 2 if x.shape[0] == x.shape[1] else one - 1,
}


@torch.no_grad()
@pytest.mark.parametrize("name", SIZE_BRANCHES)
@pytest.mark.parametrize("first", [0, 1, 3, 4])
def test_branches_on_sizes_nought_and_one(name, first):
    function = SIZE_BRANCHES[name]
    compiled = staticrt.compile(function)
    for rows in (first, 0, 1, 4, 3, 0, 1, 5):
        want, got = both(function, compiled, torch.randn(rows, 3), torch.ones(1))
        assert torch.equal(got, want), rows


@torch.no_grad()
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "amax", "aminmax", "median"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_reductions_of_nothing_raise_what_eager_raises(name, dtype):
    function = lambda x: getattr(torch, name)(x)  # noqa: E731
    compiled = staticrt.compile(function)
    for rows in (0, 2, 0, 2, 0):
        want, got = both(function, compiled, torch.ones(rows, 3, dtype=dtype))
        assert type(got) is type(want)
        assert got is want or str(got) == str(want)


@torch.no_grad()
def test_requires_grad_is_part_of_what_a_model_sees():
    def f(x):
        return x + 1, x.requires_grad

    compiled = staticrt.compile(f)
    for wants in (True, False, True, True, False, False):
        assert compiled(torch.ones(2, requires_grad=wants))[1] is wants


@torch.no_grad()
def test_out_arguments_of_another_size_are_resized():
    def f(x, out):
        return torch.sin(x, out=out)

    compiled = staticrt.compile(f)
    for rows in (3, 0, 3, 0):
        x, out, twin = torch.randn(3), torch.empty(rows), torch.empty(rows)
        assert torch.equal(compiled(x, out), f(x, twin))
        assert torch.equal(out, twin)


def _set(x, value):
    x.data = value
    return x


@pytest.mark.parametrize("needs_gradients", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: _set(x, x.data * 2) + 1,
        lambda x: _set(x, x.data.t()).sum(0),  # of the memory that it has
        lambda x: _set(x, x.detach()[1:]).sum(0),
        lambda x: _set(y := x * 2, y.detach().t()) + 1,
    ],
    ids=["other memory", "transposed", "a part", "intermediate"],
)
def test_setting_data_is_seen(function, needs_gradients):
    compiled = staticrt.compile(function)
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=needs_gradients)
        twin = x.detach().clone().requires_grad_(needs_gradients)
        assert torch.equal(compiled(x), function(twin))
        assert torch.equal(x, twin)
    assert {each.reason for each in compiled.explain().eager} == {"the model sets a tensor's .data"}


@torch.no_grad()
@pytest.mark.parametrize("given", [lambda x: x * 2, lambda x: {"key": [x * 2]}["key"][0], torch.detach])
def test_a_copied_tensor_ends_the_trace_and_leaves_nothing_of_it(given):
    kept = []

    def f(x):
        kept.append(x * 3)
        return copy.deepcopy(given(x)) + 1

    compiled = staticrt.compile(f)
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(compiled(x), given(x) + 1)
        assert torch.equal(kept[-1], x * 3)
    assert [type(each) for each in kept] == [torch.Tensor] * 3
    assert "not traced whole: the model copies a tensor by copy.deepcopy" in str(compiled.explain())


@torch.no_grad()
def test_results_may_be_any_object():
    marker = object()

    def f(x, key):
        return {"y": x * 2, "len": len, "marker": marker, "key": key}

    compiled = staticrt.compile(f)
    for _ in range(3):
        x = torch.randn(3)
        got = compiled(x, slice)
        assert got["len"] is len
        assert got["marker"] is marker
        assert got["key"] is slice
        assert torch.equal(got["y"], x * 2)
    assert not compiled.explain().eager


@torch.no_grad()
def test_a_generator_argument_is_drawn_from():
    def f(x, generator):
        return x + torch.rand(3, generator=generator)

    compiled = staticrt.compile(f)
    ours, theirs = (torch.Generator().manual_seed(4) for _ in range(2))
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(compiled(x, ours), f(x, theirs))


class Caches(nn.Module):
    """Makes a table at its first call, as vision transformers do."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None or self.table.shape[0] != x.shape[1]:
            self.table = torch.arange(x.shape[1]).float()
        return x * self.table


@torch.no_grad()
def test_models_that_fill_a_cache_once_are_traced_afterwards():
    model, twin = Caches(), Caches()
    compiled = staticrt.compile(model)
    for _ in range(4):
        x = torch.randn(2, 5)
        assert torch.equal(compiled(x), twin(x))
    (trace,) = compiled.explain().traces
    assert trace.route == "whole"
    assert trace.calls == 3


@torch.no_grad()
def test_sizes_that_must_be_known_are_constants_of_a_trace():
    def blocks(x):
        return x.reshape(-1, 4, x.shape[1] // 4).sum(1)  # divides for some sizes only

    compiled = staticrt.compile(lambda x: blocks(x).reshape(-1, 2, 3))
    for rows in (2, 4, 2):
        x = torch.randn(rows, 12)
        assert torch.equal(compiled(x), blocks(x).reshape(-1, 2, 3))
    assert not compiled.explain().eager


@torch.no_grad()
def test_divisions_of_sizes_round_as_asked():
    def f(x):
        return torch.div(torch.arange(x.shape[0]), x.shape[0] + 1, rounding_mode="trunc") + x

    compiled = staticrt.compile(f)
    for rows in (3, 5, 3):
        x = torch.randn(rows)
        assert torch.equal(compiled(x), f(x))
    assert not compiled.explain().eager


@torch.no_grad()
def test_pythons_int_as_a_dtype_beside_symbolic_sizes():
    """While a model is recorded, `int` keeps symbolic sizes; torch takes only Python's own for a dtype."""

    def function(x):
        half = int(x.shape[0] / 2)
        return x[:half].to(int), torch.tensor([half, -1], dtype=int), torch.zeros(half, dtype=int)

    compiled = staticrt.compile(function)
    for size in (6, 8, 9, 6):
        x = torch.randn(size) * 10
        for got, want in zip(compiled(x), function(x), strict=True):
            assert torch.equal(got, want)
            assert got.dtype == want.dtype
    assert not compiled.explain().eager


@torch.no_grad()
@pytest.mark.parametrize("backend", [False, True])
def test_a_call_that_raises_among_good_ones_changes_none_of_them(backend):
    """The general path takes over from a prepared run where an index is out of range, and raises."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.rows = nn.Embedding(4, 3)

        def forward(self, x, index):
            rows = self.rows(index)
            self.total += x.sum(0)
            self.total.mul_(2)
            return rows + self.total, x.sum(1)

    eager, module = Table().eval(), Table().eval()
    module.load_state_dict(eager.state_dict())
    compiled = torch.compile(module, backend="staticrt") if backend else staticrt.compile(module)
    for step in range(9):
        x = torch.full((2, 3), float(step))
        index = torch.tensor([0, 9 if step % 3 == 2 else 1])
        want, got = both(eager, compiled, x, index)
        if step % 3 == 2:
            assert want is IndexError
            assert got is IndexError
        else:
            assert not isinstance(got, type), f"call {step} raised {got}"
            assert all(map(torch.equal, got, want))
        assert torch.equal(module.total, eager.total)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("way", ["compile", "backend", "joint"])
def test_a_call_that_raises_has_written_what_comes_before_the_error(way, gradients):
    """A graph writes at its end; eager has then written what stands before the error, and nothing after it."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.rows = nn.Embedding(4, 3)

        def forward(self, x, index, kept):
            self.total += x.sum(0)
            kept["doubled"] = x * 2
            rows = self.rows(index)
            self.total.mul_(2)
            return rows + self.total, x.sum(1)

    torch._dynamo.reset()
    eager, module = Table().eval(), Table().eval()
    module.load_state_dict(eager.state_dict())
    if way == "backend":
        compiled = torch.compile(module, backend="staticrt")
    else:
        compiled = staticrt.compile(module, joint_trace=way == "joint")
    for step in range(9):
        x, index = torch.full((2, 3), float(step)), torch.tensor([0, 9 if step % 3 == 2 else 1])
        kept = {}, {}
        with torch.set_grad_enabled(gradients):
            want, got = (outcome(f, x, index, k) for f, k in zip((eager, compiled), kept, strict=True))
        if step % 3 == 2:
            assert want is IndexError
            assert got is IndexError
        else:
            assert all(map(torch.equal, got, want))
        assert torch.equal(module.total, eager.total)
        if (
            way != "backend" and not gradients
        ):  # elsewhere Dynamo puts results into containers after its graph
            assert kept[0].keys() == kept[1].keys()


@torch.no_grad()
def test_a_call_that_raises_after_random_numbers_draws_them_once():
    """Eager does not answer for it: its draws would come on top."""

    def forward(x, index, total):
        total += nn.functional.dropout(x, 0.5).sum(0)
        return x[index]

    compiled = staticrt.compile(forward)
    states = []
    for function in (forward, compiled):
        torch.manual_seed(0)
        for row in (0, 9, 1):
            outcome(function, torch.ones(3, 2), torch.tensor([row]), torch.zeros(2))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "a quantised tensor"),
        (lambda: torch.ones(3).to_sparse(), "a tensor of layout torch.sparse_coo"),
    ],
    ids=["nested", "quantised", "sparse"],
)
def test_tensors_whose_bytes_are_not_their_values_run_eagerly_and_are_named(make, what):
    compiled = staticrt.compile(torch.clone)
    x = make()
    for _ in range(3):
        assert str(compiled(x)) == str(x)
    assert f"an argument is {what}   (3 calls)" in str(compiled.explain())
