"""Fuzz every codec's decoder, guided by coverage, with atheris, if it is installed (it is no dependency).

    PYTHONPATH=src:tests python tests/fuzz/decoders.py -max_total_time=300 -rss_limit_mb=4000

Byte 0 chooses the codec, byte 1 the number of values, bytes 2-9 are the parameters, the rest is the body. Each backend decodes
it before memory that traps, and ``decode`` the whole payload; the process ends at the first crash, at any exception but
PayloadError, and where native and NumPy do not agree.
"""

from __future__ import annotations

import sys

import atheris
import numpy as np

with atheris.instrument_imports(include=["paceline.codecs"]):
    from every_backend import decoded, labels
    from paceline.codecs import PayloadError, container, decode, set_threads
    from paceline.codecs.registry import BY_CODE

BACKENDS = labels()
CODES = sorted(BY_CODE)


def one(data: bytes) -> None:
    """One input."""
    if len(data) < 10:
        return
    code, count, parameters, body = CODES[data[0] % len(CODES)], data[1], data[2:10], data[10:]
    head = container.header_bytes(container.Header(code, count, parameters))
    payload = bytearray(container.HEADER_BYTES) + body
    container.write_header(np.frombuffer(payload, np.uint8), head, container.checksum(head, np.frombuffer(body, np.uint8)))
    try:
        whole = decode(bytes(payload)).tobytes()
    except PayloadError:
        whole = None
    try:
        codec = BY_CODE[code].of(parameters)
    except PayloadError:
        return
    least, most = codec.body_range(count)
    if not least <= len(body) <= most:
        return
    results = {whole}
    for backend in BACKENDS:
        try:
            results.add(decoded(backend, codec, body, count).tobytes())
        except PayloadError:
            results.add(None)
    if len(results) > 1:
        raise AssertionError(f"backends do not agree: {data.hex()}")


if __name__ == "__main__":
    set_threads(1)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
