"""Initial weights for deep networks with ReLU, because torch's defaults are too small for training without normalisation."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def he_init(model: M) -> M:
    """Initialise convolution and linear weights in place from N(0, 2 / fan_in), biases to 0 (He et al. 2015, equation 10).

    The last linear layer, which gives the logits, starts from N(0, 0.001^2): small enough for the first loss to be near
    the logarithm of the number of classes, even after pooling and dropout have made its inputs large.
    """
    last: nn.Linear | None = None
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        last = module if isinstance(module, nn.Linear) else last
    if last is not None:
        nn.init.normal_(last.weight, std=0.001)
    return model
