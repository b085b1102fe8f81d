"""`staticrt.compile` as a user meets it, each call compared with eager."""

import copy
import gc
import inspect
import itertools
import pickle
import weakref

import pytest
import torch
from torch import nn

import staticrt
from staticrt.api.compile import CompiledFunction, CompiledModule
from staticrt.errors import InputError, OptionError, TraceError


def traces(compiled):
    return len(compiled.explain().traces)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@torch.no_grad()
def test_module_with_other_batch_sizes_needs_one_trace():
    model = mlp()
    compiled = staticrt.compile(model)
    for batch in (4, 1, 7):
        x = torch.randn(batch, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert traces(compiled) == 1
    empty = torch.randn(0, 8)  # models ask `if x.numel()`: empty arguments have a trace of their own
    torch.testing.assert_close(compiled(empty), model(empty))
    assert traces(compiled) == 2


@torch.no_grad()
def test_parameter_changes_are_seen_at_the_next_call():
    model = mlp()
    compiled = staticrt.compile(model)
    x = torch.randn(3, 8)

    def check():
        torch.testing.assert_close(compiled(x), model(x))

    check()
    model[0].weight.mul_(2)
    check()
    model[0].weight.data = torch.randn(16, 8)
    check()
    model[0].weight = nn.Parameter(torch.randn(16, 8))
    check()
    model.load_state_dict(mlp().state_dict())
    check()
    model[1] = nn.Tanh()
    check()
    model.append(nn.Sigmoid())
    check()
    handle = model[0].register_forward_hook(lambda module, args, out: out * 3)
    check()
    handle.remove()
    check()
    model.double()
    x = x.double()
    check()


def test_calls_that_need_gradients_give_them():
    model = mlp()
    compiled = staticrt.compile(model)
    x = torch.randn(3, 8)
    compiled(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for g, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad)
    assert any(report.route == "training" for report in compiled.explain().traces)


def test_compiled_module_answers_like_the_module():
    model = mlp()
    compiled = staticrt.compile(model)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert compiled.eval() is compiled
    assert not model.training
    assert compiled.train() is compiled
    assert model[1].training
    assert len(compiled) == 3
    assert compiled[0] is model[0]
    assert inspect.signature(compiled) == inspect.signature(model.forward)
    assert "Linear" in repr(compiled)
    assert isinstance(compiled, nn.Module)
    outer = nn.Sequential(compiled, nn.ReLU())
    assert len(list(outer.parameters())) == 4
    compiled.extra = 3
    assert model.extra == 3
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        x = torch.randn(2, 8)
        torch.testing.assert_close(other(x), model(x))
        assert other[0].weight is not model[0].weight


def test_libraries_that_check_the_class_find_the_modules_own():
    model = mlp()
    for compiled in (staticrt.compile(model), copy.deepcopy(staticrt.compile(model))):
        assert isinstance(compiled, nn.Sequential)
        assert isinstance(compiled, CompiledModule)
        assert not isinstance(compiled, nn.Linear)
        assert compiled.__class__.__name__ == compiled._get_name() == "Sequential"
        assert {"explain", "append", "training"} <= set(dir(compiled))


def test_a_compiled_module_is_exported_and_traced_as_the_module():
    model, x = mlp().eval(), torch.randn(3, 8)
    compiled = staticrt.compile(model)
    with torch.no_grad():
        want = model(x)
        torch.testing.assert_close(compiled(x), want)
        torch.testing.assert_close(torch.export.export(compiled, (x,)).module()(x), want)
        torch.testing.assert_close(torch.jit.trace(compiled, (x,))(x), want)
        torch.testing.assert_close(torch.compile(compiled, backend="eager")(x), want)


def test_unknown_option_names_the_nearest():
    with pytest.raises(OptionError, match="did you mean 'dynamic'"):
        staticrt.compile(mlp(), dynamc=True)
    with pytest.raises(OptionError, match="'max_traces' takes int, got 'many'"):
        staticrt.compile(mlp(), max_traces="many")
    with pytest.raises(OptionError, match="is one of 'auto'"):
        staticrt.compile(mlp(), executor="fast")
    with pytest.raises(InputError, match=r"takes a module, a function, .*, got dict"):
        staticrt.compile({})


def test_fullgraph_raises_with_the_model_line():
    def f(x):
        return x + float(x.numpy().sum())

    with pytest.raises(TraceError, match=r"(?s)test_compile\.py.*fix: change the model there"):
        staticrt.compile(f, fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bool])
@pytest.mark.parametrize("number", [3, -2, 2.5])
def test_numbers_in_the_place_of_tensors_run_in_the_runtime(dtype, number):
    x = torch.tensor([-7, 0, 1, 5]).to(dtype)
    fast = staticrt.compile(lambda x: (x // number, x % number))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), (x // number, x % number))
    assert fast.explain().traces[0].executor == "StaticExecutable"


def test_a_graph_that_cannot_be_lowered_says_so(monkeypatch):
    from staticrt.errors import LoweringError
    from staticrt.runtime import executable

    def refuse(*_args, **_options):
        raise LoweringError("no kernel for it", at="model.py:3")

    monkeypatch.setattr(executable, "StaticExecutable", type("None", (), {"__new__": refuse}))
    fast = staticrt.compile(lambda x: x + 1)
    with torch.no_grad():
        assert fast(torch.ones(2)).tolist() == [2.0, 2.0]
    (note,) = fast.explain().notes
    assert "outside the runtime: no kernel for it at: model.py:3" in note


def test_a_compiled_forward_in_its_module_trains_and_is_copied():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)

        def forward(self, x):
            return self.norm(self.drop(self.layer(x)))

        def predict(self, x, times):
            for _ in range(times):
                x = self(x)
            return x

    torch.manual_seed(0)
    theirs = Loop()
    mine = copy.deepcopy(theirs)
    mine.forward = staticrt.compile(mine.forward)
    other = copy.deepcopy(mine)
    for model, training in itertools.product((mine, other), (True, False)):
        eager = copy.deepcopy(theirs).train(training)
        eager.load_state_dict(model.train(training).state_dict())
        model.zero_grad()
        x, results = torch.randn(6, 4), []
        for each in (model, eager):
            torch.manual_seed(1)
            results.append(each.predict(x, 3))
            results[-1].sum().backward()
        torch.testing.assert_close(*results)
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        for p, q in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(p, q)
    assert other.forward.__wrapped__.__self__ is other
    assert not mine.forward.explain().eager


def test_a_class_decides_how_its_objects_are_called(monkeypatch):
    """Calls skip the frame of `__call__`, unless a class is given another."""

    class Counted(CompiledFunction):
        calls = 0

        def __call__(self, *args, **kwargs):
            type(self).calls += 1
            return super().__call__(*args, **kwargs)

    def twice(x, *, by=2):
        return x * by

    x = torch.ones(3)
    compiled = staticrt.compile(twice)
    counted = Counted(twice, compiled._options)
    assert [counted(x, by=by).tolist() for by in (2, 3)] == [[2.0] * 3, [3.0] * 3]
    assert Counted.calls == 2
    assert compiled.__call__(x, by=5).tolist() == compiled(x, by=5).tolist() == [5.0] * 3
    module = staticrt.compile(torch.nn.Identity())
    with monkeypatch.context() as patch:
        patch.setattr(type(compiled), "__call__", lambda self, *args, **kwargs: (args, kwargs))
        patch.setattr(type(module), "__call__", lambda self, *args, **kwargs: len(args))
        assert compiled(x, by=4) == ((x,), {"by": 4})
        assert module(x) == 1
    assert compiled(x).tolist() == [2.0] * 3
    assert torch.equal(module(x), x)
    with pytest.raises(AttributeError, match="no attribute '_executor'"):
        CompiledFunction.__new__(CompiledFunction)(x)


def test_models_and_their_classes_go_with_the_last_reference():
    def make():
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def __len__(self):
                return 1

            def forward(self, x):
                return self.layer(x)

        compiled = staticrt.compile(Net())
        with torch.no_grad():
            compiled(torch.randn(3, 4))
        assert len(compiled) == 1
        return weakref.ref(compiled._module), weakref.ref(compiled._executor), weakref.ref(Net)

    references = [make() for _ in range(10)]
    gc.collect()
    models, executors, classes = zip(*references, strict=True)
    assert all(each() is None for each in (*models, *executors))
    assert sum(each() is not None for each in classes) < 10  # the last ones may stand in a bounded cache
