"""Backend of the C++ kernels (``csrc/``). A new codec needs two functions and a line in ``_KERNELS``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32
from paceline.codecs import counter
from paceline.codecs.codec import NON_FINITE, Codec
from paceline.codecs.container import PayloadError
from paceline.codecs.threads import threads

if TYPE_CHECKING:
    from paceline.codecs.reference.bf16_coded import Bf16Coded
    from paceline.codecs.reference.dense import Bf16, Fp32
    from paceline.codecs.reference.fp8 import Fp8
    from paceline.codecs.reference.inceptionn import Inceptionn
    from paceline.codecs.reference.inceptionn_scaled import InceptionnScaled
    from paceline.codecs.reference.integer import Int4, Int8, Integer
    from paceline.codecs.reference.sign import Sign
    from paceline.codecs.reference.ternary import Ternary, TernarySum
    from paceline.codecs.reference.topk import TopK

try:
    from paceline import _native
except ImportError:  # a source tree without a build
    _native = None  # type: ignore[assignment]

_wanted = os.environ.get("PACELINE_ISA", "")
if _native is not None and _wanted not in ("", _native.isa()):
    warnings.warn(f"PACELINE_ISA is {_wanted!r}; this processor runs {_native.isa()}", stacklevel=1)

name = "native"


class _Kernels(NamedTuple):
    encode: Callable[[Any, F32, Any, counter.Key, int], int]
    decode: Callable[[Any, Any, F32, int], None]
    serves: Callable[[Any], bool] = lambda codec: True


def available() -> bool:
    """Return whether the extension was built."""
    return _native is not None


def isa() -> str:
    """Return the instruction set in use: ``baseline``, ``avx2``, ``avx512``, ``neon``; PACELINE_ISA names a lower one."""
    return _native.isa()


def serves(codec: Codec) -> bool:
    """Return whether this backend has kernels for the codec."""
    kernels = _KERNELS.get(codec.name)
    return kernels is not None and kernels.serves(codec)


def encode(codec: Codec, x: F32, body: Any, key: counter.Key, start: int) -> int:
    """Write the body of ``x``; see ``backends.Backend``."""
    return _KERNELS[codec.name].encode(codec, x, body, key, start)


def decode(codec: Codec, body: Any, out: F32, mode: int) -> None:
    """Read a body into ``out``; see ``backends.Backend``. The kernels take plain fp32 memory; any other ``out`` gets the values
    of the reference."""
    if out.flags.c_contiguous and out.dtype == np.float32:
        _KERNELS[codec.name].decode(codec, body, out, mode)
    else:
        codec.decode_onto(body, out, mode)


def checksum(head: bytes, body: Any) -> tuple[int, int]:
    """Compute ``container.checksum``."""
    return _native.checksum(head, body, threads())


def peak(x: F32) -> float:
    """Return max |x|; see ``moments.Statistics``."""
    return _native.peak(x, threads())


def sums(x: F32) -> tuple[float, float, float]:
    """Return the sums for a standard deviation; see ``moments.Statistics``."""
    return _native.moments(x, threads())


def draw_bf16(x: F32, out: NDArray[np.uint16], key: counter.Key, start: int) -> None:
    """Round to bfloat16 stochastically; see ``stochastic_bf16.round_to``."""
    _native.bf16_draw(x, out, key.low, key.high, start, threads())


def parts_encode(parts: Sequence[F32], body: Any, bounds: F32, factors: F32, key: counter.Key, start: int) -> int:
    """Write the ternary codes of several tensors into ``body``. Returns nonzero for NaN or infinity."""
    return _native.parts_encode(list(parts), body, bounds, factors, key.low, key.high, start, threads())


def planes_sum(bodies: Sequence[Any], workers: Sequence[int], out: Any, count: int) -> None:
    """Write the sum of bodies into ``out``; ``workers`` is 0 for a ternary body. Raises PayloadError for a code that no encoder
    writes."""
    _sized(_native.planes_sum(list(bodies), list(workers), out, count, threads()), _NO_CODE)


def parts_decode(body: Any, parts: Sequence[F32], scales: F32, workers: int, past_caches: bool) -> None:
    """Write the body of a sum, times each tensor's scale, into several tensors. They are unchanged if PayloadError is raised.

    ``past_caches`` writes to memory without reading it first. It pays where the next reader would not find the
    tensors in its cache anyway.
    """
    status = _native.parts_decode(body, list(parts), scales, workers, past_caches, threads())
    _sized(status, f"a sum of more than {workers} workers' ternaries")


def integer_parts_encode(
    codec: Integer, parts: Sequence[F32], more: Sequence[Any], body: Any, key: counter.Key, start: int
) -> None:
    """Encode several tensors plus the bodies ``more`` into ``body``. Raises PayloadError for a wrong body, ValueError as
    ``encode``."""
    kernel = _native.int8_parts_encode if codec.levels == 127 else _native.int4_parts_encode
    status = kernel(list(parts), list(more), body, codec.log2_block, key.low, key.high, start, threads())
    if status == _BAD_VALUE:
        raise ValueError(NON_FINITE)
    _sized(status, _NO_CODE)


def integer_parts_decode(codec: Integer, bodies: Sequence[Any], parts: Sequence[F32], divisor: int, past_caches: bool) -> None:
    """Write the sum of bodies, divided, into several tensors. They are unchanged if PayloadError is raised."""
    kernel = _native.int8_parts_decode if codec.levels == 127 else _native.int4_parts_decode
    _sized(kernel(list(bodies), list(parts), codec.log2_block, divisor, past_caches, threads()), _NO_CODE)


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
    _sized(_native.inceptionn_decode(body, out, codec.k, mode, threads()), "bursts of values that no encoder writes")


def _encode_inceptionn_scaled(codec: InceptionnScaled, x: F32, body: Any, key: counter.Key, start: int) -> int:
    written = _native.inceptionn_scaled_encode(x, body, codec.k, threads())
    if written < 0:
        raise ValueError(NON_FINITE)
    return written


def _decode_inceptionn_scaled(codec: InceptionnScaled, body: Any, out: F32, mode: int) -> None:
    _sized(_native.inceptionn_scaled_decode(body, out, codec.k, mode, threads()), "bursts of values that no encoder writes")


def _encode_int8(codec: Int8, x: F32, body: Any, key: counter.Key, start: int) -> int:
    return _finite(_native.int8_encode(x, body, codec.log2_block, key.low, key.high, start, threads()), body)


def _decode_int8(codec: Int8, body: Any, out: F32, mode: int) -> None:
    _sized(_native.int8_decode(body, out, codec.log2_block, mode, threads()), "the code -128: no encoder writes it")


def _encode_int4(codec: Int4, x: F32, body: Any, key: counter.Key, start: int) -> int:
    return _finite(_native.int4_encode(x, body, codec.log2_block, key.low, key.high, start, threads()), body)


def _decode_int4(codec: Int4, body: Any, out: F32, mode: int) -> None:
    _sized(_native.int4_decode(body, out, codec.log2_block, mode, threads()), "the code -8: no encoder writes it")


def _encode_sign(codec: Sign, x: F32, body: Any, key: counter.Key, start: int) -> int:
    return _finite(_native.sign_encode(x, body, codec.log2_block, threads()), body)


def _decode_sign(codec: Sign, body: Any, out: F32, mode: int) -> None:
    _sized(_native.sign_decode(body, out, codec.log2_block, mode, threads()))


def _encode_fp8(codec: Fp8, x: F32, body: Any, key: counter.Key, start: int) -> int:
    return _finite(_native.fp8_encode(x, body, codec.log2_block, key.low, key.high, start, threads()), body)


def _decode_fp8(codec: Fp8, body: Any, out: F32, mode: int) -> None:
    _sized(_native.fp8_decode(body, out, codec.log2_block, mode, threads()), _NO_CODE)


def _serves_fp8(codec: Fp8) -> bool:
    return hasattr(_native, "fp8_encode")  # an older build has none


def _encode_bf16_coded(codec: Bf16Coded, x: F32, body: Any, key: counter.Key, start: int) -> int:
    return _native.bf16_coded_encode(x, body, threads())


def _decode_bf16_coded(codec: Bf16Coded, body: Any, out: F32, mode: int) -> None:
    _sized(_native.bf16_coded_decode(body, out, mode, threads()), "codes of exponents that no encoder writes")


def _serves_bf16_coded(codec: Bf16Coded) -> bool:
    return hasattr(_native, "bf16_coded_encode")  # an older build has none


def _encode_topk(codec: TopK, x: F32, body: Any, key: counter.Key, start: int) -> int:
    at = codec.layout(x.size)
    if codec.chunk:
        how = codec.parts, codec.chunk, at.low_bits, codec.value_bits
        return _finite(_native.topk_chunks_encode(x, body, *how, threads()), body)
    return _finite(_native.topk_encode(x, body, at.kept, at.low_bits, codec.value_bits, threads()), body)


def _decode_topk(codec: TopK, body: Any, out: F32, mode: int) -> None:
    at = codec.layout(out.size)
    if codec.chunk:
        how = codec.parts, codec.chunk, at.low_bits, codec.value_bits
        return _sized(_native.topk_chunks_decode(body, out, *how, mode, threads()))
    return _sized(_native.topk_decode(body, out, at.kept, at.low_bits, codec.value_bits, mode, threads()))


def _serves_topk(codec: TopK) -> bool:
    return not codec.chunk or hasattr(_native, "topk_chunks_encode")  # an older build has none


def _finite(status: int, body: Any) -> int:
    """Return the length of ``body`` in bytes. Raises ValueError if a kernel found NaN or infinity."""
    if status:
        raise ValueError(NON_FINITE)
    return len(body)


_BAD_VALUE = 7
_NO_CODE = "a code that no encoder writes"
_REFUSALS = {
    2: "the body has another length than its elements take",
    3: "a block's scale is negative, no finite number, or not one of the codec's",
    4: "the padding behind the last code is not zero",
    5: "the marks are not as many ones as elements were sent, within their bits",
    6: "an index is out of order or beyond the last element",
    _BAD_VALUE: "NaN or infinity among the values",
}
"""By status (``bind.h``); 1 is the codec's own."""


def _sized(status: int, illegal: str = "") -> None:
    """Raise PayloadError for a kernel's status other than 0 (``bind.h``)."""
    if status:
        raise PayloadError(_REFUSALS.get(status, illegal))


_KERNELS: Mapping[str, _Kernels] = {
    "fp32": _Kernels(_encode_fp32, _decode_fp32),
    "bf16": _Kernels(_encode_bf16, _decode_bf16),
    "bf16-coded": _Kernels(_encode_bf16_coded, _decode_bf16_coded, _serves_bf16_coded),
    "ternary": _Kernels(_encode_ternary, _decode_ternary),
    "ternary-sum": _Kernels(_encode_sum, _decode_sum),
    "inceptionn": _Kernels(_encode_inceptionn, _decode_inceptionn),
    "inceptionn-scaled": _Kernels(_encode_inceptionn_scaled, _decode_inceptionn_scaled),
    "int8": _Kernels(_encode_int8, _decode_int8),
    "int4": _Kernels(_encode_int4, _decode_int4),
    "sign": _Kernels(_encode_sign, _decode_sign),
    "fp8": _Kernels(_encode_fp8, _decode_fp8, _serves_fp8),
    "topk": _Kernels(_encode_topk, _decode_topk, _serves_topk),
}
