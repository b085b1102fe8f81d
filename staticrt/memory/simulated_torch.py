"""The simulated accelerator as torch's device "sim", and the module that torch calls `torch.sim`.

staticrt.memory.simulated.enable(devices=2)
x = torch.randn(4, 4, device="sim:0")
y = x @ x.T                              # enqueued on the current stream of sim:0
y.cpu()                                  # waits for it
staticrt.memory.device("sim:0").check()  # no race, no broken invariant
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from typing import Any, Literal

import torch

from staticrt.errors import AllocatorError
from staticrt.memory import checks as check
from staticrt.memory.devices import other_devices
from staticrt.memory.sharing import send_tensors
from staticrt.memory.simulated_device import SimulatedDevice
from staticrt.native import _C
from staticrt.shapes.fake_results import cpu_kernels


class Simulated:
    """Simulated devices: `simulated(total_bytes)` makes one without tensors, `simulated.enable()` those of torch."""

    def __call__(self, total_bytes: int, **options: Any) -> SimulatedDevice:
        """A simulated device with streams, events, captures, faults and a race detector; see `SimulatedDevice`."""
        return SimulatedDevice(total_bytes, **options)

    def enable(
        self,
        devices: int = 1,
        *,
        total_bytes: int = 4 << 30,
        synchronous: bool = False,
        checks: bool = True,
        redzone_bytes: int = 0,
        unreachable: Iterable[tuple[int, int]] = (),
        config: str = "",
    ) -> None:
        """Make the devices "sim:0" … of torch, for the rest of the process.

        Tensors get memory of staticrt's allocator at addresses that the host cannot read. Operators run the CPU's
        kernels, when their stream moves: streams advance only as far as the program waits for them.

        Args:
            devices: how many, 1 to 16.
            total_bytes: memory of each.
            synchronous: run operators when they are enqueued.
            checks: report races, accesses outside of live tensors and overwritten redzones, and fill unset and
                freed memory with bytes 0xff (NaN, or -1).
            redzone_bytes: bytes behind each tensor that no work may write, besides those up to the next multiple of
                512, which are checked anyway. Statistics of memory contain them.
            unreachable: pairs of devices, (0, 1), that have no access to each other's memory. Copies between them go
                through the host.
            config: options of the allocators, as in PYTORCH_ALLOC_CONF.

        Raises:
            AllocatorError: an argument is none of these.
            InputError: they are enabled already, a backward has run in this process, or torch's device type for
                other backends (PrivateUse1) is taken.
        """
        count, memory = check.count("devices", devices), check.count("total_bytes", total_bytes)
        options = check.text("config", config)
        importlib.import_module("torch._meta_registrations")  # the sizes of results
        _C.enable_simulated(
            count,
            memory,
            check.flag("synchronous", synchronous),
            check.flag("checks", checks),
            check.count("redzone_bytes", redzone_bytes, 1 << 20),
            options,
            check.pairs_of_devices("unreachable", unreachable, count),
        )
        torch.utils.rename_privateuse1_backend("sim")  # type: ignore[attr-defined]
        torch._register_device_module("sim", _torch_module())  # type: ignore[no-untyped-call]
        torch.utils.generate_methods_for_privateuse1_backend()  # type: ignore[attr-defined]
        other_devices["sim"] = lambda index: SimulatedDevice.of_torch(_index(None if index == -1 else index))
        cpu_kernels.add("sim")
        send_tensors()

    @property
    def enabled(self) -> bool:
        """Whether torch has the devices."""
        return _C.simulated_device_count() > 0

    def order(self, order: Literal["needed", "random", "others_first"], seed: int = 0) -> None:
        """How streams move while the program waits for one of them.

        Args:
            order: "needed" moves only what the wait needs, so that every other stream is as late as it can be (the
                default). "others_first" moves all others first, so that the awaited one is as late as it can be.
                "random" moves a stream chosen at random at each step.
            seed: seed of the order "random". The same program with the same seed moves streams the same way.
        """
        check.one_of("order", order, ("needed", "random", "others_first"))
        _C.order_simulated(order, check.count("seed", seed))

    def waits(self, device: int | str | torch.device = 0) -> dict[str, int]:
        """How often the host has waited for a device on its own accord, by what made it wait.

        Values that the host reads make it wait, and so do operators whose output sizes only data decides, and those
        without a rule for their sizes. Synchronisation that the program asks for is not counted.

        Raises:
            AllocatorError: `device` is not a simulated device.
        """
        return _C.simulated_waits(_index(device))

    def clear_waits(self, device: int | str | torch.device = 0) -> None:
        """Forget what `waits` has counted."""
        _C.clear_simulated_waits(_index(device))


simulated = Simulated()


def _index(device: int | str | torch.device | None) -> int:
    if device is None:
        return _C.simulated_current_device()
    count = _C.simulated_device_count()
    if isinstance(device, int) and not isinstance(device, bool):
        index: int | None = device
    else:
        try:
            wanted = torch.device(device)
        except (RuntimeError, TypeError):
            wanted = None
        if wanted is None or (wanted.type != "sim" and count > 0):
            raise AllocatorError(f"{device!r} is not a simulated device", fix='give "sim", "sim:N" or N')
        index = wanted.index
    if count == 0:
        raise AllocatorError(
            "there are no simulated devices in this process",
            fix="call staticrt.memory.simulated.enable() first",
        )
    if index is None:
        return _C.simulated_current_device()
    if not 0 <= index < count:
        raise AllocatorError(
            f"sim:{index} does not exist",
            fix=f"give a number from 0 to {count - 1}, as enable() made {count}",
        )
    return index


def _torch_module() -> types.ModuleType:
    """What torch looks up in `torch.sim`."""
    module = types.ModuleType("torch.sim")
    count = _C.simulated_device_count

    def get_rng_state(device: int | str | torch.device = "sim") -> torch.Tensor:
        return _C.simulated_generator(_index(device)).get_state()

    def set_rng_state(new_state: torch.Tensor, device: int | str | torch.device = "sim") -> None:
        _C.simulated_generator(_index(device)).set_state(new_state)

    def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            set_rng_state(state, index)

    def manual_seed_all(seed: int) -> None:
        for index in range(count()):
            _C.simulated_generator(index).manual_seed(seed)

    module.__dict__.update(
        Stream=torch.Stream,
        Event=torch.Event,
        _initialized=True,  # asked by torch.utils.checkpoint
        _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False,  # the driver itself refuses the calls of a child
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=count,
        current_device=_C.simulated_current_device,
        device=lambda which: torch.accelerator.device_index(_index(which)),
        set_device=lambda device: torch.accelerator.set_device_index(_index(device)),
        synchronize=lambda device=None: torch.accelerator.synchronize(_index(device)),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        get_rng_state_all=lambda: [get_rng_state(index) for index in range(count())],
        set_rng_state_all=set_rng_state_all,
        manual_seed=lambda seed: _C.simulated_generator(_index(None)).manual_seed(seed),
        manual_seed_all=manual_seed_all,
    )
    return module
