"""The ordered list of passes, with the reasons for the order, and the runner that times and checks them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from staticrt.errors import OptionError
from staticrt.passes.accumulate_products import AccumulateProducts
from staticrt.passes.base import GraphPass
from staticrt.passes.canonical_views import CanonicalViews
from staticrt.passes.channels_last import ChannelsLast
from staticrt.passes.cse import MergeEqualCalls
from staticrt.passes.dead_code import RemoveDeadCode
from staticrt.passes.differential import Comparison
from staticrt.passes.fold_batch_norm import FoldBatchNorm
from staticrt.passes.fold_constants import FoldConstants
from staticrt.passes.functional import FunctionaliseInPlace
from staticrt.passes.fuse_activations import FuseActivations
from staticrt.passes.fuse_attention import FuseAttention
from staticrt.passes.fuse_norms import FuseNorms
from staticrt.passes.join_gradients import JoinGradients
from staticrt.passes.merge_pieces import MergePieces
from staticrt.passes.merge_sizes import MergeSizes
from staticrt.passes.no_ops import RemoveNoOps
from staticrt.passes.share_heads import ShareHeads
from staticrt.passes.split_losses import SplitLosses


@dataclass(frozen=True)
class PipelineOptions:
    """Assumptions that the passes may make.

    Attributes:
        inference: the graph is not differentiated; if False, nodes that only stop gradients stay.
        freeze: parameters and buffers keep their values for the life of the result, so that they may
            be folded into each other. Default False: an optimizer step or `load_state_dict` is seen.
        constants: tensors behind the placeholders that never change, by placeholder target.
        tracked: targets of the placeholders (parameters, buffers) whose changes the runtime notices: it
            computes what depends on them alone once, and again after a change.
        weights: tensors behind parameters and buffers, by placeholder target; read only with `freeze`.
        fold_limit_bytes: the largest constant that folding may make, and the most it may add in all.
        copies_weights: kernels may keep packed copies of large weights, too: norms are folded into those of 1x1 kernels.
    """

    inference: bool = True
    freeze: bool = False
    tracked: frozenset[str] = frozenset()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fold_limit_bytes: int = 1 << 20
    copies_weights: bool = False


def _kept(options: PipelineOptions) -> frozenset[str]:
    """Placeholders whose dependent computations run once instead of in every call."""
    return frozenset(options.weights) if options.freeze else options.tracked


# The order. Each line: how to make the pass, and on which passes it builds.
PIPELINE: tuple[tuple[Callable[[PipelineOptions], GraphPass], str], ...] = (
    (
        lambda o: FunctionaliseInPlace(),
        "first: a value that is written later can't be merged, folded or fused",
    ),
    (lambda o: MergeSizes(), "before views are compared: equal sizes become one node or a literal"),
    (lambda o: RemoveNoOps(inference=o.inference), "before patterns are sought: detach and clone hide them"),
    (lambda o: CanonicalViews(), "after no-ops went, chains of views are next to each other"),
    (lambda o: MergePieces(), "on canonical views; pieces that are selected alike become equal calls"),
    (lambda o: MergeEqualCalls(), "equal values have equal arguments only after the passes above"),
    (lambda o: RemoveDeadCode(), "the passes below count the readers of a value"),
    (lambda o: SplitLosses(), "after equal calls were merged"),
    (lambda o: JoinGradients(), "after equal calls were merged, and before sums are changed otherwise"),
    (lambda o: AccumulateProducts(), "on canonical views: sums of gradients lie next to their products"),
    (lambda o: FuseActivations(), "on graphs without no-op casts in between"),
    (lambda o: FuseNorms(), "as the one before and the next one"),
    (lambda o: FuseAttention(), "on canonical transposes; before folding, which only shortens its operands"),
    (lambda o: ShareHeads(), "after attention was recognised, written out or not"),
    (
        lambda o: FoldBatchNorm(_kept(o), o.copies_weights),
        "writes calls on weights, which the next pass computes, or the runtime once",
    ),
    (
        lambda o: FoldConstants(
            o.constants, weights=o.weights if o.freeze else None, limit_bytes=o.fold_limit_bytes
        ),
        "after merging, so that equal constants are made once",
    ),
    (lambda o: ChannelsLast(_kept(o)), "after norms went into weights, which makes its regions larger"),
    (lambda o: RemoveDeadCode(), "last: the others leave behind what they replaced"),
)


@dataclass(frozen=True)
class PassReport:
    """One pass of one run: places rewritten, nodes after it, seconds it took with its checks."""

    name: str
    changed: bool
    count: int
    num_nodes: int
    seconds: float


@dataclass(frozen=True)
class PipelineReport:
    """The reports of all passes that ran on `gm`."""

    gm: fx.GraphModule
    passes: tuple[PassReport, ...]

    @property
    def changed(self) -> bool:
        return any(p.changed for p in self.passes)

    def __str__(self) -> str:
        rows = [
            f"{p.name:<32} {p.count:>6} rewritten {p.num_nodes:>7} nodes {p.seconds * 1e3:>9.2f} ms"
            for p in self.passes
        ]
        return "\n".join(rows)


def default_passes(options: PipelineOptions | None = None) -> list[GraphPass]:
    """The pipeline's passes with their options, in order."""
    options = options or PipelineOptions()
    return [make(options) for make, _why in PIPELINE]


def run_pipeline(
    gm: fx.GraphModule,
    *,
    disabled: Collection[str] = (),
    options: PipelineOptions | None = None,
    extra: Sequence[GraphPass] = (),
    compare_with: Sequence[Any] | None = None,
) -> PipelineReport:
    """Run the pipeline on `gm`, in place.

    Args:
        gm: functional ATen graph, fake-tensor `meta["val"]` on every call.
        disabled: names of passes to leave out.
        options: what the passes may assume.
        extra: the user's own passes, run before the last one (dead code).
        compare_with: example inputs, one per placeholder. If given, the graph is run eagerly before
            and after each pass that changed it; results, writes, aliases and the random state must agree.

    Raises:
        OptionError: `disabled` names no pass.
        PassError: a pass failed, or with `compare_with` changed the graph's meaning. `gm` is then as
            that pass left it.
    """
    passes = default_passes(options)
    passes[-1:-1] = list(extra)
    unknown = sorted(set(disabled) - {p.name for p in passes})
    if unknown:
        raise OptionError(
            f"cannot disable {unknown[0]!r}: no such pass", fix=f"passes: {', '.join(p.name for p in passes)}"
        )
    comparison = Comparison(gm, compare_with) if compare_with is not None else None
    reports = []
    for graph_pass in passes:
        if graph_pass.name in disabled:
            continue
        start = time.perf_counter()
        result = graph_pass(gm, recompile=False)
        seconds = time.perf_counter() - start
        reports.append(
            PassReport(graph_pass.name, result.changed, result.count, len(gm.graph.nodes), seconds)
        )
        if comparison is not None and result.changed:
            comparison.check(gm, graph_pass.name, graph_pass.tolerance)
    if any(report.changed for report in reports):
        gm.recompile()
    return PipelineReport(gm, tuple(reports))
