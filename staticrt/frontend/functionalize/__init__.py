"""Turns writes into values: a traced graph is functional, and its writes happen at the end."""
