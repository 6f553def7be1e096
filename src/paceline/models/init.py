"""Starting weights for deep rectified networks without normalisation, which torch's default leaves too small to train."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def he_init(model: M) -> M:
    """Draw convolution and linear weights from N(0, 2 / fan_in), biases zero (He et al. 2015, equation 10). In place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
