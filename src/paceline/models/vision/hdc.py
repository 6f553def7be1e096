"""HDC, the handwritten-digit classifier of INCEPTIONN: five fully connected layers of 500.

Source: Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural Networks",
MICRO 2018, section VII. The text, five hidden layers of 500 between 784 inputs and 10 outputs, gives 1,399,510 parameters, 5.34
MiB in fp32. The paper's table says 2.5 MB, and its sizes are MiB (AlexNet 233, ResNet-50 98). Two hidden layers of 500 have
that size (648,010 parameters, 2.47 MiB). Text and table contradict each other; this module follows the text.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from paceline.models.init import he_init

_WIDTH, _HIDDEN = 500, 5


def hdc() -> nn.Module:
    """Return HDC, from images (B, 1, 28, 28) to logits (B, 10)."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    inputs = 28 * 28
    for i in range(1, _HIDDEN + 1):
        layers[f"fc{i}"] = nn.Linear(inputs, _WIDTH)
        layers[f"relu{i}"] = nn.ReLU()
        inputs = _WIDTH
    layers["logits"] = nn.Linear(_WIDTH, 10)
    return he_init(nn.Sequential(layers))
