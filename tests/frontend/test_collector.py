"""Python's garbage collector while graphs are made: fewer collections, and afterwards the limits of before."""

from __future__ import annotations

import gc
import importlib
import types
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import staticrt
from staticrt import tuning
from staticrt.frontend.collector import seldom_collecting


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield 700, 10, 10
    gc.set_threshold(*before)


def test_limits_are_as_before_after_the_last_user(limits):
    with seldom_collecting():
        with pytest.raises(KeyError), seldom_collecting():
            raise KeyError
        assert gc.get_threshold() == (tuning.COLLECTED_OBJECTS, 10, 10)
    assert gc.get_threshold() == limits


@pytest.mark.parametrize("first", [0, 2 * tuning.COLLECTED_OBJECTS])
def test_a_collector_that_is_off_or_seldom_stays_so(first):
    gc.set_threshold(first, 5, 5)
    with seldom_collecting():
        assert gc.get_threshold() == (first, 5, 5)
    assert gc.get_threshold() == (first, 5, 5)


def test_limits_that_are_set_meanwhile_stay():
    with seldom_collecting():
        gc.set_threshold(900, 7, 7)
    assert gc.get_threshold() == (900, 7, 7)


def test_imports_of_public_names_collect_seldom(monkeypatch, limits):
    seen = {}

    def note(name):
        seen[name] = gc.get_threshold()[0]
        return importlib.import_module(name)

    monkeypatch.setattr(staticrt, "importlib", types.SimpleNamespace(import_module=note))
    assert callable(staticrt.compile)
    assert seen["staticrt.api.compile"] == tuning.COLLECTED_OBJECTS
    assert gc.get_threshold() == limits


def _collections_of_a_first_call(trains: bool, whole_step: bool) -> int:
    model = nn.Sequential(*(layer for _ in range(100) for layer in (nn.Linear(4, 4), nn.Tanh())))
    model.requires_grad_(trains)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = staticrt.compile_step(step) if whole_step else staticrt.compile(model)
    count = 0

    def note(phase, _info):
        nonlocal count
        count += phase == "start"

    gc.callbacks.append(note)
    try:
        compiled(torch.randn(2, 4))
    finally:
        gc.callbacks.remove(note)
    assert compiled.explain().traces
    return count


@pytest.mark.parametrize(("trains", "whole_step"), [(False, False), (True, False), (True, True)])
def test_a_first_call_collects_seldom(monkeypatch, limits, trains, whole_step):
    _collections_of_a_first_call(trains, whole_step)  # imports
    seldom = _collections_of_a_first_call(trains, whole_step)
    assert gc.get_threshold() == limits
    monkeypatch.setattr(tuning, "COLLECTED_OBJECTS", 1)
    assert seldom < _collections_of_a_first_call(trains, whole_step) / 2
