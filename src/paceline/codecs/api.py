"""Interface of the codecs: find a codec by name, encode values, decode payloads.

A payload is a header of 32 bytes and a body (``container``). The fastest backend with kernels for it writes and reads it.
"""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs import arrays, backends, container, counter
from paceline.codecs.codec import SET, Codec
from paceline.codecs.container import HEADER_BYTES, Header, PayloadError
from paceline.codecs.moments import Moments, moments
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.registry import BY_CODE, BY_NAME
from paceline.errors import UserError, unknown

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((Integral,), "a whole number"),
    "float": ((Real,), "a number"),
    "float | None": ((Real, type(None)), "a number or None"),
}
"""Types by the annotation of a codec's field."""

FLOATS = ("float32", "float64", "float16")
"""Legal types of decoded values; the computation uses fp32."""

_KEY = counter.key(0, 0)


def names() -> list[str]:
    """Return the names of all codecs."""
    return sorted(BY_NAME)


def get(name: str, **options: Any) -> Codec:
    """Return the codec of that name. Raises: UserError: an unknown name or option, with the nearest; an option of another type
    or outside its range.
    """
    if not isinstance(name, str) or name not in BY_NAME:
        raise unknown("codec", str(name), BY_NAME)
    kind = BY_NAME[name]
    known = {f.name: str(f.type) for f in fields(kind)}
    for option, value in options.items():
        if option not in known:
            raise unknown(f"option of {name}", option, known)
        types, wanted = _TYPES[known[option]]
        if not isinstance(value, types):
            raise UserError(f"option {option} of {name} is {value!r}", f"give {wanted}")
    return kind(**options)


def payload_bytes(codec: Codec, count: int) -> int | None:
    """Return the exact length of the payload of ``count`` elements, header included; None if it depends on their values."""
    least, most = codec.body_range(count)
    return HEADER_BYTES + most if least == most else None


def max_payload_bytes(codec: Codec, count: int) -> int:
    """Return the largest length of the payload of ``count`` elements, which ``out`` of ``encode`` must hold."""
    return HEADER_BYTES + codec.body_range(count)[1]


def encode(codec: Codec, values: Any, key: counter.Key = _KEY, start: int = 0, *, out: Any = None, backend: str = "") -> Bytes:
    """Encode ``values`` as a self-describing payload (uint8).

    Args:
        values: 1-D, NumPy or torch, of any float type and strides; the codec computes in fp32.
        key: key of the stochastic rounding, ``counter.key(seed, step, rank)``. Equal keys give equal bytes on every machine and
            backend.
        start: index of the first element among the draws, for a part of a larger tensor.
        out: contiguous uint8 array or tensor of at least ``max_payload_bytes``, on the device of ``values``, to write into; the
            result is a view of it, nothing is allocated.
        backend: ``reference``, ``native`` or ``triton``; by default the fastest that serves.

    Raises:
        ValueError: ``values`` is not 1-D or complex, or holds values that the codec cannot represent (NaN, infinity); ``out``
            is too small or no such array.
        UserError: a backend that is unknown or not here.
    """
    x = arrays.vector(values)
    kernels = backends.pick(codec, x, backend)
    codec = codec.resolved(x, kernels)
    room = max_payload_bytes(codec, x.shape[0])
    if out is None:
        out = target = arrays.empty_bytes(x, room)
    else:
        target = arrays.writable(out, x, ("uint8",))
        if target.shape[0] < room:
            raise ValueError(f"out has {target.shape[0]} bytes; {x.shape[0]} elements may take {room}")
    payload: Bytes
    if not isinstance(target, np.ndarray):  # on a GPU
        payload = out[: kernels.write(codec, x, target[:room], key, start)]
        return payload
    body = target[HEADER_BYTES:room]
    written = kernels.encode(codec, x, body, key, start)
    head = container.header_bytes(Header(codec.code, x.shape[0], codec.parameters()))
    container.write_header(target, head, kernels.checksum(head, body[:written]))
    payload = out[: HEADER_BYTES + written]
    return payload


def decode(payload: Any, out: Any = None, mode: int = SET, *, only: tuple[type[Codec], ...] = (), backend: str = "") -> F32:
    """Decode a payload into fp32 values.

    The length is compared with the header and the checksum computed before anything is allocated or changed.

    Args:
        payload: bytes, or a uint8 array or tensor, of any codec.
        out: writable 1-D array or tensor of fp32 (fp16 and fp64 are rounded to), where the payload is; it is the result.
        mode: ``SET`` replaces ``out``, ``ADD`` adds to it, ``SUBTRACT`` subtracts from it.
        only: the kinds of codec that are expected; empty for any.
        backend: as for ``encode``.

    Raises:
        PayloadError: truncated, corrupted, another codec or version. ``out`` is unchanged, unless the body itself is malformed.
        ValueError: ``out`` has another length or is no such array, or there is none to add to.
        UserError: a backend that is unknown or not here.
    """
    data = arrays.as_bytes(payload)
    header, sums = container.read_header(arrays.host_bytes(data[:HEADER_BYTES]))
    codec = _codec(header, only)
    body = data[HEADER_BYTES:]
    least, most = codec.body_range(header.elements)
    if not least <= body.shape[0] <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise PayloadError(f"{header.elements} elements take {expected} bytes, the payload holds {body.shape[0]}")
    kernels = backends.pick(codec, data, backend)
    if out is None and mode != SET:
        raise ValueError("there is no out to add to or to subtract from")
    target = None if out is None else arrays.writable(out, data, FLOATS)
    if target is not None and target.shape[0] != header.elements:
        raise ValueError(f"out has shape {tuple(target.shape)}, the payload {header.elements} elements")
    head = container.header_bytes(header)
    host = isinstance(data, np.ndarray)
    if host and kernels.checksum(head, body) != sums:
        raise PayloadError(container.CHANGED)
    if target is None:
        out = target = arrays.empty_floats(data, header.elements)
    if host:
        kernels.decode(codec, body, target, mode)
    else:  # on a GPU: checksum and values without waiting for it in between
        kernels.read(codec, head, sums, body, target, mode)
    values: F32 = out
    return values


def moments_of(values: Any) -> Moments:
    """Return the standard deviation and max |x| of a 1-D array or tensor. Raises as ``encode``."""
    x = arrays.vector(values)
    return moments(x, backends.pick(Fp32(), x))


def peak_of(values: Any) -> float:
    """Return max |x| of a 1-D array or tensor; 0 if empty, infinity or NaN if one is in it. Raises as ``moments_of``."""
    x = arrays.vector(values)
    return float(backends.pick(Fp32(), x).peak(x))


def _codec(header: Header, only: tuple[type[Codec], ...]) -> Codec:
    """Return the codec that wrote a payload. Raises PayloadError for an unknown codec, for one outside ``only``, and as
    ``Codec.of``."""
    if header.codec not in BY_CODE:
        raise PayloadError(f"codec number {header.codec} is unknown to this Paceline: install the same one on every rank")
    kind = BY_CODE[header.codec]
    if only and kind not in only:
        raise PayloadError(f"a payload of codec {kind.name!r}, not {' or '.join(repr(k.name) for k in only)}")
    return kind.of(header.parameters)
