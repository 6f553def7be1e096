"""LeNet-5 that takes its time: a sleep a sample in training, so that slots of one machine work side by side like devices.

Weights, gradients and accuracy are those of LeNet-5. ``PACE_S`` is the sleep in seconds a sample (default none).
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch import nn

from paceline import models


def net() -> nn.Module:
    """The network."""
    pace = float(os.environ.get("PACE_S", "0"))
    module = models.build("lenet5")

    def wait(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training and pace:
            time.sleep(pace * len(inputs[0]))

    module.register_forward_pre_hook(wait)
    return module
