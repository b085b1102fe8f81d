"""Which composite operators are recorded whole and which are decomposed.

Below autograd a composite operator reaches the tracer undecomposed. It stays whole (`linear`) if it is torch's own and
neither writes nor aliases, which its schema and its run over fake tensors show; otherwise its C++ decomposition is recorded
(`reshape` becomes `view`, or `clone` and `_unsafe_view`).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

import torch

from staticrt.frontend.reasons import NESTS, CannotTrace, NeedsConstants
from staticrt.frontend.tracing import autocast, collectives, fast_paths

aten = torch.ops.aten


class Kind(enum.Enum):
    """How the tracer treats an operator."""

    PLAIN = "not composite"
    KEEP = "composite, kept whole"
    EXPAND = "composite, taken apart"


_kinds: dict[Any, Kind] = {}
# They may return their argument unchanged, which their schemas do not say.
_MAY_ALIAS = frozenset({aten.type_as.default})
# Make tensors of quantised dtypes, which fake tensors cannot be. Dynamo would cut the model at each of their operators.
_QUANTISES = frozenset(
    {"aten::quantize_per_tensor", "aten::quantize_per_tensor_dynamic", "aten::quantize_per_channel"}
)
# How `nn.TransformerEncoder` leaves out padding.
_NESTS = frozenset(
    {aten._nested_tensor_from_mask_left_aligned.default, aten._nested_tensor_from_mask.default}
)


def kind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind:
    """How to treat `func` called with these arguments."""
    found = _kinds.get(func)
    if found is None:
        found = _kinds[func] = _classify(func)
    if func is aten.batch_norm.default:
        return Kind.KEEP if not args[5] or args[3] is None else Kind.PLAIN  # training: see rewrite()
    if func is aten.dropout.default:
        return Kind.PLAIN  # see rewrite()
    if func is aten.instance_norm.default:
        return Kind.KEEP if args[3] is None else Kind.EXPAND
    if found is Kind.KEEP and autocast.is_on() and not _has_casts(func):
        return Kind.EXPAND  # autocast casts for the operators inside it (lstm, einsum)
    return found


@functools.cache
def _has_casts(func: Any) -> bool:
    """Whether autocast on CPU knows the operator itself: its arguments then have been cast."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutocastCPU"))


def _classify(func: Any) -> Kind:
    if func is aten.size.default:  # C++ reads sizes as numbers: autograd's error of an overwritten tensor
        raise NeedsConstants
    if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return Kind.PLAIN
    schema = func._schema
    if func in _MAY_ALIAS:
        return Kind.EXPAND
    if func.namespace != "aten":
        # Arithmetic of a library: kept whole, it would be a call into Python without a kernel.
        return Kind.EXPAND
    if schema.is_mutable or torch.Tag.maybe_aliasing_or_mutating in func.tags:
        return Kind.EXPAND
    if any(arg.alias_info is not None for arg in (*schema.arguments, *schema.returns)):
        return Kind.EXPAND
    if any(not _is_value(ret.type) for ret in schema.returns) or not schema.returns:
        return Kind.EXPAND  # item(), is_nonzero(), size(): the primitive behind it is recorded
    return Kind.KEEP


def _is_value(type_: Any) -> bool:
    text = str(type_)
    return text in ("Tensor", "List[Tensor]", "Optional[Tensor]")


def scalar_overload(func: Any, args: tuple[Any, ...]) -> Any:
    """`mul.Scalar` for `mul.Tensor(x, size)`: a symbolic number is not a tensor where nothing wraps it as one."""
    if not any(isinstance(arg, (torch.SymInt, torch.SymFloat)) for arg in args):
        return func
    for position, (arg, parameter) in enumerate(zip(args, func._schema.arguments, strict=False)):
        if isinstance(arg, (torch.SymInt, torch.SymFloat)) and str(parameter.type) == "Tensor":
            overload = func._overloadname.replace("Tensor", "Scalar")  # div.Tensor_mode: div.Scalar_mode
            scalar = getattr(getattr(torch.ops.aten, func._schema.name.split("::")[1], None), overload, None)
            if func._schema.name.startswith("aten::") and scalar is not None and not func._schema.is_mutable:
                at_number = str(scalar._schema.arguments[position].type) == "number"
                return scalar if at_number else func  # sub.Scalar takes x - 2, not 2 - x
            break
    return func


def aliases_inputs(out: Any, args: Any, kwargs: Any) -> bool:
    """Whether a fake output shares storage with a fake input."""
    storages: set[int] = set()
    _storages((args, kwargs), storages)
    found: set[int] = set()
    _storages(out, found)
    return not storages.isdisjoint(found)


def _storages(value: Any, into: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        into.add(value.untyped_storage()._cdata)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _storages(item, into)
    elif isinstance(value, dict):
        for item in value.values():
            _storages(item, into)


def _batch_norm(
    tracer: Any,
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """Training-mode batch_norm writes its running statistics, which its schema does not say.

    Raises:
        CannotTrace: parameters or statistics of other channels, for which torch's composite raises. The operator within it
            would read and write past their ends.
    """
    if any(extra is not None and extra.numel() != x.shape[1] for extra in (weight, bias, mean, var)):
        raise CannotTrace("batch_norm with parameters of other channels than its input", even_in_parts=True)
    out: torch.Tensor = aten._native_batch_norm_legit.default(
        x, weight, bias, mean, var, True, momentum, eps
    )[0]
    return out


def _dropout(tracer: Any, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As aten/src/ATen/native/Dropout.cpp, which draws nothing where everything stays or goes."""
    if not train or p == 0 or any(type(size) is int and size == 0 for size in x.shape):
        return x
    if p == 1:
        return x * x.new_zeros(())
    out: torch.Tensor = aten.native_dropout.default(x, p, True)[0]
    return out


# Kept whole, a recurrent cell is one slow call; taken apart, its gates are one loop. The formulas are those of
# torch's composite kernels, without their writes into chunks, each of which would be made functional later.


def lstm_cell(
    x: torch.Tensor, state: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `aten.lstm_cell`."""
    hidden, cell = state
    gates = aten.linear.default(hidden, w_hh, b_hh) + aten.linear.default(x, w_ih, b_ih)
    into, forget, new, out = gates.chunk(4, 1)
    next_cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * next_cell.tanh(), next_cell


def gru_cell(
    x: torch.Tensor, hidden: torch.Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> torch.Tensor:
    """As `aten.gru_cell`."""
    from_x = aten.linear.default(x, w_ih, b_ih).chunk(3, 1)
    from_hidden = aten.linear.default(hidden, w_hh, b_hh).chunk(3, 1)
    reset = (from_hidden[0] + from_x[0]).sigmoid()
    keep = (from_hidden[1] + from_x[1]).sigmoid()
    new = (from_x[2] + from_hidden[2] * reset).tanh()
    out: torch.Tensor = (hidden - new) * keep + new
    return out


def rnn_cell(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """As `aten.rnn_tanh_cell` and `aten.rnn_relu_cell`."""

    def cell(
        x: torch.Tensor, hidden: torch.Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> torch.Tensor:
        return activation(aten.linear.default(hidden, w_hh, b_hh) + aten.linear.default(x, w_ih, b_ih))

    return cell


def _check_single_elements(x: torch.Tensor) -> None:
    """A dimension of one element needs a trace of its own in batch_norm's backward; other sizes are guarded.

    torch's kernel then treats some permuted tensors as row-major: its results depend on strides without meaning, and they
    are eager's only if each operator was recorded for exactly these sizes.
    """
    if any(isinstance(size, torch.SymInt) and size == 1 for size in x.shape):
        raise NeedsConstants


_REWRITES: dict[Any, Callable[..., Any]] = {
    aten.dropout.default: _dropout,
    aten.lstm_cell.default: lambda tracer, *args: lstm_cell(*args),
    aten.gru_cell.default: lambda tracer, *args: gru_cell(*args),
    aten._native_multi_head_attention.default: fast_paths.attention,
    aten._transformer_encoder_layer_fwd.default: fast_paths.encoder_layer,
}


def rewrite(func: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What to call in place of `func`, or None.

    Raises:
        CannotTrace: a call whose fake would read sizes that are not there; a collective that cannot be recorded.
    """
    if func is aten.batch_norm.default and args[0].dim() < 2:
        raise CannotTrace("batch_norm of a tensor without a channel dimension")
    if func is aten.batch_norm.default and args[5] and args[3] is not None:
        return _batch_norm
    if func is aten.native_batch_norm_backward.default:
        _check_single_elements(args[1])
    if func in _NESTS:
        raise CannotTrace(NESTS, even_in_parts=True)
    if func._schema.name in _QUANTISES:
        raise CannotTrace("tensors of quantised dtypes", even_in_parts=True)
    if func.namespace == "quantized_decomposed" and _is_written_in_python(func):
        return functools.partial(_python_kernel, func)
    if func.namespace == "c10d":
        return collectives.functional(func)
    return _REWRITES.get(func)


@functools.cache
def _is_written_in_python(func: Any) -> bool:
    """Whether an operator of models that torch.export quantised is tensor arithmetic, which as one call would be slow.

    Overloads whose scales are tensors read them as numbers; they stay whole.
    """
    key = "CompositeExplicitAutograd"
    return func._overloadname == "default" and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), key
    )


def _python_kernel(func: Any, tracer: Any, *args: Any, **kwargs: Any) -> Any:
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
