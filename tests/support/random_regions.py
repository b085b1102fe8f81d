"""Random differentiable graphs: views, writes, broadcasting, random numbers, unused inputs, aliased results.

A graph is built by running it: a step that eager refuses is left out, so that every graph is one that eager runs.
"""

from __future__ import annotations

import operator
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

UNARY = (
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    F.gelu,
    F.silu,
    torch.neg,
    torch.abs,
    F.softplus,
    torch.cos,
    F.relu,
)
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, operator.add, operator.mul)
IN_PLACE = ("mul_", "add_", "sub_", "copy_")
IN_PLACE_UNARY = ("sin_", "tanh_", "relu_", "sigmoid_")


class Builder:
    """Adds random steps to a graph, running each on example values.

    Args:
        rng: decides everything.
        writes: also in-place operators, into inputs too.
        draws: also random numbers.
        eager: a function to call that no graph holds, or None.
    """

    def __init__(self, rng: random.Random, *, writes: bool, draws: bool, eager: Any = None) -> None:
        self.rng, self.writes, self.draws, self.eager = rng, writes, draws, eager
        self.graph = fx.Graph()
        self.nodes: list[fx.Node] = []
        self.values: dict[fx.Node, Any] = {}

    def input(self, value: torch.Tensor) -> None:
        node = self.graph.placeholder(f"x{len(self.nodes)}")
        node.meta["example_value"] = value
        self.values[node] = value
        self.nodes.append(node)

    def step(self) -> None:
        """One step of a random kind; nothing, if eager refuses it."""
        kinds = [self._unary, self._binary, self._view, self._view, self._reduce, self._mix, self._norm]
        if self.writes:
            kinds += [self._write, self._write]
        if self.draws:
            kinds.append(self._draw)
        if self.eager is not None:
            kinds.append(self._eager)
        self.rng.choice(kinds)()

    def call(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node | None:
        values = fx.map_arg(args, lambda node: self.values[node])
        try:
            if kind == "call_method":
                result = getattr(values[0], target)(*values[1:], **kwargs)
            else:
                result = target(*values, **kwargs)
        except (RuntimeError, IndexError, TypeError):
            return None
        node = self.graph.create_node(kind, target, args, kwargs)
        node.meta["example_value"] = result
        if isinstance(result, torch.Tensor):
            if not result.isfinite().all() or result.numel() > 4096 or result.numel() == 0:
                self.graph.erase_node(node)
                return None
            self.nodes.append(node)
        self.values[node] = result
        return node

    def pick(self, dims: int = 0) -> fx.Node:
        """A node of at least `dims` dimensions, the last ones more likely."""
        fitting = [node for node in self.nodes if self.values[node].dim() >= dims] or self.nodes
        return fitting[-1 - min(int(self.rng.expovariate(0.3)), len(fitting) - 1)]

    def _unary(self) -> None:
        self.call("call_function", self.rng.choice(UNARY), self.pick())

    def _binary(self) -> None:
        other: Any = self.pick() if self.rng.random() < 0.8 else self.rng.choice([2.0, 0.5, 3])
        self.call("call_function", self.rng.choice(BINARY), self.pick(), other)

    def _view(self) -> None:
        node = self.pick(1)
        dims = self.values[node].dim()
        if dims == 0:
            return
        dim = self.rng.randrange(dims)
        size = self.values[node].shape[dim]
        kind = self.rng.randrange(9)
        if kind == 0:
            self.call("call_method", "transpose", node, dim, self.rng.randrange(dims))
        elif kind == 1:
            self.call("call_method", "reshape", node, -1)
        elif kind == 2 and size > 1:
            self.call("call_method", "narrow", node, dim, self.rng.randrange(size - 1), size // 2)
        elif kind == 3:
            self.call("call_method", "select", node, dim, self.rng.randrange(size))
        elif kind == 4:
            self.call("call_method", "unsqueeze", node, dim)
        elif kind == 5 and size > 1:
            parts = self.call("call_method", "chunk", node, 2, dim)
            if parts is not None:
                self.call("call_function", operator.getitem, parts, 0)
                self.call("call_function", operator.getitem, parts, 1)
        elif kind == 6:
            self.call("call_method", "flatten", node)
        elif kind == 7:
            self.call("call_function", operator.getitem, node, (Ellipsis, slice(None, None, 2)))
        else:
            self.call("call_method", "expand", node, 2, *self.values[node].shape)

    def _reduce(self) -> None:
        node = self.pick(1)
        dim = self.rng.randrange(max(1, self.values[node].dim()))
        target = self.rng.choice([torch.sum, torch.mean, torch.amax, torch.logsumexp])
        self.call("call_function", target, node, dim, keepdim=self.rng.random() < 0.5)

    def _mix(self) -> None:
        left, right = self.pick(1), self.pick(1)
        kind = self.rng.randrange(4)
        if kind == 0:
            self.call("call_function", torch.matmul, left, right)
        elif kind == 1:
            self.call("call_function", F.linear, left, right)
        elif kind == 2:
            self.call("call_function", torch.cat, (left, right), 0)
        else:
            condition = self.call("call_function", torch.gt, left, 0.0)
            if condition is not None:
                self.call("call_function", torch.where, condition, left, right)

    def _norm(self) -> None:
        node = self.pick(1)
        if self.values[node].dim() == 0:
            return
        size = self.values[node].shape[-1]
        kind = self.rng.randrange(3)
        if kind == 0:
            self.call("call_function", torch.softmax, node, -1)
        elif kind == 1 and size > 1:
            self.call("call_function", F.layer_norm, node, (size,))
        else:
            self.call("call_method", self.rng.choice(["detach", "clone", "contiguous"]), node)

    def _write(self) -> None:
        node = self.pick()
        if self.rng.random() < 0.4:
            self.call("call_method", self.rng.choice(IN_PLACE_UNARY), node)
        elif self.rng.random() < 0.3 and self.values[node].dim():
            self.call("call_function", operator.setitem, node, 0, self.pick())
        else:
            self.call("call_method", self.rng.choice(IN_PLACE), node, self.pick())

    def _draw(self) -> None:
        if self.rng.random() < 0.5:
            self.call("call_function", F.dropout, self.pick(), 0.3, True)
        else:
            self.call("call_function", torch.rand_like, self.pick())

    def _eager(self) -> None:
        self.call("call_function", self.eager, self.pick())

    def finish(self) -> fx.GraphModule:
        """The graph with 1 to 4 results, which may be inputs, views of each other, or without gradients."""
        computed = [node for node in self.nodes if self.values[node].is_floating_point()]
        count = self.rng.randint(1, 4)
        results = tuple(
            computed[-1 - min(int(self.rng.expovariate(0.4)), len(computed) - 1)] for _ in range(count)
        )
        self.graph.output(results)
        gm = fx.GraphModule({}, self.graph)
        gm.graph.lint()
        return gm


SHAPES = ((4, 6), (6,), (1, 6), (4, 1), (2, 4, 6), (6, 6), ())


def inputs_of(rng: random.Random, writes: bool) -> list[torch.Tensor]:
    """2 to 5 leaves; some need no gradient."""
    leaves = [torch.randn(rng.choice(SHAPES)) for _ in range(rng.randint(2, 5))]
    for leaf in leaves:
        leaf.requires_grad_(rng.random() < 0.75)
    leaves[0].requires_grad_(True)
    return leaves


def region(
    seed: int, *, writes: bool = False, draws: bool = False, eager: Any = None, steps: int = 12
) -> tuple[fx.GraphModule, list[torch.Tensor], list[bool]]:
    """A random region.

    Returns:
        The graph, its leaves, and which of them go in as `leaf * 1`: what is written must be no leaf.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    leaves = inputs_of(rng, writes)
    moved = [writes and rng.random() < 0.6 for _ in leaves]
    builder = Builder(rng, writes=writes, draws=draws, eager=eager)
    for argument in arguments_of(leaves, moved):
        builder.input(argument)
    for _ in range(steps):
        builder.step()
    return builder.finish(), leaves, moved


def arguments_of(leaves: list[torch.Tensor], moved: list[bool]) -> list[torch.Tensor]:
    """Fresh arguments for a call."""
    own = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    return [leaf * 1 if away else leaf for leaf, away in zip(own, moved, strict=True)]


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides that say where elements are."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def run(function: Any, leaves: list[torch.Tensor], moved: list[bool], seed: int) -> dict[str, Any]:
    """Everything that a caller can see of one call with its backward, or the error's type.

    Which results take part in the loss, and which gradients are asked for, follows from the seed.
    """
    rng = random.Random(seed)
    own = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
    arguments = [leaf * 1 if away else leaf for leaf, away in zip(own, moved, strict=True)]
    torch.manual_seed(seed)
    results = function(*arguments)
    seen: dict[str, Any] = {
        "random": torch.get_rng_state(),
        "results": [t.detach().clone() for t in results],
        "arguments": [t.detach().clone() for t in arguments],
        "facts": [(t.requires_grad, t.dtype, t.shape, _strides(t)) for t in results],
        "shared": [
            [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for b in [*results, *arguments]]
            for a in results
        ],
    }
    roots = [t for t in results if t.requires_grad and rng.random() < 0.8]
    roots += [t for t in arguments if t.grad_fn is not None and rng.random() < 0.3]
    wanted = [leaf for leaf in own if leaf.requires_grad and rng.random() < 0.9]
    if roots and wanted:
        seeds = [torch.randn(t.shape, generator=torch.Generator().manual_seed(seed)) for t in roots]
        kept = rng.random() < 0.3
        seen["gradients"] = torch.autograd.grad(roots, wanted, seeds, allow_unused=True, retain_graph=kept)
        if kept:
            seen["again"] = torch.autograd.grad(roots, wanted, seeds, allow_unused=True)
    return seen
