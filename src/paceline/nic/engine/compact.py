"""Eight payloads of 0, 1, 2 or 4 bytes joined without gaps, and split again, by trees of three levels."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Mux, Signal, Value

from paceline.nic.engine.lanes import payload_bytes


def moved_up(value: Value, by: Value, most: int) -> Value:
    """Return the value shifted up by ``by`` bytes, from 0 to ``most``, a power of two."""
    result = Cat(value, Const(0, 8 * most))
    for level in range(most.bit_length() - 1):
        step = 8 << level
        result = Mux(by[level], Cat(Const(0, step), result)[: len(result)], result)
    top = most.bit_length() - 1
    return Mux(by[top], Cat(Const(0, 8 * most), value), result)


def moved_down(value: Value, by: Value, most: int, bits: int) -> Value:
    """Return ``bits`` bits of the value from byte ``by`` on; ``by`` is from 0 to ``most``, a power of two."""
    result = Cat(value, Const(0, max(0, bits + 8 * most - len(value))))
    for level in range(most.bit_length()):
        result = Mux(by[level], result >> (8 << level), result)
    return result[:bits]


def joined(parts: Sequence[Value], sizes: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """Join each pair of parts on one level, and return them with their sizes in bytes. Bytes beyond a part's size are zero."""
    most = len(parts[0]) // 8
    values = [
        Cat(low, Const(0, 8 * most)) | moved_up(high, size, most)
        for low, high, size in zip(parts[::2], parts[1::2], sizes[::2], strict=True)
    ]
    return values, [a + b for a, b in zip(sizes[::2], sizes[1::2], strict=True)]


def parted(value: Value, size: Value, most: int) -> tuple[Value, Value]:
    """Split a part on one level: the lower part of up to ``most`` bytes, of which ``size`` are valid, and the upper part."""
    return value[: 8 * most], moved_down(value, size, most, 8 * most)


def lower_sizes(tags: Value, level: int) -> list[Value]:
    """Return the bytes of the lower half of each part after ``level`` halvings of eight tags' payloads."""
    own = 4 >> level  # tags of a half
    return [total_bytes(tags[4 * own * part : 4 * own * part + 2 * own]) for part in range(1 << level)]


def total_bytes(tags: Value) -> Value:
    """Return the total bytes of the payloads of tags, two bits each."""
    sizes = [payload_bytes(tags[i : i + 2]) for i in range(0, len(tags), 2)]
    while len(sizes) > 1:
        sizes = [a + b for a, b in zip(sizes[::2], sizes[1::2], strict=True)]
    return sizes[0]


def registers(values: Sequence[Value], name: str) -> list[Signal]:
    """Return a register for each value."""
    return [Signal(len(value), name=f"{name}{index}") for index, value in enumerate(values)]
