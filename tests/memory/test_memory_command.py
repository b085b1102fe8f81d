"""`staticrt memory FILE` and the picture it draws."""

import json
import pickle
import xml.etree.ElementTree as ElementTree

import pytest

import staticrt.memory
from staticrt.errors import OptionError
from staticrt.tools.cli import main as cli
from staticrt.tools.report import drawing
from staticrt.tools.report.memory_plot import format_bytes, plot, timeline

MIB = 1 << 20


def entry(action, addr, size):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": []}


def snapshot(trace, segments=()):
    return {"segments": list(segments), "device_traces": [trace]}


def segment(*blocks, address=0):
    made, at = [], address
    for size, state in blocks:
        made.append({"address": at, "size": size, "state": state, "frames": []})
        at += size
    return {
        "address": address,
        "total_size": at - address,
        "allocated_size": 0,
        "active_size": 0,
        "stream": 0,
        "blocks": made,
    }


def test_timeline_stacks_allocations_and_lets_them_sink():
    """
    action  0   1   2   3   4
    b           [===========)    on a, then on the ground
    a       [=======)
    c                   [===)    on b
    """
    trace = [
        entry("alloc", 0, 10),
        entry("alloc", 10, 5),
        entry("free_completed", 0, 10),
        entry("alloc", 20, 1),
    ]
    line = timeline(snapshot(trace))
    assert [(x.size, x.begin, x.end, x.steps) for x in line.layers] == [
        (10, 0, 2, [(0, 0)]),
        (5, 1, 4, [(1, 10), (2, 0)]),
        (1, 3, 4, [(3, 5)]),
    ]
    assert line.peak_bytes == 15


def test_timeline_knows_what_was_there_before():
    trace = [entry("free_completed", 0, 4), entry("alloc", 64, 2)]
    now = [segment((64, "inactive"), (2, "active_allocated"), (30, "active_allocated"))]
    line = timeline(snapshot(trace, now))
    assert [(x.size, x.begin, x.end) for x in line.layers] == [(4, 0, 0), (30, 0, 2), (2, 1, 2)]
    assert line.peak_bytes >= 34


def test_timeline_puts_small_allocations_into_one_layer():
    trace = [entry("alloc", k, 1 + k) for k in range(10)] + [entry("free_completed", 3, 4)]
    line = timeline(snapshot(trace), max_layers=2)
    assert [x.size for x in line.layers] == [9, 10]
    assert line.rest[-2] == (10, 19, sum(range(1, 9)) - 4)
    assert line.peak_bytes == 55


def test_reserved_is_counted_back_from_now():
    trace = [
        entry("segment_alloc", 0, 20),
        entry("segment_map", 90, 2),
        entry("segment_free", 0, 20),
        entry("segment_unmap", 90, 1),
    ]
    line = timeline(snapshot(trace, [segment((7, "inactive"))]))
    assert line.reserved == [(0, 6), (0, 26), (1, 28), (2, 8), (3, 7)]


def test_bytes_have_units():
    assert [format_bytes(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30, 2 << 40)] == [
        "0 B",
        "1023 B",
        "1.50 KiB",
        "3.00 MiB",
        "5.00 GiB",
        "2.00 TiB",
    ]


@pytest.fixture
def run_file(sim, tmp_path):
    sim.record_history()
    held = [sim.allocate(size) for size in (1000, 3 * MIB, 12 * MIB)]
    sim.free(held[1])
    path = tmp_path / "run.pickle"
    staticrt.memory.dump_snapshot(path, device=sim)
    return path


def test_command_draws_a_picture(run_file, capsys):
    assert cli.main(["memory", str(run_file)]) == 0
    text = capsys.readouterr().out
    assert "allocated: 12.00 MiB" in text
    svg = run_file.with_suffix(".svg")
    assert f"written:   {svg}" in text
    root = ElementTree.fromstring(svg.read_text())
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("12.00 MiB test_memory_command.py" in title for title in titles)
    assert any("inactive" in title for title in titles)
    first = svg.read_bytes()
    assert cli.main(["memory", str(run_file)]) == 0
    assert svg.read_bytes() == first


def test_command_reads_json_and_writes_where_told(run_file, tmp_path, capsys):
    as_json = tmp_path / "run.json"
    as_json.write_text(json.dumps(pickle.loads(run_file.read_bytes())))
    output = tmp_path / "picture.svg"
    assert cli.main(["memory", str(as_json), "-o", str(output)]) == 0
    assert output.read_text().startswith("<svg")


def test_command_writes_png_with_matplotlib(run_file, tmp_path, capsys, monkeypatch):
    output = tmp_path / "picture.png"
    if drawing.png_possible():
        assert cli.main(["memory", str(run_file), "-o", str(output)]) == 0
        assert output.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setattr(drawing, "png_possible", lambda: False)
    assert cli.main(["memory", str(run_file), "-o", str(output)]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot read a snapshot"),
        (b"{]", "cannot read a snapshot"),
        (pickle.dumps([1, 2]), "this is not a memory snapshot"),
        (pickle.dumps({"segments": 3}), "this is not a memory snapshot"),
        (pickle.dumps({"segments": [{"stream": 0}]}), "this is not a memory snapshot"),
        (pickle.dumps({"segments": [5]}), "this is not a memory snapshot: segment 0 is 5"),
        (
            pickle.dumps({"segments": [segment((8, "x")) | {"total_size": -5}]}),
            "total_size of segment 0 is -5",
        ),
        (
            pickle.dumps({"segments": [segment((1 << 64, "x"))]}),
            "total_size of segment 0 is 18446744073709551616",
        ),
        (
            pickle.dumps({"segments": [segment((0.5, "x")) | {"total_size": 1}]}),
            "size of block 0 of segment 0 is 0.5",
        ),
        (
            pickle.dumps({"segments": [dict.fromkeys(("address", "total_size", "stream"), 0)]}),
            "not a memory snapshot",
        ),
        (b"cos\nsystem\n(S'true'\ntR.", "it refers to os.system"),
    ],
)
def test_command_refuses_other_files(tmp_path, capsys, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert cli.main(["memory", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_command_without_a_file(tmp_path, capsys):
    assert cli.main(["memory", str(tmp_path / "none.pickle")]) == 2
    assert "none.pickle" in capsys.readouterr().err


def test_an_empty_snapshot_is_a_picture_too():
    ElementTree.fromstring(plot({"segments": [], "device_traces": []}).svg())


def test_drawings_know_their_formats(tmp_path):
    with pytest.raises(OptionError, match=r"name it .svg, .html or .png"):
        drawing.Drawing(10, 10).save(tmp_path / "x.gif")


def test_text_in_a_drawing_is_escaped():
    picture = drawing.Drawing(10, 10)
    picture.rectangle(0, 0, 1, 1, "red", "a<b>&c")
    picture.text(0, 0, "<x>")
    ElementTree.fromstring(picture.svg())
