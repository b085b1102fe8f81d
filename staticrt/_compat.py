"""Private names of torch that training and Dynamo need, 2.11 to 2.13: nothing else here imports them."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

# AOTAutograd compiles one region at a time: what it makes is found by looking before and after.
_aot_lock = threading.RLock()

F = TypeVar("F", bound=Callable[..., Any])


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
    from torch._dynamo.backends.common import aot_autograd

    with _aot_lock, warnings.catch_warnings(), recurrent_networks():
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
def recurrent_networks() -> Iterator[None]:
    """While this holds, recurrent networks are traced as what eager computes.

    With oneDNN on, a traced LSTM is one operator that saves nothing for its backward unless gradients are on, which they
    are not while compiled graphs run; and see `training/recurrent.py`.
    """
    import torch._decomp.decompositions as decompositions

    from staticrt.training.recurrent import with_dropout

    # `torch.backends.mkldnn.flags` sets more than this, some of it with a warning.
    onednn = torch._C._get_mkldnn_enabled()
    helper = decompositions._rnn_helper
    torch._C._set_mkldnn_enabled(False)
    decompositions._rnn_helper = with_dropout(helper)  # type: ignore[assignment]
    try:
        yield
    finally:
        decompositions._rnn_helper = helper
        torch._C._set_mkldnn_enabled(onednn)


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
    """Upstream's partition by minimum cut."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(joint, inputs, **keywords)  # type: ignore[no-any-return]


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
    """Placeholders of a joint graph that the region writes."""
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    (output,) = joint.graph.find_nodes(op="output")
    written = {
        desc.mutated_input for desc in output.meta.get("desc", ()) if isinstance(desc, InputMutationAOTOutput)
    }
    return {node for node in joint.graph.find_nodes(op="placeholder") if node.meta.get("desc") in written}


def differentiated_inputs(joint: fx.GraphModule) -> set[fx.Node]:
    """Placeholders of a joint graph whose gradient it computes."""
    from torch._functorch._aot_autograd.descriptors import GradAOTOutput

    (output,) = joint.graph.find_nodes(op="output")
    wanted = {desc.grad_of for desc in output.meta.get("desc", ()) if isinstance(desc, GradAOTOutput)}
    return {node for node in joint.graph.find_nodes(op="placeholder") if node.meta.get("desc") in wanted}


def is_tangent(node: fx.Node) -> bool:
    """Whether a placeholder of a joint or backward graph is an incoming gradient."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_backward(node: fx.Node) -> bool:
    """Whether a node of a joint graph was traced in the backward; also one that needs no incoming gradient."""
    return node.meta.get("partitioner_tag") == "is_backward"


# Which outputs of a region get their gradient how; names as upstream's `OutputType`.
_OWN_GRADIENT = ("non_alias", "unsafe_view_alias", "custom_function_view")
_BASE_GRADIENT = ("alias_of_intermediate_save_as_output", "alias_of_intermediate")


def gradient_slots(metadata: Any) -> list[tuple[str, int]]:
    """What each incoming gradient of a compiled region belongs to.

    Args:
        metadata: `metadata` of the class that `aot_compile` found.

    Returns:
        In the order of the gradients: ("input", i) the new value of input i; ("output", j) output j; ("base", j) the
        tensor that output j is a view of; ("none", -1) never a gradient.
    """
    slots = [("input", int(i)) for i in metadata.mutated_inp_runtime_indices]
    slots += [
        ("output", j) if info.output_type.name in _OWN_GRADIENT else ("none", -1)
        for j, info in enumerate(metadata.output_info)
    ]
    for base in range(metadata.num_intermediate_bases):
        views = [
            j
            for j, info in enumerate(metadata.output_info)
            if info.output_type.name in _BASE_GRADIENT and info.base_idx == base
        ]
        slots.append(("base", views[0]))
    return slots


def written_inputs(metadata: Any) -> list[bool]:
    """For each input of a compiled region, whether it writes the data or metadata."""
    return [bool(info.mutates_data or info.mutates_metadata) for info in metadata.input_info]
