"""Storage primitives of graph capture: who uses a storage, other bytes for it, or none."""

import gc
import weakref

import numpy
import pytest
import torch

from staticrt.errors import InputError, InternalError
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.graphs.protocol import TensorMeta
from staticrt.graphs.storage import describe
from staticrt.native import _C


def test_use_count_follows_owners_and_the_address_outlives_them():
    x = torch.rand(4, 4)
    ref = _C.storage_ref(x)
    assert ref.use_count() == torch._C._storage_Use_Count(x.untyped_storage()._cdata) - 1
    before = ref.use_count()
    view = x[1:]
    assert ref.use_count() == before + 1
    ptr = x.data_ptr()
    assert ref.recorded_ptr == ref.data_ptr() == ptr
    del x
    gc.collect()
    assert ref.is_alive()
    del view
    assert ref.use_count() == 0
    assert not ref.is_alive()
    assert ref.recorded_ptr == ptr
    assert ref.data_ptr() == 0


def test_a_reference_does_not_keep_the_bytes():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.zeros(1000)
    ref = _C.storage_ref(x)
    assert pool.stats().live_blocks == 1
    del x
    assert pool.stats().live_blocks == 0
    assert ref.use_count() == 0


def test_a_tensor_without_storage_is_refused():
    with pytest.raises(InputError, match="no storage"):
        _C.storage_ref(torch.eye(3).to_sparse())


@pytest.mark.parametrize("spec", [describe, _C.TensorSpec.of], ids=["tuple", "spec"])
def test_tensor_at_reads_and_writes_the_same_bytes_and_owns_nothing(spec):
    x = torch.arange(24.0).reshape(4, 6)
    part = x.t()[1:4, ::2]
    ref = _C.storage_ref(x)
    meta = spec(part)
    owners = ref.use_count()
    y = _C.tensor_at(meta)
    assert torch.equal(y, part)
    assert y.stride() == part.stride()
    assert y.storage_offset() == part.storage_offset()
    assert ref.use_count() == owners
    y.fill_(-1)
    assert (part == -1).all()
    del y
    assert x[0, 0] == 0  # the bytes stay


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.complex64, torch.float64])
def test_tensor_at_of_each_dtype(dtype):
    x = torch.ones(3, 2, dtype=dtype)
    y = _C.tensor_at(_C.TensorSpec.of(x))
    assert y.dtype is dtype
    assert torch.equal(x, y)


def test_tensor_on_is_an_alias():
    x = torch.arange(6.0)
    ref = _C.storage_ref(x)
    meta = describe(x[2:])
    owners = ref.use_count()
    y = ref.tensor(meta)
    assert ref.use_count() == owners + 1
    del x
    assert torch.equal(y, torch.arange(2.0, 6.0))
    del y
    with pytest.raises(InternalError, match="is dead"):
        ref.tensor(TensorMeta(0, 24, torch.float32, torch.device("cpu"), (6,), (1,), 0))


def test_a_tensor_at_takes_part_in_autograd():
    x = torch.rand(5)
    y = _C.tensor_at(_C.TensorSpec.of(x)).requires_grad_()
    (y * y).sum().backward()
    assert torch.equal(y.grad, 2 * x)
    assert not y.is_inference()


def test_wrong_metadata():
    with pytest.raises(InputError, match="7 fields"):
        _C.tensor_at((0, 0))
    with pytest.raises(InputError, match="as many strides"):
        _C.TensorSpec(0, 0, torch.float32, torch.device("cpu"), [2], [], 0)


USES = {
    "arithmetic": lambda x: x + 1,
    "matmul": lambda x: x @ x,
    "in place": lambda x: x.add_(1),
    "out": lambda x: torch.add(torch.ones(2, 2), 1, out=x),
    "a view, used": lambda x: x[0] * 2,
    "detached": lambda x: x.detach().sum(),
    "print": repr,
    "numpy": lambda x: numpy.asarray(x).sum(),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage().data_ptr(),
    "list": lambda x: x.tolist(),
    "clone": lambda x: x.clone(),
    "item": lambda x: x[0, 0].item(),
    "copied from": lambda x: torch.zeros(2, 2).copy_(x),
    "copied to": lambda x: x.copy_(torch.zeros(2, 2)),
    "grad": lambda x: x.requires_grad_().mul(2).sum().backward(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_every_use_of_a_poisoned_storage_raises_its_text(use):
    x = torch.rand(2, 2)
    view = x.t()
    _C.poison(_C.storage_ref(x), "overwritten by a later run: main.py:7")
    for tensor in (x, view):
        with pytest.raises(RuntimeError, match=r"overwritten by a later run: main\.py:7"):
            use(tensor)


def test_poison_gives_the_bytes_back_at_once():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.zeros(100)
    ref = _C.storage_ref(x)
    _C.poison(ref, "gone")
    assert pool.stats().live_blocks == 0
    assert ref.data_ptr() == 0
    assert ref.is_alive()
    with pytest.raises(RuntimeError, match="gone"):
        x.sum()


def test_release_leaves_neither_address_nor_deleter():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.zeros(100)
    ref = _C.storage_ref(x)
    _C.release(ref)
    assert (pool.stats().live_blocks, ref.data_ptr(), ref.nbytes()) == (0, 0, 400)
    del x  # nothing is freed twice


def test_rehome_moves_a_storage_and_every_view_follows():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.arange(12.0).reshape(3, 4)
    view, other = x.t(), x[1]
    expected = [t.clone() for t in (x, view, other)]
    ptr = x.data_ptr()
    assert _C.rehome(_C.storage_ref(view)) == 48
    assert pool.live_ptrs() == set()  # the block went back
    assert x.data_ptr() != ptr
    assert [torch.equal(a, b) for a, b in zip((x, view, other), expected, strict=True)] == [True] * 3
    with pool.route():
        torch.full((12,), -1.0)  # overwrites the old block
    assert torch.equal(x, expected[0])
    other.zero_()
    assert (view[:, 1] == 0).all()


def test_rehome_of_a_tensor_over_bytes_of_others_makes_it_an_owner():
    x = torch.arange(4.0)
    y = _C.tensor_at(_C.TensorSpec.of(x))
    _C.rehome(_C.storage_ref(y))
    x.zero_()
    assert y.tolist() == [0, 1, 2, 3]


def test_rehome_in_a_route_leaves_the_pool():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.ones(8)
        _C.rehome(_C.storage_ref(x))
        assert pool.live_ptrs() == set()
    assert x.sum() == 8


def test_rehome_of_an_empty_or_poisoned_storage_does_nothing():
    assert _C.rehome(_C.storage_ref(torch.empty(0))) == 0
    x = torch.ones(3)
    ref = _C.storage_ref(x)
    _C.poison(ref, "no")
    assert _C.rehome(ref) == 0


def test_rehome_keeps_autograd_history():
    w = torch.rand(3, requires_grad=True)
    y = (w * w).exp()
    _C.rehome(_C.storage_ref(y))
    y.sum().backward()
    assert torch.allclose(w.grad, 2 * w.detach() * (w.detach() ** 2).exp())


def test_ptrs_equal_compares_first_elements():
    x = torch.rand(4)
    y = x[1:]
    ptrs = [x.data_ptr(), y.data_ptr(), 0]
    inputs = [x, y, torch.empty(0)]
    assert _C.ptrs_equal(inputs, ptrs, [0, 1, 2])
    assert not _C.ptrs_equal([y, y, 3], ptrs, [0, 1])
    assert _C.ptrs_equal([y, y, 3], ptrs, [1])
    assert not _C.ptrs_equal([x, y, 3], ptrs, [2])
    assert not _C.ptrs_equal(inputs, [None, 0, 0], [0])


def test_nothing_here_keeps_a_tensor():
    x = torch.rand(2)
    alive = weakref.ref(x)
    ref = _C.storage_ref(x)
    spec = _C.TensorSpec.of(x)
    del x
    gc.collect()
    assert alive() is None
    assert ref.use_count() == 0
    assert spec.nbytes == 8
