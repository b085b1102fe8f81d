"""The verdict on an answer."""

import math

import torch

from staticrt.models.bench.check import difference, leaves

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def test_equal_answers_differ_by_nothing_even_where_not_finite():
    x = torch.tensor([1.0, math.inf, math.nan])
    verdict = difference([x], [x.clone()], **TOLERANCE)
    assert (verdict.absolute, verdict.relative, verdict.reason) == (0.0, 0.0, None)


def test_small_errors_are_reported_and_allowed():
    verdict = difference([torch.tensor([100.001, 0.0005])], [torch.tensor([100.0, 0.0])], **TOLERANCE)
    assert verdict.reason is None
    assert 0.0009 < verdict.absolute < 0.0011


def test_an_error_beyond_the_tolerance_names_the_output():
    good = torch.ones(3)
    verdict = difference([good, good + torch.tensor([0.0, 0.01, 0.0])], [good, good], **TOLERANCE)
    assert verdict.reason == "output 1 is off by 0.01, largest value 1"


def test_a_nan_where_a_number_belongs_is_infinitely_wrong():
    for got, expected in ((math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)):
        verdict = difference([torch.tensor([got])], [torch.tensor([expected])], **TOLERANCE)
        assert verdict.reason is not None, (got, expected)
        assert verdict.absolute == math.inf


def test_integers_must_be_equal():
    assert difference([torch.tensor([1000001])], [torch.tensor([1000000])], **TOLERANCE).reason is not None
    assert difference([torch.tensor([7])], [torch.tensor([7])], **TOLERANCE).reason is None


def test_shapes_dtypes_and_counts_are_compared():
    x = torch.ones(2)
    assert difference([x], [x, x], **TOLERANCE).reason == "1 tensors, expected 2"
    assert "float64" in str(difference([x.double()], [x], **TOLERANCE).reason)
    assert "[1, 2]" in str(difference([x.view(1, 2)], [x], **TOLERANCE).reason)
    assert difference([x[:0]], [x[:0]], **TOLERANCE).reason is None


def test_leaves_are_the_tensors_in_order():
    a, b = torch.zeros(1), torch.ones(1)
    assert [id(x) for x in leaves({"out": (a, None, 3), "more": [b]})] == [id(a), id(b)]
