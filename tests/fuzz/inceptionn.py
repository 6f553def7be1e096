"""Coverage-guided fuzzing of both INCEPTIONN decoders with atheris, where it is installed (it is no dependency):

    PYTHONPATH=src:tests python tests/fuzz/inceptionn.py -max_total_time=300 -rss_limit_mb=4000

Byte 0 chooses codec and bound, byte 1 the number of values, the rest is the body. Each backend decodes it before memory that
traps; the process ends at the first crash, at any exception but PayloadError, and where native and NumPy do not agree.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["paceline.codecs"]):
    from every_backend import decoded, labels
    from paceline.codecs import PayloadError, get, set_threads

BACKENDS = labels()


def one(data: bytes) -> None:
    """One input."""
    if len(data) < 2:
        return
    codec = get(("inceptionn", "inceptionn-scaled")[data[0] & 1], bound=2.0 ** -(1 + (data[0] >> 1) % 14))
    body, count = data[2:], data[1]
    least, most = codec.body_range(count)
    if not least <= len(body) <= most:
        return
    results = set()
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
