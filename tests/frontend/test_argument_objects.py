"""Objects among the arguments that hold Python state: what the model or the caller changes of them is seen."""

import collections
import time
import types

import pytest
import torch

import staticrt


class State:
    """Holds no tensor: such an argument is told by its identity."""

    def __init__(self):
        self.n = 0
        self.seen = set()
        self.queue = collections.deque()
        self.ordered = collections.OrderedDict()
        self.lists = collections.defaultdict(list)
        self.inner = (types.SimpleNamespace(n=0),)


class Slots:
    __slots__ = ("n", "t")

    def __init__(self):
        self.n = 0


def number(x, s):
    return x + s.n


def size_of_set(x, s):
    return x + len(s.seen)


def size_of_deque(x, s):
    return x + len(s.queue)


def ordered(x, s):
    return x + sum(s.ordered.values())


def nested(x, s):
    return x + s.inner[0].n


def change(s, k):
    s.n = k
    if isinstance(s, Slots):
        return
    s.seen.add(k)
    s.queue.append(k)
    s.ordered[k] = k
    s.inner[0].n = k


def count(x, s):
    s.n += 1
    return x * s.n


def fill_set(x, s):
    s.seen.add(len(s.seen))
    return x + len(s.seen)


def fill_deque(x, s):
    s.queue.append(1)
    return x + len(s.queue)


def fill_ordered(x, s):
    s.ordered[len(s.ordered)] = 2
    return x + sum(s.ordered.values())


def fill_lists(x, s):
    s.lists["k"].append(1)
    return x + len(s.lists["k"])


def count_inside(x, s):
    s.inner[0].n += 1
    return x + s.inner[0].n


def keep_tensors(x, s):
    s.queue.append(x * 2)
    s.ordered["x"] = x + 1
    s.lists["x"].append(x)
    s.t = x * 3
    return x + len(s.queue)


def keep_in_slots(x, s):
    s.n += 1
    s.t = x * 2
    return x + s.n


def plain(value):
    """State as comparable values."""
    if isinstance(value, torch.Tensor):
        return type(value), value.tolist()
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return [plain(item) for item in value]
    if isinstance(value, set):
        return sorted(value)
    if hasattr(value, "__dict__"):
        return plain(vars(value))
    if isinstance(value, Slots):
        return [plain(getattr(value, name, None)) for name in value.__slots__]
    return value


@torch.no_grad()
@pytest.mark.parametrize("kind", [State, Slots])
@pytest.mark.parametrize("function", [number, size_of_set, size_of_deque, ordered, nested])
def test_what_the_caller_changes_between_calls_is_seen(function, kind):
    if kind is Slots:
        function = number
    compiled, state = staticrt.compile(function), kind()
    for k in range(4):
        change(state, k)
        for _ in range(2):
            x = torch.arange(3.0) + k
            torch.testing.assert_close(compiled(x, state), function(x, state), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (count, State),
        (count, Slots),
        (fill_set, State),
        (fill_deque, State),
        (fill_ordered, State),
        (fill_lists, State),
        (count_inside, State),
        (keep_tensors, State),
        (keep_in_slots, Slots),
    ],
)
def test_what_the_model_changes_is_as_in_eager(function, kind):
    compiled = staticrt.compile(function)
    for _ in range(3):
        ours, eagers = kind(), kind()
        for k in range(4):
            x = torch.arange(3.0) + k
            assert plain(compiled(x, ours)) == plain(function(x, eagers))
            assert plain(ours) == plain(eagers)


@torch.no_grad()
def test_an_exception_leaves_the_object_as_eager_does():
    def stops_once(x, s):
        s.n += 1
        if s.n == 2:
            raise ValueError("two")
        return x + s.n

    compiled, ours, eagers = staticrt.compile(stops_once), State(), State()
    for call in range(4):
        x = torch.arange(3.0)
        if call == 1:
            for run, state in ((compiled, ours), (stops_once, eagers)):
                with pytest.raises(ValueError, match="two"):
                    run(x, state)
        else:
            torch.testing.assert_close(compiled(x, ours), stops_once(x, eagers))
        assert plain(ours) == plain(eagers)


def test_preparing_leaves_the_object_alone():
    state = State()
    compiled = staticrt.compile(count, example_inputs=(torch.ones(3), state))
    assert state.n == 0
    with torch.no_grad():
        assert compiled(torch.ones(3), state).tolist() == [1, 1, 1]
        assert compiled(torch.ones(3), state).tolist() == [2, 2, 2]
    assert state.n == 2


def test_more_state_than_can_be_guarded_is_said(monkeypatch):
    monkeypatch.setattr("staticrt.tuning.MAX_GUARDED_CONTAINERS", 50)
    held = [[] for _ in range(100)]

    def model(x):
        return x + len(held[99])

    compiled = staticrt.compile(model)
    with torch.no_grad():
        assert compiled(torch.zeros(2)).tolist() == [0, 0]
        held[99].append(1)
        assert compiled(torch.zeros(2)).tolist() == [1, 1]
    assert "more containers than can be guarded" in str(compiled.explain())


def followed(d):
    return d["self"]["self"]["x"] * 2


def followed_and_grown(d):
    d["grown"] = d["self"]["x"] + 1
    return d["grown"] * 2


_printed = []


def followed_in_parts(d):
    _printed.append(time.time())  # cuts the trace
    return d["self"]["x"] * 3


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("function", [followed, followed_and_grown, followed_in_parts])
def test_a_dict_that_contains_itself(function, gradients):
    fast = staticrt.compile(function)
    for size in (3, 4, 1):
        given = {"x": torch.randn(size, requires_grad=gradients)}
        given["self"] = given
        expected = {"x": given["x"].detach().clone().requires_grad_(gradients)}
        expected["self"] = expected
        with torch.set_grad_enabled(gradients):
            result, right = fast(given), function(expected)
        assert torch.equal(result, right)
        assert given["self"] is given
        assert given.keys() == expected.keys()
        if gradients:
            result.sum().backward()
            right.sum().backward()
            assert torch.equal(given["x"].grad, expected["x"].grad)


class Batch:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Keyed(dict):
    def __init__(self, x):
        super().__init__(x=x)
        self.x = x


class Named(collections.namedtuple("Named", "x")):
    pass


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", [Batch, Slotted, Keyed, Named])
def test_a_method_of_an_arguments_class_is_replaced(kind, gradients):
    class Argument(kind):
        def scaled(self, x):
            return x * 2

    def scaled(argument):
        return argument.x + argument.scaled(torch.ones(2))

    def model(*args):
        print(end="")  # Dynamo splits it there
        return scaled(*args)

    compiled = staticrt.compile(model)
    with torch.set_grad_enabled(gradients):
        for factor in (2, 3, 4):
            if factor > 2:
                Argument.scaled = lambda self, x, factor=factor: x * factor
            for _call in range(2):
                argument = Argument(torch.zeros(2, requires_grad=gradients))
                assert compiled(argument).tolist() == [factor] * 2
