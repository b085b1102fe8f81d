"""The `.pt2` file of an archive: torch's records, and the records that hold the weights."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

import torch

from staticrt.native import _C


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore environment variables that importing Inductor sets. Traces of models that read the environment would become
    invalid, because they compare its values by identity."""
    data: dict[bytes, bytes] = getattr(os.environ, "_data")  # noqa: B009
    before = dict(data)
    yield
    for name in data.keys() - before.keys():
        del os.environ[os.fsdecode(name)]
    data.update(before)


with _environment_kept():
    from torch.export.pt2_archive import _package
    from torch.export.pt2_archive.constants import CONSTANTS_DIR, WEIGHTS_DIR


class _Writer(_package.PT2ArchiveWriter):
    """Writes records, and remembers the raw record of each tensor."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.sizes: dict[str, int] = {}
        self.configs: dict[str, dict[str, Any]] = {}

    def write_bytes(self, name: str, data: bytes) -> None:
        super().write_bytes(name, data)
        self.sizes[name] = len(data)
        for folder in (WEIGHTS_DIR, CONSTANTS_DIR):
            if name.startswith(folder) and name.endswith("_config.json"):
                self.configs[folder] = json.loads(data)["config"]

    def raw_records(self, program: torch.export.ExportedProgram) -> dict[tuple[str, int], str]:
        """Maps the device and address of a storage to the record that holds all its bytes."""
        found: dict[tuple[str, int], str] = {}
        tensors: dict[str, dict[str, Any]] = {
            WEIGHTS_DIR: dict(program.state_dict),
            CONSTANTS_DIR: dict(program.constants),
        }
        for folder, config in self.configs.items():
            for name, entry in config.items():
                tensor = tensors[folder].get(name)
                record = folder + entry["path_name"]
                if isinstance(tensor, torch.Tensor) and not entry["use_pickle"]:
                    storage = tensor.untyped_storage()
                    if self.sizes.get(record) == storage.nbytes() > 0:
                        found[str(storage.device), storage.data_ptr()] = record
        return found


class NotStored(Exception):
    """torch cannot serialise the exported program; `reason` is its error."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


def write_package(
    file: IO[bytes],
    builder: _C.ArchiveBuilder,
    facts: dict[str, Any],
    exported: torch.export.ExportedProgram | None,
) -> None:
    """Write an archive. Weights that the exported program holds as well are stored once.

    Args:
        file: writable and seekable.
        builder: complete.
        facts: versions and other metadata for `ArchiveBuilder.finish`.
        exported: the program for `torch.export.load`, or None.

    Raises:
        NotStored: torch cannot serialise `exported`. The archive can be written without it.
    """
    writer = _Writer(file)
    with writer:
        known: dict[tuple[str, int], str] = {}
        if exported is not None:
            try:
                _package._package_exported_programs(writer, {"model": exported})
            except (OSError, MemoryError):
                raise
            except Exception as error:
                raise NotStored(error) from error
            known = writer.raw_records(exported)
        writer.write_bytes(_C.ARCHIVE_RECORD, builder.finish(facts, _write_storages(writer, builder, known)))


def _write_storages(
    writer: _Writer, builder: _C.ArchiveBuilder, known: dict[tuple[str, int], str]
) -> Sequence[str]:
    names = []
    for number, (storage, source) in enumerate(zip(builder.storages(), builder.sources(), strict=True)):
        name = known.get(source) if storage.numel() else None
        if name is None:
            name = f"staticrt/weights/{number}"
            writer.write_bytes(name, storage.numpy().tobytes())
        names.append(name)
    return names
