"""Saves compiled models as `.pt2` archives, loads them."""

from staticrt.archive.loaded import LoadedModel, load
from staticrt.archive.writer import save

__all__ = ["LoadedModel", "load", "save"]
