"""Stage 6: runs a `Program` as a callable: call keys, fast calls, weights, donation."""
