"""Random streams of a process (torch's, NumPy's and Python's) as a value for a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the random streams of this process, as values for a checkpoint: torch's, NumPy's and Python's."""
    kind, keys, *numbers = np.random.get_state(legacy=True)
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *numbers],
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore the streams of ``random_state``."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["device"] is not None:
        torch.cuda.set_rng_state(state["device"], device)
    kind, keys, *numbers = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *numbers))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
