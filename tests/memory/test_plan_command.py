"""`staticrt plan`: what it prints, and how it answers files that are missing or odd."""

import json
import subprocess
import sys

import pytest

from staticrt.errors import InputError
from staticrt.memory import planner
from staticrt.memory.plan_instances import read_specs
from staticrt.tools.cli.main import main
from tests.support.planner_goals import measure_goals

CSV = "id,lower,upper,size,name\n0,0,2,100,a\n1,1,3,64,b\n2,2,4,65,c\n"


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "three.csv"
    path.write_text(CSV)
    return path


def test_json_gives_one_object_per_file(csv_file, capsys):
    assert main(["plan", "--json", str(csv_file), str(csv_file)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["file"] == str(csv_file)
    assert (first["arena_bytes"], first["lower_bound"], first["proved_optimal"]) == (192, 192, True)
    specs = read_specs(csv_file)
    assert specs == [(0, 2, 100), (1, 3, 64), (2, 4, 65)]
    planner.validate(
        specs,
        planner.ArenaPlan(
            first["offsets"], first["arena_bytes"], first["lower_bound"], first["proved_optimal"]
        ),
    )


def test_text_names_every_field(csv_file, capsys):
    assert main(["plan", str(csv_file), "--alignment", "1", "--effort", "high"]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["arena_bytes"] == lines["lower_bound"] == "164"
    assert lines["proved_optimal"] == "true"
    assert len(lines["offsets"].split()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'lower'"),
        ("id,lower,upper\n0,1,2\n", "no column 'size'"),
        ("id,lower,upper,size\n0,1,2\n", "line 2"),
        ("id,lower,upper,size\n0,1,2,3\n\n1,1,2,x\n", "line 4"),
        ("id,lower,upper,size\n0,2,2,3\n", "is empty"),
        ("id,lower,upper,size\n0,1,2,-3\n", "is negative"),
        ("id,lower,upper,size\n0,1,2,99999999999999999999\n", "64-bit"),
    ],
)
def test_odd_files_are_named_and_the_others_still_planned(text, message, csv_file, tmp_path, capsys):
    odd = tmp_path / "odd.csv"
    odd.write_text(text)
    assert main(["plan", str(odd), str(csv_file)]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "odd.csv" in err
    assert str(csv_file) in out


def test_missing_binary_and_folder_are_refused(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for path, reason in ((tmp_path / "none.csv", "No such file"), (tmp_path, "directory"), (binary, "UTF-8")):
        with pytest.raises(InputError, match=reason):
            read_specs(path)


def test_empty_instance_needs_no_arena(tmp_path, capsys):
    path = tmp_path / "header.csv"
    path.write_text("id,lower,upper,size\n")
    assert main(["plan", "--json", str(path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["offsets"] == []
    assert (result["arena_bytes"], result["proved_optimal"]) == (0, True)


def test_alignment_must_be_a_power_of_two(csv_file, capsys):
    assert main(["plan", str(csv_file), "--alignment", "48"]) == 2
    assert "48 is not a power of two" in capsys.readouterr().err


def test_module_runs_as_a_command(csv_file):
    command = [sys.executable, "-m", "staticrt"]
    done = subprocess.run([*command, "plan", str(csv_file)], capture_output=True, text=True, check=True)
    assert "arena_bytes: 192" in done.stdout
    assert subprocess.run(command, capture_output=True).returncode == 2
    assert subprocess.run([*command, "nonsense"], capture_output=True).returncode == 2
    helped = subprocess.run([*command, "plan", "--help"], capture_output=True, text=True, check=True)
    assert "lower_bound" in helped.stdout


def test_a_model_or_files_are_needed(capsys):
    assert main(["plan"]) == 2
    assert "no files to plan" in capsys.readouterr().err


def test_goals_need_a_folder_of_instances(tmp_path):
    with pytest.raises(InputError, match="no CSV files"):
        measure_goals(tmp_path)


def test_goals_are_measured_on_a_small_folder(tmp_path, capsys):
    for folder in ("fx", "minimalloc", "synth"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "three.csv").write_text(CSV)
    assert measure_goals(tmp_path) in (0, 1)  # times depend on the machine
    out = capsys.readouterr().out
    assert "M1   met     fx at the lower bound: 1/1" in out
    assert all(goal in out for goal in ("M2", "M3", "M6", "M8"))
