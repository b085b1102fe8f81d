"""Makes the recordings beside this file anew, from torch's own CUDA caching allocator.

    python record.py [FOLDER]

needs pip with a package registry, and g++; no GPU. It takes `libc10_cuda.so` out of torch's CUDA wheel and NVIDIA's
headers out of theirs, builds a CUDA runtime that has no device (stub_cuda.cpp, stub_rest.c) and a program that
calls the allocator (record.cpp), and runs it once per recording. FOLDER (a temporary one by default) keeps what was
fetched and built.

What the recordings leave out, because ours does something else there on purpose:
- Of free blocks of one size torch 2.13 takes that of the oldest segment, torch 2.11 and ours the lowest. No address
  is given twice here, so that this is the same block.
- An oversize release that cannot free enough (G5) frees nothing in ours; in torch it frees what it can and fails.
  It shows in private pools, so none of those are recorded with `max_split_size_mb`.
- A stream that used a block both before and in a capture: ours still waits for the earlier use.
- At a capture's beginning and end ours looks for work that has ended, torch in the request after it.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCH = "2.13.0"
WHEELS = [f"torch=={TORCH}", "nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*"]
WANTED = ("torch/lib/libc10", "torch/include/c10/", "torch/include/torch/headeronly/", "nvidia/cu13/include/")
STEPS = 800
# name -> options, MiB of the device, seed, letters of the steps besides allocations and frees
RECORDINGS = {
    "fixed": ("", 4000, 1, "ue"),
    "fixed_busy": ("", 700, 2, "uwe"),
    "fixed_tight": ("", 180, 3, "uwe"),
    "roundup": ("roundup_power2_divisions:4", 700, 4, "uwe"),
    "roundup_table": ("roundup_power2_divisions:[1:8,4:2,16:4,>:1]", 300, 5, "uwe"),
    "max_split": ("max_split_size_mb:20", 260, 6, "uwe"),
    "max_split_rounding": ("max_split_size_mb:30,max_non_split_rounding_mb:40", 260, 7, "uwe"),
    "garbage": ("garbage_collection_threshold:0.6", 300, 8, "uwe"),
    "garbage_pools": ("garbage_collection_threshold:0.5,roundup_power2_divisions:2", 300, 9, "uwepx"),
    "fraction": ("per_process_memory_fraction:0.5", 400, 10, "uwe"),
    "large_segment": ("large_segment_size_mb:32", 400, 11, "uwe"),
    "expandable": ("expandable_segments:True", 700, 12, "uwe"),
    "expandable_tight": ("expandable_segments:True", 180, 13, "uwe"),
    "pools": ("", 500, 14, "uwepx"),
    "pools_tight": ("", 180, 15, "uwepx"),
    "pools_expandable": ("expandable_segments:True", 300, 16, "uwepx"),
    "captures": ("", 700, 17, "uwepxc"),
    "captures_tight": ("", 220, 18, "uwepxc"),
    "captures_expandable": ("expandable_segments:True", 400, 19, "uwepxc"),
}


def fetch(folder: Path) -> None:
    """Headers and libraries of the wheels, unpacked in `folder`. PyPI's torch is the CUDA one: pip's settings, which
    may name another source, do not count."""
    pip = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "-d", folder / "wheels"]
    for wheel in WHEELS:
        subprocess.run([*pip, wheel], check=True, env={**os.environ, "PIP_CONFIG_FILE": os.devnull})
    for path in sorted((folder / "wheels").glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(WANTED)])


def build(folder: Path) -> None:
    """The stub libraries and `record`, in `folder`."""
    (folder / "versions").write_text("libcudart.so.13 { global: *; };")
    nvidia = f"-I{folder}/nvidia/cu13/include"
    rest = folder / "stub_rest.o"
    subprocess.run(["gcc", "-c", "-fPIC", "-fno-builtin", HERE / "stub_rest.c", "-o", rest], check=True)
    shared = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", nvidia, rest]
    runtime = ["-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={folder}/versions"]
    subprocess.run([*shared, HERE / "stub_cuda.cpp", *runtime, "-o", folder / "libcudart.so.13"], check=True)
    subprocess.run([*shared, "-o", folder / "libnvidia-ml.so.1"], check=True)
    torch = folder / "torch"
    libraries = [f"-L{folder}", f"-L{torch}/lib", "-l:libc10_cuda.so", "-l:libc10.so", "-l:libcudart.so.13"]
    link = [*libraries, f"-Wl,-rpath,{folder}:{torch}/lib", "-Wl,--unresolved-symbols=ignore-in-shared-libs"]
    headers = ["-w", f"-I{torch}/include", nvidia]
    source = HERE / "record.cpp"
    subprocess.run(["g++", "-std=c++20", "-O1", *headers, source, *link, "-o", folder / "record"], check=True)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve()
    fetch(folder)
    build(folder)
    for name, (options, total, seed, words) in RECORDINGS.items():
        command = [folder / "record", options, str(total), str(seed), str(STEPS), words]
        environment = {"LD_LIBRARY_PATH": str(folder)}
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        (HERE / f"{name}.txt").write_text(f"# torch {TORCH}; seed {seed}; see record.py\n" + result.stdout)
        print(name, result.stdout.count("oom"), "refused")


if __name__ == "__main__":
    main()
