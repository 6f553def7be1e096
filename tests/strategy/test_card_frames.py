"""Bytes of what a card compresses, against packets that are written out one by one."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategy import COMPRESSIONS, FP32
from paceline.strategy.compression.card_frames import message_bytes, segment_bytes


def packets(values: int, bits: float, block: int) -> int:
    """Bytes on the line of the packets of a message, headers and all."""
    total = 0
    for start in range(0, values, 362):
        here = min(362, values - start)
        groups = -(-here // 8)
        body = -(-int(here * bits + (groups * 8 - here) * 2) // 8) + block
        total += 14 + 20 + 32 + min(12 + 4 + body, 4 * here)
    return total


HEADER_BYTES = 32
"""Of a header: docs/wire-format.md, "A message"."""


@given(values=st.integers(0, 10_000), bits=st.integers(2, 34), block=st.sampled_from((0, 2)))
def test_a_message_takes_what_its_packets_take(values: int, bits: int, block: int) -> None:
    found = message_bytes(values, bits, block, HEADER_BYTES)
    assert found == (HEADER_BYTES + ceil(packets(values, bits, block) * 1448 / 1514) if values else 0)


def test_headers_stay_so_a_ratio_of_16_becomes_8() -> None:
    """A full packet of 362 values of 2 bits: 66 + 16 + 92 of 1,514 bytes."""
    assert segment_bytes(362, 2, 0) == 66 + 16 + 92
    assert message_bytes(362 * 1000, 2, 0, 0) == pytest.approx(1448_000 * 174 / 1514, abs=1)


@pytest.mark.parametrize("name", ["inceptionn", "inceptionn-scaled"])
@given(values=st.integers(1, 10**6), ratio=st.floats(1, 16))
def test_a_format_in_a_card_is_never_longer_than_fp32_and_tells_no_sizes(name: str, values: int, ratio: float) -> None:
    fmt = replace(COMPRESSIONS[name].configured({"ratio": ratio}).format, in_card=True)
    assert fmt.message_bytes(values) <= FP32.message_bytes(values) + 66  # headers of the last packet, which is not full
    assert not fmt.tells_sizes and replace(fmt, in_card=False).tells_sizes
