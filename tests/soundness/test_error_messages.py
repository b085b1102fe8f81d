"""Wrong calls: they raise what eager raises, say so early, leave nothing behind, and are not traced each time."""

import logging
import warnings

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, InputError
from staticrt.executor.trace_maker import TraceMaker


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        print(end="")
        return y @ x


class Strict(nn.Module):
    """Raises for as long as it is told to."""

    refuses = True

    def forward(self, x):
        if self.refuses:
            raise ValueError("not yet")
        return x * 2


def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("nothing was raised")


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def attempts(monkeypatch):
    """Traces that are tried."""
    made = []
    make = TraceMaker.make
    monkeypatch.setattr(TraceMaker, "make", lambda self, *more: made.append(self) or make(self, *more))
    return made


@pytest.mark.parametrize("wrong", [(torch.ones(2, 5),), (torch.ones(2, 4), 1)], ids=["shape", "number"])
def test_example_inputs_that_the_model_refuses_are_told(wrong):
    with pytest.warns(UserWarning, match="example_inputs are not ready: .*(reduction|positional)"):
        compiled = staticrt.compile(nn.Linear(4, 4), example_inputs=wrong)
    assert not compiled.explain().traces
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        staticrt.compile(nn.Linear(4, 4), example_inputs=(torch.ones(2, 4),))
        staticrt.compile(Cut(), example_inputs=(torch.ones(4, 4),))  # it is split, which is not a mistake


@torch.no_grad()
def test_a_file_is_not_saved_without_the_trace_that_was_asked_for(tmp_path):
    path, compiled = tmp_path / "model.pt2", staticrt.compile(nn.Linear(4, 4))
    compiled(torch.ones(2, 4))
    with pytest.raises(ArchiveError, match=r"example_inputs are not ready: .*reduction"):
        staticrt.save(compiled, path, example_inputs=(torch.ones(2, 5),))
    assert not path.exists()
    staticrt.save(compiled, path, example_inputs=(torch.ones(3, 4),))
    assert staticrt.load(path)(torch.ones(3, 4)).shape == (3, 4)


@pytest.mark.parametrize("use", ["compile", "save", "prepare_many"])
def test_example_inputs_of_another_kind_are_told(use, tmp_path):
    compiled = staticrt.compile(nn.Linear(4, 4))
    calls = {
        "compile": lambda: staticrt.compile(nn.Linear(4, 4), example_inputs=3),
        "save": lambda: staticrt.save(
            compiled, tmp_path / "model.pt2", example_inputs=torch.ones(2, 4).numpy()
        ),
        "prepare_many": lambda: compiled.prepare_many(["x"]),
    }
    with pytest.raises(InputError, match="example inputs are a tuple, a list, a dict or a tensor, got"):
        calls[use]()


@pytest.mark.parametrize("path", [None, 3])
def test_what_is_no_path_is_told_where_a_file_is_saved(path):
    with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object"):
        staticrt.save(staticrt.compile(nn.Linear(4, 4)), path, (torch.ones(2, 4),))


@pytest.mark.parametrize("way", ["called", "prepared", "training"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_wrong_dtype_raises_what_eager_raises_and_leaves_no_trace(dtype, way):
    with torch.set_grad_enabled(way == "training"):
        raise_as_eager(dtype, way == "prepared")


def raise_as_eager(dtype, ahead):
    model = nn.Linear(4, 4)
    wrong = torch.ones(2, 4, dtype=dtype)
    compiled = staticrt.compile(model, example_inputs=(wrong,) if ahead else None)
    for _ in range(3):
        assert error_of(compiled, wrong) == error_of(model, wrong)
    assert not compiled.explain().traces
    x = torch.ones(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    assert error_of(compiled, wrong) == error_of(model, wrong)
    assert len(compiled.explain().traces) == 1


@torch.no_grad()
def test_a_call_that_fails_is_traced_once(attempts):
    model = nn.Linear(4, 4)
    compiled = staticrt.compile(model)
    compiled(torch.ones(2, 4))
    for wrong in (torch.ones(2, 5), torch.ones(3, 4, dtype=torch.float64)):
        first = error_of(compiled, wrong)
        tried = len(attempts)
        assert all(error_of(compiled, wrong) == first == error_of(model, wrong) for _ in range(5))
        assert len(attempts) == tried
    x = torch.ones(3, 4)
    torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_calls_are_traced_again_once_eager_answers(attempts):
    model = Strict()
    compiled = staticrt.compile(model)
    x = torch.ones(2)
    for _ in range(3):
        assert error_of(compiled, x) == (ValueError, "not yet")
    model.refuses = False
    for _ in range(3):
        assert compiled(x).tolist() == [2, 2]
    assert len(compiled.explain().traces) == 1
    model.refuses = True
    assert error_of(compiled, x) == (ValueError, "not yet")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("wrong", [torch.ones(3, 4), torch.ones(3, 5)], ids=["after the cut", "before it"])
def test_a_split_model_raises_its_own_error_and_logs_nothing(wrong, training, caplog):
    model = Cut()
    compiled = staticrt.compile(model)
    with torch.set_grad_enabled(training), caplog.at_level(logging.ERROR):
        compiled(torch.ones(4, 4))
        for _ in range(2):
            assert error_of(compiled, wrong) == error_of(model, wrong)
        x = torch.ones(4, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert not caplog.records


class Norm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return self.norm(x * 2)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("channels", [3, 9])
def test_statistics_of_other_channels_raise(channels, gradients, caplog):
    """The operator within torch's composite would read and write past their ends."""
    model = Norm(channels)
    compiled = staticrt.compile(model)
    with torch.set_grad_enabled(gradients), caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert error_of(compiled, torch.ones(4, 5)) == error_of(model, torch.ones(4, 5))
    assert not caplog.records


def test_files_of_torch_are_told_with_what_to_do(tmp_path):
    model, example = nn.Linear(4, 4), (torch.ones(2, 4),)
    weights, whole, exported = (str(tmp_path / name) for name in ("weights.pt", "whole.pt", "exported.pt2"))
    torch.save(model.state_dict(), weights)
    torch.save(model, whole)
    torch.export.save(torch.export.export(model, example), exported)
    scope = {
        "staticrt": staticrt,
        "torch": torch,
        "example_inputs": example,
        "new_path": str(tmp_path / "new.pt2"),
    }
    for path in (weights, whole, exported):
        with pytest.raises(ArchiveError, match=r"is what torch.*save wrote") as caught:
            staticrt.load(path)
        fix = caught.value.fix.removeprefix("save one: ")
        if path == whole:
            continue  # the same words, of a file that torch.load does not open without more
        scope |= {"path": path, "module": nn.Linear(4, 4)}
        for step in fix.removeprefix("build the module, ").split(", then "):
            exec(step, scope)
        torch.testing.assert_close(staticrt.load(scope["new_path"])(*example), model(*example).detach())


@torch.no_grad()
def test_a_call_that_fits_no_saved_trace_is_told_by_names(tmp_path):
    class Masked(nn.Module):
        def forward(self, x, mask, cache):
            return x * mask + cache[0]

    path = str(tmp_path / "masked.pt2")
    x = torch.ones(2)
    staticrt.save(staticrt.compile(Masked()), path, (x, x, [x, x]))
    with pytest.raises(InputError) as caught:
        staticrt.load(path)(x, [x], mask=x)
    text = str(caught.value)
    assert (
        "the call gives (Tensor, list of 1, mask=Tensor), the trace takes (x, mask, cache[0], cache[1])"
        in text
    )
