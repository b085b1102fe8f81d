"""A bounded part of the changes of state; `python -m tests.soundness.state_fuzzer` makes as many as are asked for."""

from tests.soundness import state_fuzzer
from tests.soundness.state_kinds import KINDS


def test_there_are_many_kinds():
    assert len(KINDS) >= 40


def test_changes_show_as_in_eager():
    lines = []
    assert state_fuzzer.run(7000, 200, lines.append) == 0, "\n".join(lines)


def test_dynamo_keeps_no_module_that_was_replaced():
    """What splits the model comes after the import, so that Dynamo compiles it."""
    assert state_fuzzer.failure(50595, ("module_of_a_name_replaced", "code_replaced", "digest")) == ""


def test_an_abstract_class_is_watched_after_a_call_that_imports_modules():
    kinds = ("digest", "same_class_registered_with_abstract_one", "module_by_dunder_import")
    assert state_fuzzer.failure(1200001, kinds) == ""


def test_a_difference_is_found(monkeypatch):
    monkeypatch.setattr(state_fuzzer, "compiled", lambda function, way: _first_answer(function))
    lines = []
    assert state_fuzzer.run(7000, 8, lines.append) > 0
    assert "seed 700" in lines[0]


def _first_answer(function):
    kept = []

    def fast(x):
        kept.append(function(x))
        return kept[0]

    return fast
