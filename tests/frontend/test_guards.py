"""What a compiled callable must notice between calls: state of the model, of the process, and of the inputs."""

import concurrent.futures
import copy
import re
import types
import warnings

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import TraceError


def traces(compiled):
    return len(compiled.explain().traces)


def reasons(compiled):
    return " | ".join(item.reason for item in compiled.explain().eager)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.dims = [0, 1]
        self.config = types.SimpleNamespace(shift=1.0, extra={"power": 2})
        self.plain = torch.ones(4)

    def forward(self, x):
        y = self.drop(self.linear(x)) * self.scale + self.config.shift
        return (y ** self.config.extra["power"]).sum(self.dims[0]) + self.plain


CHANGES = {
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "int for float": lambda m: setattr(m, "scale", 2),
    "list item": lambda m: m.dims.__setitem__(0, 1),
    "nested dict": lambda m: m.config.extra.update(power=3),
    "object attribute": lambda m: setattr(m.config, "shift", -1.0),
    "submodule attribute": lambda m: setattr(m.drop, "p", 0.1),
    "tensor attribute": lambda m: setattr(m, "plain", torch.full((4,), 5.0)),
    "tensor in place": lambda m: m.plain.mul_(7),
    "parameter in place": lambda m: m.linear.weight.mul_(2),
    "parameter.data": lambda m: setattr(m.linear.weight, "data", torch.randn(4, 4)),
    "transposed data": lambda m: setattr(m.linear.weight, "data", torch.randn(4, 4).t()),
    "new parameter": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.randn(4, 4))),
    "no bias": lambda m: setattr(m.linear, "bias", None),
    "new submodule": lambda m: setattr(m, "linear", nn.Linear(4, 4, bias=False)),
    "deleted and set": lambda m: (delattr(m, "drop"), setattr(m, "drop", nn.Tanh())),
    "forward hook": lambda m: m.linear.register_forward_hook(lambda mod, a, out: out - 1),
    "pre hook": lambda m: m.register_forward_pre_hook(lambda mod, a: (a[0] * 2,)),
    "own forward": lambda m: setattr(m.linear, "forward", lambda x: x * 3),
    "load_state_dict": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "assign": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "train": lambda m: m.train(),
    "submodule train": lambda m: m.drop.train(),
    "requires_grad": lambda m: m.requires_grad_(False),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen_at_the_next_call(change):
    torch.manual_seed(0)
    model = Model().eval()
    compiled = staticrt.compile(model)
    x = torch.randn(4, 4)

    def check():
        for _ in range(3):
            torch.manual_seed(5)
            want = model(x)
            torch.manual_seed(5)
            torch.testing.assert_close(compiled(x), want)

    check()
    CHANGES[change](model)
    check()


@torch.no_grad()
def test_flipping_train_and_eval_keeps_both_traces():
    model = Model()
    compiled = staticrt.compile(model)
    for _ in range(5):
        model.train()
        compiled(torch.randn(2, 4))
        model.eval()
        compiled(torch.randn(2, 4))
    assert traces(compiled) == 2


FACTOR = 2.0
TABLE = {"bias": 1.0}


def test_globals_and_closures_are_guarded():
    global FACTOR
    local = torch.ones(3)
    offset = 1.0

    def function(x):
        return x * FACTOR + TABLE["bias"] + local + offset

    compiled = staticrt.compile(function)
    x = torch.randn(3)

    def check():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), function(x))

    check()
    FACTOR = 5.0
    check()
    TABLE["bias"] = -3.0
    check()
    offset = 9.0
    check()
    local = torch.zeros(3)
    check()
    local.add_(4)
    check()
    FACTOR, TABLE["bias"] = 2.0, 1.0


def test_needs_gradients():
    model = Model().eval()
    compiled = staticrt.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert not compiled(x).requires_grad
        assert not compiled(x.clone().requires_grad_()).requires_grad
    assert compiled(x).requires_grad
    frozen = staticrt.compile(copy.deepcopy(model).requires_grad_(False))
    assert not frozen(x).requires_grad
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(frozen(leaf).sum(), leaf)
    (want,) = torch.autograd.grad(frozen._module(leaf).sum(), leaf)
    torch.testing.assert_close(grad, want)
    assert not frozen(x).requires_grad
    model.linear.weight.requires_grad_(False)
    assert compiled(x).requires_grad
    model.requires_grad_(False)
    assert not compiled(x).requires_grad


def test_gradients_turned_on_inside_the_model():
    def function(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad((y**3).sum(), y)
        return grad

    compiled = staticrt.compile(function)
    x = torch.randn(3)
    for mode in (torch.no_grad, torch.enable_grad):
        for _ in range(3):
            with mode():
                torch.testing.assert_close(compiled(x), function(x))


def test_inference_mode_and_back():
    model = Model().eval().requires_grad_(False)
    compiled = staticrt.compile(model)
    x = torch.randn(2, 4)
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            got, want = compiled(x), model(x)
            assert want.is_inference() == inference
            assert inference or not got.is_inference()  # never an inference tensor unless eager's is
            torch.testing.assert_close(got, want)
    with torch.inference_mode():
        made = torch.randn(2, 4)
    torch.testing.assert_close(compiled(made), model(made))


def test_inference_tensors_are_written_only_in_inference_mode():
    def step(x):
        x.add_(1)
        return x * 2

    compiled = staticrt.compile(step)
    with torch.inference_mode():
        x, y = torch.zeros(3), torch.zeros(3)
        assert torch.equal(compiled(x), step(y))
    for grad in (True, False):
        for function, argument in ((step, y), (compiled, x)):
            with (
                torch.set_grad_enabled(grad),
                pytest.raises(RuntimeError, match="Inplace update to inference"),
            ):
                function(argument)
        assert torch.equal(x, y)  # eager writes before it raises
    with torch.no_grad():
        assert torch.equal(compiled(torch.zeros(3)), torch.full((3,), 2.0))


@torch.no_grad()
def test_autocast_and_default_dtype():
    model = Model().eval()
    compiled = staticrt.compile(model)
    x = torch.randn(2, 4)
    for enabled in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got, want = compiled(x), model(x)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)

    assert compiled.explain().traces[-1].route == "whole"
    assert len(compiled.explain().traces) == 2

    def function(x):
        return x + torch.ones(3)

    compiled = staticrt.compile(function)
    x = torch.randn(3)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            torch.testing.assert_close(compiled(x), function(x))
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_modes_transforms_and_subclasses_run_eagerly():
    model = Model().eval()
    compiled = staticrt.compile(model)
    x = torch.randn(5, 2, 4)
    compiled(x[0])
    torch.testing.assert_close(torch.vmap(compiled)(x), torch.vmap(model)(x))
    assert "functorch" in reasons(compiled)
    (jvp,) = (torch.func.jvp(compiled, (x[0],), (x[1],))[1],)
    torch.testing.assert_close(jvp, torch.func.jvp(model, (x[0],), (x[1],))[1])

    class Sub(torch.Tensor):
        pass

    torch.testing.assert_close(compiled(x[0].as_subclass(Sub)), model(x[0].as_subclass(Sub)))
    assert "subclass" in reasons(compiled)

    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.seen += 1
            return func(*args, **(kwargs or {}))

    with Count():
        compiled(x[0])
    assert Count.seen > 3
    assert "dispatch mode" in reasons(compiled)
    meta = copy.deepcopy(model).to("meta")
    meta.plain = meta.plain.to("meta")
    assert staticrt.compile(meta)(x[0].to("meta")).device.type == "meta"


@torch.no_grad()
def test_inputs_of_other_dtype_rank_layout_and_device():
    def function(x):
        return x.contiguous() * 2, x.view(x.shape), x.sum(-1)

    compiled = staticrt.compile(function)
    base = torch.randn(4, 6)
    cases = [
        base,
        base.double(),
        base.to(torch.int32),
        base > 0,
        base.t(),
        base[:, ::2],
        base[:, 1:4],
        base[1:3],
    ]
    cases += [
        base[None],
        base[0],
        base.expand(3, 4, 6),
        base[:, :1],
        base[:0],
        base[None, None].to(memory_format=torch.channels_last),
    ]
    cases += [
        torch.view_as_complex(torch.randn(3, 2)),
        torch.randn(3, 2, dtype=torch.cfloat).conj(),
        base.to_sparse().to_dense(),
    ]
    for _ in range(2):
        for x in cases:
            before = x.clone()
            torch.testing.assert_close(compiled(x), function(x), check_stride=True)
            torch.testing.assert_close(x, before)


@torch.no_grad()
def test_traces_are_bounded_with_one_warning():
    compiled = staticrt.compile(lambda x, factor: x * factor, max_traces=3)
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(8):
            torch.testing.assert_close(compiled(x, step + 0.5), x * (step + 0.5))
    assert traces(compiled) == 3
    assert sum("max_traces=3" in str(w.message) for w in caught) == 1
    assert "max_traces" in reasons(compiled)


@torch.no_grad()
def test_a_wrong_call_complains_as_eager_and_the_next_call_is_compiled():
    model = Model().eval()
    compiled = staticrt.compile(model)
    x = torch.randn(2, 4)
    for wrong in [
        lambda f: f(torch.randn(2, 5)),
        lambda f: f(),
        lambda f: f(x, x),
        lambda f: f(x, y=1),
        lambda f: f(None),
    ]:
        for _ in range(2):
            with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever eager raises
                wrong(model)
            with pytest.raises(expected.type) as got:
                wrong(compiled)
            assert str(got.value).split("\n")[0] == str(expected.value).split("\n")[0]
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(x), model(x))
    assert traces(compiled) == 1


@torch.no_grad()
def test_exceptions_of_the_model_surface_and_leave_nothing_behind():
    class Picky(nn.Module):
        def forward(self, x):
            if x.shape[0] > 3:
                raise KeyError("too long")
            return x[torch.tensor([0, 1, 2])]

    compiled = staticrt.compile(Picky())
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.arange(3)), torch.arange(3))
        with pytest.raises(KeyError, match="too long"):
            compiled(torch.arange(5))
        with pytest.raises(IndexError):
            compiled(torch.arange(2))


def test_threads_share_one_trace():
    model = Model().eval().requires_grad_(False)
    compiled = staticrt.compile(model)
    inputs = [torch.randn(1 + i % 5, 4) for i in range(200)]
    wants = [model(x) for x in inputs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for got, want in zip(pool.map(compiled, inputs), wants, strict=True):
            torch.testing.assert_close(got, want)
    assert traces(compiled) == 1


def test_example_inputs_trace_at_once():
    compiled = staticrt.compile(Model().eval(), (torch.randn(2, 4),))
    assert traces(compiled) == 1
    with torch.no_grad():
        compiled(torch.randn(3, 4))
    assert traces(compiled) == 1
    with pytest.raises(TraceError, match="cannot trace"):
        staticrt.compile(lambda x: x.numpy(), torch.randn(2), fullgraph=True)


@torch.no_grad()
def test_static_sizes_on_request():
    compiled = staticrt.compile(lambda x: x * 2, dynamic=False)
    for n in (2, 3, 2, 3):
        torch.testing.assert_close(compiled(torch.ones(n)), torch.full((n,), 2.0))
    assert traces(compiled) == 2


@torch.no_grad()
def test_explain_is_readable():
    model = Model().eval()
    compiled = staticrt.compile(model)
    compiled(torch.randn(2, 4))
    text = str(compiled.explain())
    assert "1 traced graph" in text
    assert "float32[" in text
    assert "aten.linear.default" in text


def rows_of_the_least_size(x):
    return torch.nonzero(x) * min(x.shape)  # data decides a size, so torch's own represent it


def test_classes_of_torchs_sizes_are_not_state_of_the_model():
    """Their data classes and named tuples have methods whose code has no file, as those of a model may have."""
    compiled = staticrt.compile(rows_of_the_least_size)
    with torch.no_grad():
        for shape in ((2, 3), (4, 5)):
            x = torch.rand(shape).round()
            torch.testing.assert_close(compiled(x), rows_of_the_least_size(x))
    (trace,) = compiled.explain().traces
    assert {"objects", "cells"}.isdisjoint(dict(trace.state)), trace.state


class AsksForALayout(torch.nn.Module):
    """The program reads no element of the table, only the model its size and stride."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 4))

    def forward(self, x):
        return x * self.table.shape[0] + self.table.stride(0)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: setattr(table, "data", torch.zeros(5, 4)),
        lambda table: setattr(table, "data", torch.zeros(4, 3).t()),
        lambda table: table.resize_(6, 2),
    ],
    ids=["sizes", "strides", "resized"],
)
def test_the_layout_of_a_tensor_that_is_not_read_is_compared_in_each_call(change):
    model = AsksForALayout()
    compiled = staticrt.compile(model)
    x = torch.randn(3, 2)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        assert compiled._executor.fast_calls > 0
        change(model.table)
        torch.testing.assert_close(compiled(x), model(x))


def test_a_question_that_code_repeats_is_guarded_once():
    class Base:
        step = 1.0

    kept = type("Derived", (Base,), {"step": 2.0})

    def answers(repeats):
        def function(x):
            for _ in range(repeats):
                for kind in Base.__subclasses__():
                    x = x + kind.step
            return x

        compiled = staticrt.compile(function)
        with torch.no_grad():
            assert compiled(torch.zeros(2)).tolist() == [2.0 * repeats] * 2
        return re.search(r"answers \d+", str(compiled.explain())).group()

    assert answers(1) == answers(5)
    assert Base.__subclasses__() == [kept]
