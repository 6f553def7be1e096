"""Optimizers, described: what they keep and move, and which is usual for a network."""

from __future__ import annotations

import pytest

from paceline.strategy.optimizer import DEFAULT, OPTIMIZERS, PUBLISHED, usual_optimizer
from paceline.workload import Workload, names


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_reads_and_writes_what_it_keeps(name):
    """The gradient is read, weights and state are read and written; LARS reads weights and gradients once more, LAMB its
    update too."""
    optimizer = OPTIMIZERS[name]
    again = {"lars": 2, "lamb": 4}.get(name, 0)
    assert optimizer.name == name and optimizer.moved_words == 3 + 2 * optimizer.state_words + again
    assert optimizer.ops >= 1 and optimizer.lr > 0 and "weight_decay" in optimizer.options


@pytest.mark.parametrize(
    ("network", "name"),
    [
        *(("lenet5", "momentum"), ("resnet-50", "momentum"), ("bert-base", "adam"), ("gpt2", "adam"), ("flux1", "adam")),
        *(("tacotron2", "adam"), ("waveglow", "adam"), ("rgat", "adam"), ("rnnt", "lamb"), ("dlrm", "sgd")),
        ("mamba-130m", "adam"),
        ("rwkv-4-3b", "adam"),
        ("timm/swin_base_patch4_window7_224", "adam"),
    ],
)
def test_networks_with_attention_usually_have_adam_and_others_what_is_published(network, name):
    assert usual_optimizer(Workload.named(network)) == name


def test_the_rule_names_every_published_network() -> None:
    assert set(PUBLISHED) <= set(names()) and set(PUBLISHED.values()) <= set(OPTIMIZERS)
    assert all(network in DEFAULT for network in PUBLISHED)
