"""Stochastic rounding of fp32 to bfloat16, unbiased, for residuals.

The upper half of an fp32 number is kept, and the lower half is the chance of the next larger magnitude (Gupta et al. 2015, Deep
Learning with Limited Numerical Precision, ICML, section 3.1). Rounding to nearest would lose every addend below half a unit of
the last place: a residual that grows by small gradients would stop to grow, and its element would never be sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32
from paceline.codecs import counter, native
from paceline.codecs.counter import Key


def round_to(out: NDArray[np.uint16], x: F32, key: Key, start: int) -> None:
    """Write the upper halves of finite fp32 values, each rounded to one of its two neighbours, into ``out``.

    Args:
        out: (count,), contiguous; ``x``: (count,), contiguous.
        key, start: element k takes draw ``start + k``, of whose 24 bits the upper 16 count.
    """
    if native.available():
        native.draw_bf16(x, out, key, start)
    else:
        reference(out, x, key, start)


def reference(out: NDArray[np.uint16], x: F32, key: Key, start: int) -> None:
    """Round as ``round_to``, in NumPy; the specification."""
    out[:] = x.view(np.uint32) + (counter.uniform24(key, start, x.size) >> 8) >> 16


def round_tensor(out: Any, x: Any, key: Key, start: int) -> None:
    """Round torch tensors as ``round_to``: ``x`` fp32 into ``out`` bfloat16, (count,). It overwrites ``x`` on a GPU."""
    import torch

    if x.device.type == "cpu":
        round_to(out.view(torch.uint16).numpy(), x.numpy(), key, start)
    else:
        with_torch(out, x, key, start)


def with_torch(out: Any, x: Any, key: Key, start: int) -> None:
    """Round as ``round_to`` with torch's own operations, on any device. Overwrites ``x``."""
    import torch

    done, bits = 0, x.view(torch.int32)
    while done < x.numel():
        index = start + done
        count = min(x.numel() - done, (1 << 32) - (index & 0xFFFFFFFF))
        high = _signed(counter.second_word(key, index))
        draws = torch.arange(count, dtype=torch.int32, device=x.device).add_(_signed(index & 0xFFFFFFFF))
        draws.bitwise_xor_(_signed(key.low))
        draws = _shifted(draws, 16).mul_(_signed(0x7FEB352D)).bitwise_xor_(high)
        draws = _shifted(draws, 15).mul_(_signed(0x846CA68B))
        draws = _shifted(draws, 16).bitwise_right_shift_(16).bitwise_and_(0xFFFF)
        here = bits[done : done + count].add_(draws)
        out.view(torch.int16)[done : done + count] = here.bitwise_right_shift_(16)
        done += count


def _shifted(x: Any, places: int) -> Any:
    """Compute ``x ^ x >> places`` of unsigned words in place."""
    return x.bitwise_xor_((x >> places).bitwise_and_((1 << 32 - places) - 1))


def _signed(word: int) -> int:
    """Return the signed 32-bit word with the bits of an unsigned one."""
    return word - (1 << 32) if word >> 31 else word
