"""`python .ci/wheel.py WHEEL FOLDER`: the wheel as it is published, in FOLDER; prints its path.

The build fits one release of torch: it is named in the version (0.1.0+torch2.13, as PyTorch's own extensions name what
they fit) and required (torch==2.13.*). auditwheel then checks the libraries and gives the manylinux tag; torch's own
libraries stay outside, for `import torch` has loaded them before.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile


def binary_release(version: str) -> str:
    """As `staticrt.native.binary_release`, which needs a build to be imported."""
    found = re.fullmatch(r"(\d+\.\d+)\.\d+(\+.*)?", version)
    return found.group(1) if found else version


def pin(metadata: str, version: str, torch: str) -> str:
    """METADATA with the whole version, and with the torch that the build fits as its requirement."""
    release = binary_release(torch)
    exact = f"torch=={release}.*" if release != torch else f"torch=={torch}"
    metadata = re.sub(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.MULTILINE)
    metadata, count = re.subn(
        r"^Requires-Dist: torch>=.*$", f"Requires-Dist: {exact}", metadata, flags=re.MULTILINE
    )
    assert count == 1, "the metadata requires torch once"
    return metadata


def run(*command: str | pathlib.Path) -> None:
    done = subprocess.run([sys.executable, "-m", *map(str, command)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")


def publish(wheel: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        run("wheel", "unpack", "--dest", work, wheel)
        (tree,) = work.iterdir()
        (info,) = tree.glob("*.dist-info")
        torch = re.search(r'"(.*)"', (tree / "staticrt" / "_build_info.py").read_text()).group(1)  # type: ignore[union-attr]
        public = info.name.removesuffix(".dist-info").split("-")[1]
        version = f"{public}+torch{re.sub('[^a-zA-Z0-9.]', '.', binary_release(torch))}"
        metadata = info / "METADATA"
        metadata.write_text(pin(metadata.read_text(), version, torch))
        info.rename(tree / f"staticrt-{version}.dist-info")
        packed = work / "packed"
        packed.mkdir()
        run("wheel", "pack", "--dest-dir", packed, tree)
        (plain,) = packed.glob("*.whl")
        run(
            "auditwheel",
            "repair",
            "--exclude",
            "libtorch*.so",
            "--exclude",
            "libc10.so",
            "--exclude",
            "libgomp*",
            "-w",
            folder,
            plain,
        )
    (made,) = folder.glob(f"staticrt-{version}-*.whl")
    return made


if __name__ == "__main__":
    print(publish(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
