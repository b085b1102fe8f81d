"""Containers registered with pytree by two functions only, which cannot say how their parts are called."""

import io

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import staticrt
from staticrt.tools.cli.call import describe_result


class Box:
    def __init__(self, a, b):
        self.a, self.b = a, b


@pytest.fixture(scope="module", autouse=True)
def registered():
    pytree.register_pytree_node(
        Box,
        lambda box: ([box.a, box.b], None),
        lambda parts, _context: Box(*parts),
        serialized_type_name="tests.BoxWithoutKeys",
    )
    yield
    pytree._deregister_pytree_node(Box)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, box, other):
        return Box(self.linear(box.a["x"]) + 1, box.b * other)


def arguments(rows):
    return Box({"x": torch.randn(rows, 4)}, torch.randn(rows)), torch.tensor(2.0)


def test_a_model_of_them_is_captured_whole():
    module = Scale().eval()
    fast = staticrt.compile(module)
    with torch.no_grad():
        for rows in (3, 3, 5):
            args = arguments(rows)
            got, want = fast(*args), module(*args)
            torch.testing.assert_close((got.a, got.b), (want.a, want.b))
    report = fast.explain()
    assert not report.eager, report
    assert "box[0]" in str(report)


def test_it_is_saved_and_loaded():
    module = Scale().eval()
    fast = staticrt.compile(module)
    file = io.BytesIO()
    with torch.no_grad():
        fast(*arguments(3))
        staticrt.save(fast, file, exported_program=False)
        args = arguments(6)
        got, want = staticrt.load(file.getvalue())(*args), module(*args)
    torch.testing.assert_close((got.a, got.b), (want.a, want.b))


def test_commands_number_their_parts():
    assert [line["name"] for line in describe_result(Box(torch.ones(2), 3))] == ["[0]", "[1]"]
