"""Warning for codecs that keep too little of a gradient."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paceline.calibration.constants import assumed
from paceline.codecs import SUBTRACT, Codec, counter, decode, encode
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice

_log = logging.getLogger("paceline")

KEPT: float = assumed("energy_kept")
"""Share of a gradient's energy; where an encoding keeps less, a warning is due."""
WATCH_EVERY = 100  # steps: what encodings keep changes slowly, and looking costs one more of them


class EnergyGuard:
    """Guard that warns once per tensor if a biased codec without error feedback keeps less than half of its gradient's energy.

    Energy is the sum of squares; kept is 1 - |x - decoded|^2 / |x|^2. It is checked in the first step and every hundredth.
    """

    def __init__(self, remedy: str) -> None:
        self.remedy = remedy
        self.warned: dict[str, float] = {}

    def watch(self, codec: Codec, gradients: Sequence[GradientSlice], step: int) -> None:
        """Encode each gradient separately and compare it."""
        if step % WATCH_EVERY:
            return
        for piece, gradient in gradients:
            x = gradient.float()
            energy = float(x.double().square().sum())
            if energy == 0 or piece.tensor.name in self.warned:
                continue
            left = x.clone()
            decode(encode(codec, x, counter.key(0, step)), left, SUBTRACT)
            kept = 1 - float(left.double().square().sum()) / energy
            if kept < KEPT:
                self.warned[piece.tensor.name] = kept
                _log.warning(
                    "%s: %s keeps %.0f %% of this gradient's energy at step %d; %s",
                    piece.tensor.name,
                    codec.name,
                    100 * max(0.0, kept),
                    step,
                    self.remedy,
                )
