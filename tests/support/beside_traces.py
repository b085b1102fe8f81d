"""Something done in a loop in one thread, while another thread traces, trains and records steps.

`python -m tests.support.beside_traces --traces 200` runs every case for longer, and prints how many answers differed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.training import optim

Case = Callable[[], Callable[[], Any]]
"""Makes what a thread does again and again: a function whose result is always equal."""

CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (tuple, list)) and type(a) is type(b) and len(a) == len(b):
        return all(map(same, a, b))
    return bool(a == b)


def without_gradients(body: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return body()

    return run


@case
def padded_transformer_encoder() -> Callable[[], Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, padded = torch.randn(1, 3, 8), torch.tensor([[False, False, True]])
    return without_gradients(lambda: encoder(x, src_key_padding_mask=padded))


@case
def attention() -> Callable[[], Any]:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, hidden = torch.randn(2, 3, 8), torch.tensor([[True] * 3, [False] * 3])
    # The fused path gives rows of NaN where all keys are hidden.
    return without_gradients(lambda: layer(x, x, x, key_padding_mask=hidden)[0].isnan())


@case
def loaded_model() -> Callable[[], Any]:
    file = io.BytesIO()
    model = nn.Linear(4, 4)
    staticrt.save(staticrt.compile(model), file, (torch.ones(1, 4),), exported_program=False)
    loaded = staticrt.load(file.getvalue())
    sizes = iter(range(1, 10**9))

    def body() -> bool:
        x = torch.randn(next(sizes) % 500 + 1, 4)
        return torch.allclose(loaded(x), model(x), atol=1e-6)

    return without_gradients(body)


@case
def compiled_model() -> Callable[[], Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = staticrt.compile(model)
    sizes = iter(range(1, 10**9))

    def body() -> bool:
        x = torch.randn(next(sizes) % 500 + 1, 4)
        return torch.allclose(compiled(x), model(x), atol=1e-6)

    return without_gradients(body)


@case
def random_numbers() -> Callable[[], Any]:
    seen: set[Any] = set()

    def body() -> int:
        drawn = (
            tuple(torch.rand(4).tolist()),
            ("random", random.random(), random.random()),
            ("numpy", *np.random.rand(3)),
        )
        repeated = sum(numbers in seen for numbers in drawn)
        seen.update(drawn)
        return repeated

    return body


@case
def answers_of_torch() -> Callable[[], Any]:
    mha, compiler = torch.backends.mha, torch.compiler
    return lambda: (
        compiler.is_compiling(),
        compiler.is_dynamo_compiling(),
        mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch.fx.experimental._config.backed_size_oblivious,
    )


@case
def names_of_torch() -> Callable[[], Any]:
    staticrt.compile(nn.Linear(1, 1))(torch.ones(1, 1).requires_grad_(False))
    from torch._subclasses.fake_tensor import FakeTensor

    return lambda: [
        (name, id(value))
        for owner in (
            torch,
            torch.compiler,
            torch.backends.mha,
            torch.Tensor,
            torch.nn.functional,
            FakeTensor,
        )
        for name, value in sorted(vars(owner).items())
        if callable(value)
    ]


@case
def names_of_model_code() -> Callable[[], Any]:
    return lambda: (sorted(globals()), "int" in globals(), sys.getprofile(), sys.gettrace())


@case
def state_of_the_process() -> Callable[[], Any]:
    def body() -> Any:
        # Not the collector's limits, which first calls raise for the process (tests/frontend/test_collector.py).
        fake, trace = logging.getLogger("torch._subclasses.fake_tensor"), logging.getLogger("torch.__trace")
        return (
            gc.isenabled(),
            fake.disabled,
            len(fake.handlers),
            trace.disabled,
            [id(handler) for handler in trace.handlers],
            len(warnings.filters),
            id(warnings.showwarning),
            sys.getrecursionlimit(),
            dict(os.environ) == environment,
        )

    for work in MEANWHILE.values():  # what is imported then changes it too
        work()
    environment = dict(os.environ)
    return body


@case
def collection_switched_off() -> Callable[[], Any]:
    def body() -> bool:
        gc.disable()
        try:
            torch.ones(3).sum()
            return not gc.isenabled()
        finally:
            gc.enable()

    return body


@case
def indexing_and_functions() -> Callable[[], Any]:
    x = torch.arange(6.0)
    return without_gradients(
        lambda: [
            F.relu(x - 2),
            x[:, None][..., 0],
            x[None, 2:],
            x.unfold(0, 2, 1)[:, 1],
            nn.utils.rnn.pad_sequence([x, x[:2]])[3],
        ]
    )


@case
def autocast() -> Callable[[], Any]:
    layer, x = nn.Linear(64, 64), torch.randn(8, 64)

    def body() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x).detach(), layer(x).detach(), torch.is_autocast_enabled("cpu")

    return body


@case
def convolution() -> Callable[[], Any]:
    """Bits differ where oneDNN is off."""
    layer, x = nn.Conv2d(8, 16, 3), torch.randn(1, 8, 20, 20)
    return without_gradients(lambda: layer(x))


@case
def gradients() -> Callable[[], Any]:
    layer, x = nn.LSTM(4, 4), torch.randn(3, 2, 4)

    def body() -> Any:
        layer.zero_grad()
        layer(x)[0].sum().backward()
        return [p.grad for p in layer.parameters()]

    return body


@case
def fake_tensors() -> Callable[[], Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def body() -> Any:
        with FakeTensorMode():
            return torch.ones(3, 4)[:, 1].shape, type(torch.ones(2)[0]).__name__

    return body


@case
def warnings_once() -> Callable[[], Any]:
    def body() -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("mine", UserWarning, stacklevel=1)
        return sum(str(warning.message) == "mine" for warning in seen)

    return body


@case
def forked_children() -> Callable[[], Any]:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(3, 4)
    compiled = staticrt.compile(model)
    with torch.no_grad():
        expected = model(x)

    def body() -> int:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with torch.no_grad():
                    right = torch.allclose(compiled(x), expected, atol=1e-6)
                    right &= torch.allclose(staticrt.compile(nn.Tanh())(x), x.tanh(), atol=1e-6)
                code = 0 if right and not torch.compiler.is_compiling() and gc.isenabled() else 2
            finally:
                os._exit(code)
        return _exit_code(child)

    return body


def _exit_code(child: int, seconds: float = 60) -> int:
    """Of a child, which is killed where it hangs."""
    import signal
    import time

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


# -- what is done meanwhile ------------------------------------------------------------------------------------


class Everything(nn.Module):
    """Reaches each part of a trace that once changed the process."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))
        self.cell = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.encoder(x)
        x = torch.dropout(self.cell(x)[0], 0.5, True)
        for position in range(3):
            x = x + x[:, position, None]
        x = self.layers(x)
        x = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.layers[0](x)
        return (x + y if int(n := x.shape[1]) > 0 else y), n


def _infers() -> None:
    with torch.no_grad():
        compiled = staticrt.compile(Everything().eval())
        compiled(torch.randn(2, 5, 8))
        compiled(torch.randn(3, 7, 8))


def _decides() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        noise = torch.rand_like(y)
        return y + noise if bool((x[:, 0] > 0).any()) else y[x > -100] - 1

    with torch.no_grad():
        compiled = staticrt.compile(model)
        compiled(torch.ones(3, 4))
        compiled(-torch.ones(3, 4))


def _fails() -> None:
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        staticrt.compile(nn.Linear(3, 3))(torch.ones(4, 4))


def _steps() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @staticrt.compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(2):
        step(torch.randn(4, 8))


def _trains() -> None:
    compiled = staticrt.compile(nn.Sequential(nn.LSTM(4, 4)))
    compiled(torch.randn(3, 2, 4))[0].sum().backward()


MEANWHILE = {"infers": _infers, "decides": _decides, "fails": _fails, "steps": _steps, "trains": _trains}


def beside_traces(
    body: Callable[[], Any], traces: int, meanwhile: tuple[str, ...] = tuple(MEANWHILE)
) -> tuple[int, list[str]]:
    """Call `body` in a thread of its own while this thread traces.

    Returns:
        How often it was called, and each answer that is not the first one.
    """
    expected = body()
    runs, differences, stop = 0, [], threading.Event()

    def loop() -> None:
        nonlocal runs
        while not stop.is_set() or not runs:
            runs += 1
            try:
                found = body()
                if not same(found, expected):
                    differences.append(f"{_short(found)} for {_short(expected)}")
            except BaseException as error:
                differences.append(f"raises {type(error).__name__}: {error}"[:300])

    other = threading.Thread(target=loop)
    other.start()
    try:
        for _ in range(traces):
            for name in meanwhile:
                MEANWHILE[name]()
    finally:
        stop.set()
        other.join()
    return runs, differences


def _short(value: Any) -> str:
    return repr(value)[:150]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--traces", type=int, default=20)
    parser.add_argument("--meanwhile", nargs="*", default=list(MEANWHILE))
    asked = parser.parse_args()
    failed = 0
    for name in asked.cases:
        runs, differences = beside_traces(CASES[name](), asked.traces, tuple(asked.meanwhile))
        failed += bool(differences)
        print(f"{name}: {len(differences)} of {runs} differ", *differences[:2], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
