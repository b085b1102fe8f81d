"""Declaring ops, and what is said of ops that nobody declared."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch

from staticrt.errors import OptionError
from staticrt.ops import FAMILIES, facts, facts_of_call, op_name, register_op, registry
from staticrt.ops.schema import read_schema

aten = torch.ops.aten

# The out variants of PyTorch's Static Runtime that ATen has, and the gaps that this project fills.
RUNTIME_LIST = Path(__file__).with_name("runtime_ops.txt").read_text().split()


def overloads(name):
    packet = getattr(aten, name)
    return [getattr(packet, o) for o in packet.overloads()]


def every_aten_op():
    """All overloads, but those that TorchScript has for numbers, strings and lists."""
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            packet = getattr(aten, schema.name.removeprefix("aten::"))
            yield getattr(packet, schema.overload_name or "default")


@pytest.mark.parametrize("name", RUNTIME_LIST)
def test_every_op_of_the_design_is_declared(name):
    tensor_ops = [
        op for op in overloads(name) if read_schema(op).tensor_args or read_schema(op).tensor_returns
    ]
    assert tensor_ops
    assert all(facts(op).known for op in tensor_ops if read_schema(op).functional)


def test_a_second_registration_is_an_error():
    with pytest.raises(
        OptionError, match=r"'aten\.relu' is registered twice: by family 'activation' and by 'user'"
    ):
        register_op("aten.relu")


@pytest.mark.parametrize("name", ["relu", "aten..default", "a.b.c.d", ""])
def test_a_malformed_name_is_an_error(name):
    with pytest.raises(OptionError, match="not of the form"):
        register_op(name)


def test_an_unknown_argument_name_is_an_error(monkeypatch):
    monkeypatch.setattr(registry, "_declared", dict(registry._declared))
    register_op("aten.relu.default", may_alias=("x",))
    try:
        with pytest.raises(OptionError, match=r"declared with arguments \['x'\], but has \['self'\]"):
            facts(aten.relu.default)
    finally:
        registry._resolved.clear()


def test_declarations_name_ops_that_exist():
    """Names that this torch lacks are typing errors, or ops of another supported version."""
    missing = []
    for name in registry._declared:
        namespace, base, *overload = name.split(".")
        if namespace in ("aten", "quantized"):
            packet = getattr(getattr(torch.ops, namespace), base, None)
            if packet is None or (overload and overload[0] not in packet.overloads()):
                missing.append(name)
        elif namespace == "higher_order" and not hasattr(torch.ops.higher_order, base):
            missing.append(name)
    assert missing == []


def test_aliases_and_writes_of_all_ops_contain_those_of_the_schema():
    for op in every_aten_op():
        schema, known = read_schema(op), facts(op)
        assert {(a.output, a.arg) for a in schema.aliases} <= {(a.output, a.arg) for a in known.aliases}, op
        assert set(schema.mutates) <= set(known.mutates), op
        assert known.random or not schema.random, op
        if known.mutates or known.random or not op._schema.returns:
            assert not known.pure, op


def test_every_annotated_view_is_a_view_or_declared_maybe():
    for op in every_aten_op():
        returns_tensors = all(str(r.type) in ("Tensor", "List[Tensor]") for r in op._schema.returns)
        if op.is_view and facts(op).known and returns_tensors and "Dict" not in str(op._schema):
            assert facts(op).aliases, op


def test_only_views_cost_no_bytes_by_declaration():
    for op in every_aten_op():
        known = facts(op)
        if known.is_view and known.known:
            assert known.cost.value == "view", op


def test_in_place_ops_take_the_cost_of_their_twin():
    known = facts(aten.add_.Tensor)
    assert (known.mutates, known.sources(), known.pure) == ((0,), (0,), False)
    assert known.cost is facts(aten.add.Tensor).cost
    assert facts(aten.add.Tensor).fusable
    assert not known.fusable


def test_an_op_of_another_library_gets_safe_facts():
    with torch.library._scoped_library("staticrt_test_registry", "FRAGMENT") as library:
        library.define("both(Tensor a, Tensor[] b, int n) -> (Tensor, Tensor[])")
        op = torch.ops.staticrt_test_registry.both.default
        known = facts(op)
        assert not known.known
        assert not known.pure
        assert not known.fusable
        assert {(a.output, a.arg, a.may) for a in known.aliases} == {
            (0, 0, True), (0, 1, True), (1, 0, True), (1, 1, True)
        }  # fmt: skip


def test_a_user_may_declare_an_op_of_a_library():
    with torch.library._scoped_library("staticrt_test_declared", "FRAGMENT") as library:
        library.define("twice(Tensor a) -> Tensor")
        op = torch.ops.staticrt_test_declared.twice.default
        assert not facts(op).known
        register_op("staticrt_test_declared.twice", fusable=True)
        assert facts(op).pure
        assert facts(op).fusable
        assert facts(op).aliases == ()


def test_a_call_is_idle_by_its_arguments():
    x = torch.rand(3)
    assert facts(aten.dropout.default).random
    assert facts_of_call(aten.dropout.default, (x, 0.5, True), {}).random
    assert facts_of_call(aten.dropout.default, (x, 0.5, False), {}).pure
    assert facts_of_call(aten.scaled_dot_product_attention.default, (x, x, x), {}).pure
    assert not facts_of_call(aten.scaled_dot_product_attention.default, (x, x, x, None, 0.1), {}).pure
    assert facts_of_call(
        aten.batch_norm.default, (x, None, None, x, x, True, 0.1, 1e-5, False), {}
    ).mutates == (3, 4)
    assert facts_of_call(aten.batch_norm.default, (x, None, None, x, x, False, 0.1, 1e-5, False), {}).pure


def test_names_of_targets():
    assert op_name(aten.add.Tensor) == "aten.add.Tensor"
    assert op_name(operator.floordiv) == "operator.floordiv"
    assert op_name(torch.sym_float) == "torch.sym_float"
    assert op_name(torch.ops.higher_order.cond) == "higher_order.cond"
    for target in (operator.floordiv, torch.sym_float, torch.ops.higher_order.cond):
        assert facts(target).known
    assert not facts(print).pure


def test_families_are_the_files_of_the_folder():
    declared = {facts(op).family for op in every_aten_op()} - {"", "user"}
    assert declared <= set(FAMILIES)
