"""Stage 7: decides how one call runs: a kept trace, a new trace, a graph split, or eagerly."""
