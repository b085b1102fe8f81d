"""Python state that a trace has read, and the checks that it is unchanged."""
