"""`as_strided` reads a storage, not a tensor's elements: computed values lie in storages as eager's do."""

import pytest
import torch

import staticrt

FUNCTIONS = {
    # A removed multiplication would leave the argument's own storage.
    "of a copy": lambda x: (x * 1).as_strided((3,), (1,), 1) + 1,
    "copy of a copy": lambda x: torch.as_strided_copy(x * 1, (3,), (1,), 1),
    "scattered into a copy": lambda x: torch.as_strided_scatter(x * 1, x.new_zeros(3), (3,), (1,), 1),
    "of a transposed copy": lambda x: torch.as_strided_copy(x.t().clone(), (3,), (1,), 1) * 2,
    # Offsets count from the beginning of the storage, wherever the view begins.
    "of a view": lambda x: (x * 2)[1:].as_strided((4,), (1,), 0) * 2,
    "copy of a view": lambda x: torch.as_strided_copy((x * 2)[1:], (4,), (1,), 2) * 2,
    "with the view's own offset": lambda x: (x * 2)[1:].as_strided((4,), (1,)) * 2,
    "windows": lambda x: (x * 2).as_strided((2, 3, 2), (6, 1, 1)).sum(-1),
}
numbers = torch.arange(1.0, 60.0)
INPUTS = {
    "plain": numbers[:24].view(4, 6).clone(),
    "with an offset": numbers[7:31].view(4, 6),
    "transposed": numbers[:24].view(6, 4).clone().t(),
    "with gaps": numbers[:48].view(4, 12)[:, ::2],
    "expanded": numbers[:6].expand(4, 6),
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_storage_is_eagers(name, dtype):
    function = FUNCTIONS[name]
    compiled = staticrt.compile(function)
    storage = numbers.to(dtype)
    for x in (*INPUTS.values(), *reversed(INPUTS.values())):
        x = x.to(dtype) if x.storage_offset() == 0 else storage[7:31].view(4, 6)
        for _ in range(3):
            assert torch.equal(compiled(x), function(x))


@torch.no_grad()
@pytest.mark.parametrize("copy", [False, True])
def test_reading_beyond_a_computed_value_raises_as_in_eager(copy):
    """Its bytes may lie in memory shared with others, which are not its own."""

    def function(x):
        y = x * 1.5
        return (torch.as_strided_copy if copy else torch.as_strided)(y, (4, 4), (4, 1), 0) * 2

    compiled = staticrt.compile(function)
    for length in (5, 40, 5, 16, 5):
        x = torch.randn(length)
        for _ in range(3):
            if length < 16:
                with pytest.raises(RuntimeError, match="out of bounds"):
                    compiled(x)
            else:
                assert torch.equal(compiled(x), function(x))
