"""Contexts under test, and what the scenarios ask of them.

Numbers of scenarios come from upstream's `test/inductor/test_cudagraph_trees.py`. Functions take one list
and empty it, as Inductor's do; what upstream compiles as several graphs is written here as several functions, and one
compiled call as `with tree.step()`.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from staticrt.graphs.backend import get_backend
from staticrt.graphs.context import GraphContext
from staticrt.graphs.cpu import CpuBackend
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.graphs.generations import reset_marks
from staticrt.graphs.policy import Policy
from staticrt.graphs.simulated import SimBackend
from staticrt.graphs.tree import Node
from tests.support.cpu_copy_backend import CpuCopyBackend
from tests.support.fake_graph_backend import FakeBackend, fault


class _KeepsPools:
    """A backend that remembers its pools."""

    def __init__(self) -> None:
        self.pools: list[Any] = []
        self.faults: dict[str, list[Any]] = {}  # those of the CPU have none

    def new_pool(self, index: int) -> Any:
        self.pools.append(super().new_pool(index))
        return self.pools[-1]


class RealCpu(_KeepsPools, CpuBackend):
    """The CPU's own backend."""


class RealCopy(_KeepsPools, CpuCopyBackend):
    """The CPU's recordings under CUDA's rules."""


class RealSim(_KeepsPools, SimBackend):
    """The simulated accelerator's own backend. Tests make their tensors on the default device."""

    device = "sim"

    def warmup_scope(self, pool: Any, stream: Any) -> Any:
        fault(self.faults, "warmup")
        return super().warmup_scope(pool, stream)


def device(name: str) -> Any:
    """A backend by name: "copy" and "rebind" are test devices, "cpu", "cpu_copy" and "sim" record for real."""
    real = {"cpu": RealCpu, "cpu_copy": RealCopy, "sim": RealSim}
    return real[name]() if name in real else FakeBackend(name)


DEFAULT_DEVICE = "copy"


class Tree:
    """A context on a test device, with the questions that upstream's tests ask."""

    def __init__(self, backend: Any = None, policy: Policy | None = None, **options: Any) -> None:
        self.backend = backend or device(DEFAULT_DEVICE)
        where = getattr(self.backend, "device", "cpu")
        self.ctx = GraphContext(where, policy=policy or Policy.upstream(**options), backend=self.backend)
        self.wrapped: list[Any] = []
        self.trained = False

    def wrap(self, function: Any, **options: Any) -> Any:
        made = self.ctx.wrap(function, **options)
        self.wrapped.append(made)
        return made

    def boxed(self, function: Any, **options: Any) -> Any:
        return self.wrap(function, boxed=True, **options)

    def step(self) -> Any:
        return self.ctx.step()

    @property
    def manager(self) -> Any:
        return self.ctx.manager

    @property
    def node(self) -> Node:
        node = self.manager.current
        assert isinstance(node, Node)
        return node

    def root_children(self) -> list[int]:
        return [len(list(root.descendants())) - 1 for root in self.manager.all_roots()]

    def live(self) -> int:
        return sum(pool.stats().live_blocks for pool in self.backend.pools)

    def alive(self) -> int:
        """Path outputs that are alive, as often as outputs name them."""
        return len(list(self.manager.current.alive()))

    @property
    def captures(self) -> int:
        return self.manager.captures

    @property
    def restores(self) -> int:
        return self.manager.restores

    def skips(self) -> int:
        return sum(skip.calls for skip in self.ctx.explain().skips)

    def drop(self) -> None:
        """Let every function go."""
        self.wrapped.clear()
        if self.ctx.manager is not None:
            gc.collect()
        if self.trained:
            # Cached outputs have a grad_fn, which leads back here: a cycle through C++ (upstream: shutdown).
            self.ctx.close()

    def check_gone(self) -> None:
        """Nothing is left of the tree."""
        self.drop()
        reset_marks()
        assert self.ctx.manager is None
        assert self.live() == 0
        assert sum(pool.stats().segments for pool in self.backend.pools) == 0


def empty(args: list[Any]) -> list[Any]:
    """The arguments; the list itself is emptied."""
    taken = list(args)
    args.clear()
    return taken


def cube(args: list[Any]) -> list[Any]:
    x = args[0]
    args.clear()
    return [x * x * x]


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Trained:
    """A differentiable function made of a captured forward and backward, as AOTAutograd makes them.

    Args:
        forward: list of inputs -> [output, *saved].
        backward: [*saved, gradient] -> gradients of the inputs.
    """

    def __init__(
        self, tree: Tree, forward: Any, backward: Any, capture_backward: bool = True, **options: Any
    ) -> None:
        run_forward = tree.boxed(forward, mode="forward", **options)
        run_backward = tree.boxed(backward, mode="backward", **options) if capture_backward else None
        context = tree.ctx
        tree.trained = True

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
                with context.step():
                    out, *saved = run_forward(list(inputs))
                ctx.pending = context.new_pending()
                ctx.save_for_backward(*saved)
                ctx.mark_non_differentiable()
                return out

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> Any:
                given = [*ctx.saved_tensors, gradient]
                if not torch._C._autograd._get_current_graph_task_keep_graph():
                    ctx.maybe_clear_saved_tensors()
                    ctx.pending = None
                del gradient
                if run_backward is None:
                    context.generations.backward_ran()
                    return tuple(backward(given))
                return tuple(run_backward(given))

        self._function = Function

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function.apply(*inputs)


def cubed(tree: Tree, capture_backward: bool = True) -> Trained:
    """x³ with its square saved."""

    def forward(args: list[Any]) -> list[Any]:
        (x,) = empty(args)
        square = x * x
        return [square * x, square]

    def backward(args: list[Any]) -> list[Any]:
        square, gradient = empty(args)
        return [square * 3 * gradient]

    return Trained(tree, forward, backward, capture_backward)


class Captured:
    """`function(*inputs) -> tensor or tuple`, captured on `inputs`."""

    def __init__(self, function, *inputs):
        self.pool = CpuGraphPool()
        self.graph = get_backend("cpu").new_graph(self.pool)
        with self.graph.capture(inputs=inputs):
            result = function(*inputs)
        self.outputs = result if isinstance(result, tuple) else (result,)

    def __call__(self, *inputs):
        self.graph.replay(inputs)
        return [t.clone() for t in self.outputs]


def check(function, make_inputs, calls=3, **tolerance):
    """Eager against one capture and `calls` replays on fresh inputs."""
    inputs = make_inputs()
    expected = function(*inputs)
    captured = Captured(function, *inputs)
    torch.testing.assert_close(captured.outputs, expected if isinstance(expected, tuple) else (expected,))
    for _ in range(calls):
        inputs = make_inputs()
        expected = function(*inputs)
        got = captured(*inputs)
        torch.testing.assert_close(tuple(got), expected if isinstance(expected, tuple) else (expected,))
    return captured
