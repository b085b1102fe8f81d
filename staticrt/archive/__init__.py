"""Saves compiled models as `.pt2` archives, loads them."""
