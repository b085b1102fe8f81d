"""Shape rules of operators, one family per file."""
