"""Damaged, foreign and hostile files give ArchiveError, never a wrong answer or a crash."""

import io
import pickle
import random
import re
import struct
import zipfile

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, InputError
from tests.support.archive_body import HEADER_BYTES, checksum, record_of

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x, flag=True):
        if x.shape[0] > 100:
            return x
        y = torch.cond(x.sum() > 1e6, lambda y: y + 1, lambda y: y * 2, (self.first(x),))
        return {"y": y * self.scale, "sum": [y.sum(0).reshape(x.shape[0] // x.shape[0], -1)]}


@pytest.fixture(scope="module")
def saved():
    torch.manual_seed(0)
    with torch.no_grad():
        buffer = io.BytesIO()
        staticrt.save(staticrt.compile(Model().eval()), buffer, (X,), exported_program=False)
        return buffer.getvalue()


@pytest.fixture(scope="module")
def answer(saved):
    return run(saved)


def run(data):
    with torch.no_grad():
        result = staticrt.load(data)(X)
        return result["y"], result["sum"][0]


def with_body(data, change):
    """The archive with its program's body changed in place, and the checksum made to fit."""
    offset, size = record_of(data)
    body = bytearray(data[offset + HEADER_BYTES : offset + size])
    change(body)
    header = bytearray(data[offset : offset + HEADER_BYTES])
    header[24:32] = struct.pack("<Q", checksum(bytes(body)))
    return data[:offset] + bytes(header) + bytes(body) + data[offset + size :]


def replaced(data, old, new):
    assert len(old) == len(new)

    def change(body):
        at = body.index(old)
        body[at : at + len(old)] = new

    return with_body(data, change)


def test_a_leaf_that_is_the_same_as_no_leaf(saved):
    """Which leaf another one is the same tensor as is -1 for none; other negative numbers name nothing."""
    offset, size = record_of(saved)
    body = saved[offset + HEADER_BYTES : offset + size]
    none, empty = struct.pack("<i", -1), bytes(8)
    refused = 0
    for place in [found.start() for found in re.finditer(re.escape(none + empty), body)]:

        def change(body, at=place):
            body[at : at + 4] = struct.pack("<i", -65536)

        try:
            run(with_body(saved, change))
        except (ArchiveError, InputError) as error:
            refused += "is the same as leaf -65536" in str(error)
    assert refused


def plans_of(body, count):
    """Where the offsets of memory plans lie, the last thing in the body of an archive of one trace: [(place, how
    many)]."""
    for start in range(len(body) - 8, -1, -1):
        if struct.unpack_from("<Q", body, start)[0] != count:
            continue
        found, at = [], start + 8
        for _ in range(count):
            if at + 24 > len(body):
                break
            offsets = struct.unpack_from("<Q", body, at + 16)[0]
            found.append((at + 24, offsets))
            at += 24 + 8 * offsets
        if at == len(body) and len(found) == count:
            return found
    raise AssertionError("no plans found")


@pytest.mark.parametrize("offset", [0, 64, -64, 8, 2**62], ids=str)
def test_memory_plans_that_were_altered_are_made_anew(offset):
    """All values of a call in the same bytes, or in none of the arena's: refused where they are used."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(6, 4 + 3 * i) for i in range(4))

    def parts(x):
        found = [layer(x).softmax(-1) for layer in layers]
        return sum(part.cumsum(-1).mean(1) for part in found)

    with torch.no_grad():
        buffer = io.BytesIO()
        staticrt.save(staticrt.compile(parts), buffer, (X,), exported_program=False)
        data = buffer.getvalue()
        (trace,) = staticrt.load(data)._traces
        held = trace.native.num_plans

        def change(body):
            for place, count in plans_of(body, held):
                body[place : place + 8 * count] = struct.pack("<q", offset) * count

        loaded = staticrt.load(with_body(data, change))
        for _ in range(2):
            torch.testing.assert_close(loaded(X), parts(X))
    (stats,) = loaded._traces[0].native.executable.prepared_stats
    assert held > 0
    assert (stats["known_plans"], stats["searched_plans"]) == (0, held)


def test_the_checksum_above_is_the_one_in_the_file(saved, answer):
    same = with_body(saved, lambda body: None)
    assert same == saved
    assert torch.equal(run(same)[0], answer[0])


def test_every_truncation_is_an_error(saved):
    rng = random.Random(0)
    lengths = {0, 1, 21, 22, 100, len(saved) - 1, len(saved) - 22, len(saved) - 23}
    lengths |= {rng.randrange(len(saved)) for _ in range(300)}
    for length in sorted(lengths):
        with pytest.raises(ArchiveError, match=r"at:  \d+ bytes in memory"):
            staticrt.load(saved[:length])


def test_flipped_bits_are_errors_or_change_nothing(saved, answer):
    rng = random.Random(1)
    offset, size = record_of(saved)
    weight, weight_bytes = record_of(saved, "staticrt/weights/0")
    places = [rng.randrange(len(saved)) for _ in range(400)]
    must_fail = [offset + rng.randrange(12) for _ in range(20)]
    must_fail += [offset + rng.randrange(16, size) for _ in range(100)]
    must_fail += [weight + rng.randrange(weight_bytes) for _ in range(50)]
    for place in must_fail + places:
        data = bytearray(saved)
        data[place] ^= 1 << rng.randrange(8)
        try:
            got = run(bytes(data))
        except ArchiveError:
            continue
        assert place not in must_fail, f"flipped byte {place} was not seen"
        assert torch.equal(got[0], answer[0])
        assert torch.equal(got[1], answer[1])


def test_hostile_bodies_never_crash(saved):
    """Changes whose checksum fits reach the reader behind it: any error is one of ours, and none is a crash."""
    rng = random.Random(2)
    size = record_of(saved)[1] - HEADER_BYTES
    refused = 0
    for _ in range(400):

        def change(body):
            for _ in range(rng.choice((1, 1, 1, 3))):
                at = rng.randrange(size)
                kind = rng.randrange(3)
                if kind == 0:
                    body[at] ^= 1 << rng.randrange(8)
                elif kind == 1:
                    body[at] = rng.choice((0, 1, 127, 255))
                elif at + 8 < size:
                    body[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)))

        data = with_body(saved, change)
        try:
            staticrt.load(data)
        except ArchiveError:
            refused += 1
    assert refused > 100


def test_other_versions_are_named(saved):
    offset, _size = record_of(saved)
    newer = bytearray(saved)
    newer[offset + 8 : offset + 12] = struct.pack("<I", 99)
    with pytest.raises(
        ArchiveError, match=r"format version 99, staticrt .* reads versions 1 to 6\n.*\n  fix: load it with"
    ):
        staticrt.load(bytes(newer))
    version = torch.__version__.encode()
    old = b"2.99" + version[4:]
    with pytest.raises(
        ArchiveError, match=rf"saved with torch {re.escape(old.decode())}, this is torch .*\n.*\n  fix:"
    ):
        staticrt.load(replaced(saved, version, old))
    # Another build of the same release reads it.
    local = version[:-1] + bytes([version[-1] ^ 1])
    run(replaced(saved, version, local))


def test_missing_cpu_features_are_named(tmp_path):
    with torch.no_grad():
        compiled = staticrt.compile(nn.ReLU())
        path = tmp_path / "model.pt2"
        capability = torch.backends.cpu.get_cpu_capability()
        staticrt.save(compiled, path, X, exported_program=False, cpu_features=[capability])
        assert staticrt.load(path).facts["cpu_features"] == [capability]
        staticrt.save(compiled, path, X, exported_program=False, cpu_features=["avx9000"])
        with pytest.raises(
            ArchiveError, match=rf"needs a CPU with AVX9000, torch uses {capability} here\n.*\n  fix:"
        ):
            staticrt.load(path)


def test_files_that_are_no_archive(tmp_path, saved):
    missing = tmp_path / "missing.pt2"
    with pytest.raises(ArchiveError, match=r"cannot open archive .*missing.pt2.*No such file"):
        staticrt.load(missing)
    with pytest.raises(ArchiveError, match="not a regular file"):
        staticrt.load(tmp_path)
    for content in (b"", b"hello", bytes(1000), b"PK\x03\x04" + bytes(500)):
        path = tmp_path / "file.pt2"
        path.write_bytes(content)
        with pytest.raises(ArchiveError, match=r"not a \.pt2 archive|cut short"):
            staticrt.load(path)
    plain = tmp_path / "plain.pt2"
    torch.export.save(torch.export.export(nn.ReLU(), (X,)), plain)
    with pytest.raises(ArchiveError, match=r"no program of staticrt's .*\n.*plain.pt2\n  fix: save one"):
        staticrt.load(plain)
    squeezed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved)) as old,
        zipfile.ZipFile(squeezed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    with pytest.raises(ArchiveError, match="is compressed"):
        staticrt.load(squeezed.getvalue())
    # Stored, but not aligned: weights are copied.
    moved = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(moved, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    torch.testing.assert_close(run(moved.getvalue())[0], run(saved)[0])


def test_a_missing_weight_is_named(saved):
    fewer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(fewer, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith("staticrt/weights/1"):
                new.writestr(info.filename, old.read(info))
    with pytest.raises(ArchiveError, match="record staticrt/weights/1, which holds weights, is missing"):
        staticrt.load(fewer.getvalue())


def test_weights_are_not_read_where_verification_is_off(saved, answer):
    offset, _size = record_of(saved, "staticrt/weights/0")
    data = bytearray(saved)
    data[offset] ^= 1
    with pytest.raises(ArchiveError, match="record staticrt/weights/0, which holds weights, is damaged"):
        staticrt.load(bytes(data))
    assert staticrt.load(bytes(data), check_weights=False).name == "Model"


def test_nothing_is_unpickled_or_imported(tmp_path, monkeypatch, answer, saved):
    path = tmp_path / "model.pt2"
    torch.manual_seed(0)
    with torch.no_grad():
        staticrt.save(staticrt.compile(Model().eval()), path, (X,))

    def forbidden(*args, **kwargs):
        raise AssertionError("unpickled")

    for owner, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(owner, name, forbidden)
    with torch.no_grad():
        torch.testing.assert_close(staticrt.load(path)(X)["y"], answer[0])


@pytest.mark.parametrize(
    "structure",
    [
        "[" * 100000,
        '{"arguments": "*"}',
        '{"arguments": {"node": [], "type": "os:system", "context": null}, "results": {}, "constants": []}',
        '{"arguments": {"tuple": [{"ref": 7}, {"dict": [], "keys": []}]}, "results": {"result": "*", "writes": []}, "constants": []}',
    ],
)
def test_hostile_structures_are_errors(structure, saved, monkeypatch):
    """The JSON inside is read without trust too."""
    from staticrt.archive.programs import SavedTrace
    from staticrt.archive.structures import Decoder

    class Native:
        leaves = ()
        model_tensors = ()
        guarded_leaves = ()
        outputs = ()

    native = Native()
    native.structure = structure
    with pytest.raises(ArchiveError):
        SavedTrace(native, Decoder())
