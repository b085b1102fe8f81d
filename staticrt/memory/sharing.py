"""Tensors on a simulated device in several processes: `share` makes a handle of a tensor, `open_shared` a tensor of the handle.

    handle = staticrt.memory.share(x)         # in the process that has x
    queue.put(handle)                         # or as an argument of a multiprocessing.Process
    y = staticrt.memory.open_shared(handle)   # in another process: the same bytes

The handle carries file descriptors: one for each page of physical memory, and one that stands for the right to the
memory. Open copies of it in any process keep the memory: the handle, its copies under way, and the tensors made of it.
When its owner has freed it and the last copy is closed, also by the end of a process, the memory is freed. A copy that
no process ever reads is under way until the process that sent it ends.
"""

from __future__ import annotations

import socket
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from staticrt.errors import AllocatorError, DeviceError
from staticrt.memory.devices import device as device_of
from staticrt.memory.devices import other_devices
from staticrt.native import _C

_MOST_FDS = 253  # in one message: the kernel's SCM_MAX_FD


class SharedTensor:
    """A tensor's place in memory that other processes can open. Made by `share`; it can be pickled by multiprocessing.

    While it lives, or a copy of it is on its way to another process, the memory is kept. What was pickled or put into a
    queue and is never read keeps its memory and descriptors until the process that sent it ends.
    """

    def __init__(self, block: _C.SharedBlock, device: str, place: dict[str, Any]) -> None:
        self._block = block
        self.device = device
        self._place = place

    def __repr__(self) -> str:
        return f"<SharedTensor {self._place['dtype']} {tuple(self._place['size'])} on {self.device}>"

    def close(self) -> None:
        """Let go of the memory. Tensors that were opened keep it."""
        self._block.close()

    def __reduce__(self) -> tuple[Any, ...]:
        fds = self._block.fds
        if fds[-1] < 0:
            raise AllocatorError(f"{self!r} was closed", fix="share the tensor again")
        return _received, (self._block.layout, _sent(fds), len(fds), self.device, self._place)


def _sent(fds: list[int]) -> list[Any]:
    """What multiprocessing carries: the descriptors themselves to a process that it starts, else a socket with them.

    Each object that goes over a connection costs another connection. A descriptor that lies in a socket is open.
    """
    if get_spawning_popen() is not None:
        return [reduction.DupFd(fd) for fd in fds]
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        for at in range(0, len(fds), _MOST_FDS):
            socket.send_fds(near, [b"fds"], fds[at : at + _MOST_FDS])
        return [reduction.DupFd(far.fileno())]


def _received(
    layout: tuple[Any, ...], sent: list[Any], count: int, device: str, place: dict[str, Any]
) -> SharedTensor:
    fds: list[int] = []
    if len(sent) == count:
        fds = [fd.detach() for fd in sent]
    else:
        with socket.socket(fileno=sent[0].detach()) as far:
            while len(fds) < count:
                text, some, _, _ = socket.recv_fds(far, 3, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
                if not text:
                    raise AllocatorError("the handle came without its descriptors", fix="share it again")
                fds += some
    return SharedTensor(_C.SharedBlock(layout, fds), device, place)


def share(tensor: torch.Tensor) -> SharedTensor:
    """A handle of the tensor for other processes; they see the same bytes.

    Waits for the current stream, so that the bytes are there. A process that writes them later must notify the others.
    The tensor's whole pages (2 MiB) can be seen by a process that opens it, as with CUDA's handles.
    From then on the tensor's storage can be neither resized nor donated (`donate=`).

    Raises:
        AllocatorError: not a strided tensor on a simulated device, its stream is captured, or a result of autograd
            that is no leaf.
        DeviceError: it cannot leave the process: memory of a private pool, of another process, or one that the next
            call writes again (`manage_outputs=True`).
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_nested:
        raise AllocatorError(f"{type(tensor).__name__} cannot be shared", fix="give a strided tensor on sim")
    if tensor.requires_grad and not tensor.is_leaf:
        raise AllocatorError(
            "a result of autograd cannot be shared: its graph stays in this process", fix="share x.detach()"
        )
    if tensor.device.type not in other_devices:
        raise AllocatorError(
            f"a tensor on {tensor.device} has memory of torch", fix="send it by torch.multiprocessing"
        )
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        raise AllocatorError("the tensor has no bytes to share", fix="send its sizes")
    handle = device_of(tensor.device)._handle
    stream = torch.accelerator.current_stream(tensor.device)
    if handle.capturing(stream.stream_id):
        raise AllocatorError(
            f"stream {stream.stream_id} of {handle.name} is captured, and sharing waits for it",
            fix="share the tensor before or after the capture",
        )
    stream.synchronize()
    begin = storage.data_ptr()
    block = handle.share(tensor)
    place = {
        "begin": begin - block.address,
        "bytes": storage.nbytes(),
        "dtype": tensor.dtype,
        "offset": tensor.storage_offset(),
        "size": tuple(tensor.size()),
        "stride": tensor.stride(),
        "flags": (tensor.requires_grad, tensor.is_conj(), tensor.is_neg()),
        "parameter": isinstance(tensor, torch.nn.Parameter),
    }
    return SharedTensor(block, str(tensor.device), place)


def open_shared(handle: SharedTensor) -> torch.Tensor:
    """The tensor of a handle: the same bytes, sizes and strides, on the same device of this process.

    Opened again while a tensor of it lives, the memory has the same address. It is unmapped with the last one, after
    waiting for the streams that used it (the current one, and those of `record_stream`).

    Raises:
        AllocatorError: not a handle, or a closed one.
        DeviceError: this process has no such device.
    """
    if not isinstance(handle, SharedTensor):
        raise AllocatorError(f"{type(handle).__name__} is not a handle", fix="give what share() made")
    memory, device, place = _memory(handle.device), torch.device(handle.device), handle._place
    stream = torch.accelerator.current_stream(device).stream_id
    raw = _C.open_shared_bytes(memory, handle._block, place["begin"], place["bytes"], stream, device)
    with torch.no_grad():
        tensor = torch.empty(0, dtype=place["dtype"], device=device)
        tensor.set_(raw.untyped_storage(), place["offset"], place["size"], place["stride"])
    requires_grad, conjugate, negative = place["flags"]
    if conjugate:
        tensor = tensor.conj()
    if negative:
        tensor = torch._neg_view(tensor)
    return (
        torch.nn.Parameter(tensor, requires_grad)
        if place["parameter"]
        else tensor.requires_grad_(requires_grad)
    )


def send_tensors() -> None:
    """Let multiprocessing send tensors on simulated devices, as it sends others: the receiver gets the same bytes."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        reduction.ForkingPickler.register(kind, _reduce)


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type not in other_devices:
        return reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    if get_spawning_popen() is not None:
        raise AllocatorError(
            f"a process that starts has no simulated devices yet, and gets a tensor on {tensor.device}",
            fix="give it share(tensor), and open the handle after enable(); or send the tensor by a queue or pipe",
        )
    return _open_received, (share(tensor),)


def _open_received(handle: SharedTensor) -> torch.Tensor:
    tensor = open_shared(handle)
    handle.close()
    return tensor


def _memory(device: str) -> _C.MemoryDevice:
    if _C.simulated_device_count() == 0:
        raise DeviceError(
            f"the handle is of {device}, and this process has no simulated devices",
            fix="call staticrt.memory.simulated.enable() in it first",
        )
    return device_of(device)._handle
