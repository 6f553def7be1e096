"""Wire formats of compressed gradients; ``docs/wire-format.md`` is the specification.

    codec = codecs.get("int8", block=256)
    payload = codecs.encode(codec, gradient, codecs.key(seed, step, rank))
    codecs.decode(payload, total, codecs.ADD)

A payload names its codec.
"""

from __future__ import annotations

from paceline.codecs.api import decode, encode, get, max_payload_bytes, moments_of, names, payload_bytes, peak_of
from paceline.codecs.arrays import vector
from paceline.codecs.codec import ADD, SET, SUBTRACT, Codec
from paceline.codecs.container import PayloadError
from paceline.codecs.counter import Key, key
from paceline.codecs.threads import set_threads, threads
from paceline.errors import UserError

__all__ = [
    "ADD",
    "SET",
    "SUBTRACT",
    "Codec",
    "Key",
    "PayloadError",
    "UserError",
    "decode",
    "encode",
    "get",
    "key",
    "max_payload_bytes",
    "moments_of",
    "names",
    "payload_bytes",
    "peak_of",
    "set_threads",
    "threads",
    "vector",
]
