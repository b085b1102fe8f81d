"""Fakes that rules make are those of torch's constructor."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from staticrt.shapes.fake_results import fresh

CPU = torch.device("cpu")


def test_fakes_equal_those_of_torchs_constructor():
    mode = FakeTensorMode()
    made = [fresh(mode, [2, 3], [1, 2], torch.float16, CPU) for _ in range(2)]
    expected = FakeTensor(mode, torch.empty_strided((2, 3), (1, 2), dtype=torch.float16, device="meta"), CPU)
    assert made[0].untyped_storage()._cdata != made[1].untyped_storage()._cdata
    for fake in made:
        attributes = {name: value for name, value in vars(fake).items() if name != "_staticrt_meta"}
        assert type(fake) is FakeTensor
        assert attributes == vars(expected)
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == ((2, 3), (1, 2), torch.float16, CPU)
        assert torch._C._dispatch_keys(fake) == torch._C._dispatch_keys(expected)
        assert not fake.requires_grad


def test_fakes_of_two_modes_and_devices_keep_their_own():
    modes = FakeTensorMode(), FakeTensorMode()
    for mode in modes:
        for device in (CPU, torch.device("cuda", 0), CPU):
            fake = fresh(mode, [2], None, torch.float32, device)
            assert fake.fake_mode is mode
            assert fake.device == device
