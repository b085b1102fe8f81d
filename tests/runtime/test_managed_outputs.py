"""Results in the runtime's memory: not in run 1, from run 2 on, and only until they are released."""

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
    with pytest.raises(InputError, match="still out"):
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
