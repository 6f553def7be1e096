"""Scalars of a TensorBoard event file: records of TFRecord, and of each its message ``Event``.

TFRecord (TensorFlow 2.20, tensorflow/core/lib/io/record_writer.h): length as uint64, masked CRC-32C of the length, data, masked
CRC-32C of the data, all little-endian. Messages (core/util/event.proto, framework/summary.proto, framework/tensor.proto):
``Event`` with wall_time 1, step 2, summary 5; ``Summary`` with value 1; ``Summary.Value`` with tag 1, simple_value 2, tensor 8;
``TensorProto`` with dtype 1, tensor_content 4, float_val 5, double_val 6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from paceline.calibration.imports.text_lines import unreadable
from paceline.errors import UserError

LARGEST = 1 << 26
"""Most bytes of a record: 64 MiB. A longer length is damage."""
CHECKED = 1 << 10
"""Longest data whose checksum is verified. Scalars are shorter, and pictures would take minutes."""
_POLYNOMIAL = 0x82F63B78
_FLOAT, _DOUBLE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


@dataclass(frozen=True)
class Scalar:
    """One scalar of an event file."""

    tag: str
    step: int
    wall_s: float
    value: float


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord stores it: rotated by 15 bits, plus a constant."""
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_event_file(first: bytes) -> bool:
    """Return whether a file that starts so is one of TFRecord."""
    return len(first) >= 12 and struct.unpack("<I", first[8:12])[0] == masked_crc32c(first[:8])


def read_scalars(path: Path) -> Iterator[Scalar]:
    """Yield the scalars of an event file in order. A record that is cut at the end, as in a live run, ends the file.

    Raises:
        UserError: it cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as stream:
            for data in _records(stream, path.name):
                yield from _event(data)
    except OSError as error:
        raise unreadable(path, error) from error
    except (struct.error, IndexError, UnicodeDecodeError):
        raise UserError(f"{path.name} is damaged: a record is no event", "copy it again") from None


def _records(stream: BufferedReader, name: str) -> Iterator[bytes]:
    number = 0
    while len(head := stream.read(12)) == 12:
        number += 1
        length, checksum = struct.unpack("<QI", head)
        if checksum != masked_crc32c(head[:8]) or length > LARGEST:
            raise UserError(f"{name} is damaged: record {number} has another checksum than its length", "copy it again")
        data, tail = stream.read(length), stream.read(4)
        if len(data) < length or len(tail) < 4:
            return
        if length <= CHECKED and struct.unpack("<I", tail)[0] != masked_crc32c(data):
            raise UserError(f"{name} is damaged: record {number} has another checksum than its data", "copy it again")
        yield data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            value, at = data[at : at + size], at + size
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise IndexError(kind)
        yield key >> 3, value


def _event(data: bytes) -> Iterator[Scalar]:
    wall, step, summaries = 0.0, 0, []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            wall = struct.unpack("<d", value)[0]
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes) and (scalar := _scalar(value)):
                yield Scalar(scalar[0], step, wall, scalar[1])


def _scalar(data: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for name, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if name == 1:
            tag = value.decode()
        elif name == 2:
            number = struct.unpack("<f", value)[0]
        elif name == 8:
            number = _tensor(value)
    return None if number is None else (tag, number)


def _tensor(data: bytes) -> float | None:
    """Return the value of a tensor of one float; None for any other tensor."""
    kind, content = 0, b""
    for name, value in _fields(data):
        if name == 1 and isinstance(value, int):
            kind = value
        elif name in (4, 5, 6) and isinstance(value, bytes):
            content = value
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind)
    return struct.unpack(form, content)[0] if form and len(content) == struct.calcsize(form) else None
