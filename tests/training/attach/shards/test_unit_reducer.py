"""What reduces a unit's gradients; how it runs between ranks is tested with the hook (``hooks/test_sharded.py``)."""

from __future__ import annotations

import torch

from paceline.training.attach.shards.unit_reducer import Workspace


def test_one_buffer_serves_units_of_any_size() -> None:
    buffer = Workspace().of(torch.device("cpu"))
    large = buffer(100)
    assert buffer(60).data_ptr() == large.data_ptr() and buffer(60).numel() == 60
    assert buffer(101).numel() == 101
