"""The Ray Serve example, end to end on the loopback interface: answers, shared weights, new weights and lost replicas under load.

It needs Ray, which CI does not install (some 60 packages): `pip install ".[serve]"`, the extra `serve` of pyproject.toml.
"""

import http.client
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import torch

import staticrt
from tests.support.threads import in_threads

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "ray[serve]"')
serve = pytest.importorskip("ray.serve", reason='Ray Serve is not installed: pip install "ray[serve]"')

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "serve_ray.py"
ROW, OUT, MAX_ROWS, CLIENTS = 512, 16, 8, 4
DEADLINE = 120.0  # seconds for anything to happen; nothing here measures time


def net(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(ROW, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(2048, OUT)).eval()


def save(model, path):
    staticrt.save(staticrt.compile(model), path, (torch.randn(4, ROW),), exported_program=False)


class Client:
    """A connection that sends rows."""

    def __init__(self, port):
        self._port = port
        self._connection = None

    def post(self, rows):
        """(status, answer); OSError and HTTPException where the connection breaks."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE)
        try:
            body = rows if isinstance(rows, str) else json.dumps({"inputs": rows.tolist()})
            self._connection.request("POST", "/", body)
            response = self._connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if response.status in (200, 400) else text
        except (OSError, http.client.HTTPException):
            self._connection = None
            raise


class Server:
    def __init__(self, archive, port, replicas):
        self.archive, self.port, self.replicas = archive, port, replicas

    def statuses(self):
        """What each replica says of itself, by process id, once all have been heard."""
        found = {}
        deadline = time.monotonic() + DEADLINE
        while len(found) < self.replicas:
            assert time.monotonic() < deadline, found
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=DEADLINE) as response:
                status = json.load(response)
            found[status["pid"]] = status
        return found


class Load:
    """Clients that send the same rows again and again, and what they were told."""

    def __init__(self, port, rows, most=4000):
        self.answers, self.failures = [], []
        self._going = threading.Event()
        self._going.set()
        self._threads = [
            threading.Thread(target=self._send, args=(port, rows, most), daemon=True) for _ in range(CLIENTS)
        ]

    def _send(self, port, rows, most):
        client = Client(port)
        for _ in range(most):
            if not self._going.is_set():
                return
            try:
                status, answer = client.post(rows)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                continue
            if status == 200:
                self.answers.append(torch.tensor(answer["outputs"]))
            else:
                self.failures.append((status, answer))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error):
        self._going.clear()
        for thread in self._threads:
            thread.join(DEADLINE)

    def wait(self, condition):
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, f"{len(self.answers)} answers, failures {self.failures[:3]}"
            time.sleep(0.02)

    def wait_for_more(self, answers):
        before = len(self.answers)
        self.wait(lambda: len(self.answers) >= before + answers)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    save(net(0), folder / "model.pt2")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The Ray processes, and what they write, are this test's own.
    environment = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "",
        # On a busy machine a process takes long to start: that is no failure.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    spec = importlib.util.spec_from_file_location("serve_ray_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    try:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 << 20,
            _node_ip_address="127.0.0.1",
        )
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(example.application(folder / "model.pt2", (ROW,), replicas=2, threads=1, max_rows=MAX_ROWS))
        yield Server(folder / "model.pt2", port, 2)
    finally:
        serve.shutdown()
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def close(answer, expected):
    return torch.allclose(answer, expected, rtol=1e-4, atol=1e-4)


def test_requests_of_all_sizes_at_once_get_eager_s_answers(server):
    model = net(0)
    wrong = []

    def send(number):
        client = Client(server.port)
        for count in (1, 3, MAX_ROWS, MAX_ROWS + 5, 2):
            rows = torch.randn(count, ROW, generator=torch.Generator().manual_seed(100 * number + count))
            status, answer = client.post(rows)
            with torch.no_grad():
                expected = model(rows)
            if status != 200 or not close(torch.tensor(answer["outputs"]), expected):
                wrong.append((count, status))

    in_threads(send, range(6))
    assert wrong == []


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"inputs": [[1, 2]]}', '{"inputs": []}', '{"inputs": "x"}', '{"inputs": [[null]]}'],
)
def test_a_wrong_request_is_refused_with_a_reason(server, body):
    status, answer = Client(server.port).post(body)
    assert status == 400
    assert answer["error"]
    assert Client(server.port).post(torch.zeros(1, ROW))[0] == 200


def test_replicas_map_the_weights_once_and_have_the_threads_asked_for(server):
    statuses = server.statuses()
    for _ in range(10):
        Client(server.port).post(torch.zeros(2, ROW))
    statuses = server.statuses()
    assert len(statuses) == 2
    for status in statuses.values():
        assert status["threads"] == 1
        # Some weights are packed for this machine's kernels, which are in the file as well.
        assert status["archive_bytes"] > 2048 * 2048 * 4
        assert status["archive_private_bytes"] < status["archive_bytes"] / 100


def test_metrics_are_where_prometheus_finds_them(server):
    server.statuses()
    Client(server.port).post(torch.zeros(2, ROW))
    port = ray.nodes()[0]["MetricsExportPort"]
    deadline = time.monotonic() + DEADLINE
    wanted = {"staticrt_calls", "staticrt_misses", "staticrt_arena_bytes", "staticrt_queue_seconds"}
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as response:
            lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
        values = {}
        for line in lines:
            name = line.split("{")[0].removeprefix("ray_").removesuffix("_total")
            values.setdefault(name.removesuffix("_count"), []).append(float(line.rsplit(" ", 1)[1]))
        if wanted <= values.keys() and sum(values["staticrt_calls"]) > 0:
            break
        assert time.monotonic() < deadline, sorted(name for name in values if "staticrt" in name)
        time.sleep(0.5)
    assert max(values["staticrt_arena_bytes"]) > 0
    assert sum(values["staticrt_queue_seconds"]) > 0


def test_weights_that_are_replaced_under_load_give_old_or_new_answers(server):
    rows = torch.randn(3, ROW, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        old, new = net(0)(rows), net(1)(rows)
    pids = set(server.statuses())
    with Load(server.port, rows) as load:
        load.wait_for_more(20)
        save(net(1), server.archive)
        load.wait(lambda: len(load.answers) > 60 and all(close(a, new) for a in load.answers[-40:]))
    is_old = [close(answer, old) for answer in load.answers]
    is_new = [close(answer, new) for answer in load.answers]
    assert load.failures == []
    assert [o != n for o, n in zip(is_old, is_new, strict=True)] == [True] * len(load.answers)
    assert any(is_old)
    assert set(server.statuses()) == pids  # no replica was restarted


def test_a_file_that_is_not_the_model_leaves_the_old_weights_in_use(server):
    rows = torch.randn(3, ROW)
    expected = torch.tensor(Client(server.port).post(rows)[1]["outputs"])
    kept = server.archive.read_bytes()
    torn = server.archive.with_suffix(".torn")
    torn.write_bytes(kept[: len(kept) // 2])
    pids = set(server.statuses())
    os.replace(torn, server.archive)
    time.sleep(5)  # two looks at the archive
    for _ in range(10):
        assert close(torch.tensor(Client(server.port).post(rows)[1]["outputs"]), expected)
    assert set(server.statuses()) == pids
    whole = server.archive.with_suffix(".whole")
    whole.write_bytes(kept)
    os.replace(whole, server.archive)


def test_a_replica_that_is_killed_loses_no_request_but_its_own(server):
    rows = torch.randn(2, ROW, generator=torch.Generator().manual_seed(6))
    expected = torch.tensor(Client(server.port).post(rows)[1]["outputs"])
    before = server.statuses()
    victim = min(before)
    with Load(server.port, rows) as load:
        load.wait_for_more(20)
        os.kill(victim, signal.SIGKILL)
        load.wait_for_more(100)
    # Each client has one request at a time: at most these were with the replica.
    assert len(load.failures) <= CLIENTS, load.failures
    assert all(close(answer, expected) for answer in load.answers)
    deadline = time.monotonic() + DEADLINE
    while victim in (after := server.statuses()):
        assert time.monotonic() < deadline
    assert len(after) == 2


def test_the_command_line_says_what_it_takes():
    import subprocess

    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--help"], capture_output=True, text=True, check=True
    )
    assert "--replicas" in done.stdout
    assert "staticrt_queue_seconds" in done.stdout
