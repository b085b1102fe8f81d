"""What a first answer costs, in counts: modules it loads, questions it asks torch's own rules."""

import gc
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import staticrt
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.models import zoo
from tests.support import run_fresh

NETWORKS = {
    "small": ["mlp", "wide_deep", "encoder_tiny", "pointwise_norm"],
    "steps": ["lstm_unrolled", "lstm_tagger", "gpt_decode", "gpt_prefill"],
    "images": ["resnet18", "resnet50", "mobilenet_v2", "convnext", "vit_s", "unet"],
    "lookups": ["dlrm_b1", "graph_network", "mamba_steps", "mamba_parallel"],
    "control flow": ["control_flow"],
}


@pytest.mark.parametrize("ahead", [False, True], ids=["called", "prepared"])
@pytest.mark.parametrize("names", NETWORKS.values(), ids=NETWORKS)
def test_a_first_answer_loads_neither_sympy_nor_dynamo(names, ahead):
    code = f"""
        import sys, torch, staticrt
        from staticrt.models import zoo
        with torch.no_grad():
            for name in {names!r}:
                entry = zoo.get(name)
                model, inputs = entry.build(), entry.inputs(1)
                expected = model(*inputs)
                compiled = staticrt.compile(model)
                before = set(sys.modules)
                assert not {ahead} or compiled.prepare(*inputs) or name == "control_flow"
                actual = compiled(*inputs)
                compiled(*inputs)
                loaded = set(sys.modules) - before
                heavy = ("sympy", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch._inductor",
                         "torch.distributed.tensor", "torch._functorch.aot_autograd")
                print([name for name in heavy if name in loaded])
                torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
                explanation = compiled.explain()
                assert len(explanation.traces) == 1 and not explanation.eager, str(explanation)
    """
    done = run_fresh(code)
    assert done.stdout.split() == ["[]"] * len(names)


def test_constants_of_a_model_do_not_load_sympy():
    """torch's rules for sizes without symbols import it to pass over its uses."""
    code = """
        import sys, torch, staticrt
        def run(x):
            return x[torch.tensor([0, 2])].exp()
        with torch.no_grad():
            x = torch.randn(3, 4)
            assert torch.equal(staticrt.compile(run)(x), run(x))
        print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
    """
    done = run_fresh(code)
    assert done.stdout.split() == ["[]"]


def test_sizes_that_data_decides_do_not_load_dynamo():
    """torch's symbolic sizes take a traceback of each symbol for a log that nobody reads, and Inductor for that."""
    code = """
        import sys, torch, staticrt
        def positive(x):
            return x[x > 0] * 2
        compiled = staticrt.compile(positive)
        with torch.no_grad():
            for size in (5, 8):
                x = torch.randn(size)
                torch.testing.assert_close(compiled(x), positive(x))
        assert len(compiled.explain().traces) == 1, str(compiled.explain())
        assert "sympy" in sys.modules
        print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
    """
    done = run_fresh(code)
    assert done.stdout.split() == ["[]"]


def test_dynamo_can_be_loaded_and_used_afterwards():
    code = """
        import torch, staticrt
        model = torch.nn.Linear(3, 3).eval()
        x = torch.rand(2, 3)
        with torch.no_grad():
            expected = model(x)
            torch.testing.assert_close(staticrt.compile(model)(x), expected)
            import sys
            assert "torch._dynamo" not in sys.modules
            torch.testing.assert_close(torch.compile(model, backend="eager")(x), expected)
            torch.testing.assert_close(torch.compile(model, backend="staticrt")(x), expected)
            torch.testing.assert_close(staticrt.compile(torch.nn.Linear(3, 4))(x).shape, torch.Size([2, 4]))
        from torch.fx.experimental.validator import translation_validation_enabled
        assert translation_validation_enabled() is False
        import torch._dynamo.config
        assert hasattr(torch._dynamo.config, "recompile_limit")
    """
    run_fresh(code)


def test_a_first_call_reads_no_source_files_of_its_own():
    """A fake mode keeps the stack that made it, with the text of its lines."""
    code = """
        import linecache, os, torch, staticrt
        own = os.path.dirname(staticrt.__file__)
        read = []
        getlines = linecache.getlines
        linecache.getlines = lambda *args: read.append(args[0]) or getlines(*args)
        with torch.no_grad():
            staticrt.compile(torch.nn.Linear(3, 3).eval())(torch.rand(2, 3))
        print(*(name for name in read if name.startswith(own)))
    """
    done = run_fresh(code)
    assert done.stdout.split() == []


def test_a_first_call_makes_one_guard_of_what_it_met(monkeypatch):
    """What tells that the model changed nothing is, with the kernels of operators, what each call compares."""
    made = []

    class Counted(StateGuard):
        def __init__(self, records, *args):
            records = list(records)
            made.append(len(records))
            super().__init__(records, *args)

    monkeypatch.setattr("staticrt.frontend.guards.state.StateGuard", Counted)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    compiled, x = staticrt.compile(model), torch.rand(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        assert len(made) == 1, made
        model[1] = nn.Tanh()
        torch.testing.assert_close(compiled(x), model(x))
    assert dict(compiled.explain().traces[-1].state)["kernels of operators"]


def test_a_walk_takes_few_steps_per_layer(monkeypatch):
    """The empty containers of hooks that each layer has are recorded with the layer."""
    steps = []
    reached = Snapshot._reached

    def count(self, path, value):
        steps.append(path)
        return reached(self, path, value)

    monkeypatch.setattr(Snapshot, "_reached", count)
    layers = nn.Sequential(*[nn.ReLU() for _ in range(100)])
    Snapshot([("model", layers)])
    assert len(steps) < 300, steps[:50]  # one, and one for its set of buffers


def asked_while_compiling(monkeypatch, model, inputs):
    """The operators that torch's own rules were asked about in a first call."""
    asked = []
    dispatch = FakeTensorMode.dispatch

    def count(self, func, *args, **kwargs):
        asked.append(func)
        return dispatch(self, func, *args, **kwargs)

    with torch.no_grad(), monkeypatch.context() as patch:
        expected = model(*inputs)
        patch.setattr(FakeTensorMode, "dispatch", count)
        compiled = staticrt.compile(model)
        actual = compiled(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    assert len(compiled.explain().traces) == 1
    return asked


@pytest.mark.parametrize("name", ["lstm_unrolled", "mamba_steps", "bert_base", "dlrm_b1", "resnet18"])
def test_few_questions_reach_the_slow_rules(name, monkeypatch):
    entry = zoo.get(name)
    asked = asked_while_compiling(monkeypatch, entry.build(), entry.inputs(1))
    assert len(asked) <= 60, asked  # hundreds of operators are recorded


def test_layers_ask_once(monkeypatch):
    """An operator without a quick rule is asked about once, however many layers have it."""

    class Layer(nn.Module):
        def forward(self, x):
            return torch.cumsum(x, -1).logcumsumexp(-1)

    def asked(depth):
        model = nn.Sequential(*[Layer() for _ in range(depth)]).eval()
        return asked_while_compiling(monkeypatch, model, (torch.rand(2, 3),))

    assert asked(1)
    assert len(asked(20)) == len(asked(1))


class Steps(nn.Module):
    def forward(self, x):
        return x[:, 2].sum() + x[1, ..., 0, None].sum() * x[-1, 0].sum()


def test_indices_guard_their_sizes():
    """Taking element 2 of a symbolic dimension holds for every longer one; of a shorter one eager raises."""
    compiled = staticrt.compile(Steps())
    with torch.no_grad():
        for shape in ((2, 4, 6), (3, 5, 6), (7, 3, 6), (2, 3, 1)):
            x = torch.rand(shape)
            torch.testing.assert_close(compiled(x), Steps()(x))
        assert len(compiled.explain().traces) == 1
        for shape in ((2, 2, 6), (1, 3, 2)):
            with pytest.raises(IndexError, match="index"):
                Steps()(torch.rand(shape))
            with pytest.raises(IndexError, match="index"):
                compiled(torch.rand(shape))
        x = torch.rand(5, 5, 5)
        torch.testing.assert_close(compiled(x), Steps()(x))


class Indices(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x):
        return x[self.index]


INDICES = [
    *(0, -1, (1, 2), (..., 0), (slice(None), 3), (None, 1), (0, None, ..., 1), (slice(1, None), 2)),
    *(True, (0, True), [0, 1], (0, [1, 2]), torch.tensor(1), (torch.tensor([0, 1]), 2)),
    *((), ..., None, (0, slice(None, None, 2))),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_every_index_means_what_it_means_in_eager(index):
    model = Indices(index)
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for shape in ((3, 4, 5), (2, 6, 4), (4, 4, 4)):
            x = torch.rand(shape)
            expected, actual = model(x), compiled(x)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            assert actual.stride() == expected.stride()


def test_traces_keep_sizes_symbolic():
    """Quick results must not turn sizes into constants: one trace serves every size."""
    for name in ("mlp", "encoder_tiny", "mamba_steps", "dlrm_b64", "gpt_decode"):
        entry = zoo.get(name)
        model = entry.build()
        compiled = staticrt.compile(model)
        with torch.no_grad():
            variants = [v for v in entry.variants if min(entry.variants[v].values()) > 1]
            for variant in variants:
                inputs = entry.inputs(1, variant)
                torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-3, atol=1e-3)
        assert len(compiled.explain().traces) == 1, name


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_as_before_a_trace(enabled):
    """A trace pauses the collector; whether it ends well or not, it is as it was."""

    class Raises(nn.Module):
        def forward(self, x):
            assert not gc.isenabled()
            raise ValueError("no")

    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with torch.no_grad():
            staticrt.compile(nn.Linear(2, 2))(torch.rand(3, 2))
            assert gc.isenabled() is enabled
            with pytest.raises((ValueError, AssertionError)):
                staticrt.compile(Raises())(torch.rand(3, 2))
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_functions_that_sympy_generates_in_a_trace_are_not_the_models():
    """For polynomials of several sizes it generates functions once, in the first trace that needs it."""
    code = """
        import sys, torch, staticrt
        weight = torch.ones(4, requires_grad=True)
        @staticrt.compile_step(dynamic=True)
        def step(x, y):
            n, m = x.shape[0], y.shape[0]
            loss = (x.new_ones((n * n * m + n * m * m) // (n + m)).sum() * weight).sum()
            loss.backward()
            return loss
        assert "sympy" not in sys.modules
        step(torch.ones(3, 4), torch.ones(5))
        assert "sympy" in sys.modules
        explanation = step.explain()
        assert len(explanation.traces) == 1 and not explanation.eager, str(explanation)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


def test_truth_values_that_data_decides_do_not_load_sympy():
    code = """
        import sys, torch, staticrt
        def scaled(x, mask):
            y = x * 2
            if mask.any():
                y = y + 1
            if (x > 5).all().item():
                y = y - 3
            return y.mul_(2)
        compiled = staticrt.compile(scaled)
        for size, first in ((3, 0), (4, 1), (5, 0), (6, 1)):
            x, mask = torch.randn(size, 4), torch.zeros(size, dtype=torch.bool)
            mask[0] = first
            assert torch.equal(compiled(x, mask), scaled(x, mask))
        assert "sympy" not in sys.modules
        explanation = compiled.explain()
        assert len(explanation.traces) == 2 and not explanation.eager, str(explanation)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


def test_sizes_become_tensors_without_sympy():
    code = """
        import sys, torch, staticrt
        def shares(x):
            number = torch.scalar_tensor(x.shape[0], dtype=torch.float64)
            return x / torch.scalar_tensor(x.shape[0] + x.shape[1]), number, torch.scalar_tensor(x.shape[1] * 2)
        compiled = staticrt.compile(shares)
        for sizes in ((3, 4), (5, 4), (2, 7)):
            x = torch.randn(sizes)
            for actual, expected in zip(compiled(x), shares(x)):
                assert torch.equal(actual, expected) and actual.dtype == expected.dtype
        assert "sympy" not in sys.modules
        explanation = compiled.explain()
        assert len(explanation.traces) == 1 and not explanation.eager, str(explanation)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)
