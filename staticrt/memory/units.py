"""Sizes in bytes as text."""

from __future__ import annotations


def format_bytes(size: float) -> str:
    """A size with a binary unit: 1.50 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
