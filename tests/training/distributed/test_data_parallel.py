"""`DistributedDataParallel` around a compiled model and compiled itself: trained as in eager, on 2 and 4 gloo ranks."""

import pytest
import torch

from tests.support.data_parallel_workers import CASES, dies, is_late, trained, wrapped
from tests.support.ranks import Ranks

STEPS = ("buffers", "accumulation", "joined")


@pytest.fixture(scope="module")
def four():
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def eager_states():
    return {}


def check(ranks, eager_states, case, way):
    """Trained this way, each rank has the state that it has after eager training. Returns what `explain()` says."""
    key = ranks.world, case
    if key not in eager_states:
        eager_states[key] = ranks.run(trained, case, "eager")
    found = ranks.run(trained, case, way)
    for (state, _text), (expected, _none) in zip(found, eager_states[key], strict=True):
        # Gradients that are reduced as float16 may be rounded the other way where float32's last bits differ.
        atol = 1e-4 if case == "compressed" else 1e-5
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=atol)
    return [text for _state, text in found]


@pytest.mark.parametrize("way", ["around", "inside"])
@pytest.mark.parametrize("case", CASES)
def test_trains_as_in_eager(ranks, eager_states, case, way):
    for text in check(ranks, eager_states, case, way):
        assert "training, native node, joint trace" in text
        assert "runs eagerly" not in text


@pytest.mark.parametrize("way", ["step around", "step inside"])
@pytest.mark.parametrize("case", STEPS)
def test_a_step_around_it_runs_eagerly_and_says_why(ranks, eager_states, case, way):
    for text in check(ranks, eager_states, case, way):
        assert "a DistributedDataParallel module reduces gradients in hooks of its own" in text


@pytest.mark.parametrize("way", ["around", "inside"])
@pytest.mark.parametrize("case", ["buffers", "unused small", "accumulation", "joined"])
def test_four_ranks_train_as_in_eager(four, eager_states, case, way):
    check(four, eager_states, case, way)


def test_ranks_that_must_differ_do(ranks, eager_states):
    """Without a reduction the ranks would hold other weights, with one they hold the same."""
    check(ranks, eager_states, "own buffers", "around")
    (first, _text), (second, _other) = eager_states[2, "own buffers"]
    assert torch.equal(first["last.weight"], second["last.weight"])
    assert not torch.equal(first["norm.running_mean"], second["norm.running_mean"])


def test_a_compiled_wrapper_is_the_wrapper(ranks):
    for found in ranks.run(wrapped):
        assert found["same"]
        assert found["modules"] == [True, True]
        assert found["keys"]
        assert "load_state_dict()" in found["refused"]
        assert found["traces"] == ["Net: 1 traced graph", "Net: 1 traced graph"]


@pytest.mark.parametrize("way", ["inside", "graph"])
def test_a_rank_that_stays_away_is_an_error_on_the_others(ranks, way):
    waits, away = ranks.run(is_late, way)
    assert "timed out" in waits.lower() or "timeout" in waits
    assert away == ""


@pytest.mark.parametrize("way", ["around", "graph"])
def test_a_rank_that_dies_is_an_error_on_the_others(way):
    with Ranks(2) as ranks:
        answers = ranks.answers(dies, way)
    assert answers[1] == "ended"
    assert isinstance(answers[0], str)
    assert "RuntimeError" in answers[0]
