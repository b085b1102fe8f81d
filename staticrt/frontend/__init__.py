"""Stage 1: traces a module or function into an fx graph."""
