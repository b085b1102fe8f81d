"""Each test leaves the process as it found it: what stays behind fails another test, in some orders of tests only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from staticrt.native import _C


def state() -> dict[str, object]:
    flags = _C.process_state()
    names = [name for name, _of_thread in _C.process_flags()]
    return {
        **{name: flags[2 * i : 2 * i + 2] for i, name in enumerate(names)},
        "autocast blocks": _C.autocast_nesting(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "Module.__call__": torch.nn.Module.__call__,
    }


@pytest.fixture(autouse=True)
def state_of_the_process_stays() -> Iterator[None]:
    before = state()
    yield
    after = state()
    assert [name for name in after if after[name] != before.get(name, after[name])] == []
