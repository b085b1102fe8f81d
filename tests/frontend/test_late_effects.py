"""What a function does on some of its paths only: in its first call, behind an early return."""

import sys
import types

import pytest
import torch

import staticrt

_found = {}
_made = None
_calls = 0
NAME = "staticrt_module_of_a_test"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    global _made, _calls
    _found.clear()
    _made, _calls = None, 0
    monkeypatch.setitem(sys.modules, NAME, types.SimpleNamespace(scale=3.0))


def find(kind):
    """As einops finds its backend."""
    found = _found.get(kind)
    if found is not None:
        return found
    for each in (int, object):
        if issubclass(kind, each) and NAME[:] in sys.modules:
            _found[kind] = sys.modules[NAME[:]]
            return _found[kind]
    raise RuntimeError


def singleton():
    global _made
    if _made is None:
        _made = (2.0,)
    return _made


def counted():
    global _calls
    _calls += 1
    return _calls


def looked_up():
    return sys.modules[NAME[:]].scale


def looked_up_before_the_return():
    scale = None
    while True:
        if scale is not None:
            return scale
        scale = sys.modules[NAME[:]].scale


def run(function, times=5):
    """The compiled function after some calls, each equal to eager's."""
    fast = staticrt.compile(function)
    x = torch.randn(4)
    with torch.no_grad():
        for _ in range(times):
            torch.testing.assert_close(fast(x), function(x))
    return fast


@pytest.mark.parametrize(
    "function",
    [lambda x: x * find(type(x)).scale + 1, lambda x: x * singleton()[0] + 1],
    ids=["module", "global"],
)
def test_what_only_the_first_call_does_leaves_the_rest_whole(function):
    explained = run(function).explain()
    assert "(whole" in str(explained)
    assert sum(report.calls for report in explained.eager) <= 2, explained


@pytest.mark.parametrize("read", [looked_up, looked_up_before_the_return])
def test_a_module_found_by_a_computed_name_is_looked_up_in_each_call(read, monkeypatch):
    def function(x):
        return x * read() + 1

    fast = run(function)
    monkeypatch.setitem(sys.modules, NAME, types.SimpleNamespace(scale=-1.0))
    x = torch.randn(4)
    with torch.no_grad():
        assert torch.equal(fast(x), function(x))


def test_a_global_that_each_call_writes_is_written_as_often_as_in_eager():
    fast = staticrt.compile(lambda x: x * counted() + 1)
    x = torch.randn(4)
    with torch.no_grad():
        for call in range(1, 7):
            assert torch.equal(fast(x), x * call + 1)
    assert _calls == 6


def test_a_new_module_of_that_name_is_not_seen_where_a_kept_one_answers(monkeypatch):
    """`find` has kept the module, so eager does not see another one either."""
    fast = run(lambda x: x * find(type(x)).scale + 1)
    monkeypatch.setitem(sys.modules, NAME, types.SimpleNamespace(scale=-1.0))
    x = torch.randn(4)
    with torch.no_grad():
        assert torch.equal(fast(x), x * 3 + 1)
        _found.clear()
        assert torch.equal(fast(x), x * -1 + 1)
