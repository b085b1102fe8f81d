"""Results in the runtime's memory: not in a first run on the general path, then always, until they are released."""

import pytest
import torch

import staticrt
from staticrt.errors import InputError


def function(x):
    y = torch.tanh(x) * 2
    return {"sum": [y.exp(), y.exp().t()]}, x.shape[0], y + 1


def flat(result):
    return [result[0]["sum"][0], result[0]["sum"][1], result[2]]


def native(compiled):
    return compiled._executor.snapshot().traces[0].executable.native


def test_outputs_are_managed_from_the_second_run_on():
    compiled = staticrt.compile(function, manage_outputs=True)
    x = torch.randn(4, 5)
    first = compiled(x)
    assert not any(map(native(compiled).is_managed_output, flat(first)))
    for size in (4, 4, 9, 2):  # the first run's outputs are the caller's: nothing to release
        x = torch.randn(size, 5)
        got, want = compiled(x), function(x)
        torch.testing.assert_close(flat(got), flat(want))
        assert all(map(native(compiled).is_managed_output, flat(got)))
        assert not native(compiled).is_managed_output(x)
        del got
        compiled.deallocate_output_tensors()
    tensors, size_bytes = native(compiled).managed_outputs
    assert tensors == 3  # the second is what the returned view is a view of
    assert size_bytes == 3 * 192  # 9 x 5 floats, rounded up to 64 bytes


def test_a_run_before_the_release_is_refused_and_loses_nothing():
    compiled = staticrt.compile(function, manage_outputs=True)
    x = torch.randn(3, 3)
    compiled(x)
    held = compiled(x)
    kept = [t.clone() for t in flat(held)]
    with pytest.raises(InputError, match="previous run are still held"):
        compiled(x)
    with pytest.raises(InputError, match="is still held"):
        compiled.deallocate_output_tensors()
    torch.testing.assert_close(flat(held), kept)
    del held
    compiled.deallocate_output_tensors()
    torch.testing.assert_close(flat(compiled(x)), kept)


def test_disabled_later_outputs_are_the_callers():
    compiled = staticrt.compile(function, manage_outputs=True)
    x = torch.randn(3, 3)
    compiled(x)
    compiled(x)
    compiled.disable_manage_output_tensors()
    held = [compiled(x * i) for i in range(3)]
    for i, got in enumerate(held):
        torch.testing.assert_close(flat(got), flat(function(x * i)))
        assert not any(map(native(compiled).is_managed_output, flat(got)))


@pytest.mark.parametrize("options", [{}, {"prepared": False}, {"verify": True}, {"poison": True}])
def test_prepared_runs_manage_outputs_too(options):
    compiled = staticrt.compile(function, manage_outputs=True, **options)
    with torch.no_grad():
        for size in (4, 4, 4, 9, 4, 9, 4):
            x = torch.randn(size, 5)
            got, want = compiled(x), function(x)
            torch.testing.assert_close(flat(got), flat(want))
            del got
            compiled.deallocate_output_tensors()
        addresses = set()
        for _ in range(3):
            got = compiled(x)
            assert all(map(native(compiled).is_managed_output, flat(got)))
            addresses.add(tuple(y.data_ptr() for y in flat(got)))
            with pytest.raises(InputError, match="previous run are still held"):
                compiled(x)
            del got
            compiled.deallocate_output_tensors()
    assert len(addresses) == 1
    assert (native(compiled).cache_counters["hits"] > 0) == options.get("prepared", True)


def test_a_model_that_is_prepared_ahead_manages_its_first_results():
    compiled = staticrt.compile(function, manage_outputs=True)
    x = torch.randn(6, 5)
    with torch.no_grad():
        assert compiled.prepare(x)
        got = compiled(x)
        torch.testing.assert_close(flat(got), flat(function(x)))
        assert all(map(native(compiled).is_managed_output, flat(got)))


def test_results_that_operators_allocate_are_the_callers():
    def selects(x):
        return x.exp(), x[x > 0] * 2

    compiled = staticrt.compile(selects, manage_outputs=True)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(5, 5)
            for mine, other in zip(compiled(x), selects(x), strict=True):
                torch.testing.assert_close(mine, other)
            compiled.deallocate_output_tensors()


def test_a_failed_prepared_run_leaves_outputs_usable():
    compiled = staticrt.compile(lambda x, i: (x.exp() * 2, x.index_select(0, i)), manage_outputs=True)
    x = torch.randn(4, 4)
    with torch.no_grad():
        for _ in range(3):
            compiled(x, torch.tensor([1]))
            compiled.deallocate_output_tensors()
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, torch.tensor([9]))
        compiled.deallocate_output_tensors()
        got = compiled(x, torch.tensor([2]))
        torch.testing.assert_close(got, (x.exp() * 2, x[2:3]))


@pytest.mark.parametrize("prepared", [True, False])
def test_python_looked_at_the_storage_of_a_result_and_let_it_go(prepared):
    compiled = staticrt.compile(function, manage_outputs=True, prepared=prepared)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 5)
            result = flat(compiled(x))
            torch.testing.assert_close(result, flat(function(x)))
            assert result[0].untyped_storage().nbytes() > 0  # torch keeps this object as long as the bytes
            del result
            compiled.deallocate_output_tensors()
        result = flat(compiled(x))
        storage = result[0].untyped_storage()
        kept = bytes(storage)
        del result
        for _ in range(2):
            with pytest.raises(InputError, match="is still held"):
                compiled.deallocate_output_tensors()
            assert bytes(storage) == kept
        del storage
        compiled.deallocate_output_tensors()
        torch.testing.assert_close(flat(compiled(x)), flat(function(x)))


@pytest.mark.parametrize("prepared", [True, False])
def test_results_of_a_split_function_are_the_callers(prepared):
    def split(x, z):
        y = x.exp()
        number = int(y.detach()[0, 0] * 100)  # no backward is traced through it
        return y, z.cos() + number, z.sin() * 2

    compiled = staticrt.compile(split, manage_outputs=True, prepared=prepared)
    held = []
    for number in range(8):
        x, z = torch.full((4, 4), number / 8, requires_grad=True), torch.full((3,), float(number))
        held.append((compiled(x, z), split(x, z)))
        compiled.deallocate_output_tensors()
    for got, expected in held:
        torch.testing.assert_close(got, expected)
    assert "(partial, " in str(compiled.explain())
