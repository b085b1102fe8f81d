"""`staticrt inspect --signature` and `--triton`: which sizes vary is found by calls."""

import json

import pytest
import torch

import staticrt
from staticrt.errors import InputError
from staticrt.tools.cli.signature import signature, to_pbtxt


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 5)

    def forward(self, ids, mask=None):
        y = self.head(self.table(ids))
        return y if mask is None else y * mask.unsqueeze(-1)


def test_sizes_that_vary_are_found():
    compiled = staticrt.compile(Tagger().eval())
    ids, mask = torch.randint(50, (3, 7)), torch.ones(3, 7)
    found = signature("tagger", compiled, (ids,), {"mask": mask})
    assert [(t.name, t.datatype, t.shape) for t in found.inputs] == [
        ("ids", "INT64", (-1, -1)),
        ("mask", "FP32", (-1, -1)),
    ]
    assert [(t.name, t.datatype, t.shape) for t in found.outputs] == [("OUTPUT0", "FP32", (-1, -1, 5))]
    assert found.batches
    assert found.to_v2()["inputs"][0] == {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}
    triton = found.to_triton("tagger.pt2")
    assert triton["max_batch_size"] == 16
    assert triton["input"][0]["dims"] == [-1]
    assert "prepare" not in triton["parameters"]  # which lengths come is not known


@pytest.mark.parametrize(
    ("function", "x", "shape", "batches"),
    [
        (lambda x: x * 2, torch.ones(3, 4), (-1, -1), True),
        (lambda x: x - x.mean(0), torch.rand(3, 4), (-1, -1), False),
        (lambda x: x.t() @ torch.ones(3, 2), torch.rand(3, 4), (3, -1), False),
        (lambda x: x.sum(), torch.rand(3), (-1,), False),
        (lambda x: x.flip(0), torch.rand(3, 2), (-1, -1), False),
        (lambda x: x + 1, torch.tensor(2.0), (), False),
    ],
    ids=["rows", "mean of rows", "fixed", "scalar result", "flipped", "scalar"],
)
def test_rows_are_batched_only_where_they_are_independent(function, x, shape, batches):
    found = signature("f", staticrt.compile(function), (x,), {})
    assert found.inputs[0].shape == shape
    assert found.batches is batches


def test_a_row_that_is_a_number_gets_a_shape_that_triton_accepts():
    found = signature("f", staticrt.compile(lambda x: x * 2), (torch.ones(3),), {})
    assert found.batches
    entry = found.to_triton("f.pt2")["input"][0]
    assert (entry["dims"], entry["reshape"]) == ([1], {"shape": []})
    assert "reshape {\n    shape: []\n  }" in to_pbtxt(found.to_triton("f.pt2"))


def in_two_parts(x):
    y = torch.relu(x) * 2
    print("between")
    return y + 1


def test_what_the_protocol_lacks_is_an_error():
    with pytest.raises(InputError, match="complex64, which the protocol does not have"):
        signature("f", staticrt.compile(torch.view_as_complex), (torch.ones(3, 2),), {})
    with pytest.raises(InputError, match="a server needs one graph that reads every tensor"):
        signature("f", staticrt.compile(in_two_parts), (torch.ones(3),), {})
    with pytest.raises(InputError, match="takes 1 tensors and gives 0"):
        signature("f", staticrt.compile(lambda x: x.shape), (torch.ones(3),), {})


def test_the_commands_print_both_forms(toy, call):
    code, out, _ = call("inspect", toy, "--shape", "x=3x16", "--signature")
    assert code == 0
    document = json.loads(out)
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert document["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1, 4]}]
    code, out, _ = call("inspect", toy, "--shape", "x=3x16", "--triton")
    assert code == 0
    assert 'backend: "staticrt"' in out
