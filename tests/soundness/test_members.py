"""What lies in objects of C and is replaced in place between calls: what a partial calls, functions of properties."""

import asyncio
import functools

import pytest
import torch

import staticrt


class Layer:
    scale = 2.0

    @property
    def factor(self):
        return self.scale

    @staticmethod
    def twice(x):
        return x * 2

    @classmethod
    def thrice(cls, x):
        return x * 3


def multiply(x, k):
    return x * k


def subtract(x, k):
    return x - k


def replaced(kind):
    """A function, and what to change of it between calls."""
    own = type("Own", (Layer,), {})
    layer, partial = own(), functools.partial(multiply, k=2.0)
    partial.extra = 1.0
    own.factor, own.twice, own.thrice = (
        property(Layer.factor.fget),
        staticmethod(Layer.twice),
        classmethod(vars(Layer)["thrice"].__func__),
    )
    own_dict = vars(own)
    return {
        "function of a partial": (
            lambda x: partial(x),
            lambda: partial.__setstate__((subtract, (), {"k": 2.0}, None)),
        ),
        "arguments of a partial": (
            lambda x: partial(x),
            lambda: partial.__setstate__((multiply, (), {"k": 5.0}, None)),
        ),
        "attribute of a partial": (
            lambda x: partial(x) * partial.extra,
            lambda: setattr(partial, "extra", 7.0),
        ),
        "property": (
            lambda x: x * layer.factor,
            lambda: own_dict["factor"].__init__(lambda _self: 9.0),
        ),
        "static method": (lambda x: layer.twice(x), lambda: own_dict["twice"].__init__(lambda x: x * 20)),
        "class method": (
            lambda x: layer.thrice(x),
            lambda: own_dict["thrice"].__init__(lambda _cls, x: x * 30),
        ),
    }[kind]


KINDS = (
    *("function of a partial", "arguments of a partial", "attribute of a partial"),
    *("property", "static method", "class method"),
)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in parts"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_replaced_in_place_is_noticed(kind, whole, gradients):
    function, replace = replaced(kind)

    def model(x):
        if not whole:
            print(end="")
        return function(x)

    compiled = staticrt.compile(model)

    def check():
        x = torch.ones(3, requires_grad=gradients)
        expected, got = model(x), compiled(x)
        assert got.tolist() == expected.tolist()
        return got.tolist()

    before = [check() for _ in range(3)]
    replace()
    after = check()
    assert after == check()
    # Code that ran often calls a property's first function, from Python 3.12 on, in eager too.
    assert after != before[0] or kind == "property"


def test_a_partial_that_the_model_changes_is_put_back():
    partial = functools.partial(multiply, k=2.0)

    def model(x):
        partial.__setstate__((multiply, (), {"k": partial.keywords["k"] + 1}, None))
        return partial(x)

    compiled = staticrt.compile(model)
    assert [compiled(torch.ones(1)).item() for _ in range(4)] == [3.0, 4.0, 5.0, 6.0]


# -- coroutines -----------------------------------------------------------------------------------------------------


class Asynchronous(torch.nn.Module):
    async def work(self, x):
        return x * 2

    def forward(self, x):
        return asyncio.run(self.work(x)) + 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_coroutines_in_an_event_loop_run_eagerly(gradients):
    """Dynamo runs a coroutine where it is made, and hands its result to the loop."""
    model = Asynchronous()
    compiled = staticrt.compile(model)
    for _ in range(3):
        x = torch.ones(2, requires_grad=gradients)
        assert compiled(x).tolist() == [3.0, 3.0]
    assert "calls" in str(compiled.explain())
    assert compiled.explain().traces == ()


def test_a_coroutine_that_the_model_drives_itself_is_traced():
    async def work(x):
        return x * 2

    def model(x):
        try:
            work(x).send(None)
        except StopIteration as ended:
            return ended.value

    compiled = staticrt.compile(model)
    assert [compiled(torch.ones(2)).tolist() for _ in range(2)] == [[2.0, 2.0]] * 2
    assert len(compiled.explain().traces) == 1
