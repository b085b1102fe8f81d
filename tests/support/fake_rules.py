"""Ask a rule about a call, and eager about it at the same and at other sizes."""

from __future__ import annotations

import torch

from staticrt.frontend.arguments.fakes import FakeMaker
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.tracing.fake_mode import TraceFakeMode
from staticrt.frontend.tracing.patches import tracing
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.shapes.fake_rules import fake_by_rule
from staticrt.shapes.size_env import NeedsShapeEnv, SizeEnv


def tensors_in(value):
    """The tensors of an argument list, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def _replaced(value, fakes):
    if isinstance(value, torch.Tensor):
        return next(fakes)
    if isinstance(value, (list, tuple)):
        return type(value)([_replaced(item, fakes) for item in value])
    return value


class Asked:
    """A rule's answer to `op(*args, **kwargs)` over fakes of the tensors.

    Attributes:
        covered: a rule has an answer.
        error: what a rule raised, where it did.
    """

    def __init__(self, op, args, kwargs=None, *, symbolic):
        self.op = op
        self.env = SizeEnv()
        self.error = None
        mode = TraceFakeMode(self.env)
        real = tensors_in(args)
        with tracing(True):
            maker = FakeMaker(mode, Sizing.OURS if symbolic else Sizing.OURS_CONSTANT)
            self.fakes = [
                _as_it_is(mode, t) if not symbolic else f
                for t, f in zip(real, maker.make(real, KnownInputs()).leaves, strict=True)
            ]
            self.sizes = list(maker.symbols.values())
            self.args = _replaced(args, iter(self.fakes))
            try:
                self.out = fake_by_rule(mode, op, self.args, kwargs or {})
            except NeedsShapeEnv:
                self.out = None
            except RuntimeError as error:
                self.out, self.error = None, error
        self.covered = self.out is not None

    def differs(self, args, kwargs=None, *, exact):
        """How eager's results differ from the rule's answer; None: they do not, or the answer is not for these sizes."""
        real = tensors_in(args)
        known = {
            s.name: real[s.leaf].shape[s.dim] if s.prop == "size" else real[s.leaf].stride(s.dim)
            for s in self.sizes
        }
        if not all(eval(text, {"max": max, "min": min, **known}) for text in self.env.guards):
            return None
        copies = [t.clone() if t.numel() == 0 else _cloned(t) for t in real]
        try:
            want = self.op(*_replaced(args, iter(copies)), **(kwargs or {}))
        except (RuntimeError, IndexError) as error:
            if "not implemented for" in str(error):
                return None
            return f"eager raises {error}"
        mine, wanted = tensors_in(self.out), tensors_in(want)
        if len(mine) != len(wanted):
            return f"{len(mine)} results for {len(wanted)}"
        for got, eager in zip(mine, wanted, strict=True):
            shape = tuple(_number(size, known) for size in got.shape)
            strides = tuple(_number(stride, known) for stride in got.stride())
            if (shape, got.dtype) != (tuple(eager.shape), eager.dtype):
                return f"{shape} {got.dtype} for {tuple(eager.shape)} {eager.dtype}"
            # Where a dimension has one element, or the tensor none, a stride means nothing.
            where = [d for d, size in enumerate(shape) if exact or size != 1]
            if eager.numel() and [strides[d] for d in where] != [eager.stride(d) for d in where]:
                return f"strides {strides} for {eager.stride()} of {shape}"
            written = [i for i, copy in enumerate(copies) if eager is copy]
            if [i for i, fake in enumerate(self.fakes) if got is fake] != written:
                return "another tensor is returned"
        return None


def _as_it_is(mode, tensor):
    """A fake with the very strides of a tensor."""
    from staticrt.shapes.fake_results import fresh

    return fresh(mode, list(tensor.shape), list(tensor.stride()), tensor.dtype, tensor.device)


def _cloned(tensor):
    """A copy with the very strides of a tensor."""
    own = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    own.as_strided((reach,), (1,)).copy_(tensor.as_strided((reach,), (1,)))
    return own


def _number(size, known):
    if not isinstance(size, torch.SymInt):
        return size
    return size.node.expr.value(known)
