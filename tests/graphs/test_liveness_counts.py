"""Who holds an output that the tree keeps itself: each kind of holder is told from the tree, alone."""

import pytest
import torch

from staticrt.graphs.checks import Check, Mismatch
from staticrt.graphs.functions import Function
from staticrt.graphs.liveness import PathOutput
from staticrt.graphs.policy import Policy
from staticrt.graphs.recaptures import Recaptures
from staticrt.graphs.storage import storage_ptr, storage_ref

torch._C._set_cached_tensors_enabled(True)


def kept():
    tensor = torch.ones(4)
    output = PathOutput(storage_ref(tensor), storage_ptr(tensor), 16)
    output.cache(tensor)
    return output


def saved_by_autograd(tensor):
    return (torch.ones(4, requires_grad=True) * tensor).sum()


HOLDERS = {
    "the tensor": lambda tensor: [tensor],
    "a view": lambda tensor: tensor[1:],
    "its storage's object": lambda tensor: tensor.untyped_storage(),
    "a tensor on the storage": lambda tensor: torch.empty(0).set_(tensor),
    "autograd": saved_by_autograd,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_holder_of_a_kept_output(name):
    output = kept()
    assert not output.alive()
    holder = HOLDERS[name](output.cached)
    assert output.alive()
    inputs = [output.cached]
    given = [inputs[0]]
    assert output.alive_without(given)
    del inputs, given, holder
    assert not output.alive()
    output.drop_cache()


def test_a_kept_output_that_only_the_call_holds():
    output = kept()
    inputs = [output.cached]
    given = [inputs[0]]
    assert output.alive()
    assert not output.alive_without(given)
    del inputs, given
    output.drop_cache()


@pytest.mark.parametrize("name", [None, *HOLDERS])
def test_an_output_that_was_given_out(name):
    """Not kept by the tree: alive while its storage is; the call's inputs may be the last to hold it."""
    inputs = [torch.ones(4)]
    output = PathOutput(storage_ref(inputs[0]), storage_ptr(inputs[0]), 16)
    given = [inputs[0]]
    assert output.alive()
    assert not output.alive_without(given)
    if name is not None:
        holder = HOLDERS[name](inputs[0])
        assert output.alive_without(given)
        del holder
    assert not output.alive_without(given)
    inputs.append(inputs[0].view(2, 2))  # two inputs on one storage: a view holds its base
    given.append(inputs[1])
    assert output.alive_without(given)
    inputs[1] = given[1] = None
    inputs[1] = torch.empty(0).set_(inputs[0])
    given[1] = inputs[1]
    assert not output.alive_without(given)
    assert output.alive_without([])
    del inputs, given
    assert not output.alive()


def mismatch(check):
    return Mismatch(check, (), lambda: "moved")


def test_gaps_between_tries_double():
    counts, function, gaps = Recaptures(Policy(recapture_limit=2)), Function(list), []
    for _ in range(3):
        while not counts.count_mismatch(None, function, mismatch(Check.MANAGED)):
            assert counts.limit_reached(None, function) is None
        plain = 0
        while counts.limit_reached(None, function) is not None:
            plain += 1
        gaps.append(plain)
    assert gaps == [4, 8, 16]


def test_calls_with_outlived_outputs_run_plain_twice():
    counts, function = Recaptures(Policy()), Function(list)
    assert [counts.outlived(None, function, mismatch(Check.DEAD_AFTER)) for _ in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert not counts.outlived(None, Function(list), mismatch(Check.MANAGED))


def test_a_removed_function_leaves_no_counts():
    counts, function, other = Recaptures(Policy(recapture_limit=0)), Function(list), Function(list)
    for each in (function, other):
        assert counts.count_mismatch(None, each, mismatch(Check.MANAGED))
    counts.forget_function(function)
    assert counts.get(None, function) is None
    assert counts.get(None, other) is not None
