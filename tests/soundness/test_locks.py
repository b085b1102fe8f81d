"""Locks of model code: a trace reads none, and code that names one without reading it is compiled."""

import contextlib
import sys
import threading

import pytest
import torch

import staticrt

_LOCK = threading.Lock()
_MADE = {}
_COUNT = 0


def _made_once(key):
    if key in _MADE:
        return _MADE[key]
    with _LOCK:
        if key not in _MADE:
            _MADE[key] = torch.full((2,), float(key))
    return _MADE[key]


def _counted():
    global _COUNT
    _COUNT += 1
    return _COUNT


def _may_lock(x, lock):
    if lock:
        with _LOCK:
            return x + 1
    return x * 2


def _reads_count_after_it_changed(x):
    before = _COUNT
    _counted()
    if _COUNT < 0:
        with _LOCK:
            pass
    return x + before * 100 + _COUNT


def _hands_globals_on(x):
    read = lambda: _LOCK.locked()  # noqa: E731
    return x + read()


class _Holder:
    lock = _LOCK


def _compares(x):
    return x + 1 if _LOCK is _Holder.lock else x - 1


def _asks_for_class(x):
    return x + 1 if isinstance(_LOCK, type(_Holder.lock)) else x - 1


def _shows(x):
    return x + len(f"{_LOCK}".split(" ")[0])


def _passes_on(x):
    return x + _is_ours(_LOCK)


def _is_ours(lock, ours=_LOCK):
    return 1 if lock is ours else 2


def _holds_in_class(x):
    class Held:
        lock = _LOCK

    return x + _is_ours(Held.lock)


def _sees_what_a_call_puts_back(x):
    if _COUNT < 0:
        with _LOCK:
            pass
    with _counts():
        return x + _COUNT


@contextlib.contextmanager
def _counts():
    global _COUNT
    _COUNT += 1
    try:
        yield
    finally:
        _COUNT -= 1


def _hands_globals_to_what_it_calls(x):
    if _COUNT < 0:
        with _LOCK:
            pass
    return x + _globals_of_caller_are_ours()


def _globals_of_caller_are_ours():
    return 1 if sys._getframe(1).f_globals is globals() else 2


@pytest.mark.parametrize("gradients", [False, True])
def test_a_lock_that_is_taken_once_keeps_no_later_call_from_being_compiled(gradients):
    _MADE.clear()
    compiled = staticrt.compile(lambda x: x * _made_once(3))
    x = torch.ones(2, requires_grad=gradients)
    for _call in range(4):
        assert compiled(x).tolist() == [3.0, 3.0]
    assert type(_MADE[3]) is torch.Tensor
    explanation = compiled.explain()
    assert [trace.calls for trace in explanation.traces] == [3]
    assert [report.calls for report in explanation.eager] == [1]
    _MADE.clear()  # as in eager, it is made again
    assert compiled(x).tolist() == [3.0, 3.0]
    assert 3 in _MADE


def test_a_lock_that_is_taken_in_every_call_is_taken_by_eager_calls_alone():
    compiled = staticrt.compile(_may_lock)
    x = torch.zeros(2)
    answers = []
    with torch.no_grad(), _LOCK:
        beside = threading.Thread(target=lambda: answers.append(compiled(x, True).tolist()))
        beside.start()
        beside.join(1)
        assert beside.is_alive()
        # The thread waits, and keeps no other call waiting.
        other = threading.Thread(target=lambda: answers.append(compiled(x, False).tolist()))
        other.start()
        other.join(60)
        assert answers == [[0.0, 0.0]]
    beside.join()
    assert answers[1:] == [[1.0, 1.0]]
    with torch.no_grad():
        for _call in range(4):
            assert compiled(x, True).tolist() == [1.0, 1.0]
            assert compiled(x, False).tolist() == [0.0, 0.0]
    explanation = compiled.explain()
    assert [report.reason for report in explanation.eager] == ["the model uses the lock '_LOCK'"]
    assert not _LOCK.locked()


@pytest.mark.parametrize("function", [_reads_count_after_it_changed, _hands_globals_on])
def test_globals_that_change_or_are_handed_on_are_the_real_ones(function):
    global _COUNT
    compiled = staticrt.compile(function)
    results = []
    for run in (function, compiled):
        _COUNT = 0
        with torch.no_grad():
            results.append([run(torch.zeros(2)).tolist() for _call in range(4)])
    assert results[0] == results[1]
    assert type(_LOCK) is type(threading.Lock())


@pytest.mark.parametrize(
    "function",
    [
        *(_compares, _asks_for_class, _shows, _passes_on, _holds_in_class),
        *(_sees_what_a_call_puts_back, _hands_globals_to_what_it_calls),
    ],
)
def test_code_reads_the_lock_and_globals_as_they_are(function):
    compiled = staticrt.compile(function)
    x = torch.zeros(2)
    with torch.no_grad():
        want = function(x).tolist()
        assert [compiled(x).tolist() for _call in range(4)] == [want] * 4


def test_a_lock_that_a_module_holds_too_is_not_taken_in_a_trace():
    module = sys.modules[__name__]

    def takes(x):
        if x is None:
            return _LOCK
        with module._LOCK:
            return x + 1

    compiled = staticrt.compile(takes)
    with torch.no_grad():
        for _call in range(3):
            assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    reasons = [report.reason for report in compiled.explain().eager]
    assert "the model uses the lock '_LOCK'" in reasons


def test_hidden_states_of_transformers_are_compiled():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    model = transformers.BertModel(config).eval()
    compiled = staticrt.compile(model)
    ids = torch.randint(9, (2, 5))
    with torch.no_grad():
        for _call in range(4):
            got = compiled(input_ids=ids, output_hidden_states=True).hidden_states
        want = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert len(got) == len(want) == 3
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
    assert sum(trace.calls for trace in compiled.explain().traces) >= 2, compiled.explain()
