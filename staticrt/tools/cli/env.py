"""`staticrt env`: facts about the machine and the build for an issue report."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from staticrt.tools.cli.output import print_json

_PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxscript", "openvino", "torch-tensorrt", "tensorrt", "transformers",
)  # fmt: skip
_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES", "DNNL_MAX_CPU_ISA", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "MKL_NUM_THREADS", "OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES",
    "OMP_PROC_BIND", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", "PYTHONDONTWRITEBYTECODE", "TORCH_LOGS",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    found = environment()
    if args.json:
        print_json(found)
    else:
        print(_text(found))
    return 0


def environment() -> dict[str, Any]:
    """Versions, machine, threads, libraries and build."""
    import staticrt

    return {
        "staticrt": staticrt.__version__,
        "build": _build(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": machine(),
        "torch": _torch(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "variables": variables(),
    }


def _build() -> dict[str, Any]:
    """The C++ extension: its file and the torch it was built for, or the reason why it does not load."""
    try:
        from staticrt import _build_info
        from staticrt.native import _C
    except Exception as error:
        return {"error": str(error)}
    return {"torch": _build_info.TORCH_VERSION, "extension": str(_C.__file__)}


def variables() -> dict[str, str]:
    """The environment variables that are set and change the speed or the behaviour of a run."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def machine() -> dict[str, Any]:
    """The processor's name and instruction sets, the CPUs that this process may use, and the memory in bytes."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {"cpu": platform.processor() or platform.machine(), "cpus": allowed}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                facts["cpu"] = value.strip()
            elif name.strip() == "flags":
                wanted = ("avx", "avx2", "avx512f", "avx512bf16", "avx512_vnni", "amx_tile", "fma")
                facts["isa"] = [flag for flag in wanted if flag in value.split()]
                break
    except OSError:
        pass
    with contextlib.suppress(OSError, ValueError):
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return facts


def _torch() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "version": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "mkl": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        "onednn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "openmp": torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
        "cuda": torch.version.cuda,
        "devices": [],
    }
    if torch.cuda.is_available():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(found: dict[str, Any]) -> str:
    lines = []
    for name, value in found.items():
        if not isinstance(value, dict):
            lines.append(f"{name}: {value}")
            continue
        lines.append(f"{name}:")
        lines += [
            f"  {key}: {', '.join(map(str, v)) or 'none' if isinstance(v, list) else v}"
            for key, v in value.items()
        ]
    return "\n".join(lines)
