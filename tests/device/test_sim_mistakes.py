"""Deliberate mistakes of programs on a device. The simulated one reports each, and nothing of the program without it.

Each program runs under 20 orders of streams. What only C++ can do, restoring a pool over a live output, is in
`tests/csrc/allocator/sim_checks_test.cpp`.
"""

import gc
import re

import pytest
import torch

import staticrt

SEEDS = range(20)
ORDERS_OF_THEIR_OWN = True
MISTAKES = {}


def mistake(report):
    """A function `program(sim, wrong)` that makes the mistake if `wrong`; `report` matches what is found then."""

    def register(program):
        MISTAKES[program.__name__] = (program, report)
        return program

    return register


def current():
    return torch.accelerator.current_stream()


def not_owning(tensor):
    """Another tensor over the same bytes, which does not keep them."""
    storage = torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), tensor.device, tensor.untyped_storage().nbytes()
    )
    return torch.empty(0, device=tensor.device, dtype=tensor.dtype).set_(storage, 0, tensor.shape)


@mistake(r"race: aten::fill_ on stream \d+ writes bytes \[0, 2000\) of allocation #\d+ .*, which aten::")
def frame_reused_without_its_event(sim, wrong):
    """
    first    fill copy ── done
    second              └─ wait ─ fill copy      over the same arena
    """
    arena = torch.empty(1000, device="sim")
    done = torch.Event("sim")
    for number in range(2):
        stream = torch.Stream("sim")
        arena.record_stream(stream)
        stream.wait_stream(current())
        with stream:
            if number and not wrong:
                stream.wait_event(done)
            arena[:500].fill_(number)
            arena[500:].copy_(arena[:500])
            done.record(stream)


@mistake(r"use after free: aten::add on stream 0 reads bytes \[0, 4000\) of allocation #\d+")
def output_freed_early(sim, wrong):
    output = torch.ones(1000, device="sim") * 2
    seen_by_caller = not_owning(output)
    if wrong:
        del output
    seen_by_caller + 1


@mistake(r"race: allocation #\d+ .* on stream 0 is given before aten::sum, operation \d+ of stream \d+")
def arena_grown_under_running_work(sim, wrong):
    arena = torch.ones(1000, device="sim")
    side = torch.Stream("sim")
    side.wait_stream(current())
    with side:
        arena.sum()
    if not wrong:
        current().wait_stream(side)
    arena = torch.ones(2000, device="sim")
    torch.ones(1000, device="sim")  # gets the smaller arena's bytes
    arena.add_(1)


@mistake(r"replay: replay of graph \d+ on stream \d+ overwrites live allocation #\d+")
def default_pool_used_in_a_capture(sim, wrong):
    with torch.Stream("sim") as stream:
        source = torch.ones(1000, device="sim")
        temporary = torch.empty(1000, device="sim") if wrong else None
        stream.synchronize()
        with sim.capture(stream.stream_id) as graph:
            if not wrong:
                temporary = torch.empty(1000, device="sim")
            temporary.copy_(source)
            temporary.mul_(2)
        del temporary
        bystander = torch.zeros(1000, device="sim")
        graph.replay()
        stream.synchronize()
        if not wrong:
            assert bystander.sum().item() == 0
        graph.close()


@mistake(r"hibernat|unmapped: ")
def replay_after_the_pool_was_trimmed(sim, wrong):
    pool = sim.pool()
    with torch.Stream("sim") as stream:
        source = torch.ones(1000, device="sim")
        stream.synchronize()
        with sim.capture(stream.stream_id, pool) as graph:
            result = source * 2
            del result
        pool.hibernate()
        if not wrong:
            pool.wake()
        try:
            graph.replay()
            stream.synchronize()
        finally:
            graph.close()
            pool.close()


@mistake(
    r"race: allocation #\d+ .* is given before aten::sum, operation \d+ of stream \d+ by allocation #\d+"
)
def dropped_record_stream(sim, wrong):
    side = torch.Stream("sim")
    x = torch.ones(1000, device="sim")
    side.wait_stream(current())
    with side:
        x.sum()
    if not wrong:
        x.record_stream(side)
    del x
    torch.zeros(1000, device="sim")


@mistake(
    r"race: aten::add on stream 0 reads bytes \[0, 4000\) of allocation #\d+ .*, which "
    r"aten::mul on stream (\d+) writes, and nothing orders the two: let stream 0 wait for an event "
    r"that stream \1 records after aten::mul"
)
def event_recorded_too_early(sim, wrong):
    side, event = torch.Stream("sim"), torch.Event("sim")
    x = torch.ones(1000, device="sim")
    side.wait_stream(current())
    x.record_stream(side)
    with side:
        if wrong:
            event.record(side)
        y = x * 2
        if not wrong:
            event.record(side)
    current().wait_event(event)
    y.record_stream(current())
    y + 1


@mistake(r"race: aten::add on stream 0 reads .*, which aten::mul on stream \d+ writes")
def another_devices_stream(sim, wrong):
    side, other = torch.Stream("sim:0"), torch.Stream("sim:1")
    x = torch.ones(1000, device="sim")
    side.wait_stream(current())
    x.record_stream(side)
    with side:
        y = x * 2
    current().wait_stream(other if wrong else side)
    y.record_stream(current())
    y + 1


@mistake(r"aten::uniform_ draws from a generator that is not registered with the graph that is captured")
def generator_not_registered(sim, wrong):
    with torch.Stream("sim") as stream:
        x = torch.empty(100, device="sim")
        generator = torch.Generator("sim").manual_seed(3)
        stream.synchronize()
        with sim.capture(stream.stream_id) as graph:
            if not wrong:
                graph.register_generator(generator)
            x.uniform_(generator=generator)
        drawn = []
        for _ in range(2):
            graph.replay()
            drawn.append(x.cpu())
        generator.manual_seed(3)
        expected = [torch.empty(100, device="sim").uniform_(generator=generator).cpu() for _ in range(2)]
        assert torch.equal(torch.stack(drawn), torch.stack(expected))
        graph.close()


@mistake(r"kept alive: work of a stream held allocation #\d+")
def work_that_owns_its_tensors(sim, wrong):
    side = torch.Stream("sim")
    x = torch.ones(1000, device="sim")
    torch.accelerator.synchronize()
    held = x if wrong else x.data_ptr()
    sim.enqueue(side.stream_id, lambda held=held: None)
    del x, held
    side.synchronize()


@mistake(r"stream \d+ did not join the capture of stream \d+ again")
def missed_join(sim, wrong):
    origin, forked = torch.Stream("sim"), torch.Stream("sim")
    x = torch.ones(1000, device="sim")
    torch.accelerator.synchronize()
    with origin, sim.capture(origin.stream_id) as graph:
        forked.wait_stream(origin)
        with forked:
            x.add_(1)
        if not wrong:
            origin.wait_stream(forked)
    graph.close()


def run(sim, name, wrong, seed):
    """What was found: reports of the detector, and what raised."""
    staticrt.memory.simulated.order("random", seed)
    found = []
    try:
        MISTAKES[name][0](sim, wrong)
    except RuntimeError as error:
        if not wrong:
            raise
        found.append(str(error))
    gc.collect()
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    found += sim.reports
    if wrong:
        sim.clear_reports()
    return found


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_found(sim, name):
    for seed in SEEDS:
        found = run(sim, name, True, seed)
        assert any(re.match(".*" + MISTAKES[name][1], text, re.DOTALL) for text in found), (seed, found)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_program_without_the_mistake_is_not_reported(sim, name):
    for seed in SEEDS:
        assert run(sim, name, False, seed) == []
