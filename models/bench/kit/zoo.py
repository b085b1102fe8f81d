"""The zoo on the device: eager, compiled, and compiled with graphs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import staticrt
from staticrt.graphs import close_default_contexts
from staticrt.models import zoo
from staticrt.models.bench.check import difference, leaves
from staticrt.models.bench.kit.checks import check
from staticrt.models.bench.kit.graphs import best_us


def _on(value: object, device: torch.device | str) -> list[Tensor]:
    return [leaf.to(device) for leaf in leaves(value)]


@torch.no_grad()
def measure(entry: zoo.Entry, device: torch.device) -> str:
    """Times of the three ways, whose answers must be eager's on the same device."""
    module = entry.build().to(device)
    inputs = pytree.tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, entry.inputs())
    expected = _on(module(*inputs), "cpu")
    ways = {
        "eager": module,
        "staticrt": staticrt.compile(module),
        "graphs": staticrt.compile(module, graphs=True),
    }
    # What runs on the simulated accelerator is the CPU: its times are not worth many calls.
    calls = 10 if device.type == "cuda" else 1
    times = {}
    for name, way in ways.items():
        for _ in range(4):
            got = _on(way(*inputs), "cpu")
            found = difference(got, expected, rtol=entry.rtol, atol=10 * entry.atol)
            assert found.reason is None, f"{name}: {found.reason}"
        times[name] = best_us(lambda way=way: way(*inputs), device, calls)  # type: ignore[misc]
    close_default_contexts()
    return ", ".join(f"{name} {us:,.0f} µs" for name, us in times.items())


for _entry in zoo.select(None):
    check("zoo", _entry.name)(lambda device, entry=_entry: measure(entry, device))  # type: ignore[misc]
