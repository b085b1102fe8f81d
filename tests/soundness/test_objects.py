"""Tensors, parameters and numbers look to traced code as they look in eager: their types, their texts, their keys."""

import builtins
import copy
import functools
import json
import numbers
import operator
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt


def sizes(*shapes):
    return [(torch.arange(float(torch.Size(shape).numel())).reshape(shape),) for shape in shapes]


SIZES = sizes((2, 4), (3, 4), (2, 5), (3, 4), (6, 1))
NUMBERS = [(torch.ones(2), n) for n in (2, 3, 4, 3, 7, 1, 0)]


LABELS = {int: 2, float: 3, torch.Tensor: 5}


def type_of_tensor(x):
    return x + 1 if type(x) is torch.Tensor else x - 1


def class_of_tensor(x):
    return x.relu().__class__ is torch.Tensor, type(x.shape).__name__, type(x * 2).__name__


def type_as_key(x):
    return x * LABELS[type(x)], LABELS[type(x.shape[0])]


def type_by_map(x):
    return [kind.__name__ for kind in map(type, (x, *x.shape))]


def size_is_int(x):
    return x + 1 if isinstance(x.shape[0], int) and not isinstance(x.shape[0], torch.SymInt) else x - 1


def size_is_integral(x):
    return isinstance(x.shape[0], numbers.Integral), isinstance(x.shape[1], (float, str))


def type_of_size(x):
    return x * 2 if type(x.shape[0]) is int else x


def size_has(x):
    return hasattr(x.shape[0], "bit_length"), hasattr(x.shape[0], "node"), getattr(x.shape[0], "real", -1)


def text_of_size(x):
    percent = "%s"
    return (
        str(x.shape[0]),
        percent % x.shape[1],
        f"{x.shape[0]}",
        f"{x.shape}",
        repr(x.size(0) * 2),
        ("%d" + percent) % (x.shape[0], 2),
    )


def padded_text_of_size(x):
    return f"{x.shape[0]:04d}", f"{x.shape[1]!r:>4}", format(x.shape[0], "x")


def joined_text_of_sizes(x):
    return "x".join(map(str, x.shape)) + "/".join(str(n) for n in x.shape)


def text_chooses(x):
    return x + {"size4": 1.0}.get(f"size{x.shape[-1]}", -1.0)


def size_as_key(x):
    return x * {2: 3.0, 3: 5.0}.get(x.shape[0], 7.0)


def shape_in_set(x):
    return x * 2 if x.shape in {(2, 4), (3, 4)} else x


def hash_of_size(x):
    return hash(x.shape[0]), hash(tuple(x.shape))


def json_of_sizes(x):
    return json.dumps({"shape": list(x.shape)}), json.dumps([x.shape[0]], indent=1)


@functools.lru_cache
def scale(n):
    return n * 2.0


def cached_by_size(x):
    return x * scale(x.shape[0])


def matched_size(x):
    match x.shape[0]:
        case int(n):
            return x + n
    return x


def int_of_size(x):
    return x.new_zeros(int(x.shape[0]), int("3")), int(2.5), int(True)


def named_int(x):
    return str(list[int]), torch.zeros(2, dtype=int).dtype, isinstance(int(x.shape[0]), int), [int][0] is int


def text_of_type(x):
    return str(type(x)), str(type(x.shape[0])), x.__class__.__name__, type(x.shape[0])(3)


def class_made(x):
    made = type("Made", (), {"value": 3})
    return made.__module__, x * made.value


kind_of = type


def type_by_other_name(x):
    return kind_of(x) is torch.Tensor, kind_of(x.shape[0]) is int, builtins.type(x.shape[0]).__name__


def attributes(x):
    return (
        vars(x),
        hasattr(x, "fake_mode"),
        getattr(x, "fake_mode", 3),
        "fake_mode" in dir(x),
        hasattr(x, "shape"),
    )


def deep_copy(x):
    return copy.deepcopy(x) + 1


def text_of_tensor(x):
    return str(x), f"{x}", repr(x)


def tensor_as_key(x):
    seen = {x: 1, x + 1: 2}
    return x * seen[x], len({x, x})


def digits(x):
    return x.shape[0].bit_length(), x.shape[0].__class__.__name__ == "int"


def class_by_position(x):
    def name(*args):
        return args[1].__class__.__name__, args[0].__class__.__name__

    return name(x, x.shape[0])


_CLASS_OF = operator.attrgetter("__class__")


def class_by_getter(x):
    return _CLASS_OF(x.shape[0]).__name__, _CLASS_OF(x + 1) is torch.Tensor


def class_by_getter_made_here(x):
    return operator.attrgetter("__class__.__name__")(x.shape[0])


def class_by_call_of_type(x):
    return type.__call__(type, x) is torch.Tensor


def methods_of_int(x):
    n = x.shape[0]
    return int.__add__(n, 3), int.__mul__(n, n), int.__lt__(n, 3), functools.reduce(int.__mul__, x.shape, 1)


OF_SIZES = [
    *(class_by_getter, class_by_getter_made_here, class_by_call_of_type, methods_of_int),
    *(type_of_tensor, class_of_tensor, type_as_key, type_by_map, size_is_int, size_is_integral, type_of_size),
    *(
        size_has,
        text_of_size,
        padded_text_of_size,
        joined_text_of_sizes,
        text_chooses,
        size_as_key,
        shape_in_set,
    ),
    *(
        hash_of_size,
        json_of_sizes,
        cached_by_size,
        matched_size,
        int_of_size,
        named_int,
        text_of_type,
        class_made,
    ),
    *(type_by_other_name, attributes, deep_copy, text_of_tensor, tensor_as_key, digits, class_by_position),
]


def type_of_number(x, n):
    return x * n if type(n) is int else x - 100


def class_of_number(x, n):
    return x * n if n.__class__ is int else x - 100


def instance_of_number(x, n):
    return x * n if isinstance(n, int) and isinstance(n, (str, int)) else x - 100


def text_of_number(x, n):
    percent = "%s"
    return x * n, f"step {n}", str(n), percent % n, f"{n}", f"{n:03d}"


def number_as_key(x, n):
    return x * n, {n: "a"}, {3: "three"}.get(n)


def number_in_json(x, n):
    return x * n, json.dumps({"n": n, str(n): [n]})


def number_hashed(x, n):
    return x * n, hash(n), hash((n, 1))


def number_matched(x, n):
    match n:
        case 3:
            return x
        case int():
            return x * n
    return x - 100


def numeric_attributes(x, n):
    return x * n, n.bit_length(), n.real, n.numerator, round(n, -1)


OF_NUMBERS = [
    *(type_of_number, class_of_number, instance_of_number, text_of_number, number_as_key, number_in_json),
    *(number_hashed, number_matched, numeric_attributes),
]


def assert_same(made, expected):
    assert type(made) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
    elif isinstance(expected, (list, tuple)):
        assert len(made) == len(expected)
        for a, b in zip(made, expected, strict=True):
            assert_same(a, b)
    else:
        assert made == expected


@pytest.mark.parametrize("function", OF_SIZES, ids=lambda f: f.__name__)
def test_sizes_and_tensors(function):
    compiled = staticrt.compile(function)
    with torch.no_grad():
        for args in SIZES:
            assert_same(compiled(*args), function(*args))


@pytest.mark.parametrize("function", OF_NUMBERS, ids=lambda f: f.__name__)
def test_numbers(function):
    compiled = staticrt.compile(function)
    with torch.no_grad():
        for args in NUMBERS:
            assert_same(compiled(*args), function(*args))


class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        if type(self.weight) is nn.Parameter and not isinstance(x, nn.Parameter):
            return x * self.weight
        return x - 100


def test_type_of_parameter():
    model = Kinds()
    with torch.no_grad():
        assert_same(staticrt.compile(model)(torch.ones(3, 2)), model(torch.ones(3, 2)))


def test_type_of_argument_that_is_a_parameter():
    def function(p):
        return p * 2 if type(p) is nn.Parameter and p.__class__ is nn.Parameter else p - 100

    p = nn.Parameter(torch.ones(2))
    with torch.no_grad():
        assert_same(staticrt.compile(function)(p), function(p))


@pytest.mark.parametrize("function", [type_of_size, size_is_int, int_of_size], ids=lambda f: f.__name__)
def test_types_of_sizes_leave_one_trace_for_all_sizes(function):
    compiled = staticrt.compile(function)
    with torch.no_grad():
        for args in SIZES[:4]:
            compiled(*args)
    explanation = compiled.explain()
    assert not explanation.eager
    assert len(explanation.traces) == 1


def test_a_decorator_that_names_the_class_of_self_keeps_sizes_symbolic():
    def named(method):
        @functools.wraps(method)
        def call(*args, **kwargs):
            name = args[0].__class__.__name__
            return method(*args, **kwargs) * len(name)

        return call

    class Layer(nn.Module):
        @named
        def forward(self, x):
            return x.view(x.shape[0] * 2, 2).sin()

    compiled = staticrt.compile(Layer())
    for rows in (1, 2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), Layer()(x))
    assert len(compiled.explain().traces) == 1, compiled.explain()


@pytest.mark.parametrize(
    "text",
    [
        lambda x: str(x[0].item()),
        lambda x: str(x.tolist()),
        lambda x: f"{x.tolist()} {int(x[1]):03d}",
        lambda x: "{0} {0}".format(x.tolist()),
        lambda x: repr({"first": x[0].item()}),
        lambda x: ", ".join(map(str, x.tolist())),
        lambda x: str(x.float().tolist()),
        lambda x: str((x > 2).nonzero().shape[0] + x.shape[0]),
    ],
)
def test_text_of_numbers_that_data_decides(text):
    def model(x):
        return x * 2, text(x)

    fast = staticrt.compile(model)
    with torch.no_grad():
        for values in ([1, 2, 3], [4, 5, 6], [1, 2, 3], [7, 8]):
            x = torch.tensor(values)
            assert fast(x)[1] == model(x)[1]


def _names_a_class(number):
    return number.__class__.__name__


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item().__class__,
        lambda x: (x.sum().item() > 2).__class__.__name__,
        lambda x: x[x > 1].shape[0].__class__,
        lambda x: _names_a_class(x.long().sum().item()),
        lambda x: [number.__class__ for number in x.tolist()],
        lambda x: getattr(x.sum().item(), "__class__"),  # noqa: B009
    ],
)
def test_class_of_numbers_that_data_decides(ask):
    def model(x):
        return x * 2, ask(x)

    fast = staticrt.compile(model)
    with torch.no_grad():
        for values in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0]):
            x = torch.tensor(values)
            assert fast(x)[1] == model(x)[1]


def test_numbers_that_data_decides_stay_in_the_trace_beside_code_that_names_its_own_class():
    class Layer(nn.Module):
        def forward(self, x):
            return x * x.sum().item(), self.__class__.__name__

    fast = staticrt.compile(Layer())
    with torch.no_grad():
        for values in ([1.0, 2.0, 3.0], [4.0, 5.0]):
            assert_same(fast(torch.tensor(values)), Layer()(torch.tensor(values)))
    assert len(fast.explain().traces) >= 1
    assert not fast.explain().eager


@pytest.mark.parametrize(
    "ask", [lambda x, held: id(x), lambda x, held: hash(x), lambda x, held: [*map(id, (x, held))]]
)
def test_the_identity_of_an_argument_is_that_of_the_callers_object(ask):
    compiled = staticrt.compile(lambda x, held: (x * held[0], ask(x, held)))
    calls = [(torch.ones(2), [torch.ones(2)]) for _ in range(4)]
    assert [compiled(*call)[1] for call in calls] == [ask(*call) for call in calls]


def test_a_model_that_asks_for_the_identity_of_a_layer_is_traced():
    layer = torch.nn.Linear(2, 2)
    compiled = staticrt.compile(lambda x: (layer(x), id(layer) % 7, hash(layer.weight) % 7))
    with torch.no_grad():
        assert compiled(torch.ones(1, 2))[1:] == (id(layer) % 7, hash(layer.weight) % 7)
    assert [trace.route for trace in compiled.explain().traces] == ["whole"]


@pytest.mark.parametrize("gradients", [False, True])
def test_a_warning_of_torch_tells_sizes_as_in_eager(gradients):
    texts = []
    for run in (F.mse_loss, staticrt.compile(lambda x, y: F.mse_loss(x, y))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(torch.ones(3, 1, requires_grad=gradients), torch.ones(3))
        texts.append({str(each.message) for each in caught})
    assert "torch.Size([3, 1])" in str(texts[0])
    assert texts[1] == texts[0]
