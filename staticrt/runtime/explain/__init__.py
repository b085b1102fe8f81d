"""What `explain()` returns, as plain data: traced graphs, their prepared programs, and what runs eagerly."""
