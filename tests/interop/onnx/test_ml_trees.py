"""Ensembles of decision trees (ai.onnx.ml), compared with ONNX Runtime."""

import numpy as np
import pytest

import staticrt
from staticrt.errors import OnnxError
from tests.support.onnx_ml_models import (
    HOLES,
    LABEL,
    SCORES,
    STRING,
    X,
    check,
    classifier,
    node_model,
    positive,
    regressor,
    signed,
)

SIZES = {"trees": 7, "depth": 5, "features": 5}
ALL_MODES = tuple(f"BRANCH_{name}" for name in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"))

CLASSIFIERS = {
    "three classes": classifier([4, 5, 6], **SIZES, targets=[0, 1, 2], weights=signed),
    "softmax": classifier(
        [0, 1, 2], more={"post_transform": "SOFTMAX"}, **SIZES, targets=[0, 1, 2], weights=signed
    ),
    "logistic": classifier(
        [0, 1, 2], more={"post_transform": "LOGISTIC"}, **SIZES, targets=[0, 1, 2], weights=signed
    ),
    "softmax zero": classifier(
        [0, 1, 2], more={"post_transform": "SOFTMAX_ZERO"}, **SIZES, targets=[0, 1, 2], weights=signed
    ),
    "base values": classifier(
        [0, 1, 2], more={"base_values": [0.5, -1.0, 2.0]}, **SIZES, targets=[0, 1, 2], weights=signed
    ),
    "a class without a weight": classifier(
        [0, 1, 2, 3], **SIZES, targets=[0, 2, 3], weights=positive, sparse=True
    ),
    "binary, chances": classifier([0, 1], **SIZES, targets=[0], weights=positive),
    "binary, chances, logistic": classifier(
        [0, 1], more={"post_transform": "LOGISTIC"}, **SIZES, targets=[0], weights=positive
    ),
    "binary, signed": classifier([3, 8], **SIZES, targets=[0], weights=signed),
    "binary, logistic": classifier(
        [0, 1], more={"post_transform": "LOGISTIC"}, **SIZES, targets=[0], weights=signed
    ),
    "binary, base": classifier(
        [0, 1],
        more={"post_transform": "LOGISTIC", "base_values": [0.25]},
        **SIZES,
        targets=[0],
        weights=signed,
    ),
    "binary, number 1": classifier([0, 1], **SIZES, targets=[1], weights=signed),
    "two classes": classifier([0, 1], **SIZES, targets=[0, 1], weights=signed),
    "two classes, one per leaf": classifier([0, 1], **SIZES, targets=[0, 1], weights=positive, sparse=True),
    "all modes": classifier([0, 1, 2], **SIZES, targets=[0, 1, 2], weights=signed, modes=ALL_MODES),
    "strings": classifier(["a", "b", "c"], "classlabels_strings", **SIZES, targets=[0, 1, 2], weights=signed),
    "two strings": classifier(["no", "yes"], "classlabels_strings", **SIZES, targets=[0], weights=positive),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifying_trees(name):
    attributes = CLASSIFIERS[name]
    label = STRING if "classlabels_strings" in attributes else LABEL
    check(node_model("TreeEnsembleClassifier", [X], attributes, [label, SCORES]), [X])


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_trees_of_other_types(dtype):
    x = X.astype(dtype)
    check(node_model("TreeEnsembleClassifier", [x], CLASSIFIERS["three classes"], [LABEL, SCORES]), [x])


@pytest.mark.parametrize("mode", ALL_MODES)
def test_missing_values_take_the_branch_that_the_node_says(mode):
    attributes = regressor(1, **SIZES, targets=[0], weights=signed, modes=(mode,), missing=True)
    check(node_model("TreeEnsembleRegressor", [HOLES], attributes, [SCORES]), [HOLES])


REGRESSORS = {
    "sum": regressor(1, **SIZES, targets=[0], weights=signed),
    "one leaf": regressor(1, trees=1, depth=0, features=1, targets=[0], weights=signed),
    "average": regressor(1, {"aggregate_function": "AVERAGE"}, **SIZES, targets=[0], weights=signed),
    "min": regressor(1, {"aggregate_function": "MIN"}, **SIZES, targets=[0], weights=signed),
    "max": regressor(
        1, {"aggregate_function": "MAX", "base_values": [3.0]}, **SIZES, targets=[0], weights=signed
    ),
    "max of three, one per leaf": regressor(
        3,
        {"aggregate_function": "MAX"},
        trees=2,
        depth=3,
        features=5,
        targets=[0, 1],
        weights=signed,
        sparse=True,
    ),
    "three": regressor(3, {"base_values": [1.0, 2.0, 3.0]}, **SIZES, targets=[0, 1, 2], weights=signed),
    "three, softmax": regressor(3, {"post_transform": "SOFTMAX"}, **SIZES, targets=[0, 1, 2], weights=signed),
    "probit": regressor(
        1, {"post_transform": "PROBIT"}, trees=2, depth=3, features=5, targets=[0], weights=positive
    ),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressing_trees(name):
    check(node_model("TreeEnsembleRegressor", [X], REGRESSORS[name], [SCORES]), [X])


# -- damaged models -----------------------------------------------------------------------------------------------

TREE = CLASSIFIERS["binary, chances"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"nodes_truenodeids": [10**6] * len(TREE["nodes_modes"])},
            "a child of a tree ensemble is number -1",
        ),
        ({"nodes_truenodeids": [0] * len(TREE["nodes_modes"])}, "has a cycle"),
        ({"nodes_featureids": [-1] * len(TREE["nodes_modes"])}, "a feature of a tree ensemble is number -1"),
        ({"nodes_modes": ["BRANCH_UP"] * len(TREE["nodes_modes"])}, "nodes of mode 'BRANCH_UP'"),
        (
            {"nodes_nodeids": [0] * len(TREE["nodes_modes"])},
            "two nodes of a tree ensemble have the same number",
        ),
        (
            {"class_ids": [5] * len(TREE["class_ids"])},
            "a target or class of a weight of a tree ensemble is number 5",
        ),
        ({"class_weights": [1.0]}, "differ in length"),
        ({"nodes_values": [1.0]}, "differ in length"),
        ({"nodes_treeids": [0]}, "do not fit each other"),
        ({"classlabels_strings": ["a", "b"]}, "either string labels"),
        ({"post_transform": "SQUARE"}, "post_transform 'SQUARE'"),
    ],
)
def test_a_damaged_ensemble_is_refused(change, message):
    model = node_model("TreeEnsembleClassifier", [X], {**TREE, **change}, [LABEL, SCORES])
    with pytest.raises(OnnxError, match=message) as error:
        staticrt.from_onnx(model)
    assert error.value.at == "TreeEnsembleClassifier 'label, scores' of the model"


def test_rows_with_too_few_features_are_refused():
    model = node_model("TreeEnsembleClassifier", [X], TREE, [LABEL, SCORES])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(OnnxError, match="the model reads 5 features, the input has 2"):
        staticrt.from_onnx(model)(X[:, :2])
