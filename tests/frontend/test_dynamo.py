"""What Dynamo is not shown of our own code."""

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
