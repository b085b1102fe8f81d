"""Scenarios of a static runtime, each in every mode, three calls: warm-up, same sizes, other sizes."""

from collections import OrderedDict, namedtuple

import pytest
import torch
import torch.nn.functional as F

import staticrt

MODES = {
    "prepared": {},
    "poisoned": {"poison": True},
    "deterministic": {"deterministic": True},
    "general": {"prepared": False},
    "general-no-sharing": {"prepared": False, "optimize_memory": False},
    "no-out-variants": {"out_variants": False},
    "no-passes": {"passes": False},
}
Pair = namedtuple("Pair", "first second")


def inplace_through_reshape(x):
    y = x * 1.5
    y.reshape(-1).sigmoid_()
    return y + 1


def mutates_argument(x):
    x.add_(1)
    return x * 2


def returns_view_of_argument(x):
    return x[1:], x.t()


def containers(x):
    return {"a": [x + 1, (x * 2, None)], "b": Pair(x - 1, 3), "c": OrderedDict(z=x.sum())}


def int_outputs(x):
    return x.shape[0], x.numel() * 2, (x + 1).mean(0), x.shape, {"sizes": x.t().size()}


def strided_everything(x):
    y = x.t().contiguous().t()
    return (
        (y[::2] * 2).sum(1),
        y.expand(3, *y.shape).mean(0),
        torch.as_strided(y.contiguous(), (2, 2), (1, 2)) + 0,
    )


def reductions(x):
    return (
        x.sum(),
        x.mean(1, keepdim=True),
        x.amax(0),
        x.max(1),
        x.std(),
        x.argmax(1),
        x.logsumexp(1),
        x.cumsum(0),
    )


def index_kinds(x):
    rows = torch.arange(x.shape[0])
    return (
        x[rows, 0],
        x[:, [0, 1]],
        x.index_select(1, torch.tensor([1, 0])),
        x.gather(1, (x > 0).long()),
        x[x > 0],
    )


def same_output_twice(x):
    y = x.exp()
    return y, y, y.view(-1)


def dtypes(x):
    return x.double() * 2, (x > 0) & (x < 1), x.half().float(), x.to(torch.int32) // 2, x.bool().sum()


def mlp(x):
    w = torch.linspace(-1, 1, x.shape[1] * 3).reshape(3, -1)
    return F.log_softmax(F.layer_norm(F.gelu(F.linear(x, w)), (3,)), -1)


def concat_and_split(x):
    a, b = torch.cat([x, x * 2], 1).chunk(2, 1)
    return torch.stack([a, b.relu()]), torch.cat([a[:0], b]), a.unbind(1)[0] + 1


def data_dependent(x):
    found = torch.nonzero(x > 0)
    return found, x.masked_select(x > 0) * 2, torch.unique(x.round())


def long_chain(x):
    for i in range(40):
        x = torch.tanh(x * 1.01 + i * 0.001)
    return x


SCENARIOS = [
    inplace_through_reshape,
    mutates_argument,
    returns_view_of_argument,
    containers,
    int_outputs,
    strided_everything,
    reductions,
    index_kinds,
    same_output_twice,
    dtypes,
    mlp,
    concat_and_split,
    data_dependent,
    long_chain,
]


def storages(result, arguments):
    """Which tensors of a result share storage with each other and with the arguments."""
    leaves = [t for t in torch.utils._pytree.tree_leaves((arguments, result)) if isinstance(t, torch.Tensor)]
    seen = [t.untyped_storage()._cdata for t in leaves]
    return [seen.index(s) for s in seen]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", SCENARIOS, ids=lambda f: f.__name__)
def test_equals_eager(function, mode):
    compiled = staticrt.compile(function, **MODES[mode])
    generator = torch.Generator().manual_seed(3)
    held = []
    for shape in [(4, 5), (4, 5), (4, 5), (7, 3), (4, 5), (2, 2), (7, 3)]:
        x = torch.randn(shape, generator=generator)
        mine, theirs = x.clone(), x.clone()
        got, want = compiled(mine), function(theirs)
        torch.testing.assert_close(got, want, equal_nan=True)
        torch.testing.assert_close(mine, theirs)
        assert storages(got, mine) == storages(want, theirs)
        held.append((got, want))
    for got, want in held:  # nothing a caller holds was overwritten by a later call
        torch.testing.assert_close(got, want, equal_nan=True)
    assert not compiled.explain().eager, str(compiled.explain())


@pytest.mark.parametrize("mode", ["prepared", "general"])
def test_usable_after_an_exception_in_any_run(mode):
    def function(x, index):
        return (x * 2).relu().index_select(0, index) + 1

    compiled = staticrt.compile(function, **MODES[mode])
    x, good, bad = torch.randn(4, 3), torch.tensor([0, 3]), torch.tensor([0, 9])
    for index in [bad, good, good, bad, good, bad, bad, good]:
        if index is bad:
            with pytest.raises((IndexError, RuntimeError)) as mine:
                compiled(x, index)
            with pytest.raises((IndexError, RuntimeError)) as theirs:
                function(x, index)
            assert type(mine.value) is type(theirs.value)
        else:
            torch.testing.assert_close(compiled(x, index), function(x, index))


def test_managed_memory_is_shared_and_bounded():
    def function(x):
        for _ in range(8):
            x = torch.tanh(x @ x)
        return x.sum()

    compiled = staticrt.compile(function, prepared=False)
    for _ in range(3):
        compiled(torch.randn(16, 16))
    counters = compiled._executor.snapshot().traces[0].executable.native.memory_counters
    assert counters["managed_tensors"] >= 8
    assert counters["reused_tensors"] >= 6
    assert counters["managed_bytes"] <= 3 * 16 * 16 * 4 + 64


def test_custom_operator_and_an_alias_its_schema_hides():
    with torch.library._scoped_library("staticrt_test", "FRAGMENT") as library:
        library.define("sneaky(Tensor x) -> Tensor")
        library.impl("sneaky", lambda x: x.view(-1), "CompositeExplicitAutograd")
        library.impl("sneaky", lambda x: x.new_empty(x.numel()), "Meta")

        def function(x):
            y = x * 2
            z = torch.ops.staticrt_test.sneaky(y)
            return (x * 3).sum() + z.sum(), (z + 1).exp()

        for mode in MODES.values():
            compiled = staticrt.compile(function, **mode)
            for size in (4, 4, 9, 4):
                x = torch.randn(size, 2)
                torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("mode", MODES)
def test_an_operator_in_python_that_looks_at_a_storage(mode):
    def shifted(x):
        assert x.untyped_storage().nbytes() >= x.nbytes  # torch keeps this object as long as the bytes
        return x + 1

    with torch.library._scoped_library("staticrt_test", "FRAGMENT") as library:
        library.define("shifted(Tensor x) -> Tensor")
        library.impl("shifted", shifted, "CompositeExplicitAutograd")
        library.impl("shifted", torch.empty_like, "Meta")

        def function(x):
            return torch.ops.staticrt_test.shifted(x.exp()).cos().sin()

        compiled = staticrt.compile(function, **MODES[mode])
        for size in (4, 4, 9, 4):
            x = torch.randn(size, 2)
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_lie_anywhere_in_their_storage(mode):
    def function(x):
        return torch.as_strided(x, (2, 2), (2, 1), 1) * 2, x.view(-1)[1:] + 1

    compiled = staticrt.compile(function, **MODES[mode])
    storage = torch.arange(32.0)
    for offset in (0, 0, 4, 4, 8, 1, 0):
        x = storage[offset : offset + 6].view(2, 3)
        torch.testing.assert_close(compiled(x), function(x))
