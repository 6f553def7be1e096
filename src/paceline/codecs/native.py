"""The C++ kernels (``csrc/``) as a backend. A codec joins with two functions and a line in ``_KERNELS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.codecs import counter
from paceline.codecs.codec import F32, NON_FINITE, Codec, apply
from paceline.codecs.container import PayloadError
from paceline.codecs.threads import threads

if TYPE_CHECKING:
    from paceline.codecs.dense import Bf16, Fp32
    from paceline.codecs.inceptionn import Inceptionn
    from paceline.codecs.inceptionn_scaled import InceptionnScaled
    from paceline.codecs.ternary import Ternary, TernarySum

try:
    from paceline import _native
except ImportError:  # a source tree without a build
    _native = None  # type: ignore[assignment]

name = "native"


class _Kernels(NamedTuple):
    encode: Callable[[Any, F32, Any, counter.Key, int], int]
    decode: Callable[[Any, Any, F32, int], None]


def available() -> bool:
    """Whether the extension was built."""
    return _native is not None


def isa() -> str:
    """The instruction set in use: ``baseline``, ``avx2`` or ``avx512``; PACELINE_ISA names a lower one than the machine's."""
    return _native.isa()


def serves(codec: Codec) -> bool:
    """Whether it has kernels for this codec."""
    return codec.name in _KERNELS


def encode(codec: Codec, x: F32, body: Any, key: counter.Key, start: int) -> int:
    """See ``codec.Backend``."""
    return _KERNELS[codec.name].encode(codec, x, body, key, start)


def decode(codec: Codec, body: Any, out: F32, mode: int) -> None:
    """See ``codec.Backend``. The kernels take plain fp32 memory; any other ``out`` gets the reference's values."""
    if out.flags.c_contiguous and out.dtype == np.float32:
        _KERNELS[codec.name].decode(codec, body, out, mode)
    else:
        apply(out, codec.decode_body(body, out.shape[0]), mode)


def checksum(head: bytes, body: Any) -> tuple[int, int]:
    """See ``codec.Backend``."""
    return _native.checksum(head, body, threads())


def peak(x: F32) -> float:
    """See ``codec.Backend``."""
    return _native.peak(x, threads())


def sums(x: F32) -> tuple[float, float, float]:
    """See ``codec.Backend``."""
    return _native.moments(x, threads())


def ternary_round(x: F32, out: F32, bound: float, scale: float, key: counter.Key, start: int) -> None:
    """``ternary.ternarize`` as fp32 codes -1, 0, +1, in ``out``, which may be ``x``.

    Raises:
        ValueError: ``x`` holds NaN or infinity.
    """
    if _native.ternary_round(x, out, bound, scale, key.low, key.high, start, threads()):
        raise ValueError(NON_FINITE)


def _encode_fp32(codec: Fp32, x: F32, body: Any, key: counter.Key, start: int) -> int:
    _native.fp32_encode(x, body, threads())
    return len(body)


def _decode_fp32(codec: Fp32, body: Any, out: F32, mode: int) -> None:
    _sized(_native.fp32_decode(body, out, mode, threads()))


def _encode_bf16(codec: Bf16, x: F32, body: Any, key: counter.Key, start: int) -> int:
    _native.bf16_encode(x, body, threads())
    return len(body)


def _decode_bf16(codec: Bf16, body: Any, out: F32, mode: int) -> None:
    _sized(_native.bf16_decode(body, out, mode, threads()))


def _encode_ternary(codec: Ternary, x: F32, body: Any, key: counter.Key, start: int) -> int:
    bound, scale = float(codec.largest), float(np.float32(codec.scale))
    if _native.ternary_encode(x, body, bound, scale, key.low, key.high, start, threads()):
        raise ValueError(NON_FINITE)
    return len(body)


def _decode_ternary(codec: Ternary, body: Any, out: F32, mode: int) -> None:
    _sized(
        _native.ternary_decode(body, out, float(np.float32(codec.scale)), mode, threads()),
        "a negative zero: no encoder writes this code",
    )


def _encode_sum(codec: TernarySum, x: F32, body: Any, key: counter.Key, start: int) -> int:
    if _native.sum_encode(x, body, codec.workers, threads()):
        raise ValueError(f"a sum beyond {codec.workers} workers' ternaries")
    return len(body)


def _decode_sum(codec: TernarySum, body: Any, out: F32, mode: int) -> None:
    _sized(
        _native.sum_decode(body, out, codec.workers, float(codec.unit), mode, threads()),
        f"a sum of more than {codec.workers} workers' ternaries",
    )


def _encode_inceptionn(codec: Inceptionn, x: F32, body: Any, key: counter.Key, start: int) -> int:
    return _native.inceptionn_encode(x, body, codec.k, threads())


def _decode_inceptionn(codec: Inceptionn, body: Any, out: F32, mode: int) -> None:
    _sized(_native.inceptionn_decode(body, out, codec.k, mode, threads()), "groups of values that no encoder writes")


def _encode_inceptionn_scaled(codec: InceptionnScaled, x: F32, body: Any, key: counter.Key, start: int) -> int:
    written = _native.inceptionn_scaled_encode(x, body, codec.k, threads())
    if written < 0:
        raise ValueError(NON_FINITE)
    return written


def _decode_inceptionn_scaled(codec: InceptionnScaled, body: Any, out: F32, mode: int) -> None:
    _sized(_native.inceptionn_scaled_decode(body, out, codec.k, mode, threads()), "groups of values that no encoder writes")


def _sized(status: int, illegal: str = "") -> None:
    """Raises PayloadError for a kernel's status other than 0 (``bind.h``)."""
    if status:
        raise PayloadError(illegal if status == 1 else "the body has another length than its elements take")


_KERNELS: Mapping[str, _Kernels] = {
    "fp32": _Kernels(_encode_fp32, _decode_fp32),
    "bf16": _Kernels(_encode_bf16, _decode_bf16),
    "ternary": _Kernels(_encode_ternary, _decode_ternary),
    "ternary-sum": _Kernels(_encode_sum, _decode_sum),
    "inceptionn": _Kernels(_encode_inceptionn, _decode_inceptionn),
    "inceptionn-scaled": _Kernels(_encode_inceptionn_scaled, _decode_inceptionn_scaled),
}
