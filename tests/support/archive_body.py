"""The body of an archive's record `program.bin` as plain objects, and back to bytes with a fitting checksum.

Written from the format alone (csrc/archive/program_record.cpp, trace_record.cpp), so that files can be made that no builder
would make.
"""

from __future__ import annotations

import io
import struct
import zipfile
from types import SimpleNamespace as Fields
from typing import ClassVar

from staticrt.native import _C

HEADER_BYTES = 32  # magic, versions, size, checksum


class _Reader:
    """Reads fields in order."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def items(self, read):
        return [read(self) for _ in range(self.number("Q"))]

    def record(self, layout):
        return Fields(**{name: kind.read(self) for name, kind in layout.items()})


class _Number:
    def __init__(self, code):
        self.code = code

    def read(self, source):
        return source.number(self.code)

    def write(self, value):
        bits = 8 * struct.calcsize("<" + self.code)
        if self.code == "d":
            return struct.pack("<d", value)
        value &= (1 << bits) - 1
        return value.to_bytes(bits // 8, "little")


class _Text:
    def read(self, source):
        return source.text()

    def write(self, value):
        return struct.pack("<Q", len(value)) + value


class _Items:
    def __init__(self, kind):
        self.kind = kind

    def read(self, source):
        return source.items(self.kind.read)

    def write(self, values):
        return struct.pack("<Q", len(values)) + b"".join(map(self.kind.write, values))


class _Record:
    def __init__(self, **layout):
        self.layout = layout

    def read(self, source):
        return source.record(self.layout)

    def write(self, value):
        return b"".join(kind.write(getattr(value, name)) for name, kind in self.layout.items())


class _Constant:
    """A tag, and what it announces: (tag, payload)."""

    def read(self, source):
        tag = source.number("B")
        return tag, self._payload(tag).read(source) if tag in self.payloads else None

    def write(self, constant):
        tag, payload = constant
        return bytes([tag]) + (self._payload(tag).write(payload) if tag in self.payloads else b"")

    def _payload(self, tag):
        return self.payloads[tag]

    payloads: ClassVar[dict] = {}


class _Maybe:
    def __init__(self, kind):
        self.kind = kind

    def read(self, source):
        return self.kind.read(source) if source.number("B") else None

    def write(self, value):
        return b"\0" if value is None else b"\1" + self.kind.write(value)


class _Later:
    """A kind that is defined further down."""

    def read(self, source):
        return PROGRAM.read(source)

    def write(self, value):
        return PROGRAM.write(value)


U8, U32, I32, U64, I64, F64 = map(_Number, ["B", "I", "i", "Q", "q", "d"])
TEXT, INTS, CONSTANT = _Text(), _Items(I64), _Constant()
BOOL, INT, DOUBLE, STRING, TENSOR, LIST = 1, 2, 3, 5, 7, 9
_Constant.payloads = {
    BOOL: U8,
    INT: I64,
    DOUBLE: F64,
    4: _Record(real=F64, imag=F64),
    STRING: TEXT,
    6: TEXT,
    TENSOR: U32,
    LIST: _Record(element=U8, items=_Items(CONSTANT)),
}
INFO = _Record(name=TEXT, is_tensor=U8, dtype=U8, device=U8)
NODE = _Record(
    op=U32,
    name=TEXT,
    where=TEXT,
    unpacks_list=U8,
    has_effects=U8,
    args=_Items(_Record(is_list=U8, values=_Items(U32))),
    outputs=_Items(INFO),
    aliases=_Items(_Record(output=U32, arg=U32, may=U8)),
    written=_Items(U32),
    bodies=_Items(_Later()),
)
PROGRAM = _Record(
    ops=_Items(_Record(name=TEXT, schema=TEXT)),
    inputs=_Items(INFO),
    constants=_Items(_Record(name=TEXT, value=CONSTANT)),
    nodes=_Items(NODE),
    outputs=_Items(U32),
)
TRACE = _Record(
    program=PROGRAM,
    model_tensors=_Items(U32),
    leaves=_Items(
        _Record(
            kind=U8,
            name=TEXT,
            dtype=U8,
            dim=I64,
            strided=U8,
            layout=INTS,
            constant=TEXT,
            input=I32,
            same=I32,
            empty_dims=U64,
            device=U8,
        )
    ),
    symbols=_Items(_Record(name=TEXT, leaf=U32, prop=U8, dim=U32)),
    guards=_Maybe(PROGRAM),
    guard_texts=_Items(TEXT),
    autocast=TEXT,
    outputs=_Items(I32),
    structure=TEXT,
    packed=_Items(_Record(key=TEXT, tensor=U32)),
    choices=_Items(_Record(kind=TEXT, key=INTS, choice=I64)),
    decided=U8,
    random=U8,
    asks_layout=U8,
    plans=_Items(_Record(key=U64, lower_bound=I64, offsets=INTS)),
)
BODY = _Record(
    staticrt_version=TEXT,
    torch_version=TEXT,
    cpu_capability=TEXT,
    cpu_features=_Items(TEXT),
    name=TEXT,
    calling=TEXT,
    machine=TEXT,
    devices=_Items(TEXT),
    storages=_Items(_Record(name=TEXT, size=U64, sum=U64)),
    tensors=_Items(_Record(storage=U32, device=U8, dtype=U8, sizes=INTS, strides=INTS, offset=I64)),
    weights=_Items(_Record(name=TEXT, kind=U8, tensor=U32)),
    traces=_Items(TRACE),
)


def record_of(data, name=_C.ARCHIVE_RECORD):
    """Where a record's bytes are: (offset, size)."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (info,) = (i for i in archive.infolist() if i.filename.split("/", 1)[1] == name)
    at = info.header_offset
    name_bytes, extra_bytes = struct.unpack("<HH", data[at + 26 : at + 30])
    return at + 30 + name_bytes + extra_bytes, info.file_size


def checksum(body):
    """As csrc/archive/bytes.cpp."""
    mask, multiplier = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def step(lane, word):
        product = (lane ^ word) * multiplier & mask
        return (product << 29 | product >> 35) & mask

    lanes = [1, 2, 3, 4]
    whole = len(body) // 32 * 32
    for start in range(0, whole, 32):
        lanes = [
            step(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", body, start), strict=True)
        ]
    for index, start in enumerate(range(whole, len(body), 8)):
        word = int.from_bytes(body[start : start + 8], "little")
        lanes[index] = step(lanes[index], word)
    result = len(body)
    for lane in lanes:
        result = step(result, lane)
    return result ^ result >> 32


def read_body(data):
    """The body of an archive's bytes."""
    offset, size = record_of(data)
    reader = _Reader(data[offset + HEADER_BYTES : offset + size])
    body = BODY.read(reader)
    assert reader.at == size - HEADER_BYTES
    return body


def with_fields(data, body):
    """The archive with this body; its other records as they were."""
    offset, _size = record_of(data)
    return with_bytes(data, data[offset : offset + HEADER_BYTES], BODY.write(body))


def with_bytes(data, header, body):
    record = header[:16] + struct.pack("<QQ", len(body), checksum(body)) + body
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            own = info.filename.split("/", 1)[1] == _C.ARCHIVE_RECORD
            new.writestr(info.filename, record if own else old.read(info))
    return made.getvalue()


def add_constant(program, value):
    """The number of a new constant; values that come after it move up by one."""
    number = len(program.inputs) + len(program.constants)
    program.constants.append(Fields(name=b"", value=value))
    for node in program.nodes:
        for arg in node.args:
            arg.values = [v + (v >= number) for v in arg.values]
    program.outputs = [v + (v >= number) for v in program.outputs]
    return number
