"""The deployment of serve_ray.py with staticrt, eager PyTorch and ONNX Runtime behind it, on this machine.

    python examples/serve_ray_bench.py [--replicas 1,2] [--seconds 10] [--clients 8]

Clients on the loopback interface send one request after the other, each of one sequence of 64 tokens, to a transformer
encoder of 4 layers. Prints a Markdown table: requests per second, latencies, CPU time of the replicas for one request, and
memory of all replicas together (proportional set size: what processes share counts once).
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import tempfile
import threading
import time
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import torch
from ray import serve
from serve_ray import Replica, application

import staticrt

TOKENS, WIDTH, VOCABULARY = 64, 256, 4000
PORT = 8123


class Encoder(torch.nn.Module):
    """Token numbers, float32 [rows, TOKENS], to 8 scores of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layers(self.table(x.long())).mean(1))
        return scores


class Peer:
    """A callable with the methods of a loaded model that `Replica` calls."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._call(rows)
        return result

    def prepare_many(self, sizes: Iterable[torch.Tensor]) -> list[bool]:
        with torch.inference_mode():
            return [self(torch.zeros(size.shape)) is not None for size in sizes]

    def metrics(self) -> Any:
        return types.SimpleNamespace(graphs=())


class EagerReplica(Replica):
    def open(self, archive: str) -> Peer:
        model = Encoder().eval()
        model.load_state_dict(torch.load(archive, mmap=True), assign=True)
        return Peer(model)


class OnnxRuntimeReplica(Replica):
    def open(self, archive: str) -> Peer:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(archive, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return Peer(lambda rows: torch.from_numpy(session.run(None, {name: rows.numpy()})[0]))


def files(folder: Path) -> dict[str, tuple[type[Replica], Path]]:
    """The same weights for each peer."""
    torch.manual_seed(0)
    model = Encoder().eval()
    example = torch.zeros(4, TOKENS)
    staticrt.save(staticrt.compile(model), folder / "model.pt2", (example,), exported_program=False)
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "model.onnx").write_bytes(staticrt.to_onnx(model, (example,)).SerializeToString())
    return {
        "eager": (EagerReplica, folder / "model.pt"),
        "ONNX Runtime": (OnnxRuntimeReplica, folder / "model.onnx"),
        "staticrt": (Replica, folder / "model.pt2"),
    }


def measure(clients: int, seconds: float) -> tuple[float, list[float]]:
    """(requests per second, latencies in ms) of clients that each wait for their answer before the next request."""
    body = json.dumps({"inputs": [[float(n * 7 % VOCABULARY) for n in range(TOKENS)]]})
    until = time.monotonic() + seconds
    times: list[list[float]] = [[] for _ in range(clients)]

    def ask(own: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        while time.monotonic() < until:
            begin = time.perf_counter()
            connection.request("POST", "/", body)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
            own.append(1e3 * (time.perf_counter() - begin))

    threads = [threading.Thread(target=ask, args=(own,)) for own in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies = sorted(t for own in times for t in own)
    return len(latencies) / seconds, latencies


def ask_replicas(replicas: int) -> tuple[int, float]:
    """Of all replicas together: proportional set size in bytes, and CPU seconds since they began."""
    found: dict[int, tuple[int, float]] = {}
    while len(found) < replicas:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        connection.request("GET", "/")
        status = json.loads(connection.getresponse().read())
        found[status["pid"]] = status["proportional_bytes"], status["cpu_seconds"]
    return sum(size for size, _ in found.values()), sum(seconds for _, seconds in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", default="1,2")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2, help="of each peer; its best is shown")
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    counts = [int(count) for count in args.replicas.split(",")]
    # Ray's processes share the machine: more replicas than cores would not be started.
    ray.init(num_cpus=max(counts), include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    best: dict[tuple[int, str], tuple[float, float, float, float, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        peers = files(Path(folder))
        # Peers take turns, so that a busy moment of the machine does not meet one of them alone.
        for turn in itertools.product(range(args.rounds), counts, peers):
            _round, count, name = turn
            kind, file = peers[name]
            serve.run(application(file, (TOKENS,), replicas=count, max_rows=8, kind=kind))
            measure(args.clients, 1.0)
            before = ask_replicas(count)[1]
            rate, latencies = measure(args.clients, args.seconds)
            size_bytes, cpu_seconds = ask_replicas(count)
            cpu_ms = 1e3 * (cpu_seconds - before) / len(latencies)
            p50, p99 = (latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99))
            found = (rate, p50, p99, cpu_ms, size_bytes)
            best[count, name] = max(found, best.get((count, name), found))
            serve.delete("default")
    print(
        "| | replicas | requests/s | p50 ms | p99 ms | CPU ms | memory MiB |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for (count, name), (rate, p50, p99, cpu_ms, size_bytes) in best.items():
        times = f"{rate:.0f} | {p50:.1f} | {p99:.1f} | {cpu_ms:.1f}"
        print(f"| {name} | {count} | {times} | {size_bytes / 2**20:.0f} |")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
