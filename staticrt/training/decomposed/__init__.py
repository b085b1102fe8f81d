"""What is recorded in place of what torch decomposes operators into."""
