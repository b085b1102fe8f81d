"""Files: replaced atomically, and told apart by what wrote them."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Callable
from typing import IO


def replace_file(
    path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], suffix: str = ""
) -> None:
    """Write a temporary file and rename it, so that a failure leaves the old file. Of a link, the target is replaced.

    Args:
        path: the file to replace.
        write: writes into an empty file that is open for reading and writing.
        suffix: ending of the temporary file's name.

    Raises:
        OSError: the file cannot be written. Errors of `write` are passed on.
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
        os.chmod(beside, 0o666 & ~mask)  # the mode of a new file; temporary files are private to their owner
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


# Functions of torch, and what to do with the files that they write.
_SAVE_ONE = {
    "torch.export.save": "save one: staticrt.save(staticrt.compile(path), new_path, example_inputs)",
    "torch.save": "save one: build the module, module.load_state_dict(torch.load(path)), "
    "then staticrt.save(staticrt.compile(module), new_path, example_inputs)",
    "torch.jit.save": "save one of the Python module: staticrt.save(staticrt.compile(module), new_path, example_inputs)",
}


def written_by_torch(source: str | bytes) -> tuple[str, str]:
    """The function of torch that wrote a file, given by name or as bytes, and what to do with it; "" where none did."""
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as archive:
            ends = {name.rpartition("/")[2] for name in archive.namelist()}
    except Exception:  # no zip archive, or a damaged one
        return "", ""
    if "program.bin" in ends:
        return "", ""
    writer = "torch.jit.save" if "constants.pkl" in ends else "torch.save" if "data.pkl" in ends else ""
    if {"archive_format", "model.json"} <= ends:
        writer = "torch.export.save"
    return writer, _SAVE_ONE.get(writer, "")
