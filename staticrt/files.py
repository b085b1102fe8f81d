"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import IO


def replace_file(
    path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], suffix: str = ""
) -> None:
    """Write beside and rename, so that a failure leaves the file that was there. A link's target is replaced.

    Args:
        path: of the file to make.
        write: fills an empty file, open for reading and writing.
        suffix: of the name that the file has until then.

    Raises:
        OSError: it cannot be made; whatever `write` raises.
    """
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise IsADirectoryError(21, "Is a directory", os.fspath(path))
    handle, beside = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".staticrt-", suffix=suffix)
    try:
        with os.fdopen(handle, "w+b") as file:
            write(file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(beside, 0o666 & ~mask)  # as any new file; a temporary one is its owner's alone
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
