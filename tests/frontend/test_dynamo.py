"""What Dynamo is not shown of our own code, and what it logs."""

import logging
import os

import torch

import staticrt
from staticrt.frontend.dynamo import dynamo


def model(x):
    y = x @ x
    y = y + float(y.numpy().sum())
    return y.relu() * float(y.numpy().sum())


def test_what_watches_model_code_is_not_compiled(monkeypatch):
    seen = []
    compile_frame = dynamo._Configured._compile

    def noted(self, frame, *others, **more):
        seen.append(frame.f_code.co_filename)
        return compile_frame(self, frame, *others, **more)

    monkeypatch.setattr(dynamo._Configured, "_compile", noted)
    torch._dynamo.reset()
    fast = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 4)
            torch.testing.assert_close(fast(x), model(x))
    assert __file__ in seen
    assert not [name for name in seen if f"{os.sep}guards{os.sep}" in name]


def test_code_that_dynamo_fails_on_is_reported_and_not_logged(caplog):
    def refuse(_graph, _inputs):
        raise ValueError("no graph of this")

    run = dynamo.PartialGraphs(lambda x: x + 1, refuse, None)
    assert run(torch.ones(2)).tolist() == [2, 2]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["no graph of this" in reason for reason, _where in run.breaks] == [True]


def test_a_graph_break_is_reported_and_not_logged(caplog, fresh_dynamo):
    def function(x):
        return x.relu() * int(x.sum().item())

    compiled = staticrt.compile(function, joint_trace=False)
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("item()" in report.reason for report in compiled.explain().eager)


def test_models_of_one_class_are_each_compiled(fresh_dynamo):
    class Model(torch.nn.Module):
        def forward(self, x):
            print(end="")
            return x * 2

    for _ in range(torch._dynamo.config.recompile_limit + 2):
        compiled = staticrt.compile(Model())
        with torch.no_grad():
            assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert len(compiled.explain().traces) == 1
