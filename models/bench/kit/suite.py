"""The device suite: compiled programs, training, archives, streams and errors on one device, against the CPU's eager."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import staticrt
from staticrt.errors import OutOfMemoryError
from staticrt.models.bench.kit.checks import Skip, check, close, draw_the_same, synchronize


class Net(nn.Module):
    """Matrix products, a norm, views, attention, pointwise chains and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(48)
        self.narrow = nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.wide(x)))
        q, k, v = h.view(1, x.shape[0], 3, 16).unbind(2)
        h = F.scaled_dot_product_attention(q, k, v).squeeze(0).repeat(1, 3) + h
        return torch.softmax(self.narrow(torch.sigmoid(h) * h + h.exp()), -1)


def pair(device: torch.device) -> tuple[Net, Net]:
    """A model on the CPU, and the same on the device."""
    torch.manual_seed(0)
    model = Net().eval()
    return model, copy.deepcopy(model).to(device)


@check("suite", "dynamic sizes, and arenas that lie on the device")
@torch.no_grad()
def dynamic_sizes(device: torch.device) -> str:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    for rows in (4, 4, 4, 7, 1, 4, 7, 7, 33):
        x = torch.randn(rows, 16)
        close(compiled(x.to(device)), model(x), device)
    report = compiled.explain()
    assert report.eager == (), f"runs eagerly: {report.eager}"
    arenas = [arena for signature in report.traces[0].signatures for arena in signature.arenas]
    assert arenas, "no signature has a plan: the device has no memory for arenas"
    for place, size_bytes in arenas:
        assert place == str(device), f"an arena lies on {place}"
        assert size_bytes > 0
    return f"{len(arenas)} signatures, largest arena {max(size for _place, size in arenas):,} bytes"


@check("suite", "weights change and move")
@torch.no_grad()
def weights(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    x = torch.randn(4, 16)
    for _ in range(3):
        close(compiled(x.to(device)), model(x), device)
    for each in (model, there):
        each.wide.weight.add_(0.5)
    for _ in range(3):
        close(compiled(x.to(device)), model(x), device)
    for place in (torch.device("cpu"), device):
        there.to(place)
        for _ in range(3):
            close(compiled(x.to(place)), model(x), place)


@check("suite", "results keep their values")
@torch.no_grad()
def results(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    inputs = [torch.randn(4, 16) for _ in range(20)]
    answers = [compiled(x.to(device)) for x in inputs]
    for x, y in zip(inputs, answers, strict=True):
        close(y, model(x), device)


@check("suite", "two streams in turn")
@torch.no_grad()
def streams(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    synchronize(device)
    both = [torch.Stream(device=device) for _ in range(2)]
    kept = []
    for number in range(40):
        x = torch.randn(3 + number % 3, 16)
        with both[number % 2]:
            kept.append((compiled(x.to(device)), x))
    synchronize(device)
    for y, x in kept:
        close(y, model(x), device)


@check("suite", "eight threads, each with a stream")
def threads(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            stream = torch.Stream(device=device)
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad(), stream:
                for turn in range(20):
                    x = torch.randn(2 + (number + turn) % 5, 16, generator=generator)
                    y = compiled(x.to(device))
                    stream.synchronize()
                    close(y, model(x), device)
        except BaseException as error:
            errors.append(error)

    with torch.no_grad():
        compiled(torch.randn(2, 16).to(device))
    synchronize(device)
    workers = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


@check("suite", "run_async on the caller's stream")
@torch.no_grad()
def asynchronous(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    synchronize(device)
    kept = []
    with torch.Stream(device=device) as stream:
        for rows in (2, 3, 2, 4):
            x = torch.randn(rows, 16)
            kept.append((compiled.run_async(x.to(device) * 2).result() + 1, x))
        stream.synchronize()
    for y, x in kept:
        close(y, model(x * 2) + 1, device)


@check("suite", "prepare, and the first call runs the plan")
@torch.no_grad()
def prepared(device: torch.device) -> str:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    x = torch.randn(5, 16)
    ready = compiled.prepare(x.to(device))
    close(compiled(x.to(device)), model(x), device)
    return f"{ready.arena_bytes:,} bytes" if ready else f"waits for the first call: {ready.reason}"


@check("suite", "gradients of a compiled module")
def gradients(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    for rows in (4, 4, 6, 4):
        x = torch.randn(rows, 16)
        for run, given in ((model, x), (compiled, x.to(device))):
            run.zero_grad()
            run(given).square().sum().backward()
        for ours, theirs in zip(there.parameters(), model.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            close(ours.grad, theirs.grad, device)


@check("suite", "whole training steps")
def steps(device: torch.device) -> None:
    model, there = pair(device)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, there)]

    def step_of(each: Net, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
        def run(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(each(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss

        return run

    ours = staticrt.compile_step(step_of(there, optimizers[1]))
    theirs = step_of(model, optimizers[0])
    for _ in range(5):
        x, y = torch.randn(6, 16), torch.rand(6, 8)
        close(ours(x.to(device), y.to(device)).detach(), theirs(x, y).detach(), device)
    for one, other in zip(there.parameters(), model.parameters(), strict=True):
        close(one.detach(), other.detach(), device)


@check("suite", "torch.compile(backend='staticrt')")
@torch.no_grad()
def dynamo_backend(device: torch.device) -> None:
    model, there = pair(device)
    compiled = torch.compile(there, backend="staticrt")
    for rows in (4, 4, 6, 8, 6):
        x = torch.randn(rows, 16)
        close(compiled(x.to(device)), model(x), device)


@check("suite", "archives from the device, and to it")
@torch.no_grad()
def archives(device: torch.device) -> None:
    model, there = pair(device)
    host = torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        for source, place, target in ((there, device, device), (there, device, host), (model, host, device)):
            path = Path(folder) / f"{place.type}_{target.type}.pt2"
            x = torch.randn(4, 16)
            staticrt.save(staticrt.compile(source), path, (x.to(place),), exported_program=False)
            loaded = staticrt.load(path, device=str(target))
            for rows in (4, 4, 7, 4):
                x = torch.randn(rows, 16)
                close(loaded(x.to(target)), model(x), target)


@check("suite", "random numbers are eager's")
def random_numbers(device: torch.device) -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.5, training=True) + torch.rand_like(x)

    draw_the_same(function, staticrt.compile(function), torch.ones(64, 33, device=device))


@check("suite", "a device and the host in one program")
@torch.no_grad()
def two_devices(device: torch.device) -> None:
    def function(x: Tensor) -> Tensor:
        return ((x.sin() + 1).cpu().cos() * 2).to(x.device).exp() + x

    compiled = staticrt.compile(function)
    for rows in (4, 4, 5, 4):
        x = torch.randn(rows, 3)
        close(compiled(x.to(device)), function(x), device)


@check("suite", "errors are eager's, and the next call works")
@torch.no_grad()
def errors(device: torch.device) -> None:
    model, there = pair(device)
    compiled = staticrt.compile(there)
    x = torch.randn(4, 16)
    close(compiled(x.to(device)), model(x), device)
    for wrong in (torch.randn(4, 17), torch.randn(16), torch.randn(4, 16, dtype=torch.float64)):
        said = []
        for run in (there, compiled):
            try:
                run(wrong.to(device))
                synchronize(device)
                said.append("nothing")
            except Exception as error:
                said.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        assert said[1].startswith(said[0]), (
            f"{wrong.dtype} {tuple(wrong.shape)}: eager says {said[0]}, ours {said[1]}"
        )
    for _ in range(2):
        close(compiled(x.to(device)), model(x), device)


@check("suite", "out of memory is an error, and the next call works")
@torch.no_grad()
def out_of_memory(device: torch.device) -> str:
    free, _total = staticrt.memory.device(device).memory_info()

    def function(x: Tensor) -> Tensor:
        return (torch.cat([x] * 8).tanh() * 2).sum()

    compiled = staticrt.compile(function)
    small = torch.ones(1000, device=device)
    expected = float(torch.ones(8000).tanh().sum() * 2)
    assert abs(compiled(small).item() - expected) < 1
    try:
        compiled(torch.empty(free // 16, device=device))  # a quarter of it, and eight times that inside
    except (torch.OutOfMemoryError, OutOfMemoryError) as error:
        said = str(error).splitlines()[0]
    else:
        raise Skip("the device has more memory than it reports")
    for _ in range(3):
        assert abs(compiled(small).item() - expected) < 1
    return said[:60]


@check("suite", "200 sizes in bounded memory")
@torch.no_grad()
def bounded(device: torch.device) -> str:
    _model, there = pair(device)
    compiled = staticrt.compile(there)
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 300, (200,), generator=generator).tolist()
    reserved = []
    for half in (sizes[:100], sizes[100:] + sizes[:100]):
        for rows in half:
            compiled(torch.randn(rows, 16, device=device))
        synchronize(device)
        reserved.append(staticrt.memory.device(device).stats()["reserved_bytes.all.current"])
    assert reserved[1] <= 2 * max(reserved[0], 2**21), f"arenas hold {reserved} bytes"
    return f"{reserved[1]:,} bytes reserved"
