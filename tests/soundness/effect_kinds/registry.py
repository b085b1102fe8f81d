"""The list of functions that do something besides computing."""

CASES = {}


def counted(effect):
    """A case: `effect(folder)` gives a function of a tensor and one that tells what has happened so far."""
    CASES[effect.__name__] = effect
    return effect
