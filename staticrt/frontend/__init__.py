"""Stage 1: traces a function into an fx graph."""
