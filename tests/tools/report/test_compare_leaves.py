"""`compare()` of models whose results are not all tensors."""

import torch
from torch import nn

import staticrt


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, d):
        y = self.linear(d["a"][0])
        return {"out": {"y": y, "z": [y + 1, (None, 3, torch.float32)]}, "name": "née"}


def test_strings_and_dtypes_among_the_results_are_compared():
    fast = staticrt.compile(Named().eval())
    with torch.no_grad():
        report = fast.compare({"a": [torch.randn(4, 8)]})
    assert report.ok, report
    assert report.checked > 0


def test_a_number_that_differs_beside_a_string_is_found():
    module = Named().eval()
    fast = staticrt.compile(module)
    x = {"a": [torch.randn(4, 8)]}
    with torch.no_grad():
        fast(x)
        call = fast._executor.fast

        class Off:
            def __getattr__(self, name):
                return getattr(call, name)

            def call(self, *args, **kwargs):
                found = call.call(*args, **kwargs)
                return {**found, "name": "other"}

        fast._executor.fast = Off()
        report = fast.compare(x)
    assert not report.ok
    assert "'other' instead of 'née'" in report.difference
