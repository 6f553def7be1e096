"""Optimizers, described: what they keep and move, and which is usual for a network."""

from __future__ import annotations

import pytest

from paceline.strategy.optimizer import OPTIMIZERS, usual_optimizer
from paceline.workload import Workload


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_reads_and_writes_what_it_keeps(name):
    """The gradient is read, weights and state are read and written; LARS reads weights and gradients once more, LAMB its
    update too."""
    optimizer = OPTIMIZERS[name]
    again = {"lars": 2, "lamb": 4}.get(name, 0)
    assert optimizer.name == name and optimizer.moved_words == 3 + 2 * optimizer.state_words + again
    assert optimizer.ops >= 1 and optimizer.lr > 0 and "weight_decay" in optimizer.options


@pytest.mark.parametrize(
    ("network", "name"), [("lenet5", "momentum"), ("resnet-50", "momentum"), ("bert-base", "adam"), ("gpt2", "adam")]
)
def test_networks_with_attention_usually_have_adam(network, name):
    assert usual_optimizer(Workload.named(network)) == name
