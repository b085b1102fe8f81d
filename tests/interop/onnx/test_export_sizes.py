"""What `to_onnx` says of an exported model's sizes, and what it leaves out."""

import json
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import InputError, OnnxError
from staticrt.interop.onnx import export_file
from staticrt.interop.onnx.size_conditions import KEY, SizeCondition


def dims(value):
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


class Branches(nn.Module):
    def forward(self, x, y):
        h = x + y
        if x.shape[0] > 4:
            return h * 2
        return h + 1 if x.shape[1] % 2 == 0 else h


def test_sizes_that_the_module_fixes_are_fixed_in_the_model():
    module = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)).eval()
    model = staticrt.to_onnx(module, torch.randn(3, 5, 8))
    batch, length, features = dims(model.graph.input[0])
    assert (type(batch), type(length), features) == (str, str, 8)
    assert dims(model.graph.output[0]) == [batch, length, 4]


def test_an_unrolled_loop_fixes_its_length():
    class Steps(nn.Module):
        def forward(self, x):
            h = x[:, 0]
            for step in range(1, x.shape[1]):
                h = torch.tanh(h + x[:, step])
            return h

    model = staticrt.to_onnx(Steps(), torch.randn(2, 5, 3))
    assert dims(model.graph.input[0])[1] == 5
    with pytest.raises(InputError, match="has shape"):
        staticrt.from_onnx(model)(torch.randn(2, 4, 3))


def test_branches_on_sizes_are_warned_of_written_down_and_checked():
    example = (torch.randn(3, 6), torch.randn(3, 6))
    with pytest.warns(UserWarning, match=r"Branches as exported holds only where .*% 2"):
        model = staticrt.to_onnx(Branches().eval(), example)
    (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
    assert len(json.loads(entry.value)) == 2
    back = staticrt.from_onnx(model)
    for shape in ((3, 6), (2, 4), (4, 8)):
        args = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(back(*args), Branches()(*args))
    for shape, text in (((5, 6), "<= 4, got"), ((3, 5), "% 2")):
        with pytest.raises(InputError, match=text):
            back(torch.randn(shape), torch.randn(shape))
    torch.testing.assert_close(back(*example), Branches()(*example))  # a refused call leaves nothing behind


def test_conditions_follow_the_names_that_the_caller_gives():
    batch = torch.export.Dim("batch")
    with pytest.warns(UserWarning, match="batch <= 4"):
        model = staticrt.to_onnx(
            Branches().eval(), (torch.randn(3, 6), torch.randn(3, 6)), dynamic_shapes=({0: batch}, {0: batch})
        )
    assert dims(model.graph.input[0]) == ["batch", 6]


def test_a_model_without_branches_has_no_conditions():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="staticrt")
        model = staticrt.to_onnx(nn.Conv1d(3, 4, 3, padding=1).eval(), torch.randn(2, 3, 9))
    assert not [entry for entry in model.metadata_props if entry.key == KEY]


def test_least_sizes_that_windows_need_are_checked_without_a_warning():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="staticrt")
        model = staticrt.to_onnx(nn.Conv1d(3, 4, 5, stride=2).eval(), torch.randn(2, 3, 9))
    back = staticrt.from_onnx(model)
    assert back(torch.randn(1, 3, 5)).shape == (1, 4, 1)
    with pytest.raises(InputError, match=">= 5, got"):
        back(torch.randn(1, 3, 4))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.b > 1",
        "a ** 9 ** 9 > 1",
        "1",
        "a < b < 3",
        "f(a) > 1",
        "(",
        "a > 1.5",
        "min(a) > 1",
        "max() > 1",
        "-" * 3000 + "a > 1",
    ],
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        SizeCondition(text)


def test_a_size_that_is_divided_by_is_not_zero():
    condition = SizeCondition("12 % heads == 0")
    assert [condition.holds({"heads": n}) for n in (0, 3, 5)] == [False, True, False]


def test_conditions_of_other_exporters_are_ignored():
    model = staticrt.to_onnx(nn.ReLU(), torch.randn(2, 3))
    for value in ("[", "3", '["unknown > 3", "(", 5]'):
        del model.metadata_props[:]
        model.metadata_props.add(key=KEY, value=value)
        assert staticrt.from_onnx(model)(-torch.ones(2, 3)).sum() == 0


def test_what_a_module_writes_is_said():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x + self.count

    with pytest.warns(UserWarning, match="Counts writes 'count'"):
        staticrt.to_onnx(Counts().eval(), torch.ones(2))


def test_extremes_over_all_dimensions_have_a_form():
    class Extremes(nn.Module):
        def forward(self, x):
            return x.amax(), x.amin((0, 1), keepdim=True), x.amax(1)

    model = staticrt.to_onnx(Extremes(), torch.randn(2, 3))
    x = torch.randn(4, 5)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(
        session.run(None, {session.get_inputs()[0].name: x.numpy()}), Extremes()(x), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_a_number_among_the_results_is_refused_in_words():
    class Number(nn.Module):
        def forward(self, x):
            return x + 1, 3

    with pytest.raises(OnnxError, match="returns a number"):
        staticrt.to_onnx(Number(), torch.ones(2))


def test_large_tensors_lie_in_a_file_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(export_file, "INLINE_LIMIT_BYTES", 4096)
    module = nn.Linear(64, 64).eval()
    path = tmp_path / "large.onnx"
    x = torch.randn(3, 64)
    with pytest.raises(OnnxError, match="pass path="):
        staticrt.to_onnx(module, x)
    for _ in range(2):  # exported again, the file beside it is replaced, not appended to
        model = staticrt.to_onnx(module, x, path)
    assert 64 * 64 * 4 <= (tmp_path / "large.onnx.data").stat().st_size < 2 * 64 * 64 * 4
    assert any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer)
    with torch.no_grad():
        torch.testing.assert_close(staticrt.from_onnx(path)(x), module(x))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {session.get_inputs()[0].name: x.numpy()})[0],
        module(x).detach(),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_failed_export_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "model.onnx"
    staticrt.to_onnx(nn.ReLU(), torch.randn(3), path)
    before = path.read_bytes()
    with pytest.raises(OnnxError, match="cannot write"):
        staticrt.to_onnx(nn.ReLU(), torch.randn(3), tmp_path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


def test_logic_beside_a_number_known_at_trace():
    """`And` of a mask with a truth value that sizes decide: what transformers export for their masks."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["shape"], start=0, end=1),
            helper.make_node("Squeeze", ["shape"], ["size"]),
            helper.make_node("Greater", ["size", "two"], ["many"]),
            helper.make_node("And", ["many", "x"], ["a"]),
            helper.make_node("Or", ["x", "many"], ["b"]),
            helper.make_node("Xor", ["many", "x"], ["c"]),
        ],
        "logic",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, ["n"])],
        [helper.make_tensor_value_info(name, TensorProto.BOOL, ["n"]) for name in "abc"],
        [onnx.numpy_helper.from_array(np.array(2), "two")],
    )
    model = staticrt.from_onnx(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    )
    for size in (1, 2, 3, 5):
        x = torch.arange(size) % 2 == 0
        many = torch.tensor(size > 2)
        for got, want in zip(model(x), (many & x, many | x, many ^ x), strict=True):
            assert torch.equal(got, want), size
