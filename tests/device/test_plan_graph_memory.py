"""Memory of `plan_graphs=True`: graphs, their arenas and pools are few, small together, and given back."""

import copy
import gc
import threading

import pytest
import torch

import staticrt
from tests.device.test_compiled_graphs import MODELS
from tests.device.test_plan_graphs import SIM, check, graphs_of, pair
from tests.support.threads import in_threads


def arena_bytes(compiled):
    return max(s.arena_bytes for trace in compiled.explain().traces for s in trace.signatures)


def allocated_bytes():
    gc.collect()
    torch.accelerator.synchronize(0)
    return torch.accelerator.memory_stats(0)["allocated_bytes.all.current"]


@torch.no_grad()
def test_many_sizes_keep_few_graphs(sim):
    def alive():
        return sim.calls("graph_instantiate") - sim.calls("exec_destroy")

    gc.collect()  # models of other tests
    before = alive()
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(4):
        for rows in range(1, 41):
            check(compiled, twin, torch.randn(rows, 8))
    assert 0 < alive() - before <= 16
    del compiled
    gc.collect()
    assert alive() == before


@torch.no_grad()
def test_graphs_that_the_driver_does_not_launch_go(sim):
    """On every stream: the program may run step by step from then on."""

    def alive():
        gc.collect()
        return sim.calls("graph_instantiate") - sim.calls("exec_destroy")

    before = alive()
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    streams = [torch.Stream(SIM) for _ in range(2)]
    torch.accelerator.synchronize(0)

    def run():
        for stream in streams:
            with stream:
                check(compiled, twin, torch.randn(4, 8))

    for _ in range(3):
        run()
    assert alive() - before == 2
    sim.fail("graph_launch", fault="error", times=1000)
    with streams[0]:
        check(compiled, twin, torch.randn(4, 8))
    assert alive() == before
    for _ in range(5):
        run()
    sim.clear_faults()
    assert alive() == before


@torch.no_grad()
def test_memory_goes_with_the_model(order):
    before = allocated_bytes()
    there, twin = pair(MODELS["attention"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(6):
        check(compiled, twin, torch.randn(2, 5, 16))
    assert graphs_of(compiled) == (1, 4, [])
    with_graphs = allocated_bytes()
    compiled.drop_plans()
    assert allocated_bytes() < with_graphs
    del compiled, there
    assert allocated_bytes() == before


@torch.no_grad()
def test_a_larger_size_moves_no_graph(order):
    """What was captured over a former arena is launched there, as long as former arenas are small together."""
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(3):
        for rows in (64, 128, 256, 512):
            for _ in range(3):
                check(compiled, twin, torch.randn(rows, 8))
    assert graphs_of(compiled) == (4, 25, [])


@torch.no_grad()
def test_former_arenas_are_no_larger_than_the_arena(order):
    there, twin = pair(MODELS["perceptron"][0])
    plain, captured = staticrt.compile(there), staticrt.compile(there, plan_graphs=True)
    held = {}
    for compiled in (plain, captured):
        before = allocated_bytes()
        for rows in range(64, 1024, 64):
            for _ in range(4):
                x = torch.randn(rows, 8)
                check(compiled, twin, x)
        held[compiled] = allocated_bytes() - before
    # Each graph has buffers of its own for arguments and results besides.
    buffers = sum(rows * (8 + twin[-1].out_features) * 4 + 2 * 512 for rows in range(64, 1024, 64))
    assert held[captured] - held[plain] <= arena_bytes(captured) + buffers
    assert graphs_of(captured)[2] == []


@torch.no_grad()
def test_former_arenas_give_way_where_memory_runs_out(sim):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    large = 1 << 16  # rows whose arena needs memory of the driver's
    for rows in (4, 8, large, 4, 8, large):
        for call in ("physical_create", "segment_alloc"):
            sim.fail(call, 1, "oom", times=1)
        for _ in range(3):
            check(compiled, twin, torch.randn(rows, 8))
        sim.clear_faults()
    assert graphs_of(compiled)[1] > 0


@torch.no_grad()
def test_former_arenas_give_way_to_a_larger_one(sim):
    """There is memory for it where neither the arena nor the one before it is kept."""

    def model(x):
        return (x[:, None] * x[None, :]).tanh().sum(0)

    compiled = staticrt.compile(model, plan_graphs=True)

    def run(size, times=4):
        for _ in range(times):
            check(compiled, model, torch.randn(size))

    run(4096, times=1)  # makes the plan, and no arena
    run(2048)
    run(3072)
    smallest, middle, largest = sorted(s.arena_bytes for s in compiled.explain().traces[0].signatures)
    staticrt.memory.empty_cache(device=SIM)
    free_bytes = largest - middle - smallest // 2
    sim.set_other_bytes(sim.total_bytes - sim.used_bytes - free_bytes)
    try:
        run(4096)
    finally:
        sim.set_other_bytes(0)
    run(2048)


@torch.no_grad()
@pytest.mark.parametrize("plan_graphs", [False, True])
def test_arenas_of_other_streams_give_way(sim, plan_graphs):
    """A frame has one for each stream that it ran on, and uses one at a time."""

    def model(x):
        return (x[:, None] * x[None, :]).tanh().sum(0)

    compiled = staticrt.compile(model, plan_graphs=plan_graphs)
    x = torch.randn(2048)
    for _ in range(2):
        check(compiled, model, x)
    staticrt.memory.empty_cache(device=SIM)
    streams = [torch.Stream(SIM) for _ in range(3)]
    # Two more arenas would not fit.
    sim.set_other_bytes(sim.total_bytes - sim.used_bytes - arena_bytes(compiled) * 3 // 2)
    try:
        for _ in range(3):
            for stream in streams:
                with stream:
                    check(compiled, model, x)
    finally:
        sim.set_other_bytes(0)


@torch.no_grad()
@pytest.mark.parametrize("plan_graphs", [False, True])
def test_idle_arenas_of_other_programs_give_way(sim, order, plan_graphs):
    """Eight threads have a stream and a program each; their arenas do not fit together."""

    def model(x):
        return (x[:, None] * x[None, :]).tanh().sum(0)

    turn = threading.Lock()
    calls = [staticrt.compile(model, plan_graphs=plan_graphs) for _ in range(8)]

    def work(compiled):
        with torch.no_grad(), torch.Stream(SIM):
            for _ in range(4):
                x = torch.randn(2048)
                there = x.to(SIM)
                with turn:
                    y = compiled(there)  # is enqueued and may run late, when the arena has been given back
                torch.testing.assert_close(y.cpu(), model(x))

    staticrt.memory.empty_cache(device=SIM)
    sim.set_other_bytes(sim.total_bytes - sim.used_bytes - (96 << 20))
    try:
        in_threads(work, calls)
        assert sum(map(arena_bytes, calls)) > 96 << 20
        torch.zeros(80 << 20, dtype=torch.uint8, device=SIM)  # nor may they take it from tensors
    finally:
        sim.set_other_bytes(0)


@torch.no_grad()
def test_a_weight_at_the_address_of_the_captured_one(order):
    """Its memory has another owner, which no launch may take for the one before."""
    twin = torch.nn.Linear(64, 64)
    there = copy.deepcopy(twin).to(SIM)
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(4):
        check(compiled, twin, torch.randn(3, 64))
    address = there.weight.data_ptr()
    there.weight.data = torch.empty(0, device=SIM)
    new = torch.empty(64, 64, device=SIM)
    assert new.data_ptr() == address
    twin.weight.mul_(2)
    there.weight.data = new.copy_(twin.weight)
    for _ in range(2):
        check(compiled, twin, torch.randn(3, 64))
    assert graphs_of(compiled) == (2, 4, [])


@torch.no_grad()
def test_graphs_and_arenas_that_go_in_a_capture(sim):
    """The garbage collector may drop them while this thread captures something else."""
    there, twin = pair(MODELS["attention"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    plain = staticrt.compile(copy.deepcopy(there))
    for _ in range(4):
        x = torch.randn(2, 5, 16)
        check(compiled, twin, x)
        check(plain, twin, x)
    stream = torch.Stream(SIM)
    y = torch.zeros(8, device=SIM)
    stream.wait_stream(torch.accelerator.current_stream(0))
    with stream, sim.capture(stream.stream_id, mode="thread_local") as graph:
        y.add_(1)
        del compiled, plain
        gc.collect()
        staticrt.memory.empty_cache(device=SIM)
        y.add_(1)
    graph.replay()
    torch.accelerator.synchronize(0)
    assert y.tolist() == [2] * 8
    graph.close()


def pools_of_graphs(sim):
    gc.collect()
    torch.accelerator.synchronize(0)
    staticrt.memory.empty_cache(device=SIM)
    return {tuple(segment["segment_pool_id"]) for segment in sim.snapshot()["segments"]} - {(0, 0)}


@torch.no_grad()
def test_memory_of_graphs_whose_stream_is_captured_is_released_later(sim):
    def model(x):
        return x.long()[0].add_(1)  # allocated while it is captured

    def captured(rows):
        compiled = staticrt.compile(model, plan_graphs=True)
        for _ in range(4):
            check(compiled, model, 9 * torch.randn(rows, 8))
        assert graphs_of(compiled) == (1, 2, [])
        return compiled

    before = pools_of_graphs(sim)
    stream = torch.Stream(SIM)
    with stream:
        compiled = captured(5)
        with sim.capture(stream.stream_id, mode="thread_local") as graph:
            del compiled
            gc.collect()
    graph.close()
    assert len(pools_of_graphs(sim)) == len(before) + 1
    captured(6)
    assert pools_of_graphs(sim) == before


@torch.no_grad()
def test_former_arenas_go_with_evicted_programs(order):
    """The graph of the smallest size was captured in a large arena, and keeps that while a larger one is needed."""
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True, max_prepared=3)
    before = allocated_bytes()

    def run(*sizes):
        for rows in sizes:
            for _ in range(4):
                check(compiled, twin, torch.randn(rows, 8))

    run(512)
    former_bytes = arena_bytes(compiled)
    run(4, 1024)
    assert allocated_bytes() - before > former_bytes + arena_bytes(compiled)
    others = []  # get the bytes of what is given back
    for rows in (5, 4, 6, 4):  # first the program of 512 rows goes, then that of 1024
        run(rows)
        others.append(torch.full((former_bytes // 4,), 7.0, device=SIM))
    assert all((other == 7).all().item() for other in others)
    del others
    assert allocated_bytes() - before < former_bytes
    assert graphs_of(compiled)[2] == []
