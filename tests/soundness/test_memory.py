"""Memory that arguments and views share: writes show where eager's do, and shapes change where eager's do."""

import copy
import warnings

import numpy as np
import pytest
import torch

import staticrt
from tests.support.against_eager import check, seen
from tests.support.compilers import each_compiler, each_compiler_for_gradients

arange = torch.arange


def rows(n=4, m=3):
    return (arange(float(n * m)).view(n, m),)


def add_into_first(x, y):
    x.add_(1)
    return x + y


def one_array_twice():
    array = np.ones(6, np.float32)
    return torch.from_numpy(array[:4]), torch.from_numpy(array[2:])


def one_array_by_dlpack():
    x = torch.ones(4)
    return x, torch.from_dlpack(x)


def halves_of_one_tensor():
    x = torch.ones(8)
    return x[:4], x[4:]


@pytest.mark.parametrize("make", [one_array_twice, one_array_by_dlpack, halves_of_one_tensor])
def test_arguments_of_one_memory(make):
    check(add_into_first, lambda: (torch.ones(4), torch.ones(4)), make, times=3)


def test_a_buffer_of_an_arguments_memory():
    class Counts(torch.nn.Module):
        def __init__(self, array):
            super().__init__()
            self.register_buffer("seen", torch.from_numpy(array))

        def forward(self, x):
            self.seen.add_(1)
            return x + self.seen

    def go(compiled):
        array = np.ones(3, np.float32)
        model = compiled(Counts(array))
        with torch.no_grad():
            return [
                model(torch.from_numpy(array) if shared else torch.ones(3)).tolist() for shared in (0, 0, 1)
            ]

    assert go(staticrt.compile) == go(lambda model: model)


def write_first_column(x):
    return x[:, 0].add_(1), x


def double(x):
    return x.mul_(2)


@pytest.mark.parametrize("function", [write_first_column, double])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.ones(3, 1).expand(3, 4),),
        lambda: (torch.ones(1, 4).expand(3, 4),),
        lambda: (torch.ones(6).as_strided((4, 3), (1, 1)),),
        lambda: (torch.ones(12).as_strided((4, 3), (3, 1)),),
        lambda: (torch.ones(4, 6)[:, ::2],),
    ],
)
def test_a_written_argument_that_overlaps_itself(function, make):
    check(function, lambda: (torch.ones(4, 3),), make)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[:, 1:].add_(x[:, :-1]),
        lambda x: x[0].add_(x[1]),
        lambda x: x[:2].copy_(x[-2:]),
        lambda x: x.chunk(2)[0].add_(x.chunk(2)[1]),
        lambda x: x[::2].add_(x[1::2]),
        lambda x: x.add_(x),
        lambda x: x.view(-1).add_(x.view(-1)),
        lambda x: x[:3].add_(x[:3].t()),
        lambda x: x.index_add_(0, arange(x.shape[0]).flip(0), x),
        lambda x: torch.mul(x[:-1], 2, out=x[1:]),
        lambda x: x.clone().as_strided((3, 3), (1, 1)).mul_(2),
        lambda x: x.clone().as_strided((3, 3), (3, 1)).mul_(2),
    ],
)
def test_a_write_of_memory_that_it_reads(function):
    check(function, rows, lambda: rows(6, 3))


IN_PLACE_VIEWS = [
    *(
        "unsqueeze_(0)",
        "squeeze_()",
        "t_()",
        "transpose_(0, 1)",
        "swapaxes_(0, 1)",
        "detach_()",
        "t_().mul_(2)",
    ),
    *("resize_(2, 3)", "resize_(5, 5).zero_()", "set_(torch.ones(3))", "as_strided_((2, 2), (1, 2))"),
]


@pytest.mark.parametrize("change", IN_PLACE_VIEWS)
@pytest.mark.parametrize(
    "body",
    [
        "y = x + 1; r = x.{}; return y, r",
        "z = x + 1; y = z.view(-1); r = z.{}; z.add_(1); return y, r, z",
        "z, y = x.sort(0); r = z.{}; return y, r, z",
        "z = x.clone().relu_(); y = z[0]; r = z.{}; z.add_(1); return y, z",
    ],
    ids=["argument", "own", "one_of_two", "result_of_a_write"],
)
def test_a_tensor_changes_its_shape_in_place(body, change):
    names = {"torch": torch}
    exec(f"def f(x): {body.format(change)}", names)
    check(names["f"], rows)


def test_a_reduced_tensor_is_squeezed_in_place():
    def f(x):
        v, _ = x.max(-1, keepdim=True)
        v.squeeze_(-1)
        z = torch.zeros(4)
        z[0] = 1
        return v + z

    check(f, rows)


def test_a_buffer_changes_its_shape_in_place():
    class Grows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(3))

        def forward(self, x):
            self.b.unsqueeze_(0)
            return x + self.b

    def go(compiled):
        model = Grows()
        call = compiled(model)
        with torch.no_grad():
            return [call(torch.ones(3)).shape for _ in range(3)], model.b.shape

    assert go(staticrt.compile) == go(lambda model: model)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, b: torch.sort(x, out=(a, b))[0] + 1,
        lambda x, a, b: torch.max(x, 0, out=(a, b))[1],
        lambda x, a, b: torch.topk(x, 2, out=(a, b))[0],
        lambda x, a, b: torch.cummax(x, 0, out=(a, b))[0],
        lambda x, a, b: torch.sort(x, out=(a.zero_(), b))[0] + 1,
    ],
)
def test_out_tensors_are_resized(function):
    check(function, lambda: (*rows(), torch.empty(0), torch.empty(0, dtype=torch.long)))


def test_an_own_out_tensor_is_resized_to_another_layout_than_the_operators():
    """Numbers are drawn before it, so that a graph that fails cannot be made good by an eager call."""

    def function(x):
        dropped = torch.nn.functional.dropout(x, 0.5)
        places = torch.sort(x[:, :1], out=(x[:, :1] + 1, torch.empty(0).long()))[1]
        return dropped, places, places + 1

    check(function, lambda: (torch.arange(5.0).view(1, 5),))


@pytest.mark.parametrize("out", ["o", "torch.ones(5)"], ids=["argument", "own"])
def test_a_resized_out_tensor_with_elements_is_warned_of_in_eagers_words(out):
    names = {"torch": torch}
    exec(f"def f(x, o): return torch.add(x, 1, out={out}) * 2", names)
    told = []
    for run in (names["f"], staticrt.compile(names["f"])):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = [run(torch.ones(3), torch.ones(5)) for _ in range(3)]
        told.append([str(warning.message).split(" (")[0] for warning in caught])
        assert all(torch.equal(result, torch.full((3,), 4.0)) for result in results)
    assert told[0] == told[1]
    assert len(told[0]) == 3


def test_a_view_of_a_strided_view_is_read_by_strides():
    def f(x):
        d = torch.stack([x, x + 10], -1)[..., 0]
        return d.clamp_(-2, 2).as_strided((2, 2), (1, 2)) + 0

    check(f, lambda: (arange(21, dtype=torch.int32).view(7, 3),))


def test_a_loop_without_steps_gives_copies():
    from torch._higher_order_ops.while_loop import while_loop

    def f(n, x):
        return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2), (n, x))

    check(f, *[lambda k=k: (torch.tensor(k), torch.ones(3)) for k in (0, 2, 0)], backend=False)


def test_seen_tells_aliases():
    assert seen(lambda x: x, rows) != seen(lambda x: x.clone(), rows)


@pytest.mark.parametrize("kernel", [1, 3])
@each_compiler
def test_strides_that_say_nothing_decide_the_memory_format_of_results(kernel, compiler):
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 3, kernel), torch.nn.ReLU(), torch.nn.Conv2d(3, 4, 1)
    ).eval()
    for memory_format in (torch.channels_last, torch.contiguous_format):
        model = copy.deepcopy(model).to(memory_format=memory_format)
        compiled = compiler(model)
        for x in (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)):
            with torch.no_grad():
                assert compiled(x).stride() == model(x).stride()


class SetsData(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.ones(2))
        self.name = name

    def forward(self, x):
        tensor = getattr(self, self.name)
        y = x * tensor
        tensor.data = tensor.data * 2
        return y + torch.nn.functional.linear(x, tensor[None])


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("name", ["weight", "scale"])
def test_a_model_that_sets_data_keeps_real_memory(name, gradients):
    seen = []
    for make in (lambda model: model, staticrt.compile):
        model = SetsData(name)
        function = make(model)
        with torch.set_grad_enabled(gradients):
            results = [function(torch.tensor([1.0, 2.0])).detach() for _ in range(3)]
        seen.append([*results, model.weight.detach(), model.scale])
    assert [x.tolist() for x in seen[1]] == [x.tolist() for x in seen[0]]


def test_an_attribute_named_data_is_traced():
    class Batch:
        pass

    def model(x, batch):
        batch.data = x * 2
        return batch.data + 1

    fast = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(2):
            batch = Batch()
            assert fast(torch.ones(2), batch).tolist() == [3, 3]
            assert batch.data.tolist() == [2, 2]
    assert len(fast.explain().traces) == 1


def test_sizes_decide_the_strides_of_what_follows_from_an_argument_that_overlaps_itself():
    def f(x):
        y = x * 1
        return y.movedim(0, -1).flatten(), y[:1]

    windows = [
        lambda n=n, m=m: (arange(float(n + m)).as_strided((n, m), (1, 1)),)
        for n, m in ((2, 2), (6, 7), (7, 6), (3, 3))
    ]
    check(f, *windows)


@pytest.mark.parametrize(
    "kernel", [lambda x: torch.dropout(x, 0.0, True), lambda x: torch.dropout(x, 0.5, False)]
)
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x * 2], ids=["argument", "result"])
@each_compiler
@pytest.mark.usefixtures("fresh_dynamo")
def test_dropout_of_nothing_gives_its_argument(kernel, of, compiler):
    def model(x):
        y = of(x)
        return y, kernel(y)

    fast = compiler(model)
    for size in (3, 2, 3):
        x = torch.ones(size, requires_grad=True)
        y, dropped = fast(x)
        assert dropped is y
        dropped.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((size,), 1.0 if of(1) == 1 else 2.0))


@pytest.mark.parametrize(
    "export",
    [torch.from_dlpack, lambda x: torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)), np.from_dlpack],
)
def test_memory_that_the_model_hands_on_is_real(export):
    def model(x):
        y = x * 2
        shared = torch.as_tensor(export(y))
        shared.add_(1)
        return y, shared

    fast = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(2):
            assert [value.tolist() for value in fast(torch.ones(2))] == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.apply_(lambda a: a + 1),
        lambda x: x.map_(x, lambda a, b: a + b),
        lambda x: x.map2_(x, x, lambda a, b, c: a + b - c + 1),
    ],
)
def test_python_is_called_for_each_real_element(change):
    fast = staticrt.compile(lambda x: change(x * 1) * 2)
    with torch.no_grad():
        for _ in range(2):
            assert fast(torch.ones(2)).tolist() == [4, 4]


def test_an_argument_that_shares_a_weights_memory_is_written():
    weight = torch.nn.Parameter(torch.ones(2))

    def model(x):
        x.mul_(2)
        return (weight * x).sum()

    torch._dynamo.reset()
    fast = torch.compile(model, backend="staticrt")
    fast(torch.ones(2))
    assert fast(weight.detach()).item() == 8
    assert weight.tolist() == [2, 2]


@pytest.mark.parametrize(
    "share", [lambda m: m.weight.detach(), lambda m: m.whole[1:]], ids=["parameter", "buffer"]
)
@each_compiler_for_gradients
def test_a_written_buffer_comes_to_share_memory_with_another_weight(share, compiler):
    def run(compiled):
        model = CountsInBuffer()
        call = compiled(model)
        results = [call(torch.ones(3))]
        model.count = share(model)
        results += [call(torch.ones(3)) for _ in range(2)]
        return *results, model.weight, model.whole

    for got, want in zip(run(compiler), run(lambda model: model), strict=True):
        torch.testing.assert_close(got, want)


class CountsInBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("whole", torch.from_numpy(np.arange(4, dtype=np.float32)))
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(1)
        return x * self.weight + self.count + self.whole[:3]


def zero_from_the_beginning(x):
    x.as_strided((2,), (1,), 0).zero_()
    return x + 1


def zero_from_the_beginning_of_a_result(x):
    y = x * 1
    y[2:].as_strided((2,), (1,), 0).zero_()
    return y


def read_from_the_beginning(x):
    x.add_(1)
    return x.as_strided((2,), (1,), 0) * 2


@pytest.mark.parametrize(
    "function", [zero_from_the_beginning, zero_from_the_beginning_of_a_result, read_from_the_beginning]
)
@each_compiler
def test_offsets_of_as_strided_count_from_the_beginning_of_memory(function, compiler):
    compiled = compiler(function)
    for begin in (0, 2, 1):
        memory, expected = arange(6.0), arange(6.0)
        got, want = compiled(memory[begin:]), function(expected[begin:])
        assert (got.tolist(), memory.tolist()) == (want.tolist(), expected.tolist())


@pytest.mark.parametrize("write", [True, False])
def test_windows_of_all_elements_of_what_was_written_are_traced(write):
    """As the chunks of Longformer's attention: `as_strided` on views of a scaled projection."""

    def function(x):
        y = x * 2
        y /= 3
        rows = y.transpose(0, 1).transpose(0, 1).view(2, -1)
        if write:
            rows.add_(1)  # what replaces it has memory of its own
        n = y.shape[0]
        windows = rows.as_strided((n - 1, 4), (2, 1))
        return windows * 1, y + 1

    compiled = staticrt.compile(function)
    for n in (4, 6, 4):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x), function(x))
    explanation = compiled.explain()
    assert explanation.traces, explanation
    assert not explanation.eager, explanation


def test_as_strided_writes_beyond_the_view_that_it_was_called_on():
    def function(x):
        strided = x.softmax(-1).split(1, -1)[1].as_strided((2, 2), (1, 2))
        strided[0].add_(strided[1])
        return strided

    x = arange(12.0).reshape(3, 4)
    torch.testing.assert_close(staticrt.compile(function)(x), function(x))
