"""The zoo's benchmark: every model against every peer, each pair in a process of its own."""
