"""Run ONNX's own node tests on the static runtime: `python -m tests.support.onnx_node_tests [PART_OF_NAME]`."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from staticrt.errors import StaticRuntimeError
from staticrt.interop.onnx.backend import StaticBackend

_FLOAT = frozenset({"FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"})
_PLAIN = _FLOAT | frozenset(
    {
        "BOOL",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "COMPLEX64",
        "COMPLEX128",
    }
)


@dataclasses.dataclass(frozen=True)
class NodeResult:
    """What one node test gave.

    Args:
        is_float: the model takes or gives floats of 16 to 64 bits, and no strings or smaller types.
        error: why it failed, or "".
        eager: why it did not run on the static runtime, or "".
    """

    name: str
    is_float: bool
    error: str
    eager: str


def run_all(part: str = "") -> Iterator[NodeResult]:
    """Run the tests whose name contains `part`, in ONNX's order."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests' reference results overflow on purpose
        cases = [case for case in load_model_tests(kind="node") if part in case.name]
        for case in cases:
            yield run_case(case)


def run_case(case: Any) -> NodeResult:
    """Run one test case of `onnx.backend.test`."""
    error = eager = ""
    try:
        prepared = StaticBackend.prepare(case.model)
        for inputs, expected in case.data_sets:
            assert_similar(prepared.run(inputs), expected, case.rtol, case.atol)
        report = prepared.model.explain()
        eager = report.eager[0].reason if report.eager else ""
    except StaticRuntimeError as found:
        error = f"{type(found).__name__}: {found.message}"
    except Exception as found:
        error = f"{type(found).__name__}: {' '.join(str(found).split())[:200]}"
    return NodeResult(case.name, is_float_model(case.model), error, eager)


def is_float_model(model: onnx.ModelProto) -> bool:
    """Whether a model's inputs and outputs are numbers of usual types, floats among them."""
    types = {_element(value.type) for value in (*model.graph.input, *model.graph.output)}
    return bool(types & _FLOAT) and types <= _PLAIN


def _element(kind: onnx.TypeProto) -> str:
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return _element(kind.sequence_type.elem_type)
    if which == "optional_type":
        return _element(kind.optional_type.elem_type)
    return str(onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type))


def assert_similar(got: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    """Raise AssertionError unless outputs agree in number, shapes, types and values."""
    assert len(got) == len(expected), f"{len(got)} outputs instead of {len(expected)}"
    for have, want in zip(got, expected, strict=True):
        if isinstance(want, (list, tuple)):
            assert_similar(have, want, rtol, atol)
            continue
        if isinstance(want, onnx.TensorProto):
            want = onnx.numpy_helper.to_array(want)
        if want is None:
            assert have is None, "a value instead of none"
            continue
        want = np.asarray(want)
        assert have.shape == want.shape, f"shape {have.shape} instead of {want.shape}"
        if want.dtype == object:
            assert have.tolist() == want.tolist(), "other strings"
            continue
        assert have.dtype == want.dtype, f"{have.dtype} instead of {want.dtype}"
        if have.dtype.kind == "V" or have.dtype.name in ("bfloat16", *_SMALL):
            # numpy compares no such types; two units in the last place of bfloat16, as ONNX's own runner
            rtol = max(rtol, 2**-6) if have.dtype.name == "bfloat16" else rtol
            have, want = have.astype(np.float32), want.astype(np.float32)
        np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


_SMALL = (
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)


def main(part: str = "") -> int:
    """Print failures and shares; 1 if less than 95 % of the float models pass."""
    torch.set_num_threads(1)
    results = list(run_all(part))
    for result in results:
        if result.error:
            print(f"{'float ' if result.is_float else ''}FAIL {result.name}: {result.error}")
        elif result.eager:
            print(f"eager {result.name}: {result.eager}")
    floats = [result for result in results if result.is_float]
    for title, group in (("float models", floats), ("all", results)):
        passed = sum(not result.error for result in group)
        static = sum(not result.error and not result.eager for result in group)
        print(
            f"{title}: {passed} of {len(group)} pass ({100 * passed / max(len(group), 1):.1f} %), "
            f"{static} of them on the static runtime"
        )
    return 0 if 20 * sum(bool(r.error) for r in floats) <= len(floats) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
