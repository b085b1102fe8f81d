"""Patches of Dynamo that make its graphs for us depend on what its own guards leave out."""

from __future__ import annotations

from staticrt.frontend.dynamo import (
    absent_attributes,
    changed_weights,
    class_attributes,
    identities,
    in_place_views,
    key_order,
    signs_of_zero,
)


def install() -> None:
    """Patch Dynamo, once per process, before it traces a frame."""
    in_place_views.note_new_sizes()
    signs_of_zero.guard()
    key_order.guard()
    class_attributes.guard()
    changed_weights.guard()
    absent_attributes.guard()
    identities.guard()
