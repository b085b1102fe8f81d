"""Facts held against what ops really do on samples of torch's operator database."""

from __future__ import annotations

from collections import defaultdict

import torch

from staticrt.ops import facts, facts_of_call
from staticrt.ops.schema import bind_arguments


def aten(calls):
    return [c for c in calls if c.op.namespace == "aten"]


def test_samples_reach_enough_operators(calls):
    assert len({c.op for c in aten(calls)}) > 600


def test_every_sampled_operator_is_declared(calls):
    unknown = sorted({str(c.op) for c in aten(calls) if not facts(c.op).known})
    assert unknown == [], f"declare in ops/: {unknown}"


def test_a_result_shares_storage_only_with_declared_arguments(calls):
    wrong = set()
    for call in aten(calls):
        for output, shared in enumerate(call.shared):
            if not shared <= set(facts(call.op).sources(output)):
                # One storage given twice is seen in both places; some declared one must explain it.
                declared = set(facts(call.op).sources(output))
                if not _explained(call, shared, declared):
                    wrong.add(
                        f"{call.op}: result {output} shares with {sorted(shared)}, declared {sorted(declared)}"
                    )
    assert sorted(wrong) == []


def _explained(call, shared, declared):
    bound = dict(enumerate(bind_arguments(call.op, call.args, call.kwargs)))
    storages = {
        i: {
            t.untyped_storage()._cdata
            for t in torch.utils._pytree.tree_leaves(bound[i])
            if isinstance(t, torch.Tensor)
        }
        for i in {*shared, *declared}
    }
    known = set().union(*(storages[i] for i in declared)) if declared else set()
    return all(storages[i] <= known for i in shared)


def test_a_view_always_shares_its_source(calls):
    wrong = set()
    for call in aten(calls):
        known = facts(call.op)
        if not known.is_view or any(
            t.numel() == 0
            for t in torch.utils._pytree.tree_leaves((call.args, call.result))
            if isinstance(t, torch.Tensor)
        ):
            continue
        for alias in known.aliases:
            if not alias.may and alias.arg not in call.shared[alias.output]:
                wrong.add(f"{call.op}: result {alias.output} does not share with {alias.arg}")
    assert sorted(wrong) == []


def test_may_alias_ops_are_seen_both_ways(calls):
    """`reshape`, `contiguous`, `to` and dropout: the declaration says "may" because both happen."""
    seen = defaultdict(set)
    for call in aten(calls):
        if facts(call.op).may_alias and all(
            t.numel() for t in torch.utils._pytree.tree_leaves(call.args) if isinstance(t, torch.Tensor)
        ):
            seen[str(call.op).split(".")[1]].add(any(call.shared))
    for name in ("reshape", "contiguous", "to", "dropout", "einsum", "sum_to_size", "cartesian_prod"):
        assert seen[name] == {True, False}, name


def test_only_declared_arguments_are_written(calls):
    wrong = {
        f"{c.op}: wrote {sorted(c.written)}, declared {facts_of_call(c.op, c.args, c.kwargs).mutates}"
        for c in aten(calls)
        if not c.written <= set(facts_of_call(c.op, c.args, c.kwargs).mutates)
    }
    assert sorted(wrong) == []


def test_only_random_ops_move_the_random_state(calls):
    wrong = {str(c.op) for c in aten(calls) if c.drew and not facts_of_call(c.op, c.args, c.kwargs).random}
    assert sorted(wrong) == []


def test_random_ops_that_do_not_draw_are_idle_by_declaration(calls):
    """A random op whose call drew nothing either filled no elements or was declared idle; here, which drew at all."""
    drew = {c.op for c in aten(calls) if c.drew}
    for name in ("rand_like.default", "bernoulli.default", "multinomial.default", "native_dropout.default"):
        op = torch.ops.aten
        for part in name.split("."):
            op = getattr(op, part)
        assert op in drew
        assert not facts(op).pure


def test_nothing_pure_writes_or_draws(calls):
    for call in aten(calls):
        if facts_of_call(call.op, call.args, call.kwargs).pure:
            assert not call.written, call.op
            assert not call.drew, call.op
