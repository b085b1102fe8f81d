"""Helpers shared by tests: the only place for them."""
