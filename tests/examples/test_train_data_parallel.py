"""The example of data parallelism runs, and training with staticrt ends at eager's weights."""

import re
import subprocess
import sys
from pathlib import Path

PATH = Path(__file__).resolve().parents[2] / "examples" / "train_data_parallel.py"


def test_compiled_data_parallel_training_ends_at_eagers_weights():
    sizes = ["--layers", "1", "--steps", "3", "--rounds", "2", "--length", "8"]
    done = subprocess.run([sys.executable, str(PATH), *sizes], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(\S+) .* (\S+) apart$", done.stdout, re.MULTILINE))
    assert found.keys() == {"eager", "staticrt"}
    assert float(found["eager"]) == 0.0
    assert float(found["staticrt"]) < 1e-5
