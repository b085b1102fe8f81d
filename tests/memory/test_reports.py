"""Statistics, snapshots and history: torch's keys, torch's loaders, and numbers that add up."""

import pickle
import sys

import pytest
from torch.cuda import _memory_viz

import staticrt.memory
from staticrt.errors import AllocatorError

MIB = 1 << 20

# From torch.cuda.memory_stats' docstring (2.11 and 2.13).
GAUGES = [
    "allocation",
    "allocated_bytes",
    "segment",
    "reserved_bytes",
    "active",
    "active_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
]
COUNTERS = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"]


def test_stats_have_torchs_keys(sim):
    stats = sim.stats()
    for gauge in GAUGES:
        for pool in ("all", "small_pool", "large_pool"):
            for what in ("current", "peak", "allocated", "freed"):
                assert stats.pop(f"{gauge}.{pool}.{what}") == 0
    for gauge in ("oversize_allocations", "oversize_segments"):
        for what in ("current", "peak", "allocated", "freed"):
            assert stats.pop(f"{gauge}.{what}") == 0
    for counter in [*COUNTERS, "num_oom_rejections"]:
        assert stats.pop(counter) == 0
    assert stats == {}


def test_stats_count_rounded_and_requested_bytes(sim):
    a, b = sim.allocate(1000), sim.allocate(3 * MIB)
    stats = sim.stats()
    assert list(stats) == sorted(stats)
    assert stats["allocated_bytes.all.current"] == 1024 + 3 * MIB
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["requested_bytes.all.current"] == 1000 + 3 * MIB
    assert stats["reserved_bytes.all.current"] == sim.used_bytes
    sim.free(a)
    sim.free(b)
    stats = sim.stats()
    assert stats["allocated_bytes.all.current"] == 0
    assert stats["allocated_bytes.all.peak"] == 1024 + 3 * MIB
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 1024 + 3 * MIB
    sim.reset_peak()
    assert sim.stats()["allocated_bytes.all.peak"] == 0
    sim.reset_accumulated()
    assert sim.stats()["allocated_bytes.all.allocated"] == 0


def test_stats_of_one_pool(sim):
    sim.allocate(3 * MIB)
    with sim.pool() as p:
        sim.allocate(5 * MIB)
    assert sim.stats(p)["allocated_bytes.all.current"] == 5 * MIB
    assert sim.stats((0, 0))["allocated_bytes.all.current"] == 3 * MIB
    assert sim.stats((5, 6))["allocated_bytes.all.current"] == 0
    key = f"reserved_bytes_by_private_pools.{p.id[0]}_0.all.current"
    assert sim.stats()[key] == sim.stats(p)["reserved_bytes.all.current"] > 0


def busy(sim):
    """A device with live, freed and pending memory in three pools and two streams."""
    side = sim.stream()
    kept = [sim.allocate(size) for size in (100, 5000, 700_000, 3 * MIB, 12 * MIB)]
    kept.append(sim.allocate(4 * MIB, side))
    for address in kept[1:4:2]:
        sim.free(address)
    late = sim.allocate(2 * MIB)
    sim.touch(late, 2 * MIB, side)
    sim.record_stream(late, side)
    sim.free(late)
    p = sim.pool()
    with p:
        sim.allocate(6 * MIB)
    return p


@pytest.mark.parametrize("config", ["expandable_segments:False", "expandable_segments:True"])
def test_snapshot_tiles_what_is_mapped(device, config):
    sim = device(200, config=config)
    p = busy(sim)
    snapshot = sim.snapshot()
    stats = sim.stats()
    segments = snapshot["segments"]
    assert [s["address"] for s in segments] == sorted(s["address"] for s in segments)
    assert sum(s["total_size"] for s in segments) == sim.used_bytes == stats["reserved_bytes.all.current"]
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    assert sum(s["active_size"] for s in segments) == stats["active_bytes.all.current"]
    assert sum(s["requested_size"] for s in segments) == stats["requested_bytes.all.current"]
    states = set()
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            states.add(block["state"])
            assert block["requested_size"] <= block["size"]
        assert at == segment["address"] + segment["total_size"]
        assert segment["is_expandable"] == (config == "expandable_segments:True")
        assert segment["segment_type"] in ("small", "large")
    assert states == {"active_allocated", "inactive", "active_pending_free"}
    assert {s["segment_pool_id"] for s in segments} == {(0, 0), p.id}
    only = sim.snapshot(p)
    assert {s["segment_pool_id"] for s in only["segments"]} == {p.id}
    assert {e["pool_id"] for e in only["device_traces"][0]} <= {p.id}
    assert sim.snapshot(include_traces=False)["device_traces"] == [[]]


def test_torchs_own_tools_read_a_snapshot(device, tmp_path):
    sim = device(200, index=1)
    sim.record_history()
    busy(sim)
    with pytest.raises(RuntimeError, match="out of memory"):
        sim.allocate(900 * MIB)
    path = tmp_path / "run.pickle"
    staticrt.memory.dump_snapshot(path, device=sim)
    snapshot = pickle.loads(path.read_bytes())
    assert f"segments: {len(snapshot['segments'])}" in _memory_viz.segsum(snapshot)
    assert len(snapshot["device_traces"]) == 2  # torch counts devices by their place in the list
    text = _memory_viz.trace(snapshot)
    assert "Device 1" in text
    assert "raise OutOfMemoryError # 900.0MiB requested" in text
    assert "test_reports.py" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "<script" in _memory_viz.trace_plot(snapshot)
    assert "<script" in _memory_viz.segment_plot(snapshot)


def test_history_says_what_where_when_and_who(sim):
    sim.record_history()
    staticrt.memory.set_metadata("warmup")
    line = sys._getframe().f_lineno + 1
    a = sim.allocate(3 * MIB)
    staticrt.memory.set_metadata("")
    sim.free(a)
    trace = sim.snapshot()["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    assert actions == ["segment_map", "alloc", "free_requested", "free_completed", "snapshot"]
    alloc = next(entry for entry in trace if entry["action"] == "alloc")
    assert (alloc["addr"], alloc["size"], alloc["stream"], alloc["pool_id"]) == (a, 3 * MIB, 0, (0, 0))
    assert alloc["user_metadata"] == "warmup"
    here = alloc["frames"][0]
    assert (here["filename"], here["line"], here["name"]) == (
        __file__,
        line,
        "test_history_says_what_where_when_and_who",
    )
    free = next(entry for entry in trace if entry["action"] == "free_requested")
    assert free["user_metadata"] == ""
    assert free["frames"][0]["filename"] == __file__
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)


def test_history_levels(sim):
    def frames_of(action):
        trace = sim.snapshot()["device_traces"][0]
        return [bool(e["frames"]) for e in trace if e["action"] == action]

    sim.record_history(context="alloc")
    sim.free(sim.allocate(1024))
    assert frames_of("alloc") == [True]
    assert frames_of("free_requested") == [False]
    sim.record_history(context=None, clear_history=True)
    sim.allocate(1024)
    assert frames_of("alloc") == [False]
    sim.record_history(skip_actions=["free_requested"], clear_history=True)
    sim.free(sim.allocate(1024))
    assert frames_of("free_requested") == []
    assert len(frames_of("free_completed")) == 1
    sim.record_history(None)
    assert sim.snapshot()["device_traces"] == [[]]
    sim.record_history("state")
    a = sim.allocate(1024)
    assert sim.traceback(a + 8)[0]["filename"] == __file__
    sim.record_history(None)
    assert sim.traceback(a) is None


def test_history_keeps_the_newest_entries(sim):
    sim.record_history(max_entries=4, context=None)
    for _ in range(10):
        sim.free(sim.allocate(1024))
    assert len(sim.snapshot()["device_traces"][0]) == 4


def test_annotations(sim):
    sim.annotate("epoch 1")
    (found,) = sim.snapshot()["external_annotations"]
    assert found["name"] == "epoch 1"
    assert found["time_us"] > 1_600_000_000_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enabled": "some"}, "enabled is 'some'"),
        ({"context": "most"}, "give one of 'state', 'alloc', 'all', None"),
        ({"max_entries": 0}, "max_entries must be at least 1"),
        ({"max_entries": -1}, "max_entries is -1"),
        ({"skip_actions": ["malloc"]}, "skip_actions is 'malloc'"),
    ],
)
def test_wrong_history_options(sim, arguments, message):
    with pytest.raises(AllocatorError, match=message):
        sim.record_history(**arguments)
