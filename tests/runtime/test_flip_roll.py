"""flip and roll are out variants and prepared calls: no dispatcher, no allocation of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import staticrt

DTYPES = [torch.float32, torch.bool, torch.complex128]


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    numbers = torch.arange(count).view(shape)
    return torch.complex(numbers.double(), -numbers.double()) if dtype.is_complex else numbers.to(dtype)


def layouts(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[torch.Tensor]:
    yield values(shape, dtype)
    yield values(shape[::-1], dtype).permute(*range(len(shape))[::-1])
    yield values((*shape[:-1], shape[-1] * 2 + 1), dtype)[..., 1::2]
    yield values((1, *shape[1:]), dtype).expand(shape)
    if len(shape) == 4:
        yield values(shape, dtype).contiguous(memory_format=torch.channels_last)
    if dtype.is_complex:
        yield values(shape, dtype).conj()


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.numel() > 1:
        assert [s for s, n in zip(got.stride(), got.shape, strict=True) if n != 1] == [
            s for s, n in zip(want.stride(), want.shape, strict=True) if n != 1
        ]
    assert torch.equal(got, want)


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flip": lambda x: x.flip(0),
    "flip_all": lambda x: x.flip(tuple(range(x.dim()))),
    "flip_last": lambda x: x.flip(-1),
    "flip_none": lambda x: torch.flip(x, ()),
    "fliplr": torch.fliplr,
    "flipud": torch.flipud,
    "roll": lambda x: x.roll(1, 0),
    "roll_back": lambda x: x.roll(-7, -1),
    "roll_two": lambda x: x.roll((2, -1), (0, -1)),
    "roll_twice": lambda x: x.roll((1, 1, 3), (0, 0, 1)),
    "roll_flat": lambda x: x.roll(3),
}
SHAPES = [(3, 4), (2, 3, 4, 5), (2, 0, 3), (2, 1, 3)]


@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name: str) -> None:
    function = CASES[name]
    compiled = staticrt.compile(function, max_traces=1000)
    with torch.no_grad():
        for dtype in DTYPES:
            for shape in SHAPES:
                for x in layouts(shape, dtype):
                    for _ in range(3):
                        same(compiled(x), function(x))
    # Calls with lazy conjugates run eagerly; all others are compiled.
    assert {report.reason for report in compiled.explain().eager} == {
        "an argument is a lazy conjugate or negative"
    }


def test_what_eager_refuses_is_refused() -> None:
    compiled = staticrt.compile(lambda x: x.flip(0))
    x = torch.arange(4).to(torch.uint16)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="not implemented for 'UInt16'"):
            compiled(x)


@pytest.mark.parametrize("name", CASES)
def test_nothing_falls_back(name: str) -> None:
    function = CASES[name]
    compiled = staticrt.compile(lambda x: torch.relu(function(x + 1)))
    x = torch.randn(4, 6)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), torch.relu(function(x + 1)))
    (trace,) = compiled.explain().traces
    assert dict(trace.kinds)["fallback"] == 0


def test_prepared_copies_need_no_dispatcher() -> None:
    compiled = staticrt.compile(lambda x: torch.roll(torch.flip(x + 1, (0,)), (1, 2), (0, 1)) * 2)
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(8, 8))
    (signature,) = compiled.explain().traces[0].signatures
    assert "generic" not in str(signature), signature


def test_a_window_shift_of_swin() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        y = torch.roll(torch.relu(x), shifts=(-3, -3), dims=(1, 2))
        return torch.roll(y * 2, shifts=(3, 3), dims=(1, 2))

    compiled = staticrt.compile(shifted)
    with torch.no_grad():
        for size in (7, 14, 7, 4, 1):
            x = torch.randn(2, size, size, 5)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), shifted(x), rtol=0, atol=0)
