"""What error feedback keeps between exchanges: in which type, and where. What goes with what.

bfloat16 halves the bytes. Residuals are then rounded by chance (``codecs/stochastic_bf16.py``), so that on average everything
is sent in the end. In the host's memory they are copied to the device for the exchange of their group, and back after it.
"""

from __future__ import annotations

from typing import Protocol

from paceline.errors import UserError
from paceline.strategy.compression import Compression

HOST = "host"
RESIDUAL_PLACES = (HOST,)
"""Names of ``GradientExchange.residuals_at``; empty: where the codec works."""
RESIDUAL_CHOICES = ("residual_bits", "residuals_at")
"""Choices that another run may make otherwise and still go on from the same state."""


class Remembering(Protocol):
    """A gradient exchange as far as its residuals go; ``GradientExchange`` is one."""

    @property
    def compression(self) -> str: ...
    @property
    def residual_bits(self) -> int: ...
    @property
    def residuals_at(self) -> str: ...
    @property
    def description(self) -> Compression: ...


def check_residuals(x: Remembering) -> None:
    """Raises UserError for choices about residuals with a compression that keeps none."""
    if (x.residual_bits, x.residuals_at) != (32, "") and not x.description.error_feedback:
        given = "residual_bits" if x.residual_bits != 32 else "residuals_at"
        raise UserError(f"{x.compression} keeps no residuals here", f"leave {given} out")
