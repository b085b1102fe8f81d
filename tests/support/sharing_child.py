"""A process with simulated devices that does what the tests of shared memory tell it over a connection."""

import multiprocessing
import os

import torch

from staticrt import memory


class Child:
    """The other process. `child.call(name, …)` runs the function `name` of this file there."""

    def __init__(self, devices=2, handle=None):
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, devices, handle), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def call(self, name, *arguments):
        self.connection.send((name, *arguments))
        kind, answer = self.connection.recv()
        if kind == "raised":
            raise RuntimeError(answer)
        return answer

    def end(self):
        self.connection.close()
        self.process.join(60)
        assert self.process.exitcode == 0


def serve(connection, devices, handle):
    if devices:
        memory.simulated.enable(devices=devices)
    if handle:
        open_as("given", handle)
    connection.send("ready")
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("done", globals()[name](*arguments)))
        except Exception as error:
            connection.send(("raised", f"{type(error).__name__}: {error}"))
        del arguments


kept = {}


def open_as(name, handle):
    kept[name] = memory.open_shared(handle)
    handle.close()
    return kept[name].data_ptr()


def keep(name, tensor):
    kept[name] = tensor


def place(name):
    tensor = kept[name]
    return str(tensor.device), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def read(name):
    return kept[name].cpu().resolve_conj().resolve_neg()


def fill(name, value):
    kept[name].fill_(value)
    torch.accelerator.synchronize(kept[name].device)


def fill_late(name, value):
    """On another stream, and nobody waits for it."""
    side = torch.Stream(kept[name].device)
    side.wait_stream(torch.accelerator.current_stream(kept[name].device))
    with side:
        kept[name].fill_(value)
    kept[name].record_stream(side)


def drop(name):
    del kept[name]


def drop_all():
    kept.clear()


def copied(handle):
    """A copy of what the handle is of, in memory of this process."""
    open_as("theirs", handle)
    kept["mine"] = kept["theirs"].clone()
    return memory.share(kept["mine"])


def share(name):
    return memory.share(kept[name])


def state():
    """Blocks that others have and blocks of others, reports, file descriptors."""
    counts, reports = [], []
    for index in range(2):
        device = memory.device(f"sim:{index}")
        counts.append(device._handle.shared_counts())
        reports += device.reports
    return counts, reports, len(os.listdir("/proc/self/fd"))


def die():
    os._exit(7)


def make(name, value):
    kept[name] = torch.full((1000,), value, device="sim:0")
