"""Keep the images of a convolutional network in channels-last memory.

A kernel that sums over channels reads fastest if the channels of a pixel are adjacent. Eager converts around every
convolution, or computes in the slower layout; here whole regions (convolutions, and operators that keep their
layout: pointwise operators, pooling, concatenation) run channels last, and only tensors that cross a
region's border are converted. Values, and the strides of all tensors outside, do not change.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import tuning
from staticrt.ops.facts import Cost
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, Tolerance, register_pass, tensor_meta
from staticrt.passes.effects import named_argument, node_facts
from staticrt.passes.rewrite import fake_value, insert_call
from staticrt.passes.symbols import known_equal, same_meta
from staticrt.shapes.fake_results import channels_last_strides, contiguous_strides
from staticrt.shapes.size_env import NeedsShapeEnv

aten = torch.ops.aten
CONVS = frozenset({aten.conv2d.default, aten.convolution.default, aten.conv_transpose2d.input})
POOLS = frozenset(
    {
        aten.max_pool2d.default,
        aten.avg_pool2d.default,
        aten.adaptive_avg_pool2d.default,
        aten._adaptive_avg_pool2d.default,
    }
)
UPSAMPLING = frozenset({
    aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec, aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact2d.vec, aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec,
})  # fmt: skip
SELECT = aten.index_select.default
CARRIERS = POOLS | UPSAMPLING | {aten.cat.default}
# Operators whose result may have the same strides for every input layout; the fake result decides.
INDIFFERENT = frozenset({
    aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.view.default, aten.reshape.default,
    aten.squeeze.dims, aten.flatten.using_ints, aten.layer_norm.default, aten.linear.default,
})  # fmt: skip


@register_pass
class ChannelsLast(GraphPass):
    """Run regions of convolutions channels last, with conversions at their borders only.

    Only where a region has more convolutions than borders to convert; only float32 on CPU; only where
    all weights of its convolutions keep their values from call to call, so that they are reordered once.
    Values that are written in place stay as they are.

    Requires: ATen-level graph.
    Ensures:  outputs with the strides they had, equal within the order of accumulation.

    Args:
        fixed: targets of the placeholders or `get_attr`s whose tensors may be kept reordered.
    """

    name = "channels-last"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def __init__(self, fixed: frozenset[str]) -> None:
        self.fixed = fixed

    def run(self, gm: fx.GraphModule) -> PassResult:
        if not self.fixed or not any(n.target in CONVS for n in gm.graph.nodes):
            return PassResult(gm, changed=False)
        fixed = _fixed_nodes(gm, self.fixed)
        aliases = AliasInfo(gm)
        members = [n for n in gm.graph.nodes if _can_join(n, fixed) and not aliases.is_written(n)]
        count = 0
        for region in _regions(members):
            count += _Region(region).convert()
        return PassResult(gm, changed=count > 0, count=count)


def _fixed_nodes(gm: fx.GraphModule, names: frozenset[str]) -> set[fx.Node]:
    """Nodes that depend on the tensors `names` alone."""
    found: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            if str(node.target) in names:
                found.add(node)
        elif node.op == "call_function" and node.all_input_nodes and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _can_join(node: fx.Node, fixed: set[fx.Node]) -> bool:
    """Whether `node` could run channels last: it makes one plain float image from images."""
    meta = tensor_meta(node)
    if node.op != "call_function" or meta is None or not _is_image(meta) or node in fixed:
        return False
    if not (is_contiguous(meta) or is_channels_last(meta)):
        return False
    if node.target in CONVS:
        weight = tensor_meta(node.args[1])
        return weight is not None and weight.dim() == 4 and node.args[1] in fixed
    if node.target is aten.cat.default:
        return named_argument(node, "dim", 0) in (1, -3) and all(
            _is_image_node(n) for n in node.all_input_nodes
        )
    if node.target is SELECT:
        return _is_image_node(node.all_input_nodes[0]) and node.args[1] in (2, 3, -2, -1)
    if node.target in CARRIERS:
        return True
    return _is_pointwise(node, meta)


def _is_pointwise(node: fx.Node, meta: torch.Tensor) -> bool:
    """A pointwise operator on images of one size, numbers, and one value per channel."""
    facts = node_facts(node)
    if facts.cost is not Cost.POINTWISE or not facts.fusable or facts.mutates:
        return False
    full = False
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if value.dim() == 4 and all(known_equal(a, b) for a, b in zip(value.shape, meta.shape, strict=True)):
            full |= _is_image(value)
            if not _is_image(value):
                return False
        elif not all(known_equal(size, 1) for size in [*value.shape[:-3], *value.shape[-2:]]):
            return False
    return full


def _is_image(meta: torch.Tensor) -> bool:
    return meta.dim() == 4 and meta.dtype == torch.float32 and meta.device.type == "cpu"


def _is_image_node(node: fx.Node) -> bool:
    meta = tensor_meta(node)
    return meta is not None and _is_image(meta)


def _has_strides(meta: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether it surely has these strides; those of dimensions of one element do not count."""
    return all(
        known_equal(own, stride) or known_equal(size, 1)
        for size, own, stride in zip(meta.shape, meta.stride(), strides, strict=True)
    )


def is_contiguous(meta: torch.Tensor) -> bool:
    """Surely contiguous, for every value of symbolic sizes."""
    return _has_strides(meta, contiguous_strides(meta.fake_mode, meta.shape))  # type: ignore[attr-defined]


def is_channels_last(meta: torch.Tensor) -> bool:
    """Four dimensions, surely channels last in memory."""
    if meta.dim() != 4:
        return False
    return _has_strides(meta, channels_last_strides(meta.fake_mode, meta.shape))  # type: ignore[attr-defined]


def _regions(members: list[fx.Node]) -> list[list[fx.Node]]:
    """Connected members, in graph order; only those with a convolution."""
    inside = set(members)
    region_of: dict[fx.Node, list[fx.Node]] = {}
    order = {node: index for index, node in enumerate(members)}
    for first in members:
        if first in region_of:
            continue
        region = region_of[first] = []
        pending = [first]
        while pending:
            node = pending.pop()
            region.append(node)
            for other in (*node.all_input_nodes, *node.users):
                if other in inside and other not in region_of:
                    region_of[other] = region
                    pending.append(other)
    unique = {id(region): region for region in region_of.values()}
    return [
        sorted(region, key=order.__getitem__)
        for region in unique.values()
        if any(node.target in CONVS for node in region)
    ]


class _Region:
    """One region, how it would look channels last, and the rewriting."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self.nodes = nodes
        self.inside = set(nodes)
        self.values: dict[fx.Node, torch.Tensor] = {}  # fake results, channels last
        self.entries: dict[fx.Node, torch.Tensor] = {}  # images from outside that need converting
        self.leaving: dict[fx.Node, list[fx.Node]] = {}  # nodes whose old layout these users need

    def convert(self) -> int:
        """Rewrite the graph if that pays; the number of nodes that changed their layout."""
        if not self._propagate():
            return 0
        changed = [n for n in self.nodes if not same_meta(self.values[n], n.meta["val"])]
        self._find_leaving(set(changed))
        borders = sum(not _is_cheap(value) for value in self.entries.values())
        borders += sum(not _is_cheap(self.values[n]) for n in self.leaving)
        convs = sum(node.target in CONVS for node in self.nodes)
        if not changed or convs <= borders:
            return 0
        self._rewrite()
        return len(changed)

    def _propagate(self) -> bool:
        for node in self.nodes:
            for source in node.all_input_nodes:
                meta = tensor_meta(source)
                if source in self.inside or source in self.entries or meta is None or not _is_image(meta):
                    continue
                if _is_operand(node, source, meta) and not is_channels_last(meta):
                    self.entries[source] = fake_value(
                        aten.clone.default, (source,), {"memory_format": torch.channels_last}
                    )
            try:
                value = self._value_of(node)
            except Exception:
                return False
            if not isinstance(value, torch.Tensor) or not is_channels_last(value):
                return False
            self.values[node] = value
        return True

    def _value_of(self, node: fx.Node, extra: dict[fx.Node, Any] | None = None) -> Any:
        """The fake result of `node` on what the region's nodes would give."""
        known = ChainMap(extra or {}, self.values, self.entries)
        if node.target is SELECT:
            return fake_value(aten.clone.default, (node,), {"memory_format": torch.channels_last})
        return _fake_call(node, known)

    def _find_leaving(self, changed: set[fx.Node]) -> None:
        for node in self.nodes:
            if node not in changed:
                continue
            users = [u for u in node.users if u not in self.inside and not self._is_indifferent(u)]
            if users:
                self.leaving[node] = users

    def _is_indifferent(self, user: fx.Node) -> bool:
        """Whether `user` returns the same result, strides included, for the new layout."""
        if user.op != "call_function" or user.target not in INDIFFERENT | {aten.permute.default}:
            return False
        try:
            value = self._value_of(user)
        except (Exception, NeedsShapeEnv):
            return False
        if not isinstance(value, torch.Tensor):
            return False
        if user.target in INDIFFERENT and same_meta(value, user.meta["val"]):
            return True
        # A permutation into another layout whose readers are indifferent, too.
        return (
            user.target is aten.permute.default
            and bool(user.users)
            and all(self._reads_any_layout(u, user, value) for u in user.users)
        )

    def _reads_any_layout(self, user: fx.Node, source: fx.Node, value: torch.Tensor) -> bool:
        if user.target not in INDIFFERENT or user.target in (aten.view.default, aten.reshape.default):
            return False
        try:
            result = self._value_of(user, {source: value})
        except (Exception, NeedsShapeEnv):
            return False
        return isinstance(result, torch.Tensor) and same_meta(result, user.meta["val"])

    def _rewrite(self) -> None:
        entered: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            for source in node.all_input_nodes:
                if source in self.entries:
                    if source not in entered:
                        entered[source] = insert_call(
                            node, aten.clone.default, (source,), {"memory_format": torch.channels_last}
                        )
                    node.replace_input_with(source, entered[source])
            node.meta["val"] = self.values[node]
            if node.target is SELECT:
                _select_pixels(node)
        for node, users in self.leaving.items():
            back = insert_call(
                node.next, aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
            for user in users:
                user.replace_input_with(node, back)
        for node in self.nodes:
            for user in list(node.users):
                if user not in self.inside and user.target is aten.permute.default:
                    user.meta["val"] = _fake_call(user, {})


def _select_pixels(node: fx.Node) -> None:
    """Select rows or columns of a channels-last image as such: the result of index_select is contiguous.

    x [N, C, H, W] -> [N, H, W, C] -> rows or columns -> [N, C, H, W], a view
    """
    source: Any
    dim: Any
    source, dim, index = node.args
    pixels = insert_call(node, aten.permute.default, (source, [0, 2, 3, 1]))
    taken = insert_call(node, SELECT, (pixels, dim % 4 - 1, index))
    node.target, node.args = aten.permute.default, (taken, [0, 3, 1, 2])


def _is_operand(node: fx.Node, source: fx.Node, meta: torch.Tensor) -> bool:
    """Whether `source` is an image that `node` computes on, and no weight or value per channel."""
    if node.target in CONVS or node.target is SELECT:
        return node.args[0] is source
    shape = node.meta["val"].shape
    if node.target in CARRIERS:
        return True
    return all(known_equal(a, b) for a, b in zip(meta.shape, shape, strict=True))


def _is_cheap(meta: torch.Tensor) -> bool:
    few = meta.shape[1]
    if isinstance(few, int) and few <= tuning.FEW_CHANNELS:
        return True
    return known_equal(meta.shape[2], 1) and known_equal(meta.shape[3], 1)


def _fake_call(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """The fake result of `node` with other values for some of its inputs."""
    saved = {n: n.meta["val"] for n in node.all_input_nodes if n in known}
    try:
        for source in saved:
            source.meta["val"] = known[source]
        return fake_value(node.target, node.args, node.kwargs)
    finally:
        for source, value in saved.items():
            source.meta["val"] = value
