"""What reaches stdout and stderr: JSON, odd terminals, interrupts, full disks."""

import contextlib
import io

import pytest

from staticrt.tools.cli.main import main


@pytest.mark.parametrize(
    "words",
    [("run",), ("inspect",), ("profile", "--runs", "2")],
    ids=lambda words: words[0],
)
def test_json_is_all_that_stdout_gets_although_the_model_prints(strict_json, odd, call, words):
    code, out, err = call(*words, f"{odd}:Talks", "--shape", "3", "--json")
    assert code == 0
    assert isinstance(strict_json(out), dict)
    assert "hello" in err


def test_results_without_a_json_form_are_compared_and_described(strict_json, odd, call):
    code, out, _ = call("run", f"{odd}:Mixed", "--shape", "3", "--check", "--json")
    assert code == 0
    document = strict_json(out)
    assert document["check"] == {"ok": True}
    values = {output["name"]: output.get("value") for output in document["outputs"]}
    assert (values["['nan']"], values["['low']"], values["['kind']"]) == ("nan", "-inf", "mixed")


def test_an_interrupt_while_a_command_is_imported(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["env"]) == 130


def test_a_terminal_that_lacks_characters(monkeypatch, tmp_path):
    (tmp_path / "model.py").write_text("import torch\nmodel = torch.nn.Linear(4, 3)\n")
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["inspect", f"{tmp_path}/model.py:model", "--shape", "2x4"]) == 0
    assert b"addmm" in stream.buffer.getvalue() or b"linear" in stream.buffer.getvalue()


def test_no_stdout_at_all(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert main(["env"]) == 0


def test_a_full_disk_is_said_once(monkeypatch, capfd):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["env", "--json"]) == 2
        assert "No space left" in capfd.readouterr().err
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
