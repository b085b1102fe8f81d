"""ONNX's own node tests on the static runtime."""

from pathlib import Path

import pytest

from tests.support.onnx_node_tests import run_all

LISTED = Path(__file__).with_name("node_failures.txt")


def listed(kind):
    """name -> reason of the lines `kind name: reason`."""
    lines = [line.split(" ", 1) for line in LISTED.read_text().splitlines() if line and line[0] != "#"]
    return dict(text.split(": ", 1) for word, text in lines if word == kind)


@pytest.fixture(scope="module")
def results():
    return {result.name: result for result in run_all()}


def test_at_least_97_percent_of_the_float_models_pass(results):
    floats = [result for result in results.values() if result.is_float]
    passed = [result for result in floats if not result.error]
    assert len(floats) > 1000
    assert len(passed) >= 0.97 * len(floats), f"{len(passed)} of {len(floats)}"


def test_exactly_the_listed_ones_fail(results):
    failing = {name: result.error for name, result in results.items() if result.error}
    known = listed("fails")
    assert {name: error for name, error in failing.items() if name not in known} == {}
    assert set(known) - set(failing) == set(), "these pass now: take them off the list"


def test_exactly_the_listed_ones_run_eagerly(results):
    eager = {name: result.eager for name, result in results.items() if result.eager and not result.error}
    known = listed("eager")
    assert {name: reason for name, reason in eager.items() if name not in known} == {}
    assert set(known) - set(eager) == set(), "these are compiled now: take them off the list"
