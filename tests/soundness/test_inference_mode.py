"""Inference mode: what a model makes in it is an inference tensor, and code that asks for the mode gets eager's answer."""

import pytest
import torch

import staticrt
from tests.support.compilers import each_compiler


def _makes_inference_tensors(x):
    with torch.inference_mode():
        y = x * 2
        view = x[1:]
    return y, y[1:], view, x + 1, view.is_inference()


@torch.inference_mode()
def _runs_in_inference_mode(x):
    return x * 2, x


@each_compiler
@pytest.mark.parametrize("body", [_makes_inference_tensors, _runs_in_inference_mode])
def test_what_is_made_in_inference_mode_is_an_inference_tensor(body, compiler):
    compiled = compiler(body)
    for size in (3, 4, 3):
        x = torch.arange(float(size))
        for got, expected in zip(compiled(x), body(x), strict=True):
            if isinstance(got, torch.Tensor):
                assert (got.is_inference(), got.tolist()) == (expected.is_inference(), expected.tolist())
            else:
                assert got is expected


@each_compiler
@pytest.mark.parametrize("gradients", [False, True])
def test_inference_tensors_beside_gradients(gradients, compiler):
    weight = torch.ones(3, requires_grad=True)

    def function(x):
        with torch.inference_mode():
            y = x * 2
        return y, x * weight

    compiled = compiler(function)
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            made, product = compiled(torch.ones(3))
            assert (made.is_inference(), product.requires_grad) == (True, gradients)


@each_compiler
def test_weights_in_inference_mode(compiler):
    linear = torch.nn.Linear(2, 2)
    result = compiler(torch.inference_mode()(linear.forward))(torch.ones(2))
    assert (result.is_inference(), result.requires_grad) == (True, False)


@pytest.mark.parametrize("splits", [False, True])
def test_a_model_may_ask_for_inference_mode(splits):
    def function(x):
        if splits:
            print(end="")
        return x * (2 if torch.is_inference_mode_enabled() else 3)

    compiled = staticrt.compile(function)
    for mode in (False, True, False):
        with torch.inference_mode(mode):
            assert compiled(torch.ones(1)).item() == (2 if mode else 3)
