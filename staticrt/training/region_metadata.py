"""What AOTAutograd's metadata says of a compiled region: which gradients come in, and which inputs it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def have_gradients(metadata: Any, slots: Sequence[tuple[str, int]]) -> list[bool]:
    """For each of `gradient_slots`, whether the backward graph takes that gradient."""
    infos = {"input": metadata.input_info, "output": metadata.output_info}
    return [kind == "base" or (kind in infos and infos[kind][i].requires_grad) for kind, i in slots]


def written_inputs(metadata: Any) -> list[bool]:
    """For each input of a compiled region, whether it writes the data or metadata."""
    return [bool(info.mutates_data or info.mutates_metadata) for info in metadata.input_info]
