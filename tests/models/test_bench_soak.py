"""`staticrt bench --soak`, in a short form. Times are not judged."""

import dataclasses

import numpy
import pytest

from staticrt.models.bench import command, soak
from staticrt.models.bench.gates import MISSED, PASSED
from staticrt.models.bench.soak import UNDECIDED, Soak, slope_with_interval, verdict

CALLS = 1_600


@pytest.fixture(autouse=True)
def few_inputs(monkeypatch):
    monkeypatch.setattr(soak, "INPUTS", 12)


@pytest.mark.parametrize("peer", soak.PEERS)
def test_eight_threads_of_random_sizes_give_eagers_answers(peer):
    found = soak.soak(peer, CALLS)
    assert found.errors == 0, found.first_errors
    assert found.calls == CALLS
    assert found.checked >= CALLS // soak.CHECK_EVERY
    assert 0 < found.p50_us <= found.p99_us <= found.p999_us
    assert found.rss_bytes is None or found.rss_bytes > 0


def test_wrong_and_failed_calls_are_counted(monkeypatch):
    def prepared(_peer, module, _example):
        calls = iter(range(10**9))

        def call(*inputs):
            if next(calls) % 40 == 7:
                raise RuntimeError("now and then")
            return module(*inputs) + 1

        return call

    monkeypatch.setattr(soak, "_prepared", prepared)
    monkeypatch.setattr(soak, "CHECK_EVERY", 10)
    found = soak.soak("staticrt", 800, threads=2)
    assert found.errors > found.checked * 0.9 + 800 / 40 * 0.5
    assert verdict(found) == MISSED
    assert len(found.first_errors) <= 5


def test_calls_that_raise_have_no_time(monkeypatch):
    def prepared(_peer, module, _example):
        calls = iter(range(10**9))

        def call(*inputs):
            if next(calls) % 3:
                raise RuntimeError("two of three calls")
            return module(*inputs)

        return call

    monkeypatch.setattr(soak, "_prepared", prepared)
    found = soak.soak("staticrt", 800, threads=2)
    assert found.errors > 0.6 * 800
    assert found.p50_us > 0.1  # of the calls that answered
    monkeypatch.setattr(soak, "_prepared", lambda *_: _raises)
    assert numpy.isnan(soak.soak("staticrt", 800, threads=2).p50_us)


def _raises(*_inputs):
    raise RuntimeError("always")


def test_a_slope_and_its_interval():
    draw = numpy.random.default_rng(0)
    x = numpy.arange(200.0)
    noise = draw.normal(0, 5, 200)
    slope, low, high = slope_with_interval(x, 3 * x + 7 + noise)
    assert slope == pytest.approx(numpy.polyfit(x, 3 * x + 7 + noise, 1)[0])
    assert low < 3 < high
    assert high - low < 0.1
    # Samples that depend on those before tell less than so many independent ones.
    walk = numpy.convolve(draw.normal(0, 5, 219), numpy.ones(20) / 20**0.5, "valid")
    _slope, low_walk, high_walk = slope_with_interval(x, walk)
    assert high_walk - low_walk > 1.5 * (high - low)
    assert slope_with_interval(x, 0 * x) == (0, 0, 0)


def test_growth_and_errors_miss_the_target():
    flat = Soak("staticrt", 1, 1.0, 0, (), 1, 1.0, 1.0, 1.0, 1 << 20, (0.0, -1e6, 1e6))
    assert verdict(flat) == PASSED
    assert verdict(dataclasses.replace(flat, errors=1)) == MISSED
    assert verdict(dataclasses.replace(flat, slope=(5e7, 4e7, 6e7))) == MISSED
    assert verdict(dataclasses.replace(flat, slope=(5e6, -1e6, 5e7))) == UNDECIDED
    assert verdict(dataclasses.replace(flat, slope=None)) == UNDECIDED
    assert verdict(dataclasses.replace(flat, slope=None, errors=1)) == MISSED


def test_the_table_names_peers_that_failed_and_what_went_wrong():
    row = dataclasses.asdict(Soak("staticrt", 9, 1.0, 1, ("mlp: off",), 1, 1.0, 2.0, 3.0, 1 << 20, None))
    text = soak.render(
        [{"peer": "onnxruntime", "failed": "no module", "verdict": PASSED}, {**row, "verdict": MISSED}]
    )
    assert "no module" in text
    assert "staticrt: mlp: off" in text
    assert command.SUITES["soak"][0] == soak.__name__
