"""Graph passes: one per file; `pipeline.py` says in which order they run, and why."""
