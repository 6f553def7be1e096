"""Order in memory of the numbers of images, in which convolutions run.

Sources: PyTorch, Channels Last Memory Format; NVIDIA, Convolutional Layers User's Guide, section 2.1 (tensor cores read
channels last: cuDNN transposes other tensors in separate kernels).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels_last"
MEMORY_FORMATS = (CONTIGUOUS, CHANNELS_LAST)
"""Channels before positions (NCHW), as PyTorch makes tensors, and after them (NHWC)."""
ALIASES: Mapping[str, str] = MappingProxyType(
    {"nchw": CONTIGUOUS, "channels_first": CONTIGUOUS, "nhwc": CHANNELS_LAST, "ndhwc": CHANNELS_LAST}
)
RULE = "channels_last in tuned software, contiguous in ordinary software, as PyTorch makes tensors"
"""Rule of ``usual_memory_format``."""


def usual_memory_format(level: str) -> str:
    """Return the format that software of a level takes, by ``RULE``."""
    return CHANNELS_LAST if level == "tuned" else CONTIGUOUS
