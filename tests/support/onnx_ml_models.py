"""Models of one operator of ai.onnx.ml, and their comparison with ONNX Runtime."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import staticrt

ort = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

ML = "ai.onnx.ml"
rng = np.random.default_rng(0)


def f(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def node_model(op, inputs, attributes, outputs, version=3):
    names = [f"i{k}" for k in range(len(inputs))]
    node = helper.make_node(op, names, [name for name, _ in outputs], domain=ML, **attributes)
    kinds = [
        TensorProto.STRING if v.dtype == object else helper.np_dtype_to_tensor_dtype(v.dtype) for v in inputs
    ]
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, kind, ["n", *v.shape[1:]])
            for n, kind, v in zip(names, kinds, inputs, strict=True)
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(model, inputs, tolerance=1e-5, compare=True):
    """Like ONNX Runtime on all rows, and on one, without an eager part."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = staticrt.from_onnx(model)
    for count in (len(inputs[0]), 1, len(inputs[0])):
        part = [value[:count] for value in inputs]
        want = session.run(None, dict(zip([i.name for i in session.get_inputs()], part, strict=True)))
        with torch.no_grad():
            got = compiled(*part)
        for have, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            same(have, expected, tolerance)
    assert not compiled.explain().eager
    return compiled


def same(have, want, tolerance):
    if isinstance(want, list):  # of maps
        assert len(have) == len(want)
        for row, expected in zip(have, want, strict=True):
            assert row == pytest.approx(expected, rel=tolerance)
        return
    if want.dtype == object:
        assert have.tolist() == want.tolist()
        return
    assert have.numpy().dtype == want.dtype
    np.testing.assert_allclose(have.numpy(), want, rtol=tolerance, atol=tolerance)


def forest(
    trees, depth, features, targets, weights, modes=("BRANCH_LEQ",), missing=False, sparse=False, seed=0
):
    """Attributes of random trees; a leaf has a weight for each target, or for one of them if `sparse`."""
    random = np.random.default_rng(seed)
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    found = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    leaf = {"treeids": [], "nodeids": [], "ids": [], "weights": []}

    def grow(tree, number, level, count):
        is_leaf = level == depth or (level > 1 and random.random() < 0.2)
        mine = number[0]
        number[0] += 1
        place = len(found["nodes_modes"])
        for key, value in (
            ("treeids", tree),
            ("nodeids", mine),
            ("featureids", 0 if is_leaf else int(random.integers(features))),
            ("modes", "LEAF" if is_leaf else str(random.choice(modes))),
            ("values", 0.0 if is_leaf else float(random.integers(-2, 3)) / 2),
            ("truenodeids", 0),
            ("falsenodeids", 0),
            ("missing_value_tracks_true", int(missing and not is_leaf and random.random() < 0.5)),
        ):
            found[f"nodes_{key}"].append(value)
        if is_leaf:
            for target in [int(random.choice(targets))] if sparse else targets:
                leaf["treeids"].append(tree)
                leaf["nodeids"].append(mine)
                leaf["ids"].append(target)
                leaf["weights"].append(weights(random))
            return mine
        found["nodes_truenodeids"][place] = grow(tree, number, level + 1, count)
        found["nodes_falsenodeids"][place] = grow(tree, number, level + 1, count)
        return mine

    for tree in range(trees):
        grow(tree, [0], 0, 0)
    return found, leaf


def signed(random):
    return float(random.standard_normal())


def positive(random):
    return float(random.random()) / 4


def classifier(labels, kind="classlabels_int64s", more=None, **options):
    nodes, leaf = forest(**options)
    leaves = {f"class_{key}": value for key, value in leaf.items()}
    return {**nodes, **leaves, kind: labels, **(more or {})}


def regressor(count, more=None, **options):
    nodes, leaf = forest(**options)
    leaves = {f"target_{key}": value for key, value in leaf.items()}
    return {**nodes, **leaves, "n_targets": count, **(more or {})}


LABEL, STRING, SCORES = (
    ("label", TensorProto.INT64),
    ("label", TensorProto.STRING),
    ("scores", TensorProto.FLOAT),
)
X = (np.round(f(17, 5) * 4) / 4).astype(np.float32)
HOLES = X.copy()
HOLES[rng.random(X.shape) < 0.3] = np.nan
WORDS = np.array([["a", "b"], ["c", "unknown"], ["b", "a"]], dtype=object)
