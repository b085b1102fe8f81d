"""Attention on "sim" is one kernel where no gradient is asked for, with the values of the operators that it is composed of."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import staticrt

ORDERS_OF_THEIR_OWN = True  # one stream: conftest.py


def tensors(dtype, heads=2, keys=5):
    """A query, a key and a value that lie as heads of one projection do."""
    torch.manual_seed(0)
    sizes = [(2, 5, 4, 8), (2, keys, heads, 8), (2, keys, heads, 8)]
    return [torch.randn(size, dtype=dtype).to("sim").transpose(1, 2) for size in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "kwargs",
    [
        {"is_causal": True},
        {"attn_mask": torch.arange(15).reshape(5, 3) % 4 > 0},
        {"attn_mask": torch.arange(15.0).reshape(5, 3), "scale": 0.5},
        {"enable_gqa": True},
    ],
    ids=["causal", "mask", "added mask", "groups"],
)
def test_one_kernel_has_the_values_of_several(dtype, kwargs, sim):
    mask = kwargs.get("attn_mask")
    if mask is not None:
        kwargs = {**kwargs, "attn_mask": mask.to("sim", dtype if mask.is_floating_point() else None)}
    args = tensors(dtype, heads=2 if kwargs.get("enable_gqa") else 4, keys=5 if mask is None else 3)
    begin = sim.calls("launch")
    with torch.no_grad():
        composed = scaled_dot_product_attention(*args, **kwargs)
    launches = sim.calls("launch") - begin
    with torch.inference_mode():
        once = scaled_dot_product_attention(*args, **kwargs)
    # torch itself makes a mask of booleans one that is added, with three kernels.
    assert sim.calls("launch") - begin - launches == (
        4 if mask is not None and not mask.is_floating_point() else 1
    )
    assert launches > 4
    assert once.stride() == composed.stride()
    assert torch.equal(once.cpu(), composed.cpu())


def test_a_compiled_call_launches_one_kernel(sim):
    args = tensors(torch.float32, heads=4)
    compiled = staticrt.compile(scaled_dot_product_attention)
    with torch.no_grad():
        expected = scaled_dot_product_attention(*args)
        for _ in range(3):
            got = compiled(*args)
        launches = sim.calls("launch")
        got = compiled(*args)
    assert sim.calls("launch") == launches + 1
    assert torch.equal(got.cpu(), expected.cpu())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_it_draws_only_where_it_drops_values(dropout):
    def run(mode):
        torch.manual_seed(3)
        args = [x.detach() for x in (torch.ones(2, 2, 5, 4, device="sim"),) * 3]
        with mode:
            return scaled_dot_product_attention(*args, dropout_p=dropout).cpu(), torch.rand(
                3, device="sim"
            ).cpu()

    composed, once = run(torch.no_grad()), run(torch.inference_mode())
    assert all(torch.equal(a, b) for a, b in zip(composed, once, strict=True))
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3, device="sim").cpu(), once[1]) == (dropout == 0)


def test_gradients_are_those_of_what_it_is_composed_of():
    layers = [nn.Linear(8, 8) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].to("sim")
    x = torch.randn(2, 5, 8)
    for layer, device in zip(layers, ("cpu", "sim"), strict=True):
        h = layer(x.to(device)).unsqueeze(1)
        with sdpa_kernel(SDPBackend.MATH):
            scaled_dot_product_attention(h, h, h).sum().backward()
    assert torch.equal(layers[1].weight.grad.cpu(), layers[0].weight.grad)
