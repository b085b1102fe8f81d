"""Many threads on one device: results as if they came one after another, and no deadlock with the GIL."""

import random
import threading

import pytest

from staticrt.errors import OutOfMemoryError
from tests.support.threads import in_threads

MIB = 1 << 20


def run(workers):
    in_threads(lambda work: work(), workers)


@pytest.mark.parametrize("history", [False, True])
def test_threads_on_own_streams(device, history):
    sim = device(600)
    if history:
        sim.record_history(max_entries=1000)

    def worker(seed):
        def work():
            stream, chance, live = sim.stream(), random.Random(seed), []
            for _ in range(300):
                if live and (chance.random() < 0.5 or len(live) > 20):
                    address, size = live.pop(chance.randrange(len(live)))
                    sim.verify(address, size, seed, stream)
                    sim.free(address)
                else:
                    size = chance.choice([512, 4096, 300_000, 3 * MIB])
                    address = sim.allocate(size, stream)
                    sim.write(address, size, seed, stream)
                    live.append((address, size))
            for address, size in live:
                sim.verify(address, size, seed, stream)
                sim.free(address)

        return work

    run([worker(seed) for seed in range(4)])
    sim.check()
    sim.synchronize()
    sim.check()  # every stream read what it wrote
    sim.empty_cache()
    assert sim.stats()["allocated_bytes.all.current"] == 0
    assert sim.used_bytes == 0


def test_threads_under_memory_pressure_fail_alone(device):
    sim = device(60)
    failed = []

    def work():
        for _ in range(60):
            try:
                address = sim.allocate(20 * MIB)
            except OutOfMemoryError:
                failed.append(1)
            else:
                sim.free(address)

    run([work] * 4)
    sim.check()
    assert sim.allocate(60 * MIB)


def test_a_route_is_of_its_thread(sim):
    inside, done = threading.Event(), threading.Event()
    p = sim.pool()

    def other():
        inside.wait(60)
        sim.allocate(3 * MIB)
        done.set()

    def router():
        with p:
            inside.set()
            assert done.wait(60)
            sim.allocate(5 * MIB)

    run([other, router])
    assert sim.stats(p)["allocated_bytes.all.current"] == 5 * MIB
    assert sim.stats((0, 0))["allocated_bytes.all.current"] == 3 * MIB


def test_stats_and_snapshots_beside_work(device):
    sim = device(200)
    sim.record_history(max_entries=200)
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            sim.stats()
            for segment in sim.snapshot()["segments"]:
                assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]

    def work():
        for k in range(400):
            sim.free(sim.allocate(512 * (1 + k % 50)))
        stop.set()

    run([watch, work])
