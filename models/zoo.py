"""The registry of the zoo: how to build each network, what to feed it, how exact its answer must be."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from staticrt.errors import OptionError
from staticrt.models.control_flow import FixedPoint
from staticrt.models.convnext import ConvNeXt
from staticrt.models.decoder import Gpt, GptDecode, GptPrefill
from staticrt.models.dlrm import DENSE_FEATURES, Dlrm
from staticrt.models.encoder import Bert, TinyEncoder
from staticrt.models.graph_network import GraphNetwork
from staticrt.models.lstm import LstmTagger, UnrolledLstm
from staticrt.models.mlp import Mlp
from staticrt.models.mobilenet import MobileNetV2
from staticrt.models.pointwise import PointwiseChain
from staticrt.models.resnet import resnet18, resnet50
from staticrt.models.scan import Mamba
from staticrt.models.unet import UNet
from staticrt.models.vit import Vit
from staticrt.models.wide_deep import WideDeep

OVERHEAD_BOUND = "overhead-bound"  # the cost is calls, not arithmetic
COMPUTE_BOUND = "compute-bound"  # the cost is arithmetic or memory traffic

Sizes = Mapping[str, int]
Arguments = tuple[Tensor, ...]


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Attributes:
        name: its name on the command line and in tables.
        make: builds the module; called with the random state seeded.
        feed: makes the positional arguments for given sizes from a seeded generator.
        variants: named sizes; the first is the one benchmarks use. Sizes of 1 specialise some traces:
            `trace_variant` has none.
        dynamic: for each argument, the dimensions whose size differs between variants.
        tag: OVERHEAD_BOUND or COMPUTE_BOUND.
        rtol, atol: how far an answer may be from eager's, as in `torch.allclose`; atol is in units of the
            largest magnitude in eager's answer.
    """

    name: str
    make: Callable[[], nn.Module]
    feed: Callable[[torch.Generator, Sizes], Arguments]
    variants: Mapping[str, Sizes]
    dynamic: tuple[tuple[int, ...], ...]
    tag: str
    rtol: float = 1e-4
    atol: float = 1e-5

    @property
    def default_variant(self) -> str:
        return next(iter(self.variants))

    @property
    def trace_variant(self) -> str:
        """The first variant without a size of 1, which torch.export would take for a constant."""
        return next(name for name, sizes in self.variants.items() if min(sizes.values()) > 1)

    def build(self, seed: int = 0) -> nn.Module:
        """The module in eval mode; the same seed gives the same weights, and torch's own seed stays."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make().eval()
            _randomise_norms(module)
        return module

    def inputs(self, seed: int = 0, variant: str | None = None) -> Arguments:
        """Positional arguments; the same seed and variant give the same values.

        Raises:
            OptionError: the entry has no such variant.
        """
        name = self.default_variant if variant is None else variant
        if name not in self.variants:
            raise OptionError(
                f"model {self.name!r} has no variant {name!r}", fix=f"choose from {', '.join(self.variants)}"
            )
        return self.feed(torch.Generator().manual_seed(seed), self.variants[name])

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """For `torch.export.export`: every dimension in `dynamic` must stay symbolic."""
        return tuple(dict.fromkeys(dims, Dim.DYNAMIC) for dims in self.dynamic)


def _randomise_norms(module: nn.Module) -> None:
    """Statistics and gains away from 0 and 1, so that a norm folded wrongly changes the answer."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_(0.0, 0.1)
            part.running_var.uniform_(0.8, 1.2)
        if isinstance(part, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(part.weight, 0.8, 1.2)
            nn.init.normal_(part.bias, 0.0, 0.1)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _tokens(generator: torch.Generator, vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, generator=generator)


def _mlp(generator: torch.Generator, sizes: Sizes) -> Arguments:
    return (_normal(generator, sizes["batch"], 64),)


def _wide_deep(generator: torch.Generator, sizes: Sizes) -> Arguments:
    batch = sizes["batch"]
    return _normal(generator, batch, 1, 32), _normal(generator, batch, 1, 32), _normal(generator, batch, 50)


def _dlrm(generator: torch.Generator, sizes: Sizes) -> Arguments:
    batch, items, tables = sizes["batch"], sizes["items"], 26
    indices = _tokens(generator, 1000, tables, batch * items)
    # Bags of uneven length: each begins up to items - 1 before its even share.
    even = torch.arange(batch) * items
    early = _tokens(generator, items, tables, batch) if items > 1 else torch.zeros(tables, batch).long()
    offsets = (even - early).clamp(min=0)
    return _normal(generator, batch, DENSE_FEATURES), indices, offsets


def _vectors(generator: torch.Generator, sizes: Sizes, dim: int) -> Arguments:
    return (_normal(generator, sizes["batch"], sizes["seq"], dim),)


def _bert(generator: torch.Generator, sizes: Sizes) -> Arguments:
    batch, seq = sizes["batch"], sizes["seq"]
    lengths = torch.arange(batch).remainder(2) * (seq // 4)  # every second sample is padded by a quarter
    mask = torch.arange(seq).unsqueeze(0) < seq - lengths.unsqueeze(1)
    return _tokens(generator, 2000, batch, seq), mask


def _decode(generator: torch.Generator, sizes: Sizes) -> Arguments:
    cache = (6, sizes["batch"], 8, sizes["past"], 32)
    token = _tokens(generator, 1000, sizes["batch"], 1)
    return token, _normal(generator, *cache), _normal(generator, *cache)


def _images(generator: torch.Generator, sizes: Sizes) -> Arguments:
    return (_normal(generator, sizes["batch"], 3, sizes["height"], sizes["width"]),)


def _graph(generator: torch.Generator, sizes: Sizes) -> Arguments:
    nodes, edges = sizes["nodes"], sizes["edges"]
    return _normal(generator, nodes, 16), _tokens(generator, nodes, 2, edges)


def _image_sizes(side: int, *others: tuple[int, int, int]) -> dict[str, Sizes]:
    shapes = [(1, side, side), *others]
    return {f"b{b}-{h}x{w}": {"batch": b, "height": h, "width": w} for b, h, w in shapes}


def _batches(*batches: int, **fixed: int) -> dict[str, Sizes]:
    return {f"b{batch}": {"batch": batch, **fixed} for batch in batches}


def _sequences(*shapes: tuple[int, int]) -> dict[str, Sizes]:
    return {f"b{batch}-s{seq}": {"batch": batch, "seq": seq} for batch, seq in shapes}


_NCHW = ((0, 2, 3),)

ENTRIES: tuple[Entry, ...] = (
    Entry("mlp", Mlp, _mlp, _batches(1, 8, 64), ((0,),), OVERHEAD_BOUND),
    Entry("wide_deep", WideDeep, _wide_deep, _batches(1, 8, 64), ((0,),) * 3, OVERHEAD_BOUND),
    Entry(
        "dlrm_b1",
        Dlrm,
        _dlrm,
        {
            "b1-i4": {"batch": 1, "items": 4},
            "b8-i4": {"batch": 8, "items": 4},
            "b3-i7": {"batch": 3, "items": 7},
        },
        ((0,), (1,), (1,)),
        OVERHEAD_BOUND,
    ),
    Entry(
        "dlrm_b64",
        Dlrm,
        _dlrm,
        {"b64-i4": {"batch": 64, "items": 4}, "b16-i2": {"batch": 16, "items": 2}},
        ((0,), (1,), (1,)),
        COMPUTE_BOUND,
    ),
    Entry(
        "encoder_tiny",
        TinyEncoder,
        lambda generator, sizes: _vectors(generator, sizes, 64),
        _sequences((1, 16), (4, 16), (2, 33)),
        ((0, 1),),
        OVERHEAD_BOUND,
    ),
    Entry("bert_base", Bert, _bert, _sequences((1, 128), (2, 128), (3, 17)), ((0, 1), (0, 1)), COMPUTE_BOUND),
    Entry(
        "gpt_prefill",
        lambda: GptPrefill(Gpt()),
        lambda generator, sizes: (_tokens(generator, 1000, sizes["batch"], sizes["seq"]),),
        _sequences((1, 64), (2, 64), (3, 17)),
        ((0, 1),),
        COMPUTE_BOUND,
    ),
    Entry(
        "gpt_decode",
        lambda: GptDecode(Gpt()),
        _decode,
        {
            "b1-p64": {"batch": 1, "past": 64},
            "b2-p64": {"batch": 2, "past": 64},
            "b3-p100": {"batch": 3, "past": 100},
        },
        ((0,), (1, 3), (1, 3)),
        COMPUTE_BOUND,
    ),
    Entry(
        "lstm_unrolled",
        UnrolledLstm,
        lambda generator, sizes: (_normal(generator, sizes["batch"], 32, 64),),
        _batches(1, 4, 16),
        ((0,),),
        OVERHEAD_BOUND,
    ),
    Entry(
        "lstm_tagger",
        LstmTagger,
        lambda generator, sizes: (_tokens(generator, 1000, sizes["batch"], sizes["seq"]),),
        _batches(1, 4, 3, seq=32),
        ((0,),),  # torch.export unrolls nn.LSTM over seq, which is thereby a constant
        COMPUTE_BOUND,
    ),
    Entry(
        "resnet18", resnet18, _images, _image_sizes(224, (2, 224, 224), (3, 96, 128)), _NCHW, COMPUTE_BOUND
    ),
    Entry(
        "resnet50", resnet50, _images, _image_sizes(224, (2, 224, 224), (3, 96, 128)), _NCHW, COMPUTE_BOUND
    ),
    Entry(
        "mobilenet_v2",
        MobileNetV2,
        _images,
        _image_sizes(224, (2, 224, 224), (3, 96, 128)),
        _NCHW,
        COMPUTE_BOUND,
    ),
    Entry(
        "convnext", ConvNeXt, _images, _image_sizes(224, (2, 224, 224), (3, 96, 128)), _NCHW, COMPUTE_BOUND
    ),
    Entry("unet", UNet, _images, _image_sizes(128, (2, 128, 128), (3, 80, 112)), _NCHW, COMPUTE_BOUND),
    Entry("vit_s", Vit, _images, _image_sizes(224, (2, 224, 224), (3, 224, 224)), ((0,),), COMPUTE_BOUND),
    Entry(
        "graph_network",
        GraphNetwork,
        _graph,
        {
            "n64-e256": {"nodes": 64, "edges": 256},
            "n50-e100": {"nodes": 50, "edges": 100},
            "n200-e31": {"nodes": 200, "edges": 31},
        },
        ((0,), (1,)),
        OVERHEAD_BOUND,
    ),
    Entry(
        "pointwise_norm",
        PointwiseChain,
        lambda generator, sizes: (_normal(generator, sizes["rows"], 1024),),
        {"r64": {"rows": 64}, "r7": {"rows": 7}, "r200": {"rows": 200}},
        ((0,),),
        COMPUTE_BOUND,
    ),
    Entry(
        "mamba_steps",
        lambda: Mamba(steps=32),
        lambda generator, sizes: _vectors(generator, sizes, 32),
        _batches(1, 4, 16, seq=32),
        ((0,),),
        OVERHEAD_BOUND,
    ),
    Entry(
        "mamba_parallel",
        Mamba,
        lambda generator, sizes: _vectors(generator, sizes, 32),
        _sequences((1, 32), (4, 32), (2, 50)),
        ((0, 1),),
        COMPUTE_BOUND,
    ),
    Entry(
        "control_flow",
        FixedPoint,
        lambda generator, sizes: (_normal(generator, sizes["batch"], 32),),
        _batches(1, 8, 5),
        ((0,),),
        OVERHEAD_BOUND,
    ),
)

_BY_NAME = {entry.name: entry for entry in ENTRIES}


def get(name: str) -> Entry:
    """The entry of that name.

    Raises:
        OptionError: there is none.
    """
    return select([name])[0]


def select(patterns: Iterable[str] | None = None) -> list[Entry]:
    """Entries whose names match any shell-style pattern, or whose tag equals it, in the zoo's order.

    Raises:
        OptionError: a pattern matches nothing; the message suggests the nearest names.
    """
    if patterns is None:
        return list(ENTRIES)
    chosen: set[str] = set()
    for pattern in patterns:
        found = {e.name for e in ENTRIES if fnmatch.fnmatchcase(e.name, pattern) or e.tag == pattern}
        if not found:
            near = difflib.get_close_matches(pattern, _BY_NAME, n=3) or list(_BY_NAME)
            raise OptionError(f"no model matches {pattern!r}", fix=f"choose from {', '.join(near)}")
        chosen |= found
    return [entry for entry in ENTRIES if entry.name in chosen]
