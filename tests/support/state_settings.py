"""A module of a user's, whose names models of test_state.py read."""

SCALE = 2.0
TABLE = [1.0, 2.0]


def helper(x):
    return x * SCALE


def factory(k):
    state = {"k": k}

    def inner(x):
        return x + state["k"]

    inner.state = state
    return inner


made = factory(3.0)


class Config:
    bias = 1.0
