"""`LoadedModel.swap_weights`: every answer is of the old weights or of the new ones."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, InputError
from tests.support.threads import beside


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("scale", torch.full((4,), 1.0 + seed))

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.scale


def saved(folder: Path, seed: int) -> tuple[nn.Module, str]:
    model, path = Net(seed).eval(), str(folder / f"net{seed}.pt2")
    staticrt.save(staticrt.compile(model), path, (torch.randn(3, 16),), exported_program=False)
    return model, path


@pytest.mark.parametrize("by", ["mapping", "file", "bytes"])
def test_the_next_call_uses_other_weights(tmp_path, by):
    (old, old_path), (new, new_path) = saved(tmp_path, 0), saved(tmp_path, 1)
    loaded = staticrt.load(old_path)
    before = loaded.state_dict()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(loaded(torch.ones(2, 16)), old(torch.ones(2, 16)))
        loaded.swap_weights(
            {"mapping": new.state_dict(), "file": new_path, "bytes": Path(new_path).read_bytes()}[by]
        )
        for size in (2, 2, 5):
            torch.testing.assert_close(loaded(torch.ones(size, 16)), new(torch.ones(size, 16)))
        torch.testing.assert_close(before, dict(old.state_dict()))
        torch.testing.assert_close(loaded.state_dict(), dict(new.state_dict()))
        torch.testing.assert_close(staticrt.load(old_path)(torch.ones(2, 16)), old(torch.ones(2, 16)))


def test_some_of_the_weights(tmp_path):
    old, path = saved(tmp_path, 0)
    loaded = staticrt.load(path)
    with torch.no_grad():
        loaded.load_state_dict({"second.bias": torch.ones(4)}, strict=False)
        old.second.bias.fill_(1.0)
        loaded.swap_weights({"scale": torch.zeros(4)}, strict=False)
        assert loaded(torch.ones(2, 16)).eq(0).all()
        loaded.swap_weights({"scale": torch.ones(4)}, strict=False)
        torch.testing.assert_close(loaded(torch.ones(2, 16)), old(torch.ones(2, 16)))


def test_answers_under_load_are_of_the_old_or_of_the_new_weights(tmp_path):
    (old, old_path), (new, new_path) = saved(tmp_path, 0), saved(tmp_path, 1)
    loaded = staticrt.load(old_path)
    x = torch.randn(7, 16)
    with torch.no_grad():
        expected = [old(x), new(x)]
    assert not torch.allclose(*expected)

    def work(_thread: int) -> None:
        with torch.no_grad():
            found = loaded(x)
        assert sum(torch.allclose(found, one, rtol=1e-4, atol=1e-5) for one in expected) == 1

    with beside(work, range(3)):
        for turn in range(12):
            loaded.swap_weights([new_path, old.state_dict(), new.state_dict(), old_path][turn % 4])


def test_calls_that_were_prepared_are_prepared_again(tmp_path):
    (_old, old_path), (new, new_path) = saved(tmp_path, 0), saved(tmp_path, 1)
    loaded = staticrt.load(old_path)
    for size in (4, 9):
        assert loaded.prepare(torch.empty(size, 16, device="meta"))
    loaded.swap_weights(new_path)
    (trace,) = loaded._traces
    assert len(trace.native.executable.prepared_stats) == 2
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.ones(9, 16)), new(torch.ones(9, 16)))
    assert len(trace.native.executable.prepared_stats) == 2


def test_old_weights_are_freed_without_the_collector(tmp_path):
    (_old, old_path), (_new, new_path) = saved(tmp_path, 0), saved(tmp_path, 1)
    loaded = staticrt.load(old_path)
    with torch.no_grad():
        for _ in range(3):
            loaded(torch.ones(2, 16))
    held = weakref.ref(loaded._now)
    gc.collect()
    gc.disable()
    try:
        loaded.swap_weights(new_path)
        assert held() is None
    finally:
        gc.enable()


def test_what_does_not_fit_changes_nothing(tmp_path):
    old, path = saved(tmp_path, 0)
    loaded = staticrt.load(path)
    state = dict(old.state_dict())
    other = str(tmp_path / "other.pt2")
    staticrt.save(
        staticrt.compile(nn.Linear(16, 4).eval()), other, (torch.randn(3, 16),), exported_program=False
    )
    for weights, message in [
        ({**state, "scale": torch.zeros(5)}, r"'scale' of Net is float32\[5\], expected float32\[4\]"),
        ({**state, "scale": torch.zeros(4).double()}, r"float64\[4\], expected float32\[4\]"),
        ({"scale": torch.zeros(4)}, "missing .'first.bias', 'first.weight'"),
        ({**state, "more": torch.zeros(4)}, "unexpected .'more'"),
        (other, "weight 'bias' is float32.4., expected no such weight"),
    ]:
        with pytest.raises(InputError, match=message):
            loaded.swap_weights(weights)
    with pytest.raises(ArchiveError):
        loaded.swap_weights(str(tmp_path / "nothing.pt2"))
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.ones(2, 16)), old(torch.ones(2, 16)))


def test_by_name_needs_the_file_that_was_loaded(tmp_path):
    old, path = saved(tmp_path, 0)
    data = Path(path).read_bytes()
    with pytest.raises(InputError, match="was loaded from bytes"):
        staticrt.load(data).swap_weights(old.state_dict())
    loaded = staticrt.load(path)
    Path(path).unlink()
    Path(path).write_bytes(data)
    with pytest.raises(InputError, match="has changed since"):
        loaded.swap_weights(old.state_dict())


class Shared(nn.Module):
    """A weight under two names, a view of it that is not part of the state dict, and a tensor that calls write."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("row", self.a.weight.detach()[0], persistent=False)
        self.calls = torch.zeros(1)

    def forward(self, x):
        self.calls += 1
        return self.b(self.a(x)) + self.row + self.calls


@pytest.mark.parametrize("names", [("a.weight",), ("b.weight",), ("a.weight", "b.weight")])
def test_weights_that_share_bytes_get_what_one_name_is_given(tmp_path, names):
    model, path = Shared().eval(), str(tmp_path / "shared.pt2")
    with torch.no_grad():
        staticrt.save(staticrt.compile(model), path, (torch.randn(2, 4),), exported_program=False)
        model.calls.zero_()
        loaded, x, weight = staticrt.load(path), torch.randn(2, 4), torch.randn(4, 4)
        torch.testing.assert_close(loaded(x), model(x))
        loaded.swap_weights(dict.fromkeys(names, weight), strict=len(names) == 2)
        model.a.weight.copy_(weight)
        torch.testing.assert_close(loaded(x), model(x))  # the number of calls goes on
    for tensor in loaded.state_dict().values():
        assert torch.equal(tensor, weight)


class Odd(nn.Module):
    """Buffers of dtypes that torch compares in a way of its own, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))
        self.register_buffer("zero", torch.zeros(2))
        self.register_buffer("number", torch.tensor(1, dtype=torch.uint16))
        self.register_buffer("small", torch.ones(3).to(torch.float8_e4m3fn))
        self.register_buffer("complex", torch.ones(2, 3, dtype=torch.complex128).t())
        self.register_buffer("empty", torch.ones(0, 3))

    def forward(self, x):
        return x / self.zero + self.bias, self.small.float() * 2, self.complex * 2, self.empty + 1


def test_present_values_are_kept_to_the_bit(tmp_path):
    model, path = Odd().eval(), str(tmp_path / "odd.pt2")
    staticrt.save(staticrt.compile(model), path, (torch.ones(2),), exported_program=False)
    loaded = staticrt.load(path)
    state = loaded.state_dict()
    state["zero"].neg_()
    state["number"].fill_(65535)
    state["small"].copy_(torch.full((3,), 0.25))
    state["complex"].mul_(1j)
    loaded.swap_weights({"bias": torch.ones(2)}, strict=False)
    with torch.no_grad():
        quotient, small, product, _ = loaded(torch.ones(2))
    assert quotient.tolist() == [float("-inf")] * 2
    assert small.tolist() == [0.5] * 3
    assert product.eq(2j).all()
    assert loaded.state_dict()["number"].item() == 65535


def test_a_call_with_one_tensor_twice_is_prepared_again(tmp_path):
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, y):
            return x * y + self.weight

    x, path = torch.randn(2, 4), str(tmp_path / "product.pt2")
    staticrt.save(staticrt.compile(Product()), path, (x, x), exported_program=False)
    loaded = staticrt.load(path)
    for _ in range(100):  # more than are remembered, of two kinds
        assert loaded.prepare(x, x)
    other = torch.randn(5, 4)
    assert loaded.prepare(other, other)
    loaded.swap_weights({"weight": torch.zeros(4)})
    (trace,) = loaded._traces
    assert len(trace.native.executable.prepared_stats) == 2
