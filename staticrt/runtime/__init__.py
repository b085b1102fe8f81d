"""Stage 6: runs a `Program`: call keys, fast and asynchronous calls, weights, donation."""
