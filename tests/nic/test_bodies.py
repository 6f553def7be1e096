"""Bodies of frames by the codec: without a directory, and each block's exponent in front of its bursts."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import codecs
from paceline.nic.bodies import codec, decoded, encoded, header


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_body_is_the_payload_without_header_and_directory(backend):
    values = np.linspace(-2, 2, 37, dtype=np.float32)
    for scaled in (False, True):
        payload = codecs.encode(codec(8, scaled), values).tobytes()
        assert encoded(values, 8, scaled, backend) == payload[36:]
        assert decoded(values, 8, scaled, backend).tobytes() == codecs.decode(codecs.encode(codec(8, scaled), values)).tobytes()


def test_blocks_of_the_scaled_format_stand_one_behind_the_other():
    values = np.concatenate([np.full(1024, 0.75), np.zeros(1024), np.full(3, 96.0)]).astype(np.float32)
    body = encoded(values, 6, True)
    assert body[:2] == (0).to_bytes(2, "little")
    first = 2 + 128 * 10  # an exponent, and bursts of eight one-byte values
    assert body[first : first + 2] == b"\x00\x80"  # a block of zeros is its exponent
    assert body[first + 2 : first + 4] == (7).to_bytes(2, "little")
    assert len(body) == first + 2 + 2 + 2 + 3
    assert decoded(values, 6, True).tobytes() == values.tobytes()


def test_no_values_have_no_body():
    assert encoded(np.empty(0, np.float32), 8, False) == encoded(np.empty(0, np.float32), 8, True) == b""


def test_headers_say_what_they_are():
    assert header(2)[12:16] == b"\x08\x00\x45\x28" and len(header(2)) == 64
    assert header(1, marked=False)[15] == 0
    traffic = header(1, ipv6=True)
    assert traffic[12:14] == b"\x86\xdd" and (traffic[14] & 15) << 4 | traffic[15] >> 4 == 0x28
