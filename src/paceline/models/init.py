"""Starting weights for deep rectified networks, which torch's default leaves too small to train without help."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def he_init(model: M) -> M:
    """Convolution and linear weights from N(0, 2 / fan_in), biases zero, in place (He et al. 2015, equation 10)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
