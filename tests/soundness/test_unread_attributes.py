"""Attributes that the model's code never reads may change without a new trace; whatever way it reads others is guarded."""

import copy
import dataclasses
import functools
import operator
import pickle

import pytest
import torch

import staticrt


@dataclasses.dataclass
class Config:
    width: float = 2.0
    note: float = 5.0
    __match_args__ = ("width", "note")


TEMPLATE = "{0.width}"
ALIAS = getattr
PARTIAL = [None]
TH, AD = "th", "ad"  # the compiler joins constants


class Own:
    def __init__(self):
        self.width, self.note = 2.0, 5.0


class Model(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.layer, self.config, self.own, self.read = torch.nn.Linear(4, 4), Config(), Own(), read
        self.calls, self.width, self.name = 0, 3.0, "width"
        self.table = vars(self.own)
        PARTIAL[0] = functools.partial(getattr, self.config)
        self.find, self.values = self.table.get, self.table.values()

    def forward(self, x):
        return self.layer(x) * self.read(self)


def traces(fast):
    return len(fast.explain().traces)


@pytest.mark.parametrize("is_training", [False, True])
def test_what_no_code_reads_may_change_in_every_call(is_training):
    model = Model(lambda self: self.width)
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    with torch.set_grad_enabled(is_training):
        for call in range(6):
            torch.testing.assert_close(fast(x), model(x))
            model.calls += 1
            model.layer.seen = call
            model.config.note = float(call)
            setattr(model, f"loss_{call}", call / 2)
            if call == 1:
                before = traces(fast)
    assert traces(fast) == before == 1
    model.width = 7.0
    with torch.set_grad_enabled(is_training):
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("is_training", [False, True])
def test_containers_that_no_code_reads_may_change_in_every_call(is_training):
    """A trainer that the model holds, a history of losses."""
    model = Model(lambda self: self.width)
    model.trainer = Own()
    model.trainer.metrics, model.trainer.model, model.losses = {"step": 0}, model, []
    model.layer.seen = {1: [2]}
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    with torch.set_grad_enabled(is_training):
        for call in range(6):
            torch.testing.assert_close(fast(x), model(x))
            model.losses.append(float(call))
            model.trainer.metrics["step"] = call
            model.trainer.last = [call]
            model.layer.seen[1].append(call)
    assert len(fast.explain().traces) == 1
    model.trainer.model.width = 7.0
    with torch.set_grad_enabled(is_training):
        torch.testing.assert_close(fast(x), model(x))


def cached(numbers):
    @functools.lru_cache
    def first():
        return numbers[0]

    return first


HELD = {
    "by a cached function": lambda self: self.cached(),
    "through another attribute": lambda self: self.other[0],
    "through a closure": (lambda held: lambda self: held[0])([2.0]),
    "through a default": lambda self, held=[2.0]: held[0],
    "by a class": lambda self: Own.shared[0],
    "by a list of objects": lambda self: self.objects[0].width,
    "by a property": lambda self: self.own_height,
    "by a computed name": lambda self: getattr(self, "unre" + AD)[0],
    "by a method of the container": lambda self: self.pop(0),
}


@pytest.mark.parametrize("kind", HELD)
@torch.no_grad()
def test_a_container_that_an_unread_attribute_holds_too_is_guarded(kind):
    """The attribute is met first."""
    read = HELD[kind]

    class Holder(Model):
        @property
        def own_height(self):
            return self.own.heights[0]

    model = Holder(read)
    numbers, own = [2.0], Own()
    if kind == "through a closure":
        numbers = read.__closure__[0].cell_contents
    elif kind == "through a default":
        numbers = read.__defaults__[0]
    model.unread, model.unread_too = numbers, own
    model.other, model.objects, model.own.heights, Own.shared = numbers, [own], numbers, numbers
    model.pop, model.cached = numbers.__getitem__, cached(numbers)
    model.cached()
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    before = model(x)
    numbers[0] = own.width = 9.0
    model.cached.cache_clear()
    assert not torch.equal(model(x), before)
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x))


def matched_by_name(self):
    match self.config:
        case Config(width=width):
            return width


def matched_by_position(self):
    match self.config:
        case Config(width, _):
            return width


class Cached(Own):
    @functools.cached_property
    def twice(self):
        return self.width * 2


READS = {
    "by name": lambda self: self.config.width,
    "computed": lambda self: getattr(self.config, "wid" + TH),
    "mapped": lambda self: sum(map(functools.partial(getattr, self.config), ("wid" + TH,))),
    "by a partial of before": lambda self: PARTIAL[0]("wid" + TH),
    "reduced": lambda self: functools.reduce(getattr, ("config", "wid" + TH), self),
    "by another name": lambda self: ALIAS(self.config, "wid" + TH),
    "by a default": lambda self, get=getattr: get(self.config, "wid" + TH),
    "by a list of functions": lambda self: [len, getattr][1](self.config, "wid" + TH),
    "dict": lambda self: self.config.__dict__["width"],
    "vars": lambda self: vars(self.config)["width"],
    "sum of vars": lambda self: sum(vars(self.own).values()),
    "number of attributes": lambda self: float(len(vars(self.own))),
    "a dict that is held": lambda self: sum(self.table.values()),
    "a method of that dict": lambda self: self.find("wid" + TH),
    "a view of that dict": lambda self: sum(self.values),
    "attrgetter": lambda self: operator.attrgetter("wid" + TH)(self.config),
    "getattribute": lambda self: object.__getattribute__(self.config, "wid" + TH),
    "format": lambda self: float(TEMPLATE.format(self.config)),
    "copy": lambda self: copy.copy(self.own).width,
    "deepcopy": lambda self: getattr(copy.deepcopy(self.own), "wid" + TH),
    "asdict": lambda self: dataclasses.asdict(self.config)["width"],
    "replace": lambda self: dataclasses.replace(self.config, note=1.0).width,
    "equal": lambda self: 1.0 if self.config == Config() else 2.0,
    "text": lambda self: float(len(repr(self.config))),
    "pickle": lambda self: pickle.loads(pickle.dumps(self.own)).width,
    "match by name": matched_by_name,
    "match by position": matched_by_position,
    "evaluated": lambda self: eval("self.config.wid" + TH),
    "has": lambda self: 1.0 if hasattr(self.own, AD + "ded") else 2.0,
    "the layer's text": lambda self: float(len(self.layer.extra_repr())),
}
CHANGES = {
    "has": lambda model: setattr(model.own, "added", 1),
    "number of attributes": lambda model: setattr(model.own, "added", 1),
    "the layer's text": lambda model: setattr(model.layer, "in_features", 1234),
}


def widen(model):
    model.config.width = model.own.width = 12.5


@pytest.mark.parametrize("kind", READS)
@torch.no_grad()
def test_what_code_reads_is_guarded(kind):
    model = Model(READS[kind])
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    before = model(x)
    CHANGES.get(kind, widen)(model)
    assert not torch.equal(model(x), before), "the change shows"
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x))


@torch.no_grad()
def test_an_attribute_that_hides_one_of_the_class_is_seen():
    Own.height = 4.0
    try:
        model = Model(lambda self: self.own.height)
        fast = staticrt.compile(model)
        x = torch.randn(2, 4)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
        model.own.height = 8.0
        torch.testing.assert_close(fast(x), model(x))
        del model.own.height
        torch.testing.assert_close(fast(x), model(x))
    finally:
        del Own.height


@torch.no_grad()
def test_what_a_cached_property_kept_is_seen():
    model = Model(lambda self: self.own.twice)
    model.own = Cached()
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    model.own.__dict__["twice"] = 77.0
    torch.testing.assert_close(fast(x), model(x))


@torch.no_grad()
def test_what_the_model_itself_writes_is_undone_and_runs_eagerly():
    """A name that only the call computes: the trace was not pure."""
    model = Model(lambda self: setattr(self, "seen_" + str(self.calls), 1) or self.width)
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    for call in range(3):
        model.calls = call
        fast(x)
        assert f"seen_{call}" in vars(model)
