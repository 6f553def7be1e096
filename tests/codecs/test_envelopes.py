"""Room, header and checks of payloads that fused passes write: those of the general way."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import codecs
from paceline.codecs import PayloadError, envelopes, native

INT8 = codecs.get("int8", block=64)
pytestmark = pytest.mark.skipif(not native.available(), reason="needs the extension: make native")


def test_a_sealed_payload_is_that_of_the_api():
    good = codecs.encode(INT8, np.arange(100, dtype=np.float32))
    out = np.zeros(200, np.uint8)
    target = envelopes.room(out, INT8, 100)
    target[32:] = good[32:]
    assert envelopes.seal(out, target, INT8, 100).tobytes() == good.tobytes()
    header, sums, body = envelopes.opened(good)
    assert (header.codec, header.elements, body.size) == (INT8.code, 100, 108)
    envelopes.check(header, sums, body, INT8, 100)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="out has 139 bytes; 100 elements take 140"):
        envelopes.room(np.zeros(139, np.uint8), INT8, 100)
    header, sums, body = envelopes.opened(codecs.encode(INT8, np.ones(100, np.float32)))
    with pytest.raises(PayloadError, match="100 elements in 108 bytes, 99 are expected"):
        envelopes.check(header, sums, body, INT8, 99)
    with pytest.raises(PayloadError, match="checksum"):
        envelopes.check(header, (sums[0] + 1, sums[1]), body, INT8, 100)
    with pytest.raises(PayloadError, match="shorter than"):
        envelopes.opened(b"PACE")
