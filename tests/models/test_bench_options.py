"""`staticrt bench --models … --option …`: the zoo's own rows are compiled with these options."""

import json

import pytest

from staticrt.errors import OptionError
from staticrt.models import zoo
from staticrt.models.bench.job import Setting
from staticrt.models.bench.peers import resolve
from staticrt.tools.cli.main import main


def test_options_reach_the_compiled_module(tmp_path, capsys):
    target = tmp_path / "rows.json"
    command = [
        "bench",
        "--models",
        "mlp",
        "--peers",
        "eager,staticrt",
        "--quick",
        "--seconds",
        "0.05",
        "--option",
        "executor=reference",
    ]
    assert main([*command, "--json", str(target)]) == 0
    document = json.loads(target.read_text())
    assert document["setting"]["options"] == {"executor": "reference"}
    (row,) = [row for row in document["rows"] if row["peer"] == "staticrt"]
    assert row["status"] == "ok"
    assert all("Reference" in name for name in row["facts"]["executors"])
    capsys.readouterr()


def test_an_unknown_option_fails_the_row():
    entry = zoo.get("mlp")
    with pytest.raises(OptionError, match="no_such"):
        resolve("staticrt").prepare(entry.build(0), entry.inputs(1), 1, no_such=1)


def test_no_options_are_none():
    assert Setting(1, 1.0, 1.0, 1, 1.0).options == {}
