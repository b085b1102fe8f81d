"""Saves compiled models to `.pt2` archives and loads them."""

from staticrt.archive.loaded import LoadedModel, load
from staticrt.archive.writer import save

__all__ = ["LoadedModel", "load", "save"]
