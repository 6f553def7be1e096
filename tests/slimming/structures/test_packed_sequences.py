"""Sequences of one length are packed, run and padded as PyTorch does it, in operations that the exporter knows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import rnn

from paceline.slimming.structures.packed_sequences import full_length


def test_full_sequences_give_the_results_of_packed_ones() -> None:
    layer, x, lengths = nn.LSTM(3, 4, 2, batch_first=True), torch.randn(2, 5, 3), torch.tensor([5, 5])

    def run() -> tuple[torch.Tensor, ...]:
        steps, (state, _) = layer(rnn.pack_padded_sequence(x, lengths, batch_first=True))
        return (*rnn.pad_packed_sequence(steps, batch_first=True), state)

    expected = run()
    with full_length():
        found = run()
        assert torch.allclose(layer(x)[0], expected[0])
    assert all(torch.allclose(one, other) for one, other in zip(found, expected, strict=True))
