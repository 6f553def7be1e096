"""Weights and images in the memory format of a run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.strategy.memory_format import CHANNELS_LAST
from paceline.strategy.strategy import Strategy

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Formats of tensors of so many dimensions. Others have no channels to put last."""


def with_image_order(model: nn.Module, strategy: Strategy) -> nn.Module:
    """Put the weights of convolutions in the strategy's memory format, in place. Return the model.

    FSDP shards contiguous weights only. There the images alone give convolutions their format.
    """
    if strategy.memory_format == CHANNELS_LAST and not strategy.parallelism.sharding.weights:
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.dim() in _CHANNELS_LAST:
                tensor.data = ordered(tensor.data, strategy)
    return model


def ordered(images: Tensor, strategy: Strategy) -> Tensor:
    """Return a batch in the strategy's memory format; unchanged if it holds no images."""
    if strategy.memory_format != CHANNELS_LAST or images.dim() not in _CHANNELS_LAST:
        return images
    return images.contiguous(memory_format=_CHANNELS_LAST[images.dim()])
