"""Outer steps of peers, against the algorithm of the paper in NumPy, and DiLoCo's where all peers come."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.strategy import LocalSteps
from paceline.training.attach.local.local_fragments import Fragment
from paceline.training.attach.peers.shared_weights import SharedWeights
from paceline.training.exchanges.gradients.tensor_layout import Layout, numbered

N, RATE, MOMENTUM = 3, 0.7, 0.9


def shared(**local: Any) -> SharedWeights:
    weight = nn.Parameter(torch.arange(4, dtype=torch.float64))
    tensors = list(numbered([("weight", weight)]).values())
    steps = LocalSteps(sync_every=2, outer_lr=RATE, outer_momentum=MOMENTUM, **local)
    return SharedWeights(Fragment(tensors, [weight], Layout(tensors, {}), steps), torch.zeros(0), steps)


def changes(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(count)]


def test_single_changes_are_applied_with_a_delayed_momentum() -> None:
    """Liu et al. 2024, arXiv:2401.09135, Algorithm 3 with c = 0: the momentum moves with each N-th change."""
    found = shared(max_age=5, round_deadline_s=0.0)
    theta, momentum, buffer = np.arange(4.0), np.zeros(4), np.zeros(4)
    for turn, change in enumerate(changes(8)):
        found.move(change.clone(), torch.zeros(0), 1, N)
        g = change.numpy()
        buffer += g
        if (turn + 1) % N == 0:
            momentum = MOMENTUM * momentum + buffer / N
            theta = theta - RATE * (MOMENTUM * momentum + g / N)
            buffer = np.zeros(4)
        else:
            theta = theta - RATE * g / N
        np.testing.assert_allclose(found.fragment.anchor.detach().numpy(), theta, rtol=1e-12)
    assert (found.outer_step, found.counted) == (8, 2)


def test_changes_of_all_peers_at_once_are_diloco() -> None:
    delayed, plain = shared(max_age=1, round_deadline_s=1.0), shared()
    for change in changes(5):
        for one in (delayed, plain):
            one.move(change.clone(), torch.zeros(0), N, N)
    torch.testing.assert_close(delayed.fragment.anchor, plain.fragment.anchor, rtol=1e-12, atol=0)


def test_a_snapshot_of_another_peer_has_the_same_bits() -> None:
    one, other = shared(max_age=1, round_deadline_s=1.0), shared(max_age=1, round_deadline_s=1.0)
    one.move(changes(1)[0], torch.zeros(0), 1, N)
    other.adopt(one.snapshot())
    assert one.digest() == other.digest()
    assert (one.outer_step, other.outer_step, other.counted) == (1, 1, 1)


def test_an_outer_step_of_no_change_moves_nothing() -> None:
    one = shared()
    before = one.digest()
    one.move(changes(1)[0], torch.zeros(0), 0, N)
    one.give_up()
    assert (one.digest(), one.outer_step) == (before, 2)
