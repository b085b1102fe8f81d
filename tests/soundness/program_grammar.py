"""Random programs over tensors: views, writes, several results, sizes that data decides, casts, random numbers.

A program is a function's statements as text, one operator each. It is grown on example arguments: a statement that eager
refuses there is left out, so most programs run on other sizes too; where they do not, the error is part of the answer.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_leaves

# Each gives arguments of sizes n and m, as source: of memory of their own, strided, overlapping, shared.
ARGUMENTS = {
    "plain": "[grid(n, m)]",
    "vector": "[grid(n)]",
    "integers": "[grid(n, m).long()]",
    "bytes": "[(grid(n, m) * 4).to(torch.int8)]",
    "bools": "[grid(n, m) > 0]",
    "doubles": "[grid(n, m).double()]",
    "transposed": "[grid(m, n).t()]",
    "strided": "[grid(n, 2 * m)[:, ::2]]",
    "channels_last": "[grid(n, 2, m, 2).contiguous(memory_format=torch.channels_last)]",
    "expanded": "[grid(n, 1).expand(n, m)]",
    "overlapping": "[grid(n + m).as_strided((n, m), (1, 1))]",
    "scalar": "[grid(1)[0]]",
    "number": "[n]",
    "images": "[grid(n, 4, m, 3)]",
    "threes": "[grid(2, n, m)]",
    "complex": "[torch.complex(grid(n, m), grid(n, m).flip(0))]",
    "half": "[grid(n, m).bfloat16()]",
    "counts": "[grid(n, m).abs().int()]",
    "bits": "[(grid(n, m) * 40).abs().to(torch.uint8)]",
    "whole_number": "[grid(n * m + 1)[-1].long()]",
    "row": "[grid(1, m)]",
    "empty": "[grid(0, m)]",
    "twice": "[grid(n, m)] * 2",
    "halves": "list(grid(2 * n, m).split(n)) if n else [grid(0, m), grid(0, m)]",
    "neighbours": "(lambda g: [g[:n], g[1:]])(grid(n + 1, m))",
    "array_twice": "(lambda g: [torch.from_numpy(g), torch.from_numpy(g)])(grid(n, m).numpy().copy())",
    "array_overlaps": "(lambda g: [torch.from_numpy(g[:n]), torch.from_numpy(g[1:])])(grid(n + 1, m).numpy().copy())",
    "one_or_more": "[grid(n if n > 3 else 1, m)]",
    "flag": "[n > 2]",
    "fraction": "[n / 4]",
    "list": "[[grid(n, m), grid(n)]]",
    "dict": "[dict(p=grid(n, m), q=grid(n))]",
    "optional": "[grid(n, m) if n > 1 else None]",
}
# What a program reads first of arguments that need not be tensors.
READS = {
    "flag": ["torch.ones(2, 3) if {a} else torch.zeros(3)"],
    "fraction": ["torch.full((2, 2), {a})", "torch.ones(3) * {a}"],
    "list": ["{a}[0]", "{a}[-1]"],
    "dict": ["{a}['p']", "{a}['q']"],
    "optional": ["torch.ones(2, 2) if {a} is None else {a} * 1"],
}

UNARY = """
torch.relu({x}); torch.sigmoid({x}); {x} * 2; 1 - {x}; {x}.abs(); -{x}; {x} + 0.5; {x} // 2; {x} % 3; {x}.clamp(-2, 2); {x}.square()
{x}.float(); {x}.double(); {x}.long(); {x}.to(torch.int32); {x}.bool(); {x}.to(torch.uint8); {x}.clone(); {x} > 0; {x} == 1; ~({x} > 0)
{x}.sum(); {x}.sum(0); {x}.sum(-1, keepdim=True); {x}.float().mean(-1); {x}.amax(0); {x}.argmax(-1); {x}.any(); {x}.all(0); {x}.cumsum(0)
{x}.max(-1); {x}.min(0, keepdim=True); {x}.sort(-1); {x}.sort(dim=0, stable=True)[0]; {x}.topk(1, 0); {x}.float().softmax(-1); {x}.aminmax()
{x}.float().var(-1, unbiased=False); torch.var_mean({x}.float(), 0, unbiased=False); {x}.flip(0); {x}.roll(1, 0); {x}.tril(); {x}.round()
torch.ones_like({x}); torch.zeros({x}.shape); torch.empty_like({x}).fill_(3); {x}.new_full((2,), 1); {x}.repeat(2, 1); torch.full((2,), {x}.shape[0])
{x}.repeat_interleave(2, 0); torch.nn.functional.pad({x}, (1, 0)); torch.nn.functional.layer_norm({x}.float(), {x}.shape[-1:]); {x}.frexp()
"""
BINARY = """
{x} + {y}; {x} - {y}; {x} * {y}; torch.maximum({x}, {y}); {x} < {y}; {x} == {y}; ({x} > 0) & ({y} > 0); torch.where({x} > 0, {x}, {y}); {x} / ({y}.abs() + 1)
torch.cat([{x}, {y}]); torch.cat([{x}, {y}], -1); torch.stack([{x}, {y}]); {x} @ {y}.t(); {x}.float() @ {y}.float(); torch.addcmul({x}, {x}, {y}); torch.lerp({x}, {y}, 0.5)
{x}[{y}.long().clamp(0, {x}.shape[0] - 1)]; torch.gather({x}, 0, {y}.long().clamp(0, {x}.shape[0] - 1)); {x}.index_select(0, {y}.reshape(-1).long().clamp(0, 0)); {x}.expand_as({y})
"""
VIEWS = """
{x}[0]; {x}[-1]; {x}[1:]; {x}[:-1]; {x}[:, 0]; {x}[:, ::2]; {x}[..., -1]; {x}[None]; {x}[:, None]; {x}.t(); {x}.transpose(0, -1); {x}.permute(1, 0)
{x}.reshape(-1); {x}.view(-1); {x}.flatten(); {x}.flatten(0, 1); {x}.unsqueeze(-1); {x}.squeeze(); {x}.squeeze(0); {x}.expand(2, *{x}.shape); {x}.contiguous(); {x}.detach()
{x}.unbind(0); {x}.chunk(2); {x}.split(1, -1); {x}.tensor_split(2); {x}.narrow(0, 0, 1); {x}.diagonal(); {x}.as_strided((2, 2), (1, 2)); {x}.unfold(0, 2, 1)
{x}.reshape({x}.shape[0], -1); {x}.view({x}.shape); {x}[: {x}.shape[0] // 2]; {x}[{x}.shape[0] // 2 :]; {x}.reshape(-1, {x}.shape[-1]); {x}.movedim(0, -1); {x}.view_as({x})
{x}.view({x}.shape[0], -1); {x}.mT; {x}.ravel(); {x}.reshape({x}.shape[0] // 2 * 2, -1); {x}.view(2, -1); {x}.contiguous(memory_format=torch.channels_last)
"""
WRITES = """
{x}.add_(1); {x}.mul_(2); {x}.relu_(); {x}.clamp_(-1, 1); {x}.zero_(); {x}.fill_(1); {x}.neg_(); {x}.add_({y}); {x}.mul_({y}); {x}.copy_({y}); {x}.sub_({x})
{x}[0] = 1; {x}[-1] = {y}; {x}[1:] += 1; {x}[:, 0] = 2; {x}[..., 0] += {y}; {x}[:] = {y}; {x}[{x} > 0] = 0; {x}.masked_fill_({x} > 1, 2); {x}[0].add_({x}[-1])
{x}[1:].add_({x}[:-1]); {x}[1:] = {x}[:-1]; {x}[:, ::2].mul_(2); {x}.t().add_(1); {x}.view(-1)[0] = 3; {x}.diagonal().fill_(1); {x}.index_add_(0, torch.zeros(1).long(), {x}[:1] * 1)
{x}.index_fill_(0, torch.zeros(1).long(), 2); {x}.index_put_((torch.zeros(1).long(),), {x}[0] * 0); {x}.scatter_(0, torch.zeros_like({x}).long(), {y}); {x}.cumsum_(0); {x}.tril_()
torch.add({x}, 1, out={x}); torch.mul({x}, {y}, out={y}); torch.sort({x}, out=({y}, torch.empty(0).long())); torch.add({x}, 1, out=torch.empty(0)); {x}.logical_not_(); {x}.round_()
{x}.unsqueeze_(0); {x}.squeeze_(); {x}.t_(); {x}.transpose_(0, -1); {x}.swapaxes_(0, 1); {x}.resize_(2, 2).fill_(1); {x}.as_strided_((1,), (1,)); {x}.detach_(); {x}.set_({y})
{x}[{x} > 0] += 1; {x}[{y} > 0] = {y}[{y} > 0]; {x}[torch.tensor([0, -1])] = {y}[:1]; {x}[torch.tensor([0, 0])] += 1; {x}.index_put_((torch.tensor([0, 0]),), {x}[:1] * 1, accumulate=True); {x}.masked_scatter_({x} > 0, {y}); {x}.scatter_add_(0, torch.zeros_like({x}).long(), {y}); {x}.put_(torch.tensor([0, 1]), {x}.reshape(-1)[:2] * 1); {x}.index_copy_(0, torch.tensor([0]), {y}[:1])
{x} *= {y}; {x} -= 1; {x} ^= 1; {x} //= 2; {x} /= 2; {x} |= {y}; {x}.div_(2); {x}.bitwise_and_(3); {x}.pow_(2); {x}.sigmoid_(); {x}.clamp_(min=0); {x}.addcmul_({x}, {y}); {x}.lerp_({y}, 0.5); {x}.eq_({y}); {x}.copy_({y}[0]); {x}.flip(0).add_(1); {x}.expand(2, *{x}.shape)[0].add_(1); {x}.reshape(-1)[::2] = 0; {x}.unfold(0, 2, 2).mul_(2); {x}.narrow(0, 0, 1).zero_(); {x}.select(-1, 0).copy_({y}.select(-1, 0)); {x}.split(1)[0].add_(1)
{x}.real.add_(1); {x}.imag.zero_(); {x}.conj().mul_(2); torch.view_as_real({x}).add_(1); {x}.diagonal(1).copy_({y}.diagonal(1)); {x}.as_strided({x}.shape, {x}.stride()).add_(1); {x}[None].squeeze(0).add_(1); {x}.unbind(0)[-1].neg_(); torch.cat([{x}, {y}], out=torch.empty(0)); torch.where({x} > 0, {x}, {y}, out={x}); torch.cumsum({x}, 0, out={y}); torch.matmul({x}, {y}.t(), out=torch.empty(0)); {x}.index_fill_(-1, torch.tensor([0]), 1); {x}.cumprod_(0); {x}.mT.triu_(); torch.nn.functional.relu({x}, inplace=True); torch.nn.functional.hardtanh({x}, inplace=True); {x}.view(torch.int32).bitwise_and_(-2)
"""
DATA = """
{x}[{x} > 0.5]; {x}.nonzero(); {x}.unique(); {x}.masked_select({x} > 0); {x}[{x} > 0][: {y}.shape[0]]; {x}.reshape(-1)[{y}.reshape(-1) > 0]; torch.zeros(int({x}.abs().sum()) % 5)
{x}[: int({y}.abs().sum()) % 3]; torch.arange(int({x}.abs().sum()) % 4); ({x} if {x}.sum() > 0 else {y}); torch.bincount({x}.reshape(-1).long().abs()); {x} * {x}.sum().item()
{x}.repeat_interleave({x}.reshape(-1)[: {x}.shape[0]].long().abs() % 2, 0); torch.where({x} > 0)[0]; {x} * ({y}.shape[0] // 2); torch.arange({x}.shape[0]); {x}.reshape(-1)[: {y}.nonzero().shape[0]]
"""
RANDOM = """
torch.rand_like({x}.float()); torch.nn.functional.dropout({x}.float(), 0.5); torch.nn.functional.dropout({x}.float(), 1.0); torch.randperm({x}.shape[0]); torch.bernoulli({x}.float().clamp(0, 1))
{x}.float().clone().normal_(); torch.randint(5, {x}.shape); torch.nn.functional.dropout({x}.float(), 0.0); torch.randn({x}.shape[0], 0); {x}.float().clone().bernoulli_(1.0)
"""
# What layers and numeric code use.
NUMERIC = """
{x} ^ {y}; {x} & {y}; {x} | 1; {x} << 1; {x}.bitwise_not(); {x} // {y}.abs().clamp(min=1); {x} % ({y}.abs() + 1); {x}.fmod(2); {x} * True; {x} * 1.5; {x} ** 2; {x}.pow({y}.abs()); {x}.sign() * {y}; torch.floor_divide({x}, 2); torch.remainder({y}, 3)
{x}.int() + {y}; {x}.half() * {y}; {x}.bfloat16() + 1; {x}.float().sum(dtype=torch.float64); {x}.to(torch.int16) * {y}; torch.result_type({x}, {y}) == torch.float32; {x}.sum(dtype=torch.int32); {x}.to({y}.dtype); {x}.type_as({y}); 2 / ({x}.abs() + 1); {x} + torch.tensor(2); {x} * torch.tensor(1.5)
torch.complex({x}.float(), {x}.float()); {x}.to(torch.complex64); {x}.real; torch.view_as_real({x}.to(torch.complex64)); {x}.conj(); {x}.conj() * {y}; {x}.to(torch.complex64).imag; {x}.to(torch.complex64).angle(); torch.fft.fft({x}.float()); torch.fft.irfft(torch.fft.rfft({x}.float()), n={x}.shape[-1]); {x}.to(torch.complex64).abs()
{x}.cumprod(-1); {x}.cummax(0)[0]; {x}.cummin(-1); {x}.logcumsumexp(0); {x}.logsumexp(-1); {x}.float().norm(); {x}.float().norm(dim=-1); {x}.prod(-1); {x}.count_nonzero(0); {x}.nansum(0); {x}.median(-1); {x}.kthvalue(1, 0); {x}.mode(-1); {x}.argsort(dim=-1, stable=True); {x}.topk({x}.shape[-1] // 2 + 1, -1, largest=False); {x}.float().std(0); {x}.amin((0, 1)); {x}.argmin(); {x}.msort(); {x}.diff(); {x}.float().quantile(0.5)
torch.searchsorted({x}.reshape(-1).sort()[0], {y}.to({x}.dtype)); torch.bucketize({y}, torch.tensor([-1.0, 0.0, 0.5])); torch.histc({x}.float(), 4, -2, 2); torch.isin({x}, {y}); torch.bincount({x}.reshape(-1).long().abs(), minlength=4); torch.unique_consecutive({x}); {x}.nonzero_static(size=3); torch.cartesian_prod({x}.reshape(-1)[:3], {y}.reshape(-1)[:2].to({x}.dtype)); torch.nn.functional.one_hot({x}.long().abs() % 4, 4)
torch.einsum("ij,kj->ik", {x}, {y}); torch.einsum("ij->j", {x}); torch.einsum("ij,ij->i", {x}, {y}); torch.einsum("...i,...i->...", {x}, {y}); torch.outer({x}.reshape(-1), {y}.reshape(-1)); torch.bmm({x}[None], {y}.mT[None]); torch.baddbmm({x}[None], {x}[None], {y}.mT[None] @ {x}[None]); torch.addmm({x}, {x}, {y}.t() @ {y}); torch.tensordot({x}, {y}, ([0], [0])); torch.kron({x}, {y}); torch.mv({x}, {y}[0]); torch.cdist({x}.float(), {y}.float()); torch.nn.functional.linear({x}.float(), {y}.float(), {y}.float()[:, 0]); torch.linalg.vector_norm({x}.float(), dim=0)
torch.nn.functional.pad({x}, (1, 2, -1, 0)); torch.nn.functional.pad({x}.float()[None], (1, 1), mode="reflect"); torch.nn.functional.pad({x}[None, None], (1, 1, 1, 1), mode="replicate"); torch.nn.functional.pad({x}[None], (1, 1), mode="circular"); torch.constant_pad_nd({x}, (0, 1), 2); {x}.rot90(); {x}.triu(1); torch.diag_embed({x}); {x}.tile(2, 2); torch.meshgrid({x}.reshape(-1), {y}.reshape(-1), indexing="ij"); {x}.flip(0, 1); {x}.flip(-1)[..., 1:]; {x}.fliplr(); torch.tril_indices({x}.shape[0], 2); torch.block_diag({x}, {y}); torch.hstack([{x}, {y}]); torch.dstack([{x}, {y}]); {x}.masked_scatter({x} > 0, {y})
torch.nn.functional.conv2d({x}.float()[None, None], torch.ones(2, 1, 2, 2), padding=1); torch.nn.functional.conv2d({x}.float()[None, None], torch.ones(1, 1, 2, 2), dilation=2, padding=2); torch.nn.functional.conv_transpose2d({x}.float()[None, None], torch.ones(1, 2, 2, 3), stride=2, output_padding=1); torch.nn.functional.conv1d({x}.float()[None], torch.ones(2, {x}.shape[0], 1)); torch.nn.functional.conv2d({x}.float(), torch.ones(4, 1, 1, 2), groups=4); torch.nn.functional.conv1d({x}.float()[:, None], torch.ones(2, 1, 3), padding="same", bias=torch.ones(2)); torch.nn.functional.conv_transpose1d({x}.float()[:, None], torch.ones(1, 2, 3), dilation=2)
torch.nn.functional.interpolate({x}.float()[None, None], scale_factor=2); torch.nn.functional.interpolate({x}.float()[None, None], size=(3, 5), mode="bilinear"); torch.nn.functional.interpolate({x}.float()[None, None], scale_factor=0.5, mode="area"); torch.nn.functional.interpolate({x}.float()[None, None], scale_factor=1.5, mode="bicubic", align_corners=True); torch.nn.functional.grid_sample({x}.float()[None, None], torch.stack([{x}, {x}], -1)[None].float() / 3, align_corners=False); torch.nn.functional.pixel_shuffle({x}.repeat(4, 1, 1), 2); torch.nn.functional.pixel_unshuffle({x}[None], 2); torch.nn.functional.affine_grid(torch.ones(1, 2, 3), [1, 1, {x}.shape[0], 3], align_corners=True)
torch.nn.functional.max_pool2d({x}[None].float(), 2, ceil_mode=True); torch.nn.functional.avg_pool2d({x}.float()[None], 2, padding=1, count_include_pad=False); torch.nn.functional.adaptive_avg_pool2d({x}.float()[None], 2); torch.nn.functional.max_pool1d({x}.float(), 2, stride=1, return_indices=True); torch.nn.functional.unfold({x}.float()[None, None], 2, padding=1); torch.nn.functional.fold({x}.float().reshape(1, -1, 1), (1, 1), (1, 1)); torch.nn.functional.adaptive_max_pool1d({x}.float(), 2); torch.nn.functional.lp_pool1d({x}.float(), 2, 2)
torch.nn.functional.embedding({x}.long().abs() % 3, torch.arange(6.0).reshape(3, 2)); torch.nn.functional.embedding_bag({x}.long().abs() % 3, torch.arange(6.0).reshape(3, 2), mode="mean"); torch.nn.functional.embedding_bag({x}.reshape(-1).long().abs() % 3, torch.arange(6.0).reshape(3, 2), torch.arange({x}.shape[0]), mode="sum", include_last_offset=False); torch.nn.functional.group_norm({x}.float()[:, None], 1); torch.nn.functional.group_norm({x}.float(), 2); torch.nn.functional.instance_norm({x}.float()[None]); torch.nn.functional.batch_norm({x}.float(), None, None, training=True); torch.nn.functional.rms_norm({x}.float(), {x}.shape[-1:]); torch.nn.functional.normalize({x}.float(), dim=-1)
torch.nn.functional.gelu({x}.float(), approximate="tanh"); torch.nn.functional.silu({x}.float()); torch.nn.functional.softplus({x}.float()); torch.nn.functional.hardswish({x}.float()); torch.nn.functional.leaky_relu({x}); torch.nn.functional.elu({x}.float()); torch.nn.functional.glu({x}.float(), 0); torch.nn.functional.log_softmax({x}.float(), 0); torch.nn.functional.prelu({x}.float(), torch.full((1,), 0.25)); {x}.float().exp(); {x}.abs().float().sqrt(); {x}.float().tanh().erf(); {x}.float().log1p().nan_to_num(); torch.atan2({x}.float(), {y}.float()); torch.logaddexp({x}.float(), {y}.float()); torch.special.xlogy({x}.float().abs(), {y}.float().abs()); torch.hypot({x}.float(), {y}.float())
torch.nn.functional.mse_loss({x}.float(), {y}.float()); torch.nn.functional.cross_entropy({x}.float(), torch.zeros({x}.shape[0]).long(), label_smoothing=0.1); torch.nn.functional.smooth_l1_loss({x}.float(), {y}.float(), reduction="none"); torch.nn.functional.kl_div({x}.float(), {y}.float().softmax(-1), reduction="batchmean"); torch.nn.functional.binary_cross_entropy_with_logits({x}.float(), ({y} > 0).float()); torch.nn.functional.cosine_similarity({x}.float(), {y}.float(), -1); torch.nn.functional.scaled_dot_product_attention({x}.float()[None, None], {y}.float()[None, None], {y}.float()[None, None], is_causal=True); torch.nn.functional.nll_loss({x}.float(), {y}.long()[:, 0].clamp(0, 0)); torch.nn.functional.huber_loss({x}.float(), {y}.float())
torch.scatter_add(torch.zeros_like({x}), 0, {y}.long().abs() % {x}.shape[0], {x}); torch.scatter({x}, 1, {y}.long().abs() % {x}.shape[1], 2); {x}.scatter_reduce(0, {y}.long().abs() % {x}.shape[0], {x}, "amax"); {x}.index_put((torch.tensor([0, 0]),), {x}[:1], accumulate=True); {x}.index_add(0, torch.zeros({y}.shape[0]).long(), {y}); {x}.take({y}.long().abs() % {x}.numel()); {x}.take_along_dim({x}.argsort(-1), -1); {x}[torch.arange({x}.shape[0]), 0]; {x}[:, [0, -1]]; {x}[[0]]; {x}[..., None, 0]; {x}[torch.tensor([True]).expand({x}.shape[0])]; {x}.select_scatter({y}[0], 0, 0); {x}.slice_scatter({x}[1:], 0, 1); {x}.index_copy(0, torch.tensor([0]), {y}[:1]); torch.index_reduce({x}, 0, torch.zeros(1).long(), {x}[-1:], "amin"); {x}.index_select(-1, torch.tensor([0, 0]))
"""
# Numbers as arguments, blocks and bodies of their own, models' weights, comprehensions.
FORMS = """
{x}[: {k}]; {x}[{k} :]; torch.zeros({k}, 2); {x} * {k}; {x}.roll({k}, 0); torch.arange({k}); {x}.repeat({k}, 1); {x}.expand({k}, *{x}.shape); {x}.view({k}, -1); {x}.narrow(0, 0, {k}); ({x} if {k} > 2 else {y}); {x}.split({k}); {x}.flatten()[{k}]; {x}.sum({k}); {x}.unsqueeze({k}); torch.full((2,), {k})
{x}.shape[0]; {x}.numel() // 2; {x}.size(-1) * 2; len({x}); {x}.dim(); {x}.sum().item(); {x}.tolist(); {x}.shape[0] > {y}.shape[0]; max({x}.shape[0], {k}); {k} - {x}.shape[-1]
{x}.sum((0, -1), keepdim=True); {x}.float().mean(-1, keepdim=True); {x}.amax(-1, keepdim=True); {x}.float().softmax(dim=-2); {x}.cumsum(-2); {x}.squeeze(-2); {x}.float().norm(dim=(-2, -1)); {x}.unflatten(-1, (-1, 1)); {x}.argmax(dim=-2, keepdim=True); {x}.all(dim=-1, keepdim=True)
torch.ops.higher_order.cond({x}.sum() > 0, lambda a, b: (a + 1, b * 2), lambda a, b: (a - 1, b * 3), ({x}, {y})); torch.ops.higher_order.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2 - 1), (torch.tensor(0), {x}), ()); torch.ops.higher_order.scan(lambda c, a: [c + a, c * 2], [{x}[0] * 1], [{x}], []); torch.ops.higher_order.map_impl(lambda a: (a * 2,), ({x},), ())
in_autocast(lambda a, b: a @ b.t() + 1, {x}, {y}); in_autocast(lambda a, b: torch.nn.functional.linear(a.float(), b.float()).softmax(-1), {x}, {y}); in_checkpoint(lambda a, b: (a.float() * b).sin() + 1, {x}, {y}); without_gradients(lambda a, b: a * b, {x}, {y}); without_gradients(lambda a, b: a.mul_(2), {x}, {y}); or_else(lambda a, b: a + b, {x}, {y}); or_else(lambda a, b: a.view(-1), {x}, {y}); Square.apply({x})
torch.vmap(lambda a: a * 2 + a.sum())({x}); torch.vmap(lambda a, b: a.float() @ b.float())({x}, {y}); torch.autograd.grad(({x} * {x}).sum(), {x}, create_graph=True)[0]; torch.func.grad(lambda a: (a * a).sum())({x}.float()); torch.func.jvp(lambda a: a * a, ({x}.float(),), ({x}.float(),))
[{x} + i for i in range({x}.shape[0] % 3)]; sum({x}[i] for i in range(min({x}.shape[0], 2))); dict(a={x})["a"].add(1); [a * 2 for a in {x}]; torch.stack([{x}, {y}][: {k}]); [*{x}.unbind(0), {y}][-2]
{x}.float() @ WEIGHT[: {x}.shape[-1]]; torch.nn.functional.linear({x}.float(), WEIGHT.t()[:, : {x}.shape[-1]], WEIGHT[0]); torch.nn.functional.embedding({x}.long().abs() % 8, WEIGHT); {x} * WEIGHT[0, : {x}.shape[-1]]; torch.nn.functional.layer_norm({x}.float(), {x}.shape[-1:], WEIGHT[: {x}.shape[-1], 0])
{x}[({x} > 0).any(-1)]; {x}[{x}.sum(-1) > 0]; {x}[{x} > {y}]; torch.where({x} > 0, {x}, 0.5); {x}.masked_fill({x} != {x}, 0); {x}.masked_fill(torch.ones({x}.shape[-1]).cumsum(0) > 2, 0); {x}.clamp(min=None, max={y}); {x}.clamp({y}, {y} + 1); {x}.nan_to_num(0, 1, -1); {x}.type(torch.float32); {x}.new_tensor([1, 2]); {x}.new_zeros({y}.shape); torch.zeros_like({x}, dtype=torch.int64); {x}.data * 2
"""
_WEIGHTS = (
    (UNARY, 6),
    (BINARY, 5),
    (VIEWS, 7),
    (WRITES, 7),
    (DATA, 2),
    (RANDOM, 1),
    (NUMERIC, 6),
    (FORMS, 5),
)
TEMPLATES = [
    ([t.strip() for line in text.splitlines() for t in line.split(";") if t.strip()], w)
    for text, w in _WEIGHTS
]


def grid(*sizes: int) -> torch.Tensor:
    """Small multiples of a quarter, so that most arithmetic is exact."""
    count = int(numpy.prod(sizes))
    return ((torch.arange(count) * 7 % 13 - 5).float() / 4).reshape(sizes)


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of random statements.

    Attributes:
        kinds: names of ARGUMENTS, whose values are the parameters `a0`, `a1`, ...
        lines: statements.
        results: the variables that it returns.
        gradients: floating arguments require gradients, which are compared.
    """

    kinds: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    gradients: bool = False

    def arguments(self, n: int, m: int) -> list[Any]:
        made = [x for kind in self.kinds for x in eval(ARGUMENTS[kind], {**SCOPE, "n": n, "m": m})]
        if self.gradients:
            for x in tree_leaves(made):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    x.requires_grad_()
        return made

    def parameters(self) -> list[tuple[str, str]]:
        """The names of the parameters, and their kinds."""
        scope = {**SCOPE, "n": 2, "m": 2}
        kinds = [kind for kind in self.kinds for _ in eval(ARGUMENTS[kind], scope)]
        return [(f"a{i}", kind) for i, kind in enumerate(kinds)]

    @property
    def source(self) -> str:
        names = [name for name, _kind in self.parameters()]
        body = [
            f"{name} = {name} * 1" for name, kind in self.parameters() if self.gradients and kind not in READS
        ]
        lines = [*body, *self.lines, f"return [{', '.join(self.results)}]"]
        return f"def f({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in lines)

    def function(self) -> Any:
        scope = dict(SCOPE)
        exec(compile(self.source, "<program>", "exec"), scope)
        return scope["f"]

    def pruned(self) -> Program:
        """Without statements that nothing reads: where eager raises for an unused value, a graph need not."""
        kept: list[str] = []
        used = set(self.results)
        for line in reversed(self.lines):
            target, is_assigned, value = line.partition(" = ")
            if is_assigned and target not in used and target.isalnum() and not _EFFECT.search(value):
                continue
            kept.append(line)
            used.update(re.findall(r"\b[av]\d+\b", line))
        return dataclasses.replace(self, lines=tuple(reversed(kept)))


_EFFECT = re.compile(r"[a-z]_\(|out=|rand|dropout|bernoulli|normal")


class Square(torch.autograd.Function):
    """A function with a formula of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 2


def in_autocast(function: Any, *args: torch.Tensor) -> Any:
    with torch.autocast(args[0].device.type, torch.bfloat16):
        return function(*args)


def in_checkpoint(function: Any, *args: torch.Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)


def without_gradients(function: Any, *args: torch.Tensor) -> Any:
    with torch.no_grad():
        return function(*args)


def or_else(function: Any, *args: torch.Tensor) -> Any:
    try:
        return function(*args)
    except RuntimeError:
        return args[0] * 1


SCOPE = {
    "torch": torch,
    "grid": grid,
    "WEIGHT": grid(8, 3),
    **{f.__name__: f for f in (Square, in_autocast, in_checkpoint, without_gradients, or_else)},
}


def generate(seed: int, statements: int = 30, gradients: bool = False) -> Program:
    """The program of a seed."""
    choose = random.Random(seed)
    kinds = tuple(choose.choice(list(ARGUMENTS)) for _ in range(choose.choice((1, 2, 2, 3))))
    start = Program(kinds, (), (), gradients)
    n, m = choose.choice(((3, 4), (2, 2), (4, 3)))
    torch.manual_seed(seed)
    values: dict[str, Any] = {f"a{i}": x for i, x in enumerate(start.arguments(n, m))}
    lines: list[str] = []
    for name, kind in start.parameters():
        if gradients and kind not in READS:
            values[name] = values[name] * 1
        for read in READS.get(kind, ()):
            lines.append(f"v{len(values)} = {read.format(a=name)}")
            values[f"v{len(values)}"] = eval(read.format(a=name), {**SCOPE, **values})
    for _ in range(choose.randint(statements // 4, statements)):
        _grow(choose, values, lines)
    recent = [name for name, x in values.items() if isinstance(x, (torch.Tensor, int, float))][-8:]
    results = tuple(choose.sample(recent, min(len(recent), choose.randint(1, 4)))) if recent else ()
    return Program(kinds, tuple(lines), results, gradients).pruned()


def _grow(choose: random.Random, values: dict[str, Any], lines: list[str]) -> None:
    """Append a statement that eager takes."""
    tensors = [
        name for name, value in values.items() if isinstance(value, torch.Tensor) and value.numel() < 600
    ]
    templates = choose.choices([t for t, _ in TEMPLATES], [w for _, w in TEMPLATES])[0]
    x, y = (
        choose.choice(tensors[-6:] if choose.random() < 0.7 else tensors) if tensors else "a0"
        for _ in range(2)
    )
    numbers = [name for name, value in values.items() if type(value) is int]
    number = choose.choice([*numbers[-3:], f"{y}.shape[0]", "2", "1", "-1"])
    line = choose.choice(templates).format(x=x, y=y, k=number)
    is_write = templates is TEMPLATES[3][0]
    name = f"v{len(values)}"
    if not is_write or (choose.random() < 0.4 and " = " not in line and "+=" not in line):
        line = f"{name} = {line}"
    scope = {**SCOPE, **values}
    try:
        exec(line, scope)
    except Exception:
        return
    lines.append(line)
    made = scope.get(name)
    if isinstance(made, (torch.Tensor, int, float)):
        values[name] = made
    elif isinstance(made, (tuple, list)):
        values[name] = made
        _unpack(name, made, values, lines)


def _unpack(name: str, made: Sequence[Any], values: dict[str, Any], lines: list[str]) -> None:
    for index, piece in enumerate(made[:2]):
        if isinstance(piece, torch.Tensor):
            own = f"v{len(values)}"
            values[own] = piece
            lines.append(f"{own} = {name}[{index}]")
