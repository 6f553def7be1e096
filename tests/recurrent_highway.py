"""Recurrent highway network with coupled gates: Zilly et al. 2017 (arXiv:1607.03474), equations 6 to 9."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Rhn(nn.Module):
    """Recurrent highway layer, from sequences (B, T, inputs) to the states after each step (B, T, hidden).

    The depths of step ``t``, where ``s_0`` is the state after the last step and ``x_t`` enters the first depth only:

        h_l = tanh(W_H x_t [l = 1] + R_H,l s_{l-1} + b_H,l)
        g_l = sigmoid(W_T x_t [l = 1] + R_T,l s_{l-1} + b_T,l)
        s_l = h_l g_l + s_{l-1} (1 - g_l)

    A state is as wide at every depth, so one unit is a row of both gates and a column at all depths: one structure (Wen et al.,
    ICLR 2018, section 3.3). A network that returns the state as well keeps its width when it is slimmed.

    Args:
        inputs: width of what enters. ``hidden``: of the state. ``depth``: of a step, at least 1.
        gate_bias: of the gates at first: below 0, so that a state is carried on.
    """

    def __init__(self, inputs: int, hidden: int, depth: int, gate_bias: float = -2.0) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, 2 * hidden, bias=False)
        layers = [nn.Linear(hidden, 2 * hidden) for _ in range(depth)]
        for layer in layers:
            nn.init.zeros_(layer.bias)
            nn.init.constant_(layer.bias[hidden:], gate_bias)
        self.depths = nn.ModuleList(layers)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        """Compute the states. ``state``: state after the last step, (B, hidden); None: zeros."""
        ends: list[Tensor] = []
        for now in self.enter(x).unbind(1):
            for number, layer in enumerate(self.depths):
                # without a state its product is left out: a tensor of zeros would need memory
                both: Any = layer.bias if state is None else layer(state)
                candidate, gate = (both + now if number == 0 else both).chunk(2, -1)
                new, share = torch.tanh(candidate), torch.sigmoid(gate)
                state = new * share if state is None else state + share * (new - state)
            assert state is not None
            ends.append(state)
        return torch.stack(ends, 1)


__all__ = ["Rhn"]
