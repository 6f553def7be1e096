"""Storage of residuals between exchanges: as fp32 next to the codec, narrower, or in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.codecs import Key
from paceline.codecs.stochastic_bf16 import round_tensor
from paceline.strategy import GradientExchange
from paceline.training import device_stream
from paceline.training.device_stream import HostCopies, has_streams


@dataclass(frozen=True)
class Keeping:
    """Place and type of residuals between exchanges.

    Attributes:
        narrow: True for bfloat16, False for fp32.
        on_host: True for the host's memory, pinned if gradients are on a GPU; False for the codec's device.
    """

    narrow: bool = False
    on_host: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored numbers."""
        return torch.bfloat16 if self.narrow else torch.float32

    def in_place(self, device: torch.device) -> bool:
        """Return whether a codec on ``device`` works on the stored residuals. If not, they are copied there and back."""
        return not self.narrow and (not self.on_host or not has_streams(device))

    def zeros(self, shape: int | Sequence[int], device: torch.device) -> torch.Tensor:
        """Return residuals of a codec on ``device`` before the first exchange."""
        if self.on_host and has_streams(device):
            pinned: torch.Tensor = device_stream.engine.pinned_zeros(shape, self.dtype, device)
            return pinned
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def put(self, values: torch.Tensor, into: torch.Tensor, key: Key, start: int) -> None:
        """Store fp32 ``values``, whose memory may be overwritten, in the elements ``into`` of ``zeros``.

        Copies to the host run in the background. The host must call ``settle_copies`` before it reads them.

        Args:
            key, start: key and first draw of the rounding; element k takes draw ``start + k``.
        """
        crosses = self.on_host and has_streams(values.device)
        if self.narrow and not crosses:
            round_tensor(into.view(-1), values.view(-1), key, start)
            return
        if self.narrow:  # rounded first: half the bytes cross
            rounded = torch.empty(values.numel(), dtype=torch.bfloat16, device=values.device)
            round_tensor(rounded, values.view(-1), key, start)
            values = rounded.view_as(into)
        if crosses:
            HostCopies.of(values.device).put(values, into)
        else:
            into.copy_(values)


AS_THEY_ARE = Keeping()
"""fp32, where the codec works."""


def keeping_of(exchange: GradientExchange) -> Keeping:
    """Return how an exchange stores its residuals."""
    return Keeping(exchange.residual_bits == 16, bool(exchange.residuals_at))


class WorkingCopies:
    """Reused fp32 buffers on the codec's device for residuals that are stored in another form."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def of(self, kind: str, kept: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return ``kept`` as fp32 on ``device``; the next call for this ``kind`` uses the same memory."""
        buffer = self._buffers.get(kind)
        if buffer is None or buffer.numel() < kept.numel() or buffer.device != device:
            buffer = self._buffers[kind] = torch.empty(kept.numel(), dtype=torch.float32, device=device)
        if has_streams(device):
            HostCopies.of(device).order()
        if kept.dtype != torch.float32:
            kept = kept.to(device, non_blocking=True)  # converted there: half the bytes cross
        return buffer[: kept.numel()].view(kept.shape).copy_(kept, non_blocking=True)
