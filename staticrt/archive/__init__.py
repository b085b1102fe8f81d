"""Save a compiled model to a `.pt2` archive, load it without its Python code."""

from staticrt.archive.loaded import LoadedModel, load
from staticrt.archive.writer import save

__all__ = ["LoadedModel", "load", "save"]
