"""Linear models, support vector machines and features (ai.onnx.ml), compared with ONNX Runtime."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import staticrt
from staticrt.errors import OnnxError
from tests.support.onnx_ml_models import HOLES, LABEL, SCORES, STRING, WORDS, X, check, f, node_model, rng


def linear(classes, **more):
    rows = more.pop("rows", classes)
    return {"coefficients": f(rows * 5).tolist(), "intercepts": f(rows).tolist(), **more}


LINEAR = {
    "three": linear(3, classlabels_ints=[2, 5, 7]),
    "softmax": linear(3, classlabels_ints=[0, 1, 2], post_transform="SOFTMAX"),
    "logistic": linear(2, classlabels_ints=[0, 1], post_transform="LOGISTIC"),
    "one score": linear(2, rows=1, classlabels_ints=[4, 9]),
    "strings": linear(3, classlabels_strings=["x", "y", "z"], post_transform="SOFTMAX"),
    "one score, strings": linear(2, rows=1, classlabels_strings=["n", "y"], post_transform="LOGISTIC"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_classifier(name):
    label = STRING if "classlabels_strings" in LINEAR[name] else LABEL
    check(node_model("LinearClassifier", [X], LINEAR[name], [label, SCORES], 1), [X])


@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(targets):
    attributes = linear(targets, targets=targets)
    check(node_model("LinearRegressor", [X], attributes, [SCORES], 1), [X])


KERNELS = {
    "LINEAR": [0.3, 0.5, 3.0],
    "POLY": [0.2, 1.0, 3.0],
    "RBF": [0.2, 0.0, 0.0],
    "SIGMOID": [0.1, 0.2, 0.0],
}


def machine(kernel, per_class, **more):
    vectors, classes = sum(per_class), len(per_class)
    return {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "vectors_per_class": per_class,
        "support_vectors": f(vectors * 5).tolist(),
        "coefficients": f(vectors * (classes - 1)).tolist(),
        "rho": (f(classes * (classes - 1) // 2) / 4).tolist(),
        "classlabels_ints": list(range(classes)),
        **more,
    }


@pytest.mark.parametrize("chances", [False, True])
@pytest.mark.parametrize("per_class", [[3, 4], [2, 3, 4], [1, 2, 3, 2]])
@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_classifier(kernel, per_class, chances):
    pairs = len(per_class) * (len(per_class) - 1) // 2
    more = {"prob_a": (-np.abs(f(pairs))).tolist(), "prob_b": f(pairs).tolist()} if chances else {}
    model = node_model("SVMClassifier", [X], machine(kernel, per_class, **more), [LABEL, SCORES], 1)
    check(model, [X], 1e-4)


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("per_class", [[3, 4], [2, 3, 4]])
def test_support_vector_classifier_transforms(per_class, transform):
    attributes = machine("RBF", per_class, post_transform=transform)
    check(node_model("SVMClassifier", [X], attributes, [LABEL, SCORES], 1), [X], 1e-4)


def test_linear_support_vector_classifier():
    attributes = {
        "coefficients": f(15).tolist(),
        "rho": [0.25],
        "kernel_params": [0.0, 0.0, 0.0],
        "classlabels_ints": [1, 2, 3],
    }
    check(node_model("SVMClassifier", [X], attributes, [LABEL, SCORES], 1), [X])


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_regressor(kernel, one_class):
    attributes = {
        "kernel_type": kernel,
        "kernel_params": KERNELS[kernel],
        "n_supports": 6,
        "support_vectors": f(30).tolist(),
        "coefficients": f(6).tolist(),
        "rho": [0.1],
        "one_class": one_class,
    }
    check(node_model("SVMRegressor", [X], attributes, [SCORES], 1), [X], 1e-4)


ZEROS = X.copy()
ZEROS[3] = 0
INTS = rng.integers(-2, 3, (9, 3))
FEATURES = {
    "scale": ("Scaler", [X], {"offset": f(5).tolist(), "scale": f(5).tolist()}, SCORES),
    "scale by one": ("Scaler", [INTS], {"offset": [0.5], "scale": [2.0]}, SCORES),
    "norm, max": ("Normalizer", [ZEROS], {"norm": "MAX"}, SCORES),
    "norm, 1": ("Normalizer", [ZEROS], {"norm": "L1"}, SCORES),
    "norm, 2": ("Normalizer", [ZEROS], {"norm": "L2"}, SCORES),
    "binary": ("Binarizer", [X], {"threshold": 0.25}, SCORES),
    "impute NaN": (
        "Imputer",
        [HOLES],
        {"imputed_value_floats": f(5).tolist(), "replaced_value_float": float("nan")},
        SCORES,
    ),
    "impute": ("Imputer", [INTS], {"imputed_value_int64s": [7], "replaced_value_int64": -1}, LABEL),
    "one hot": ("OneHotEncoder", [INTS], {"cats_int64s": [-1, 0, 1]}, SCORES),
    "one hot, floats": ("OneHotEncoder", [X], {"cats_int64s": [-1, 0, 1]}, SCORES),
    "one hot, strings": ("OneHotEncoder", [WORDS], {"cats_strings": ["a", "b", "c"]}, SCORES),
    "category to number": (
        "CategoryMapper",
        [WORDS],
        {"cats_strings": ["b", "a"], "cats_int64s": [5, 6], "default_int64": 9},
        LABEL,
    ),
    "number to category": (
        "CategoryMapper",
        [INTS],
        {"cats_strings": ["b", "a"], "cats_int64s": [0, 1], "default_string": "?"},
        STRING,
    ),
    "vector": ("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [4, 2]}, SCORES),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features(name):
    op, inputs, attributes, output = FEATURES[name]
    check(node_model(op, inputs, attributes, [output], 1), inputs)


ENCODERS = {
    "strings to numbers": (WORDS, {"keys_strings": ["b", "a"], "values_int64s": [4, 5]}, LABEL),
    "strings to floats": (WORDS, {"keys_strings": ["b", "a"], "values_floats": [0.5, 1.5]}, SCORES),
    "strings to strings": (WORDS, {"keys_strings": ["b", "a"], "values_strings": ["B", "A"]}, STRING),
    "numbers to strings": (INTS, {"keys_int64s": [1, 0], "values_strings": ["one", "zero"]}, STRING),
    "numbers, default": (INTS, {"keys_int64s": [1, 0], "values_int64s": [11, 10], "default_int64": 7}, LABEL),
    "floats to numbers": (X, {"keys_floats": [0.25, -0.5, 0.0], "values_int64s": [1, 2, 3]}, LABEL),
    "NaN": (HOLES, {"keys_floats": [0.25, float("nan")], "values_strings": ["quarter", "none"]}, STRING),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_label_encoder(name):
    x, attributes, output = ENCODERS[name]
    check(node_model("LabelEncoder", [x], attributes, [output], 4 if name == "NaN" else 2), [x])


@pytest.mark.parametrize(
    "keys", [{"classlabels_int64s": [3, 1, 2]}, {"classlabels_strings": ["a", "b", "c"]}]
)
def test_zip_map(keys):
    x = f(4, 3)
    model = node_model("ZipMap", [x], keys, [("maps", TensorProto.FLOAT)], 1)
    kind = TensorProto.STRING if "classlabels_strings" in keys else TensorProto.INT64
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    model.graph.output[0].type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_map_type_proto(kind, value))
    )
    compiled = check(model, [x])
    assert compiled.module(torch.from_numpy(x)) == compiled(x)  # the plain module gives maps, too


def test_a_missing_attribute_is_told():
    model = node_model("LinearRegressor", [X], {}, [SCORES], 1)
    with pytest.raises(OnnxError, match="attributes of LinearRegressor are missing"):
        staticrt.from_onnx(model)
