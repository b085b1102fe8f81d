"""Gradients of torch's operator database through the compiled backward: equal to eager's.

Inputs come from `torch.testing._internal.common_methods_invocations.op_db`, which nobody here wrote. The default run
takes every sixteenth operator; `STATICRT_ALL_OPERATORS=1` takes all.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.support.operator_database import op_db

SAMPLES = 2
STEP = 1 if os.environ.get("STATICRT_ALL_OPERATORS") else 16
OPS = [op for op in op_db if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")]
# Their results are not determined by their inputs.
UNDETERMINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def _samples(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        every = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    return every[:: max(1, len(every) // SAMPLES)][:SAMPLES]


def _copy(value):
    return pytree.tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t,
        value,
    )


def _run(function, arguments):
    """(results, gradients of the tensors among the arguments), or the error."""
    torch.manual_seed(7)
    leaves = [t for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
    try:
        # A view of each, so that operators that write their argument may.
        moved = pytree.tree_map(
            lambda t: (
                t * 1 if isinstance(t, torch.Tensor) and t.requires_grad and t.layout == torch.strided else t
            ),
            arguments,
        )
        result = function(*moved)
        outs = [
            t
            for t in pytree.tree_leaves(result)
            if isinstance(t, torch.Tensor) and t.requires_grad and t.numel()
        ]
        torch.manual_seed(8)
        tangents = [torch.randn_like(t) if t.is_floating_point() or t.is_complex() else None for t in outs]
        grads = torch.autograd.grad(outs, leaves, tangents, allow_unused=True) if outs else []
    except Exception as error:
        return None, error
    return (
        pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, result),
        list(grads),
    ), None


def _same(got, want):
    got_leaves, got_spec = pytree.tree_flatten(got)
    want_leaves, want_spec = pytree.tree_flatten(want)
    assert got_spec == want_spec
    for g, w in zip(got_leaves, want_leaves, strict=True):
        if isinstance(w, torch.Tensor):
            assert isinstance(g, torch.Tensor)
            assert (g.dtype, g.shape, g.layout) == (w.dtype, w.shape, w.layout)
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert type(g) is type(w)


@pytest.mark.parametrize("op", OPS[::STEP], ids=lambda op: op.full_name.replace(".", "_"))
def test_gradients_equal_eagers(op):
    for sample in _samples(op):
        torch._dynamo.reset()

        def function(*arguments, sample=sample):
            return op(*arguments, **sample.kwargs)

        compiled = torch.compile(function, backend="staticrt")
        arguments = (sample.input, *sample.args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, want_error = _run(function, _copy(arguments))
            for _call in range(2):
                got, got_error = _run(compiled, _copy(arguments))
                if want_error is not None:
                    assert got_error is not None
                    continue
                if got_error is not None:
                    raise got_error
                if op.name in UNDETERMINED:
                    continue
                try:
                    _same(got, want)
                except AssertionError:
                    if not _no_further_from_the_truth(got, want, function, _copy(arguments)):
                        raise


def _no_further_from_the_truth(got, want, function, arguments):
    """Where float32 itself is far off, the result may differ from eager's if it is not worse than eager's."""
    double = pytree.tree_map(
        lambda t: (
            t.detach().double().requires_grad_(t.requires_grad)
            if isinstance(t, torch.Tensor) and t.dtype == torch.float32
            else t
        ),
        arguments,
    )
    truth, error = _run(function, double)
    if error is not None:
        return False
    for g, w, t in zip(*map(pytree.tree_leaves, (got, want, truth)), strict=True):
        if isinstance(w, torch.Tensor) and w.is_floating_point() and w.numel():
            mine, eagers = ((v.double() - t.double()).abs().nan_to_num().max() for v in (g, w))
            if mine > 2 * eagers + 1e-5 * t.double().abs().nan_to_num().max():
                return False
    return True
