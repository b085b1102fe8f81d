"""Accelerator subgraphs: cut, compiled, run, refused and reported, with the reference accelerator on CPU."""

import gc

import pytest
import torch

import staticrt
from staticrt.api import accelerators
from staticrt.errors import AcceleratorUnavailable, OptionError
from staticrt.lowering import accelerators as registry
from staticrt.lowering.accelerators.reference import Reference
from tests.support.threads import in_threads

pytestmark = pytest.mark.usefixtures("no_gradients")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        y = torch.relu(self.first(x))
        z = torch.sort(y, -1).values  # two results: never in a subgraph
        return self.second(z).tanh()


class Recording(Reference):
    """Remembers what it was asked, and refuses on demand."""

    name = "recording"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.compiled = []
        self.refuse = lambda program, inputs: False

    def compile(self, program, inputs):
        if self.refuse(program, inputs):
            raise ValueError("no kernel for this\nsecond line")
        self.compiled.append((program, [tuple(x.shape) for x in inputs]))
        return super().compile(program, inputs)


@pytest.fixture
def recording(monkeypatch):
    """The accelerator that "auto" finds first, whatever guides have registered in this process."""
    monkeypatch.setattr(registry, "_registered", {})
    made = Recording()
    accelerators.register_accelerator("recording", lambda: made)
    yield made
    accelerators.unregister_accelerator("recording")


def subgraphs(compiled):
    return [line for report in compiled.explain().traces for line in report.subgraphs]


@pytest.mark.parametrize("prepared", [True, False])
def test_results_equal_eager_for_every_shape_and_call(prepared):
    model = Net().eval()
    compiled = staticrt.compile(model, accelerators="reference", prepared=prepared)
    for rows in (3, 3, 5, 3, 1, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    first, second = subgraphs(compiled)
    assert first.startswith(
        "reference: 2 nodes (aten.linear.default, aten.relu.default), 6 calls, compiled for 3 shapes"
    )
    assert "test_accelerators.py:" in second
    assert "sort" not in first + second
    assert compiled.explain().traces[0].calls == 6


def test_what_follows_a_subgraph_stays_prepared():
    compiled = staticrt.compile(Net().eval(), accelerators="reference")
    report = compiled.profile(torch.randn(3, 8), runs=2)
    kinds = {row.op: row.kind for row in report.rows}
    assert kinds["run"] == "generic"
    assert report.paths == ("prepared",)
    assert "unstable" not in kinds.values()


def test_only_supported_nodes_are_cut(recording):
    recording._ops = frozenset({"aten.relu.default"})
    model = Net().eval()
    compiled = staticrt.compile(model, accelerators="recording")
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(x), model(x))
    assert [line.split(",")[0] for line in subgraphs(compiled)] == ["recording: 1 nodes (aten.relu.default)"]
    ((program, shapes),) = recording.compiled
    assert isinstance(program, torch.export.ExportedProgram)
    assert shapes == [(3, 16)]


def test_small_subgraphs_stay_in_the_runtime(recording):
    recording.min_nodes = 3
    compiled = staticrt.compile(Net().eval(), accelerators="recording")
    compiled(torch.randn(3, 8))
    assert subgraphs(compiled) == [
        "recording: none: it supports no subgraph of 3 nodes or more of this graph"
    ]
    assert recording.compiled == []


def test_weights_are_compiled_in_and_followed_when_they_change(recording):
    model = Net().eval()
    compiled = staticrt.compile(model, accelerators="recording")
    x = torch.randn(3, 8)
    compiled(x)
    assert [shapes for _, shapes in recording.compiled] == [[(3, 8)], [(3, 16)]]
    for k in range(6):
        model.first.weight.mul_(0.5)
        torch.testing.assert_close(compiled(x), model(x))
        # After three changes they are inputs, and nothing is compiled for the next ones.
        assert len(recording.compiled) == 2 + min(k + 1, 3)
    assert recording.compiled[-1][1] == [(3, 8), (16, 8), (16,)]


def test_a_refused_subgraph_runs_operator_by_operator_and_says_why(recording):
    recording.refuse = lambda program, inputs: inputs[0].shape[0] == 5
    model = Net().eval()
    compiled = staticrt.compile(model, accelerators="recording")
    for rows in (3, 5, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    for line in subgraphs(compiled):
        assert "compiled for 1 shapes" in line
        assert line.endswith("fell back in 2 calls: ValueError: no kernel for this")


def test_an_error_inside_a_compiled_subgraph_reaches_the_caller_and_the_next_call_works(
    recording, monkeypatch
):
    failing = [True]

    def compile_failing(program, inputs):
        def run(*given):
            if failing[0]:
                raise RuntimeError("executor lost its device")
            return program.module()(*given)

        return run

    monkeypatch.setattr(recording, "compile", compile_failing)
    model = Net().eval()
    compiled = staticrt.compile(model, accelerators="recording")
    x = torch.randn(3, 8)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="executor lost its device"):
            compiled(x)
    failing[0] = False
    torch.testing.assert_close(compiled(x), model(x))


def test_views_and_written_arguments_keep_their_meaning():
    class Aliases(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            y = torch.relu(x + self.seen)
            return x.view(-1), y, y.view(-1), torch.neg(y).view(-1) * 2

    eager, module = Aliases(), Aliases()
    compiled = staticrt.compile(module, accelerators="reference")
    x = torch.randn(3, 4)
    for _ in range(3):
        got, want = compiled(x), eager(x)
        torch.testing.assert_close(got, want)
        assert got[0].data_ptr() == x.data_ptr()
        assert got[1].data_ptr() == got[2].data_ptr()
        assert torch.equal(module.seen, eager.seen)
    assert any("neg" in line for line in subgraphs(compiled))


def test_results_of_earlier_calls_stay():
    compiled = staticrt.compile(Net().eval(), accelerators="reference")
    x = torch.randn(3, 8)
    first = compiled(x)
    kept = first.clone()
    for _ in range(4):
        compiled(torch.randn(3, 8))
    assert torch.equal(first, kept)


def test_an_accelerator_that_returns_its_input_does_not_alias_it(recording, monkeypatch):
    monkeypatch.setattr(recording, "compile", lambda program, inputs: lambda x: x)
    recording._ops = frozenset({"aten.relu.default"})
    compiled = staticrt.compile(lambda x: torch.relu(x), accelerators="recording")
    x = torch.ones(4)
    for _ in range(3):
        result = compiled(x)
        assert torch.equal(result, x)
        assert result.data_ptr() != x.data_ptr()


def test_many_threads_share_a_subgraph():
    model = Net().eval()
    compiled = staticrt.compile(model, accelerators="reference")
    inputs = [torch.randn(2 + k % 3, 8) for k in range(12)]
    want = [model(x) for x in inputs]
    wrong = []

    def work(k):
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(compiled(inputs[k]), want[k], atol=1e-5):
                    wrong.append(k)

    in_threads(work, range(12))
    assert not wrong


def test_subgraphs_go_with_their_function():
    from staticrt.lowering.accelerators.operator import _subgraphs

    gc.collect()
    before = len(_subgraphs)
    compiled = staticrt.compile(Net().eval(), accelerators="reference")
    compiled(torch.randn(3, 8))
    assert len(_subgraphs) == before + 2
    del compiled
    gc.collect()
    assert len(_subgraphs) == before


def test_auto_takes_the_first_available_and_says_why_not(recording, monkeypatch):
    assert accelerators.find("auto")[0] is recording
    monkeypatch.setattr(recording, "is_available", lambda: (False, "no license"))
    compiled = staticrt.compile(Net().eval(), accelerators="auto")
    x = torch.randn(3, 8)
    compiled(x)
    (line,) = subgraphs(compiled)
    assert line.startswith("no accelerator: recording: no license; tensorrt: ")
    assert "subgraph" in str(compiled.explain())


def test_a_name_that_is_absent_or_unknown_is_refused_at_once(recording, monkeypatch):
    monkeypatch.setattr(recording, "is_available", lambda: (False, "driver 1.0, needs 2.0"))
    with pytest.raises(AcceleratorUnavailable, match=r"'recording' cannot be used: driver 1.0, needs 2.0"):
        staticrt.compile(Net(), accelerators="recording")
    with pytest.raises(OptionError, match="no accelerator 'recodring'"):
        staticrt.compile(Net(), accelerators="recodring")
    with pytest.raises(OptionError, match="no accelerator 'none'"):
        staticrt.compile_step(lambda x: x, accelerators="none")
    with pytest.raises(OptionError, match="already"):
        accelerators.register_accelerator("tensorrt", Recording)


def test_available_lists_them_all():
    found = accelerators.available()
    assert found["reference"][0]
    assert list(found)[-2:] == ["tensorrt", "reference"]


def test_symbolic_sizes_stay_outside_subgraphs():
    def model(x):
        y = torch.relu(x)
        return torch.tanh(y.reshape(x.shape[0] * 2, -1)) + 1

    compiled = staticrt.compile(model, accelerators="reference")
    for rows in (2, 3, 2):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(compiled.explain().traces) == 1
