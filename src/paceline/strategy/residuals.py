"""Type and place of the residuals that error feedback keeps between exchanges.

bfloat16 halves the bytes. Residuals are then rounded stochastically (``codecs/stochastic_bf16.py``), so that on average
everything is sent in the end. Residuals in the host's memory are copied to the device for the exchange of their group, and back
after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.strategy.codec_place import ON_HOST, Place

RESIDUAL_PLACES: Mapping[str, Place] = {ON_HOST.name: ON_HOST}
"""Values of ``GradientExchange.residuals_at`` by name; empty: the codec's place."""
