"""Private names of torch that training and Dynamo need; `tests/support/private_names.txt` lists those of other modules.

A release of torch may drop such a name. Where releases differ, the code asks for the name (`hasattr`), never for the
version, and `.ci/newest` runs everything with a release that was not built with before.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from staticrt import locks

# AOTAutograd compiles one region at a time: what it makes is found by looking before and after.
_aot_lock = locks.reentrant()

F = TypeVar("F", bound=Callable[..., Any])


def saved_tensors_are_packed() -> bool:
    """Whether hooks pack the tensors that autograd saves now, as in the forward of `torch.utils.checkpoint`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def custom_operator(name: str) -> dict[str, Any] | None:
    """What `torch.library.custom_op` keeps of an operator ("mylib::relu"), or None: it is none of those."""
    found = torch._library.custom_ops.OPDEFS.get(name)
    return None if found is None else vars(found)


def is_one_of_several_views(value: Any) -> bool:
    """Whether it is a view with a gradient that one operator gave with others, as `chunk` does: eager refuses writes to it."""
    autograd = torch._C._autograd
    return (
        isinstance(value, torch.Tensor)
        and value.requires_grad
        and value._is_view()
        and autograd._get_creation_meta(value) == autograd.CreationMeta.MULTI_OUTPUT_NODE
    )


def aot_compile(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inference: Callable[..., Any],
    partition: Callable[..., Any],
) -> tuple[Callable[..., Any], type[Any] | None]:
    """AOTAutograd on one region.

    Args:
        gm: a graph of torch calls on flat inputs.
        inputs: example inputs, real or fake, one per placeholder.
        forward, backward, inference: compilers of functional ATen graphs; each returns a boxed callable.
        partition: splits the joint graph.

    Returns:
        The callable on flat inputs, and the autograd Function class behind it (None: nothing is differentiated).
    """
    import torch._functorch.config as config
    from torch._dynamo.backends.common import aot_autograd

    fx.node.has_side_effect(
        torch.ops.aten._linalg_check_errors.default
    )  # else torch 2.11 removes it as dead code
    # In eager the backward runs after the block of autocast that the forward is in. Tokens, which keep the order of
    # operators with effects, are no inputs and no results.
    wanted = {"backward_pass_autocast": "off", "unlift_effect_tokens": True}
    settings = {name: value for name, value in wanted.items() if hasattr(config, name)}
    after: Any = config.patch(**settings)  # type: ignore[arg-type]
    with _aot_lock, after, warnings.catch_warnings():
        # Of anomaly mode, which upstream traces in; the error itself is reported by the caller.
        warnings.filterwarnings("ignore", "Error detected in")
        before = set(torch.autograd.Function.__subclasses__())
        compiled = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )(gm, inputs)
        made: list[Any] = [
            cls
            for cls in torch.autograd.Function.__subclasses__()
            if cls not in before and cls.__name__ == "CompiledFunction"
        ]
    if not made:
        return compiled, None
    # Donated buffers assume every backward to be the last one: upstream raises for `retain_graph=True` if there are
    # any. Our Programs take nothing but their inputs, so that there is nothing to donate.
    made[-1].metadata.bw_donated_idxs = []
    return compiled, made[-1]


@contextlib.contextmanager
def checkpoint_parts(
    part: Callable[[tuple[Any, ...], bool, Callable[..., Any], bool], Iterator[None]],
    reentrant: Callable[[Callable[..., Any], bool, tuple[Any, ...]], Any] | None = None,
) -> Iterator[None]:
    """While this holds, this thread's `torch.utils.checkpoint` saves all and computes nothing again.

    Args:
        part: a generator of one value, in place of what torch does before and after the function of a checkpoint; it takes
            the function and its arguments, `preserve_rng_state`, `context_fn` and `debug`.
        reentrant: what a checkpoint with reentrant autograd does, of the function, `preserve_rng_state` and the arguments;
            None: what torch does.
    """
    _ask_the_thread_for_checkpoints()
    before = _checkpoints.part, _checkpoints.reentrant
    _checkpoints.part, _checkpoints.reentrant = part, reentrant
    try:
        yield
    finally:
        _checkpoints.part, _checkpoints.reentrant = before


def all_gradients_are_wanted() -> bool:
    """False while a backward runs that was asked for the gradients of some tensors only."""
    return bool(torch.autograd._is_checkpoint_valid())  # type: ignore[no-untyped-call]


no_checkpoint_context = torch.utils.checkpoint.noop_context_fn


def is_plain_checkpoint(context: Callable[..., Any]) -> bool:
    """Whether a checkpoint's `context_fn` is torch's, which does nothing."""
    return context is no_checkpoint_context


class _Checkpoints(threading.local):
    part: Callable[[tuple[Any, ...], bool, Callable[..., Any], bool], Iterator[None]] | None = None
    reentrant: Callable[[Callable[..., Any], bool, tuple[Any, ...]], Any] | None = None


_checkpoints = _Checkpoints()


@functools.cache
def _ask_the_thread_for_checkpoints() -> None:
    """Replace upstream's functions, once, by functions that differ only for threads inside `checkpoint_parts`."""
    module: Any = torch.utils.checkpoint
    upstream: Callable[..., Any] = module._checkpoint_without_reentrant_generator

    @functools.wraps(upstream)
    def asking(
        fn: Any, preserve: Any, context_fn: Any, check: Any, debug: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _checkpoints.part is not None:
            return _checkpoints.part((fn, args, kwargs), bool(preserve), context_fn, bool(debug))
        return upstream(fn, preserve, context_fn, check, debug, *args, **kwargs)

    module._checkpoint_without_reentrant_generator = asking
    function: Any = torch.utils.checkpoint.CheckpointFunction

    def asking_reentrant(cls: Any, run_function: Any, preserve: Any, *args: Any) -> Any:
        if cls is function and _checkpoints.reentrant is not None:
            return _checkpoints.reentrant(run_function, bool(preserve), args)
        return super(function, cls).apply(run_function, preserve, *args)

    function.apply = classmethod(asking_reentrant)


def hidden_from_dynamo(function: F) -> F:
    """Decorator: Dynamo neither compiles this function nor what it calls, where it meets it at run time.

    `torch.compiler.disable` without its import of Dynamo and its cost at each call.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


def restarts_dynamo(error: BaseException) -> bool:
    """Whether an error that leaves `aot_compile` is Dynamo's signal to trace the frame again."""
    from torch._dynamo import exc

    return isinstance(error, (exc.RestartAnalysis, exc.SkipFrame))


def first_call_is_fake() -> bool:
    """Whether what AOTAutograd compiles now is called once with fake tensors, to learn what it returns.

    Where Dynamo cuts a model at the buckets of `DistributedDataParallel`, each part is compiled for the results of
    the one before. AOTAutograd's callable answers that call by itself.
    """
    context = torch._guards.TracingContext.try_get()
    return bool(getattr(context, "fakify_first_call", False))


def other_settings() -> dict[str, Any]:
    """What code may set for the process or the thread that decides no result of an operator."""
    return {
        "multithreading": torch._C._is_multithreading_enabled(),
        "forward_gradients": torch._C._is_fwd_grad_enabled(),
        "view_replay": torch._C._is_view_replay_enabled(),
        "warn_always": torch.is_warn_always_enabled(),
        "conversion_of_modules": repr({k: v for k, v in vars(torch.__future__).items() if type(v) is bool}),
        # Not its repr: an interrupt within that of a dataclass changes the text of later ones.
        "print_options": str(vars(torch._tensor_str.PRINT_OPTS)),
    }


def autograd_flags() -> Callable[[], None]:
    """A function that gives the calling thread the flags of autograd that it has now, besides gradients and inference mode."""
    c = torch._C
    multithreading, forward = c._is_multithreading_enabled(), c._is_fwd_grad_enabled()
    view_replay = c._is_view_replay_enabled()

    def put() -> None:
        c._set_multithreading_enabled(multithreading)
        c._set_fwd_grad_enabled(forward)
        c._set_view_replay_enabled(view_replay)

    return put


_autograd: Any = torch._C._autograd
saved_tensors_hooks_are_enabled: Callable[[], bool] = _autograd._saved_tensors_hooks_is_enabled


# Without them, a gradient may have other strides than its parameter; torch 2.13 and later.
grad_layouts_are_enforced: Callable[[], bool] = getattr(
    torch._C, "_is_grad_layout_enforcement_enabled", lambda: True
)


def settings_of_torch() -> tuple[Callable[[], Any], ...]:
    """C functions without arguments whose answers decide no result of an operator, so only a model that asks depends on them."""
    names = (
        "_is_multithreading_enabled", "_is_fwd_grad_enabled", "_is_view_replay_enabled", "_get_warnAlways",
        "_is_grad_layout_enforcement_enabled", "_get_autograd_fallback_mode", "_get_graph_executor_optimize",
        "_debug_only_are_vmap_fallback_warnings_enabled",
    )  # fmt: skip
    found = [getattr(torch._C, name) for name in names if hasattr(torch._C, name)]
    return (*found, torch.get_num_interop_threads, _autograd._profiler_enabled)


def default_process_group() -> str:
    """What `torch.distributed` says of its default group; "": there is none."""
    group: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if group is None or not group.is_initialized():
        return ""
    return f"{group.get_rank()} of {group.get_world_size()} by {group.get_backend()}"


def fx_is_tracing() -> bool:
    """Whether `torch.fx.symbolic_trace` is tracing in this thread. torch's own flag is of the process."""
    if not torch.fx._symbolic_trace.is_fx_symbolic_tracing():
        return False
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.fx.Tracer.trace.__code__:
        frame = frame.f_back
    return frame is not None


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor that stands for others, as those inside vmap do: it has no bytes."""
    functorch = torch._C._functorch
    return isinstance(value, torch.Tensor) and (
        functorch.is_functorch_wrapped_tensor(value) or functorch.is_legacy_batchedtensor(value)
    )


def oddness(value: torch.Tensor) -> str:
    """Why the bytes of a tensor, by its strides, are not its values, as a phrase; "" where they are."""
    if value.is_nested or value.is_quantized:
        return "a nested tensor" if value.is_nested else "a quantised tensor"
    if value.layout != torch.strided:
        return f"a tensor of layout {value.layout}"
    if is_wrapper(value):
        return "a tensor of a transform such as vmap"
    if value._is_zerotensor():
        return "a zero tensor without memory"
    return "a lazy conjugate or negative" if value.is_conj() or value.is_neg() else ""


def gradients(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` without its comparison of sizes, for which it loads sympy; None for unused inputs."""
    engine: Any = torch.autograd.Variable._execution_engine
    found: tuple[torch.Tensor | None, ...] = engine.run_backward(
        tuple(results),
        tuple(incoming),
        False,
        False,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def keeping_version(tensor: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Context manager: writes to a tensor do not count as such for autograd."""
    kept: contextlib.AbstractContextManager[None] = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
    return kept


def is_dispatched() -> bool:
    """Whether an operator comes through the dispatcher; autograd copies what it saves, as does `.data`, without it.

    To be asked beneath autograd.
    """
    return bool(torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView))


def running_node() -> int:
    """Sequence number of the autograd node that runs on this thread; -1 if none does."""
    node: Any = torch._C._current_autograd_node()  # type: ignore[attr-defined]
    return -1 if node is None else int(node._sequence_nr())


@contextlib.contextmanager
def without_analysis() -> Iterator[None]:
    """Hides the mode in which AOTAutograd checks what custom operators alias, if it is on top."""
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

    mode = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", ())
    if mode and isinstance(_get_current_dispatch_mode(), mode):
        with _pop_mode_temporarily():
            yield
    else:
        yield


def keeps_graph() -> bool:
    """Inside a backward: whether the graph is kept for another one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())  # type: ignore[attr-defined]


def budget_value(budget: float | None) -> float:
    """An activation budget; torch's own setting if None."""
    import torch._functorch.config as config

    return float(config.activation_memory_budget if budget is None else budget)


@contextlib.contextmanager
def memory_budget(budget: float | None) -> Iterator[None]:
    """The share of activations that the partitioner may keep: 1 all that helps, 0 as few as possible.

    Args:
        budget: None leaves torch's setting.
    """
    import torch._functorch.config as config

    # At exactly 0 upstream skips every ban on recomputation, that of random numbers too.
    with config.patch(activation_memory_budget=max(budget_value(budget), 1e-6)):  # type: ignore[attr-defined]
        yield


def min_cut_partition(
    joint: fx.GraphModule, inputs: Any, **keywords: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Upstream's partition by minimum cut. It merges calls with equal arguments, but not those with 0.0 and -0.0."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    _replace_numbers(joint, lambda n: _NegativeZero(n) if type(n) is float and repr(n) == "-0.0" else n)
    parts: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(
        joint, inputs, **keywords
    )
    for part in parts:
        _replace_numbers(part, lambda n: -0.0 if isinstance(n, _NegativeZero) else n)
    return parts


class _NegativeZero(float):
    """Not of the type of 0.0, which upstream compares too."""


def _replace_numbers(gm: fx.GraphModule, replaced: Callable[[Any], Any]) -> None:
    """Replace what is no node among the arguments of calls."""
    tree_map = torch.utils._pytree.tree_map
    for node in gm.graph.nodes:
        numbers = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
        if any(replaced(number) is not number for number in numbers):
            node.args, node.kwargs = tree_map(replaced, node.args), tree_map(replaced, node.kwargs)


def must_save(node: fx.Node) -> None:
    """Forbid the partitioner to compute `node` again in the backward."""
    from torch.utils.checkpoint import CheckpointPolicy

    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    node.meta["ac_graph_id"] = 0


def is_saved_by_policy(node: fx.Node) -> bool:
    """Whether a checkpoint of the user's says that a value is saved."""
    from torch.utils.checkpoint import CheckpointPolicy

    return node.meta.get("recompute") in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def mutated_inputs(joint: fx.GraphModule) -> set[fx.Node]:
    """Placeholders of AOTAutograd's joint graph that the region writes."""
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    return _named_by_outputs(joint, InputMutationAOTOutput, lambda output: output.mutated_input)


def differentiated_inputs(joint: fx.GraphModule) -> set[fx.Node]:
    """Placeholders of AOTAutograd's joint graph whose gradient it computes."""
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput

    return _named_by_outputs(joint, GradAOTOutput, lambda output: output.grad_of)


def _named_by_outputs(joint: fx.GraphModule, kind: type, named_by: Callable[[Any], Any]) -> set[fx.Node]:
    """Placeholders that the descriptors of outputs name, of one kind of outputs."""
    (output,) = joint.graph.find_nodes(op="output")
    named = {named_by(each) for each in output.meta.get("desc", ()) if isinstance(each, kind)}
    return {node for node in joint.graph.find_nodes(op="placeholder") if node.meta.get("desc") in named}


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder of a joint or backward graph is an incoming gradient."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_backward(node: fx.Node) -> bool:
    """Whether a node of a joint graph was traced in the backward; also one that needs no incoming gradient."""
    return node.meta.get("partitioner_tag") == "is_backward"


def marked_steps() -> int:
    """How often `torch.compiler.cudagraph_mark_step_begin` was called in this process, as a number that falls from 0."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")  # the first call imports it
    box: Any = getattr(trees, "MarkStepBox", None)
    count: int = getattr(box, "mark_step_counter", 0)
    return count
