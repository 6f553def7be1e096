"""Event files of TensorBoard. Oracles: vectors of RFC 3720, a file that TensorBoard 2.21 wrote, and bytes by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from paceline.calibration.imports.event_file import crc32c, is_event_file, masked_crc32c, read_scalars
from paceline.errors import UserError

WRITTEN = Path(__file__).parent / "files" / "events.out.tfevents.1712345678.node.1.0"
"""By ``torch.utils.tensorboard.SummaryWriter``: a text, a histogram, scalars in the old form and, as tensors, in the new."""


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_checksum_is_castagnolis(data: bytes, value: int) -> None:
    assert crc32c(data) == value


def test_what_tensorboard_writes_is_read() -> None:
    scalars = list(read_scalars(WRITTEN))
    assert [(item.tag, item.step) for item in scalars[:2]] == [("train/loss", 10), ("train/grad_norm", 10)]
    assert len(scalars) == 10
    for number, item in enumerate(scalars[::2]):
        assert (item.step, item.wall_s) == (10 * number + 10, 1712345678.25 + 15.5 * number)
        assert item.value == pytest.approx(2.2 - 0.03 * number, rel=1e-6)
    assert {item.value for item in scalars[1::2]} == {1.0}


def record(data: bytes) -> bytes:
    """One record, by the layout that record_writer.h describes."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def event(step: int, wall: float, tag: bytes, value: float) -> bytes:
    """One event by hand: field numbers and wire types of event.proto and summary.proto."""
    scalar = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    return b"\x09" + struct.pack("<d", wall) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary


def test_bytes_by_hand_are_read_and_damage_is_seen(tmp_path: Path) -> None:
    place = tmp_path / "a.bin"
    one, two = record(event(1, 10.0, b"loss", 2.0)), record(event(2, 13.0, b"loss", 1.5))
    place.write_bytes(one + two)
    assert [(item.step, item.wall_s, item.tag, item.value) for item in read_scalars(place)] == [
        (1, 10.0, "loss", 2.0),
        (2, 13.0, "loss", 1.5),
    ]
    place.write_bytes(one + two[:-7])  # a run that still writes
    assert len(list(read_scalars(place))) == 1
    assert is_event_file(one) and not is_event_file(b"iteration 1/100 |") and not is_event_file(b"")
    for at, said in ((3, "than its length"), (20, "than its data")):
        damaged = bytearray(one + two)
        damaged[len(one) + at] ^= 1
        place.write_bytes(damaged)
        with pytest.raises(UserError, match=f"damaged: record 2 has another checksum {said}"):
            list(read_scalars(place))
    place.write_bytes(record(b"\x0a\xff"))
    with pytest.raises(UserError, match="a record is no event"):
        list(read_scalars(place))
    with pytest.raises(UserError, match="cannot read"):
        list(read_scalars(tmp_path / "none"))
