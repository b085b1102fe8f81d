"""The report of a first call: its phases are those that ran, and their times add up to the call's."""

import sys

import pytest
import torch

import staticrt
from staticrt.tools.report.first_call import first_call

TRACE, PASSES, LOWERING = "trace", "passes", "lowering"


def names(report):
    return {phase.name for phase in report.phases}


def test_a_first_call_traces_and_a_later_one_does_not(x):
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(80)]
    net = staticrt.compile(torch.nn.Sequential(*layers).eval())
    first, later = first_call(net, (x,), name="net"), first_call(net, (x,), name="net")
    assert TRACE in names(first)
    assert not net.explain().eager
    assert not {PASSES, LOWERING} & names(later)
    assert sum(phase.seconds for phase in first.phases) == pytest.approx(first.seconds, rel=0.3)
    assert sum(phase.share for phase in first.phases) == pytest.approx(1)
    assert [p.seconds for p in first.phases] == sorted((p.seconds for p in first.phases), reverse=True)
    assert "net: first call" in str(first)
    assert first.to_dict()["phases"][0]["name"] == first.phases[0].name


def test_time_that_the_model_takes_is_the_models(x):
    class Slow(torch.nn.Module):
        def forward(self, x):
            return x * (sum(range(30_000_000)) % 7)

    report = first_call(staticrt.compile(Slow()), (x,), limit=None)
    (forward,) = (seconds for name, seconds in report.functions if name.endswith(" forward"))
    own = {phase.name: phase.seconds for phase in report.phases}
    assert report.seconds / 4 < forward <= own["the model's code and other libraries"] <= report.seconds
    assert len(first_call(staticrt.compile(Slow()), (x,), limit=1).functions) == 1


def test_what_the_model_raises_reaches_the_caller(x):
    def wrong(x):
        raise ValueError("no such thing")

    before = sys.getswitchinterval()
    with pytest.raises(ValueError, match="no such thing"):
        first_call(staticrt.compile(wrong), (x,))
    assert sys.getswitchinterval() == before
