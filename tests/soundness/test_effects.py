"""What a function does besides computing happens as often as in eager, whoever does it: its own code or Python's library."""

import contextlib
import datetime
import io
import itertools
import json
import logging
import os
import random
import secrets
import sys
import threading
import time
import types
import uuid
import warnings
from functools import partial
from operator import methodcaller

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from tests.soundness.effect_kinds import CASES

CALLS = 4


@pytest.mark.parametrize("name", CASES)
def test_as_often_as_in_eager(name, tmp_path):
    seen = []
    for compiled in (False, True):
        folder = tmp_path / f"{name}_{compiled}"
        folder.mkdir()
        f, observe = CASES[name](folder)
        if hasattr(f, "inner"):
            f.inner = staticrt.compile(f.inner) if compiled else f.inner
        elif compiled:
            f = staticrt.compile(f)
        with torch.no_grad():
            for n in range(CALLS):
                result = f(torch.ones(2 + n % 2))
                assert result.shape == (2 + n % 2,)
        seen.append(repr(observe()))
    assert seen[1] == seen[0]


def fresh_values():
    generator = random.SystemRandom()
    yield "uuid4", lambda: uuid.uuid4().int % 2**20
    yield "uuid1", lambda: uuid.uuid1().time % 2**30
    yield "secrets", lambda: secrets.randbelow(2**20)
    yield "token", lambda: int(secrets.token_hex(2), 16)
    yield "urandom", lambda: int.from_bytes(os.urandom(2), "big")
    yield "SystemRandom", lambda: generator.randrange(2**20)
    yield "random", lambda: random.random()
    yield "choice", lambda: random.choice(range(2**20))
    yield "clock", lambda: time.perf_counter_ns() % 2**20
    yield "now", lambda: datetime.datetime.now().microsecond
    yield "map", lambda: next(map(random.getrandbits, [20]))


@pytest.mark.parametrize(
    ("name", "draw"), list(fresh_values()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_values_are_drawn_anew(name, draw):
    def f(x):
        return x + draw()

    compiled = staticrt.compile(f)
    with torch.no_grad():
        assert len({compiled(torch.zeros(1, dtype=torch.float64)).item() for _ in range(6)}) > 1


# What makes a generator from a seed, and what draws from it.
GENERATORS = {
    "python": (random.Random, lambda own: own.random()),
    "numpy": (numpy.random.default_rng, lambda own: float(own.random())),
    "integers": (numpy.random.default_rng, lambda own: int(own.integers(0, 1000))),
    "RandomState": (numpy.random.RandomState, lambda own: own.rand()),
    "method": (lambda seed: numpy.random.default_rng(seed).normal, lambda own: own()),
    "method in a list": (lambda seed: [numpy.random.default_rng(seed).random], lambda own: own[0]()),
    "method in a dict": (lambda seed: {"k": numpy.random.default_rng(seed).random}, lambda own: own["k"]()),
    "partial": (lambda seed: partial(numpy.random.default_rng(seed).normal, 0, 1), lambda own: own()),
    "method by name": (
        lambda seed: (methodcaller("random"), numpy.random.default_rng(seed)),
        lambda own: own[0](own[1]),
    ),
    "listed": (lambda seed: [numpy.random.default_rng(seed)], lambda own: own[0].uniform(0, 1)),
    "bits": (numpy.random.default_rng, lambda own: float(own.bit_generator.random_raw() % 1000)),
    "array": (numpy.random.default_rng, lambda own: torch.from_numpy(own.random(3))),
}


class Draws(nn.Module):
    def __init__(self, name):
        super().__init__()
        make, self.draw = GENERATORS[name]
        self.own = make(3)

    def forward(self, x):
        return x.sin() + self.draw(self.own)


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_that_a_model_holds_draw_as_in_eager(name):
    model, compiled = Draws(name), staticrt.compile(Draws(name))
    x = torch.ones(3, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(x), model(x))


def test_a_generators_method_as_free_variable_default_and_argument_draws_as_in_eager():
    def functions():
        draw = numpy.random.default_rng(3).random
        yield lambda x: x * draw()
        yield lambda x, draw=numpy.random.default_rng(3).random: x * draw()  # noqa: B008
        given = numpy.random.default_rng(3).random
        compiled_or_not = lambda x, draw: x * draw()  # noqa: E731
        yield compiled_or_not, given

    x = torch.ones(2, dtype=torch.float64)
    for eager, other in zip(functions(), functions(), strict=True):
        f, *given = eager if isinstance(eager, tuple) else (eager,)
        g, *others = other if isinstance(other, tuple) else (other,)
        compiled = staticrt.compile(g)
        with torch.no_grad():
            for _ in range(4):
                assert torch.equal(compiled(x, *others), f(x, *given))


@pytest.mark.parametrize("effect", [lambda: print(end=""), numpy.random.rand])
def test_a_generator_behind_another_effect_draws_as_in_eager(effect):
    """Dynamo's parts would repeat the first numbers of a generator that is not the module's."""

    def make(generator):
        return lambda x: (effect(), x * generator.random())[1]

    eager, compiled = make(random.Random(3)), staticrt.compile(make(random.Random(3)))
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(torch.ones(2)), eager(torch.ones(2)))


def test_an_end_that_python_calls_runs_in_every_call():
    def make():
        ended = []

        class Guard:
            def __del__(self):
                ended.append(1)

        def model(x):
            guard = Guard()
            return x * 2 if guard else x

        return model, ended

    (eager, want), (model, got) = make(), make()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(6):
            eager(torch.ones(2)), compiled(torch.ones(2))
            assert got == want


def test_files_are_read_anew(tmp_path):
    path = tmp_path / "scale"
    readers = {
        "read_text": lambda: float(path.read_text()),
        "open": lambda: float("".join(open(path))),  # noqa: SIM115
        "exists": lambda: float((tmp_path / "flag").exists()),
        "os.path": lambda: float(os.path.exists(tmp_path / "flag")),
        "listdir": lambda: float(len(os.listdir(tmp_path))),
        "json": lambda: float(json.loads(path.read_text())),
    }
    path.write_text("2")
    compiled = {name: staticrt.compile(lambda x, read=read: x * read()) for name, read in readers.items()}
    x = torch.ones(2)
    with torch.no_grad():
        for number in ("2", "5", "7"):
            path.write_text(number)
            for name, read in readers.items():
                assert compiled[name](x)[0].item() == read(), name
            (tmp_path / "flag").touch()


class Chatty(nn.Module):
    """Uses much of Python's library, and nothing that has an effect."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.log = logging.getLogger("effects.quiet")
        self.log.setLevel(logging.ERROR)

    def forward(self, x):
        import collections
        import dataclasses
        import enum
        import itertools
        import math
        import re
        import typing

        Point = collections.namedtuple("Point", "a b")

        @dataclasses.dataclass
        class Config:
            scale: float = 2.0

        class Mode(enum.Enum):
            A = 1

        self.log.debug("not shown")
        with contextlib.ExitStack():
            y = self.linear(x)
        point = Point(2.0, re.sub("a", "b", "aa"))
        out = io.StringIO
        counts = collections.Counter(itertools.chain("ab", "b"))
        config = dataclasses.replace(Config(), scale=math.sqrt(4.0))
        assert typing.get_type_hints(Config)
        assert Mode(1) is Mode.A
        assert out is io.StringIO
        text = json.dumps({"k": [1, 2]}, indent=1) + os.path.join("a", "b")
        return y * point.a * config.scale * counts["b"] + len(text)


def test_a_lock_is_taken_in_every_call():
    lock = threading.Lock()
    weight = torch.ones(2)

    def f(x):
        with lock:
            return x * weight

    compiled = staticrt.compile(f)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.ones(2))
        answers = []
        with lock:  # what it protects is half written
            weight.fill_(-1)
            beside = threading.Thread(target=lambda: answers.append(compiled(torch.ones(2)).tolist()))
            beside.start()
            beside.join(0.2)
            weight.fill_(3)
        beside.join()
    assert answers == [[3.0, 3.0]]


def test_functions_that_are_called_are_not_handed_on():
    """Neither `print(*words)` nor a clock in a branch that does not run keeps a model from being compiled."""

    def f(x, show=False):
        words = (x.shape, 1)
        if show:
            print(*words)
            print(words, time.time(), time.time(*()))
        return x + 1

    compiled = staticrt.compile(f)
    with torch.no_grad():
        compiled(torch.ones(3))
    assert len(compiled.explain().traces) == 1


def test_pure_parts_of_the_library_stay_compiled():
    model = Chatty()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for n in (2, 3):
            torch.testing.assert_close(compiled(torch.ones(n, 4)), model(torch.ones(n, 4)))
    assert not compiled.explain().eager


def test_a_model_that_warns_once_is_compiled_whole_afterwards(tmp_path):
    f, _told = CASES["once_by_a_cache"](tmp_path)
    compiled = staticrt.compile(f)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.ones(2))
    explanation = compiled.explain()
    assert [report.calls for report in explanation.eager] == [1]
    assert [report.route for report in explanation.traces] == ["whole"]


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
def test_warnings_of_torch_are_issued_as_the_filters_say(gradients):
    def model(x):
        return F.mse_loss(x * 2, x[:1])

    def run(compiler):
        function, seen = compiler(model), []
        with torch.set_grad_enabled(gradients), warnings.catch_warnings(record=True) as found:
            for action in ("ignore", "always", "error", "ignore", "always"):
                warnings.simplefilter(action)
                for _call in range(3):
                    with contextlib.suppress(UserWarning):
                        function(torch.ones(2, 3, requires_grad=gradients))
                        seen.append("answered")
                seen.append(len(found))
        return seen

    assert run(staticrt.compile) == run(lambda function: function)


def test_a_warning_of_torch_that_is_shown_once_leaves_the_model_compiled():
    compiled = staticrt.compile(lambda x: F.mse_loss(x * 2, x[:1]))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _call in range(3):
            compiled(torch.ones(2, 3))
    assert not compiled.explain().eager


def test_a_profiler_of_the_caller_stays(tmp_path):
    events = []

    def profile(frame, event, argument):
        events.append(event)

    sys.setprofile(profile)
    try:
        staticrt.compile(lambda x: x + 1)(torch.ones(2))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    staticrt.compile(lambda x: x + 1)(torch.ones(2))
    sum([1, 2])
    profiler.disable()
    profiler.create_stats()
    assert any("sum" in key[2] for key in profiler.stats)


def test_other_threads_keep_their_builtins():
    seen, stop = set(), threading.Event()

    def f(x, n=3):
        return x * n if type(n) is int and isinstance(x.shape[0], int) else x

    def loop():
        while not stop.is_set():
            names = sys._getframe().f_builtins
            seen.add((f.__globals__.get("int"), type(names), names["type"]))

    thread = threading.Thread(target=loop)
    thread.start()
    for _ in range(5):
        staticrt.compile(f)(torch.ones(2))
    stop.set()
    thread.join()
    assert seen == {(None, dict, type)}


@pytest.mark.parametrize("iterator", [lambda: itertools.count(1), lambda: (i for i in range(1, 9))])
@pytest.mark.parametrize(
    "take",
    [
        lambda held: next(held["all"][0]),
        lambda held: next(iter(held["one"].it)),
        lambda held: next(zip(held["all"][0], "abc", strict=False))[0],
        lambda held: sum(itertools.islice(held["one"].it, 2)),
    ],
)
def test_an_iterator_that_a_container_holds_goes_on(take, iterator):
    def answers(compiler):
        shared = iterator()
        held = {"all": (shared,), "one": types.SimpleNamespace(it=shared)}
        function = compiler(lambda x: x * take(held))
        with torch.no_grad():
            return [function(torch.ones(1)).item() for _ in range(4)]

    assert answers(staticrt.compile) == answers(lambda function: function)
