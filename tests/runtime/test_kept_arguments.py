"""Operators in Python may keep what they are given, as in eager: later calls write nothing there."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import staticrt
from staticrt.errors import InputError, InternalError
from staticrt.frontend.guards import operators
from staticrt.passes import effects

MODES = {
    "prepared": {},
    "poisoned": {"poison": True},
    "threads": {"inter_op_threads": 2},
    "general": {"prepared": False},
    "general-cleanup": {"prepared": False, "cleanup_activations": True},
    "managed": {"manage_outputs": True},
}
KEEPS = {
    "tensor": lambda x: x,
    "view": lambda x: x[:1],
    "storage": lambda x: x.untyped_storage(),
}
MODELS = {
    "value": lambda keeps, x: keeps(x.exp() * 2).cos(),
    "view": lambda keeps, x: keeps((x.exp() * 2)[1:]).cos(),
    "before_view": lambda keeps, x: keeps((x.exp() * 2).view(-1)).sum() + (x + 1).exp(),
    "result": lambda keeps, x: (lambda y: (keeps(y).sin(), y))(x.exp() * 2),
    "matrix": lambda keeps, x: keeps(x @ x.t()).cos().sum(0),
    "cond": lambda keeps, x: torch.cond(
        x.sum() > 1e9, lambda y: y + 1, lambda y: keeps(y * 1).cos(), (x.exp() * 2,)
    ),
    "weight": lambda keeps, x: keeps(WEIGHT[1:].exp()) + x.exp()[:1],
}
WEIGHT = torch.arange(6.0).view(3, 2)


@pytest.fixture
def keeps():
    """An operator x -> x + 1, what it keeps, and of what."""
    kept, what = [], [lambda x: x]
    with torch.library._scoped_library("staticrt_test", "FRAGMENT") as library:

        def impl(x):
            kept.append(what[0](x))
            return x + 1

        library.define("keeps(Tensor x) -> Tensor")
        library.impl("keeps", impl, "CompositeExplicitAutograd")
        library.impl("keeps", torch.empty_like, "Meta")
        yield torch.ops.staticrt_test.keeps, kept, what


def bytes_of(thing):
    if isinstance(thing, torch.Tensor):
        return bytes(thing.contiguous().view(-1).view(torch.uint8).tolist())
    return bytes(thing)


# Eager's torch.cond calls Dynamo, which takes seconds.
EACH = [
    (mode, model, what)
    for mode, model, what in itertools.product(MODES, MODELS, KEEPS)
    if model != "cond" or (mode in ("prepared", "general") and what == "tensor")
]


@pytest.mark.parametrize(("mode", "model", "what"), EACH)
def test_what_an_operator_kept_stays(keeps, mode, model, what):
    (keeper, kept, kept_of), expected = keeps, []
    kept_of[:] = [KEEPS[what]]
    compiled = staticrt.compile(lambda x: MODELS[model](keeper, x), **MODES[mode])
    with torch.no_grad():
        for number, size in enumerate((4, 4, 4, 9, 4, 4)):
            x = torch.full((size, 2), number / 8) + torch.arange(2)
            kept.clear()
            results = MODELS[model](keeper, x)
            (eager,) = kept
            got = compiled(x)
            torch.testing.assert_close(got, results)
            del got
            if mode == "managed":
                compiled.deallocate_output_tensors()
            if number:  # the first call traces
                expected.append((kept[-1], bytes_of(eager)))
        for _ in range(2):
            compiled(torch.full((4, 2), 7.0))
            if mode == "managed":
                compiled.deallocate_output_tensors()
    for thing, before in expected:
        assert bytes_of(thing) == before


@pytest.mark.parametrize("mode", ["prepared", "general"])
def test_what_it_does_not_keep_goes_after_its_last_use(keeps, mode):
    keeper, kept, kept_of = keeps
    alive = []

    def look(x):
        alive.append(sum(not ref.expired() for ref in kept))
        return StorageWeakRef(x.untyped_storage())

    kept_of[:] = [look]

    def deep(x):
        for _ in range(8):
            x = keeper(x.cos().view(-1)).view(-1, 2)
        return x

    compiled = staticrt.compile(deep, **MODES[mode])
    with torch.no_grad():
        for _ in range(4):
            kept.clear()
            alive.clear()
            compiled(torch.randn(64, 2))
    assert len(alive) == 8
    assert max(alive) <= 1


@pytest.fixture
def replaced():
    """cholesky_inverse keeps its argument and gives x + 1: what it has kept, and of what."""
    kept, what = [], [lambda x: x]

    def kernel(x, upper=False):
        kept.append(what[0](x))
        return x + 1

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("cholesky_inverse", kernel, "CPU")
        yield kept, what


@pytest.mark.parametrize("mode", ["prepared", "general"])
@pytest.mark.parametrize("what", KEEPS)
def test_what_an_operator_of_torch_replaced_in_python_kept_stays(replaced, what, mode):
    kept, kept_of = replaced
    kept_of[:] = [KEEPS[what]]
    compiled = staticrt.compile(lambda x: torch.cholesky_inverse(x.exp() * 2).cos(), **MODES[mode])
    expected = []
    with torch.no_grad():
        for number in range(4):
            x = torch.full((4, 4), number / 8)
            torch.testing.assert_close(compiled(x), (x.exp() * 2 + 1).cos())
            expected.append((kept[-1], bytes_of(kept[-1])))
    assert all(bytes_of(thing) == before for thing, before in expected)


@pytest.mark.parametrize("what", KEEPS)
def test_a_kernel_that_keeps_and_is_not_in_python_is_noticed(replaced, what, monkeypatch):
    # To the trace, the kernel is one that torch itself registers.
    monkeypatch.setattr(operators, "is_torch_file", lambda file: True)
    monkeypatch.setattr(operators, "_FOR_OTHERS", ())
    kept, kept_of = replaced
    kept_of[:] = [KEEPS[what]]
    compiled = staticrt.compile(lambda x: torch.cholesky_inverse(x.exp() * 2).cos(), prepared=False)
    x = torch.randn(4, 4)
    with torch.no_grad():
        compiled(x)
        for _ in range(3):
            with pytest.raises(InternalError, match="an operator kept"):
                compiled(x)
            thing = kept[-1] if what == "storage" else kept[-1].untyped_storage()
            assert thing.nbytes() == 0, "the bytes are other values' now"


def test_a_donated_tensor_whose_storage_python_keeps_is_refused():
    compiled = staticrt.compile(lambda state, x: state * 2 + x, donate="state")
    with torch.no_grad():
        for number in range(4):
            state, x = torch.full((64, 64), number + 1.0), torch.ones(64, 64)
            storage = state.untyped_storage()
            before = bytes(storage)
            with pytest.raises(InputError, match="holds its untyped_storage"):
                compiled(state, x)
            assert bytes(storage) == before
            assert storage.data_ptr() == state.data_ptr()
            del storage
            address = state.data_ptr()
            result = compiled(state, x)
            torch.testing.assert_close(result, torch.full((64, 64), 2 * (number + 1.0) + 1))
            assert number == 0 or result.data_ptr() == address, "the result has the donated bytes"
            with pytest.raises(RuntimeError, match="was donated"):
                state.sum()
            detached = torch.ones(64, 64).detach()
            detached.untyped_storage()
            torch.testing.assert_close(compiled(detached, x), x * 3)


CONSTANTS = {
    "literal": lambda keeps, x: keeps(torch.tensor([1.0, 2.0, 3.0])).sum() + x,
    "filled": lambda keeps, x: keeps(torch.full((3,), 2.0)).sum() + x,
    "twice": lambda keeps, x: keeps(torch.full((3,), 2.0)).sum() + keeps(torch.full((3,), 2.0)).sum() * x,
    "copy of a weight": lambda keeps, x: keeps(WEIGHT.clone()).sum() + x,
    "view of a copy": lambda keeps, x: keeps(WEIGHT.clone()[1:]).sum() + x,
    "weight times 1": lambda keeps, x: keeps(WEIGHT * 1).sum() + x,
    "copy of an input": lambda keeps, x: keeps(x.clone()).sum() + x,
    "conversion of an input": lambda keeps, x: keeps(x.to(torch.float32, copy=True)).sum() + x,
    "view": lambda keeps, x: keeps(torch.arange(6.0).exp().view(2, 3)[1:]).sum() + x,
    "of a weight": lambda keeps, x: keeps(WEIGHT.exp()).sum() + x,
    "cond": lambda keeps, x: torch.cond(
        x.sum() > 1e9, lambda y, c: y + c.sum(), lambda y, c: y + keeps(c * 1).sum(), (x, torch.ones(3) * 2)
    ),
}


@pytest.mark.parametrize("options", [{}, {"freeze": True}, {"prepared": False}])
@pytest.mark.parametrize("model", CONSTANTS)
def test_what_is_kept_may_be_written(keeps, model, options):
    operator, kept, _ = keeps
    function = lambda x: CONSTANTS[model](operator, x)  # noqa: E731
    compiled, x, weight = staticrt.compile(function, **options), torch.ones(2), WEIGHT.clone()
    with torch.no_grad():
        expected = function(x)
        for _ in range(4):
            del kept[:]
            torch.testing.assert_close(compiled(x), expected)
            values = [value.clone() for value in kept]
            kept[-1].add_(5)
            torch.testing.assert_close(kept[:-1], values[:-1])
            torch.testing.assert_close(x, torch.ones(2))
            torch.testing.assert_close(WEIGHT, weight)


def test_passes_and_runtime_agree_on_who_keeps_arguments():
    text = (Path(__file__).parents[2] / "csrc/program/liveness.cpp").read_text()
    (listed,) = re.findall(r"kKnown\{([^}]*)\}", text)
    assert set(re.findall(r'"(\w+)"', listed)) == effects._RETURN_WHAT_THEY_KEEP
