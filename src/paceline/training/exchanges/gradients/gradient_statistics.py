"""Statistics of gradients on any device: whether they are finite, their largest magnitude, their moments."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.codecs import backends, moments_of, peak_of
from paceline.codecs.arrays import on_host
from paceline.codecs.moments import Moments

LARGEST = 2.0**100
"""Largest magnitude of a gradient for a codec. Larger ones go dense, since their sums and residuals might overflow."""


def is_finite(*values: torch.Tensor) -> bool:
    """Return whether every element is finite. On the host the sum alone decides unless it overflows; a GPU is asked once."""
    if all(map(on_host, values)):
        return all(bool(torch.isfinite(part.sum()) or torch.isfinite(part).all()) for part in values)
    return bool(torch.stack([torch.isfinite(part).all() for part in values]).all())


def peak(values: torch.Tensor) -> float:
    """Return the largest magnitude; NaN if any element is NaN, 0 without elements."""
    if not values.numel():
        return 0.0
    if on_host(values) and values.dtype == torch.float32 and values.is_contiguous():
        return peak_of(values.view(-1))
    return float(_peak_on_device(values))


def moments(values: torch.Tensor) -> Moments:
    """Return standard deviation and largest magnitude of 1-D fp32 values."""
    return moments_of(values if on_host(values) or backends.triton() else values.cpu())


def queued_statistics(parts: Sequence[torch.Tensor], spread: bool, device: torch.device) -> torch.Tensor:
    """Return standard deviation and largest magnitude of fp32 tensors on one GPU as (count, 2) fp32 on ``device``.

    The host waits only if ``device`` is another one. Without elements both are 0; a NaN makes both NaN or infinite.

    Args:
        spread: False if standard deviations are not needed; they are then 0.
    """
    if not parts:
        return torch.zeros((0, 2), dtype=torch.float32, device=device)
    kernels = backends.triton()
    if spread and kernels is not None:
        table: torch.Tensor = kernels.queue_moments([part.reshape(-1) for part in parts])
    elif spread:
        whole = torch.cat([part.reshape(-1) for part in parts]).cpu()
        pairs = [moments_of(part) for part in whole.split([part.numel() for part in parts])]
        table = torch.tensor([(float(m.sigma), float(m.peak)) for m in pairs], dtype=torch.float32)
    else:
        peaks = torch.stack([_peak_on_device(part) if part.numel() else part.new_zeros(()) for part in parts])
        table = torch.stack([torch.zeros_like(peaks), peaks], dim=1)
    return table.to(device)


def _peak_on_device(values: torch.Tensor) -> torch.Tensor:
    low, high = torch.aminmax(values)
    return torch.maximum(-low, high)
