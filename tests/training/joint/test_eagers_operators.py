"""Operators of the forward that torch's tracers take apart and eager does not, and what our kernels save for backwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from tests.support.joint_traces import joint, joint_calls

RESIZES = [
    *[(1, {"mode": mode}) for mode in ("nearest", "nearest-exact", "linear")],
    *[(2, {"mode": mode}) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")],
    *[(2, {"mode": mode, "antialias": True}) for mode in ("bilinear", "bicubic")],
    (2, {"mode": "bilinear", "align_corners": True}),
    *[(3, {"mode": mode}) for mode in ("nearest", "nearest-exact", "trilinear")],
]
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}
TO = ({"scale_factor": 2}, {"scale_factor": 0.5}, {"scale_factor": 1.5}, {"size": 7})


def _image(batch, rows, dims, pixels):
    x = torch.randn(batch, 3, *(rows, 4, 6)[:dims])
    return x.contiguous(memory_format=FORMATS[dims]) if pixels else x


@pytest.mark.parametrize(("dims", "how"), RESIZES)
def test_images_are_resized_by_eagers_operators(dims, how):
    for to in TO:
        for pixels in (False, True) if dims > 1 else (False,):
            compiled = joint(lambda x, to=to: F.interpolate(x.sin(), **to, **how).square())
            for batch, rows in ((2, 8), (3, 6), (2, 4)):
                x = _image(batch, rows, dims, pixels).requires_grad_()
                want = F.interpolate(x.sin(), **to, **how).square()
                got = compiled(x)
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want)
                incoming = torch.randn_like(want)
                torch.testing.assert_close(
                    torch.autograd.grad(got, x, incoming), torch.autograd.grad(want, x, incoming)
                )
            traces = [t for t in compiled.explain().traces if t.route == "training"]
            assert len(traces) == 2, compiled.explain()
            assert "aten.index" not in str(compiled.explain()), compiled.explain()


def test_resized_images_have_second_derivatives():
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    slopes = []
    for run in (joint(_resized_cubes), _resized_cubes):
        (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        slopes.append(torch.autograd.grad(slope.square().sum(), x)[0])
    torch.testing.assert_close(*slopes)


def _resized_cubes(x):
    return F.interpolate(x**3, scale_factor=2, mode="bilinear") ** 2


def test_steps_resize_images_by_eagers_operators():
    model = nn.Conv2d(3, 4, 1)

    @staticrt.compile_step
    def step(x):
        loss = F.interpolate(model(x), scale_factor=2, mode="bilinear").square().mean()
        loss.backward()
        return loss

    for batch, rows in ((2, 8), (3, 6), (2, 4)):
        x = _image(batch, rows, 2, False)
        want = torch.autograd.grad(
            F.interpolate(model(x), scale_factor=2, mode="bilinear").square().mean(), list(model.parameters())
        )
        model.zero_grad()
        step(x)
        torch.testing.assert_close([p.grad for p in model.parameters()], list(want))
    assert "aten.index" not in str(step.explain()), step.explain()


@pytest.mark.parametrize("keys", [40, 1500])  # one block of keys, and several
def test_rows_that_may_see_no_key_have_gradients(keys):
    def attend(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    q, k, v = (torch.randn(2, 2, keys, 16, requires_grad=True) for _ in range(3))
    mask = torch.zeros(keys, keys)
    mask[3] = mask[:, 5] = -torch.inf
    compiled = joint(attend)
    for _ in range(3):
        # Memory that is not written may hold this.
        spoiled = [torch.full((2, 2, keys), torch.nan) for _ in range(20)]
        del spoiled
        got = torch.autograd.grad(compiled(q, k, v, mask).square().sum(), (q, k, v))
        want = torch.autograd.grad(attend(q, k, v, mask).square().sum(), (q, k, v))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert joint_calls(compiled) == 3


def test_cosine_similarities_are_traced_with_their_backward():
    """torch's composite kernel writes norms with gradients off, which no joint trace records."""
    run = lambda x, y: F.cosine_similarity(x, y.sin(), dim=-1, eps=0.5)  # noqa: E731
    compiled = joint(run)
    for rows in (4, 2, 5):
        x, y = torch.randn(rows, 1, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True)
        with torch.no_grad():
            x[0] *= 0.01  # a norm below eps
        results = []
        for f in (compiled, run):
            out = f(x, y)
            first = torch.autograd.grad(out.square().sum(), (x, y), create_graph=True)
            results.append((out, *first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, y))))
        torch.testing.assert_close(*results)
    assert joint_calls(compiled) == 3, compiled.explain()


def test_one_hot_codes_of_images_are_row_major():
    run = lambda x: (F.one_hot(x.detach().long().abs() % 4, 4), x.square().sum())  # noqa: E731
    compiled = joint(run)
    for batch in (2, 3):
        x = _image(batch, 4, 2, True).mul(3).requires_grad_()
        (codes, loss), (want, _) = compiled(x), run(x)
        assert torch.equal(codes, want)
        assert codes.stride() == want.stride()
        torch.testing.assert_close(*torch.autograd.grad(loss, x), 2 * x)
    assert joint_calls(compiled) == 2, compiled.explain()


@pytest.mark.parametrize("start", [staticrt.compile, lambda f: torch.compile(f, backend="staticrt")])
@pytest.mark.parametrize("layout", ["transposed", "channels_last", "strided"])
def test_random_slopes_give_row_major_results_of_any_layout(start, layout, fresh_dynamo):
    run = lambda x: F.rrelu(x, training=True)  # noqa: E731
    compiled = start(run)
    for seed in (1, 2):
        memory = torch.linspace(-1, 1, 96).view(2, 3, 4, 4)
        x = {
            "transposed": memory.transpose(0, 1),
            "channels_last": memory.contiguous(memory_format=torch.channels_last),
            "strided": memory[..., ::2],
        }[layout].requires_grad_()
        results = []
        for each in (compiled, run):
            torch.manual_seed(seed)
            out = each(x)
            (slope,) = torch.autograd.grad(out.square().sum(), x)
            results.append((out, slope, torch.rand(2)))
        torch.testing.assert_close(*results, rtol=0, atol=0)
        assert results[0][0].stride() == results[1][0].stride()
        assert results[0][1].stride() == results[1][1].stride()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("rows", [(), (3,)])
@pytest.mark.parametrize("loss", [nn.MultiMarginLoss, nn.MultiLabelMarginLoss])
def test_margin_losses_are_eagers(reduction, rows, loss):
    """torch's decompositions add what follows the end of the targets, and make a row of one sample's loss."""
    loss = loss(reduction=reduction)
    run = lambda x, y: loss(x.sin(), y)  # noqa: E731
    if isinstance(loss, nn.MultiMarginLoss):
        y = torch.full(rows, 2)
    else:
        y = torch.full((*rows, 5), -1)
        y[..., 0] = 3
    compiled, backend = joint(run), torch.compile(run, backend="staticrt")
    for call in (compiled, compiled, backend):
        x = torch.randn(*rows, 5, requires_grad=True)
        got, want = call(x, y), run(x, y)
        torch.testing.assert_close(got, want)
        incoming = torch.randn_like(want)
        torch.testing.assert_close(
            torch.autograd.grad(got, x, incoming), torch.autograd.grad(want, x, incoming)
        )
    assert joint_calls(compiled) == 2, compiled.explain()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), want.detach())


def test_gradients_of_nan_are_eagers():
    x = torch.tensor([torch.nan, 0.2, 2.0, -0.5], requires_grad=True)
    run = lambda x: F.softshrink(x * 1)  # noqa: E731
    compiled = joint(run)
    for _ in range(2):
        got, want = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, run))
        torch.testing.assert_close(got, want, equal_nan=True)
    assert joint_calls(compiled) == 2, compiled.explain()
