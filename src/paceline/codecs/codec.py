"""What every codec is: parameters, a layout, and the two kernels that write and read it.

A subclass holds the parameters and the reference kernels in NumPy, which are the specification. ``native`` and ``triton``
compute the same bits faster. This class adds what is common: input in any form, the header, the checksum, the backend.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from paceline.codecs import container, counter
from paceline.codecs.container import HEADER_BYTES, Header, PayloadError
from paceline.errors import UserError

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SET, ADD, SUBTRACT = 0, 1, 2
"""What decoding does to ``out``: replace it, add to it, subtract from it."""

FLOATS = ("float32", "float64", "float16")
"""What values are decoded into; computed is fp32."""

NON_FINITE = "NaN or infinity has no form in this codec; send this tensor dense"


class Backend(Protocol):
    """One implementation of all kernels."""

    name: str

    def serves(self, codec: Codec) -> bool:
        """Whether it has kernels for this codec, here."""

    def encode(self, codec: Codec, x: Any, body: Any, key: counter.Key, start: int) -> int:
        """Write the body of ``x``; return its bytes. Raises ValueError for what the codec cannot hold."""

    def decode(self, codec: Codec, body: Any, out: Any, mode: int) -> None:
        """Read a body of exactly ``out.size`` elements. Raises PayloadError for a body that no encoder writes."""

    def checksum(self, head: bytes, body: Any) -> tuple[int, int]:
        """``container.checksum``."""

    def peak(self, x: Any) -> float:
        """max |x|; infinity or NaN when ``x`` holds one; 0 for no element."""

    def sums(self, x: Any) -> tuple[float, float, float]:
        """``ternary.sums``."""


class DeviceBackend(Backend, Protocol):
    """One whose memory the host cannot read: it handles whole payloads, so that nothing waits between body and checksum."""

    def write(self, codec: Codec, x: Any, out: Any, key: counter.Key, start: int) -> int:
        """The payload of ``x`` into ``out``, of exactly the most bytes it can take; returns its bytes. Raises as ``encode``."""

    def read(self, codec: Codec, head: bytes, sums: tuple[int, int], body: Any, out: Any, mode: int) -> None:
        """``decode``, unless the checksums of ``head`` and ``body`` are not ``sums``: then PayloadError, ``out`` unchanged."""


@dataclass(frozen=True, kw_only=True)
class Codec(ABC):
    """A wire format with its parameters.

    Args:
        backend: ``reference``, ``native`` or ``triton``; empty takes the fastest that serves.
    """

    name: ClassVar[str]
    code: ClassVar[int]
    backend: str = ""

    def __post_init__(self) -> None:
        from paceline.codecs import backends

        backends.check(self)

    # What a subclass says.

    def parameters(self) -> bytes:
        """At most 8 bytes that a decoder needs beside the body."""
        return b""

    @classmethod
    def of(cls, parameters: bytes) -> Self:
        """The codec that wrote a payload with these parameters (8 bytes). Raises PayloadError for impossible ones."""
        if any(parameters):
            raise PayloadError(f"{cls.name} has no parameters, the payload has {parameters.hex()}")
        return cls()

    @abstractmethod
    def body_range(self, count: int) -> tuple[int, int]:
        """The least and the most bytes that the body of ``count`` elements can take; equal for a layout of fixed size."""

    def resolved(self, x: F32) -> Self:
        """This codec with the parameters that depend on the values of ``x``."""
        return self

    @abstractmethod
    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """The reference: write ``x`` into ``body``, return the bytes written. Element k takes draw ``start + k`` of ``key``."""

    @abstractmethod
    def decode_body(self, body: Bytes, count: int) -> F32:
        """The reference: the ``count`` values of a body. Raises PayloadError for a body that no encoder writes."""

    def decode_onto(self, body: Bytes, out: F32, mode: int) -> None:
        """The reference: put the values of a body into ``out``, add or subtract them. Raises as ``decode_body``."""
        apply(out, self.decode_body(body, out.shape[0]), mode)

    # What all have in common.

    def payload_bytes(self, count: int) -> int | None:
        """Exact length of the payload of ``count`` elements, header included; None where it depends on their values."""
        least, most = self.body_range(count)
        return HEADER_BYTES + most if least == most else None

    def max_payload_bytes(self, count: int) -> int:
        """Length that the payload of ``count`` elements never exceeds; what ``out`` of ``encode`` must hold."""
        return HEADER_BYTES + self.body_range(count)[1]

    def encode(self, x: Any, seed: int = 0, step: int = 0, rank: int = 0, *, start: int = 0, out: Any = None) -> Bytes:
        """``x`` as a payload: a uint8 array that says itself what it holds.

        Args:
            x: 1-D, NumPy or torch, of any float type and strides; the codec computes in fp32.
            seed, step, rank: of the stochastic rounding; equal ones give equal bytes on every machine and backend.
            start: index of the first element among the draws, for a part of a larger tensor.
            out: contiguous uint8 array or tensor of at least ``max_payload_bytes``, on the device of ``x``, to write into; the
                result is a view of it, nothing is allocated.

        Raises:
            ValueError: ``x`` is not 1-D or complex, or holds what the codec has no form for (NaN, infinity); ``out`` is too
                small or no such array.
        """
        payload: Bytes = self.encode_with(vector(x), counter.key(seed, step, rank), start, out)
        return payload

    def encode_with(self, x: F32, key: counter.Key, start: int, out: Any = None) -> Any:
        """``encode`` of a contiguous fp32 array with a ready key."""
        from paceline.codecs import backends

        kernels = backends.pick(self, x)
        codec = self.resolved(x)
        room = codec.max_payload_bytes(x.shape[0])
        if out is None:
            out = target = backends.empty_bytes(x, room)
        else:
            target = backends.writable(out, x, ("uint8",))
            if target.shape[0] < room:
                raise ValueError(f"out has {target.shape[0]} bytes; {x.shape[0]} elements may take {room}")
        if not isinstance(target, np.ndarray):
            return out[: kernels.write(codec, x, target[:room], key, start)]
        body = target[HEADER_BYTES:room]
        written = kernels.encode(codec, x, body, key, start)
        head = container.header_bytes(Header(codec.code, x.shape[0], codec.parameters()))
        container.write_header(target, head, kernels.checksum(head, body[:written]))
        return out[: HEADER_BYTES + written]

    def decode(self, payload: Any, *, out: Any = None) -> F32:
        """The fp32 values of a payload, of the length of what was encoded.

        Args:
            payload: bytes, or a uint8 array or tensor.
            out: writable 1-D array or tensor of fp32 (fp16 and fp64 are rounded to), where the payload is; it is the result.

        Raises:
            PayloadError: truncated, corrupted, another codec or version.
            ValueError: ``out`` has another length or is no such array.
        """
        values: F32 = decode_into(payload, out, SET, only=(type(self),), backend=self.backend)
        return values

    def decode_add(self, payload: Any, out: Any) -> None:
        """``out += decode(payload)``. Raises as ``decode``; ``out`` is then unchanged, unless the body itself is malformed."""
        decode_into(payload, out, ADD, only=(type(self),), backend=self.backend)


def decode_into(payload: Any, out: Any, mode: int = SET, *, only: tuple[type[Codec], ...] = (), backend: str = "") -> Any:
    """Decode a payload of any codec (of ``only``), as its header says, into ``out`` (made when None).

    Raises as ``Codec.decode``.
    """
    from paceline.codecs import backends

    data = backends.as_bytes(payload)
    header, sums = container.read_header(backends.host_bytes(data[:HEADER_BYTES]))
    kind = backends.kind(header.codec)
    if only and kind not in only:
        raise PayloadError(f"a payload of codec {kind.name!r}, not {' or '.join(repr(k.name) for k in only)}")
    codec = kind.of(header.parameters)
    body = data[HEADER_BYTES:]
    least, most = codec.body_range(header.elements)
    if not least <= body.shape[0] <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise PayloadError(f"{header.elements} elements take {expected} bytes, the payload holds {body.shape[0]}")
    kernels = backends.pick(codec, data, backend)
    target = None if out is None else backends.writable(out, data, FLOATS)
    if target is not None and target.shape[0] != header.elements:
        raise ValueError(f"out has shape {tuple(target.shape)}, the payload {header.elements} elements")
    head = container.header_bytes(header)
    host = isinstance(data, np.ndarray)
    if host and kernels.checksum(head, body) != sums:
        raise PayloadError(container.CHANGED)
    if target is None:
        out = target = backends.empty_floats(data, header.elements)
    if host:
        kernels.decode(codec, body, target, mode)
    else:  # on a GPU: checksum and values without waiting for it in between
        kernels.read(codec, head, sums, body, target, mode)
    return out


def vector(x: Any) -> F32:
    """``x`` as a contiguous 1-D fp32 array: NumPy, or a torch tensor on its own device.

    Raises:
        ValueError: another shape, or what are no real numbers.
    """
    if is_tensor(x):
        if x.is_complex():
            raise ValueError(f"encode takes real numbers, got {x.dtype}")
        if x.layout is not sys.modules["torch"].strided:
            raise ValueError(f"encode takes a dense tensor, got {x.layout}; call to_dense() first")
        tensor = x.detach().float().contiguous()
        values: Any = tensor.numpy() if tensor.device.type == "cpu" else tensor
    else:
        given = np.asarray(x)
        if given.dtype.kind in "cmM":
            raise ValueError(f"encode takes real numbers, got {given.dtype}")
        try:
            values = np.ascontiguousarray(given, dtype=np.float32)
        except TypeError as error:
            raise ValueError(f"encode takes real numbers: {error}") from None
    if values.ndim != 1:
        raise ValueError(f"encode takes a 1-D array, got shape {tuple(values.shape)}; flatten it first")
    return values  # type: ignore[no-any-return]


def is_tensor(x: Any) -> bool:
    """Whether it is torch's; imports no torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def apply(out: F32, values: F32, mode: int) -> None:
    """The reference's last step: put ``values`` into ``out``, add or subtract them."""
    if mode == SET:
        out[:] = values
    elif mode == ADD:
        out += values
    else:
        out -= values


def legal(condition: bool, message: str, fix: str) -> None:
    """Raises UserError for an option outside its range."""
    if not condition:
        raise UserError(message, fix)
