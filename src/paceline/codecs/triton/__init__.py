"""Backend of the GPU kernels in Triton, on CUDA tensors (Tillet, Kung, Cox 2019, "Triton").

Imported only where there is a CUDA device. Work is queued on the current stream; the host waits for the GPU as seldom as the
interface allows, each time for at most 32 bytes:

* encoding: once for the scaler where it is taken from the values, once at the end for whether the codec has a form for all
  values and for how long the payload is. ``fp32`` and ``bf16`` never wait.
* decoding: once for the header, once at the end for whether checksum and body are right. A wrong checksum closes a gate on
  the device, behind which the decoder's stores are masked: ``out`` is unchanged without the host's having waited.

Exchanges use ``queue_write`` and ``queue_read``, which never wait. ``deferred`` reads the states of a whole exchange at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from paceline.codecs import container, counter
from paceline.codecs.codec import ADD, NON_FINITE, SET, Codec
from paceline.codecs.container import HEADER_BYTES, Header, PayloadError
from paceline.codecs.triton import blocks, bursts, dense, headers, launch, moments, ternary, topk
from paceline.codecs.triton.launch import REFUSED, WRITTEN

name = "triton"


class Kernels(NamedTuple):
    """Functions of one codec, which queue kernels without waiting. Bodies are aligned, values fp32 and contiguous.

    Attributes:
        encode: (codec, x, body, key, start, state) -> bytes written, or None if only the state has it.
        decode: (codec, body, out, mode, state); writes nothing if the state's gate is closed.
        refusal: description of values that set the state's REFUSED; empty for a codec that has a form for all.
        serves: returns whether there are kernels for the codec's parameters.
    """

    encode: Callable[[Any, torch.Tensor, torch.Tensor, counter.Key, int, torch.Tensor], int | None]
    decode: Callable[[Any, torch.Tensor, torch.Tensor, int, torch.Tensor], None]
    refusal: str = NON_FINITE
    serves: Callable[[Any], bool] = lambda codec: True


def serves(codec: Codec) -> bool:
    """Return whether this backend has kernels for the codec."""
    kernels = _KERNELS.get(codec.name)
    return kernels is not None and kernels.serves(codec)


def encode(codec: Codec, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int) -> int:
    """Write the body of ``x``; see ``backends.Backend``."""
    with _device(x):
        state, room = launch.state(x), launch.aligned(body)
        written = _KERNELS[codec.name].encode(codec, x, room, key, start, state)
        if room is not body:
            body.copy_(room)
        return _accepted(codec, written, state)


def write(codec: Codec, x: torch.Tensor, out: torch.Tensor, key: counter.Key, start: int) -> int:
    """Write the whole payload of ``x``, with header and checksum, into ``out``, which has exactly the largest possible size.

    Returns:
        The payload's bytes.

    Raises:
        ValueError: as ``backends.Backend.encode``.
    """
    with _device(x):
        state = launch.state(x)
        written = queue_write(codec, x, out, key, start, state)
        return HEADER_BYTES + _accepted(codec, written, state)


def queue_write(
    codec: Codec,
    x: torch.Tensor,
    out: torch.Tensor,
    key: counter.Key,
    start: int,
    state: torch.Tensor,
    findings: torch.Tensor | None = None,
) -> int | None:
    """Queue ``write`` without waiting; see ``backends.DeviceBackend``."""
    with _device(x):
        body = out[HEADER_BYTES:]
        room = launch.aligned(body)
        written = _KERNELS[codec.name].encode(codec, x, room, key, start, state)
        head = container.header_bytes(Header(codec.code, x.shape[0], codec.parameters()))
        headers.seal(out, head, room, written, state, findings)
        if room is not body:
            body.copy_(room)
        return written


def queue_read(codec: Codec, payload: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Queue the decoding of a payload without waiting; see ``backends.DeviceBackend``."""
    with _device(payload):
        body = payload[HEADER_BYTES:]
        room = launch.aligned(body)
        if room is not body:
            room.copy_(body)
        head = container.header_bytes(Header(codec.code, out.shape[0], codec.parameters()))
        headers.judge_whole(payload, head, room, state)
        _KERNELS[codec.name].decode(codec, room, out, mode, state)


def queue_moments(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Queue ``moments.moments`` of each 1-D fp32 tensor; see ``backends.DeviceBackend``."""
    with _device(parts[0]):
        return torch.stack([moments.queued(x) for x in parts])


def decode(codec: Codec, body: torch.Tensor, out: torch.Tensor, mode: int) -> None:
    """Read a body into ``out``; see ``backends.Backend``."""
    _decode(codec, body, out, mode, None)


def read(codec: Codec, head: bytes, sums: tuple[int, int], body: torch.Tensor, out: torch.Tensor, mode: int) -> None:
    """Decode a body that arrived with these 24 header bytes and checksums.

    Raises:
        PayloadError: another checksum (``out`` is unchanged), or as ``backends.Backend.decode``.
    """
    _decode(codec, body, out, mode, (head, sums))


def checksum(head: bytes, body: torch.Tensor) -> tuple[int, int]:
    """Compute ``container.checksum``."""
    with _device(body):
        return headers.checksum(head, body)


def peak(x: torch.Tensor) -> float:
    """Return max |x|; see ``moments.Statistics``."""
    with _device(x):
        return moments.peak(x)


def sums(x: torch.Tensor) -> tuple[float, float, float]:
    """Return the sums for a standard deviation; see ``moments.Statistics``."""
    with _device(x):
        return moments.sums(x)


def _decode(
    codec: Codec, body: torch.Tensor, out: torch.Tensor, mode: int, expected: tuple[bytes, tuple[int, int]] | None
) -> None:
    with _device(body):
        state, room = launch.state(body), launch.aligned(body)
        if room is not body:
            room.copy_(body)
        if expected:
            headers.judge(expected[0], room, expected[1], state)
        plain = out.is_contiguous() and out.dtype == torch.float32
        target = out if plain else torch.empty(out.shape, dtype=torch.float32, device=out.device)
        _KERNELS[codec.name].decode(codec, room, target, mode if plain else SET, state)
        closed, refused, _ = state.tolist()
        if closed:
            raise PayloadError(container.CHANGED)
        if refused:
            raise PayloadError(f"the body is none that an encoder of {codec.name} writes")
        if not plain:
            _ = out.copy_(target) if mode == SET else out.add_(target) if mode == ADD else out.sub_(target)


def _accepted(codec: Codec, written: int | None, state: torch.Tensor) -> int:
    """Return the number of bytes written. Waits for the GPU if only the GPU knows it, or knows of a refusal."""
    refusal = _KERNELS[codec.name].refusal
    if written is not None and not refusal:
        return written
    words = state.tolist()
    if refusal and words[REFUSED]:
        raise ValueError(refusal)
    return int(words[WRITTEN]) if written is None else written


def _device(x: torch.Tensor) -> AbstractContextManager[object]:
    """Make the device of ``x`` current, because kernels start there. The tests' interpreter works on the CPU."""
    return torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext()


_KERNELS: Mapping[str, Kernels] = {
    "fp32": Kernels(dense.encode, dense.decode, ""),
    "bf16": Kernels(dense.encode, dense.decode, ""),
    "ternary": Kernels(ternary.encode, ternary.decode),
    "ternary-sum": Kernels(ternary.encode_sum, ternary.decode_sum, "a sum beyond its workers' ternaries"),
    "inceptionn": Kernels(bursts.encode, bursts.decode, ""),
    "inceptionn-scaled": Kernels(bursts.encode, bursts.decode),
    "int8": Kernels(blocks.encode, blocks.decode),
    "int4": Kernels(blocks.encode, blocks.decode),
    "fp8": Kernels(blocks.encode_fp8, blocks.decode_fp8),
    "sign": Kernels(blocks.encode_sign, blocks.decode_sign),
    "topk": Kernels(topk.encode, topk.decode, serves=topk.serves),
}
