"""From a module or function to a captured graph."""
