"""Reports about compiled callables."""
