"""What error feedback keeps between exchanges: in which type, and where. What goes with what.

bfloat16 halves the bytes. Residuals are then rounded by chance (``codecs/stochastic_bf16.py``), so that on average everything
is sent in the end. In the host's memory they are copied to the device for the exchange of their group, and back after it.
"""

from __future__ import annotations

HOST = "host"
RESIDUAL_PLACES = (HOST,)
"""Names of ``GradientExchange.residuals_at``; empty: where the codec works."""
