"""Runs a function on fake tensors and records its operators."""
