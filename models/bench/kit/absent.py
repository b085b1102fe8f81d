"""Whether the kit's device is there. As a script it needs torch alone: exit status 2 and one line if it is not."""

from __future__ import annotations

import sys

import torch


def why_absent(name: str) -> str | None:
    """The reason why there is no such device here, in one line; None if there is one."""
    if name == "sim":
        return None
    if name != "cuda":
        return f"{name!r} is not a device of the kit; give cuda or sim"
    if torch.version.cuda is None:
        return f"no GPU to run on: torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"no GPU to run on: torch {torch.__version__} sees no CUDA device"
    return None


if __name__ == "__main__":
    reason = why_absent(sys.argv[1])
    if reason is not None:
        print(f"kit: {reason}", file=sys.stderr)
        sys.exit(2)
