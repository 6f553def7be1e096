"""A run in channels last has weights and images in that order, with the same values."""

from __future__ import annotations

import torch
from torch import nn

from paceline.strategy import Strategy
from paceline.training.runs.image_order import ordered, with_image_order

LAST = Strategy.of(world_size=1, global_batch_size=2, memory_format="channels_last")
FIRST = Strategy.of(world_size=1, global_batch_size=2)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(45, 2))


def test_images_and_weights_change_their_order_and_no_value() -> None:
    images = torch.randn(2, 3, 5, 5)
    changed = ordered(images, LAST)
    assert changed.stride() == (75, 1, 15, 3) and torch.equal(changed, images)
    assert ordered(images, FIRST) is images
    network = with_image_order(model(), LAST)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert network[3].weight.is_contiguous() and network[0](changed).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(network(changed), model()(images))


def test_volumes_have_an_order_and_tokens_none() -> None:
    volumes = torch.randn(2, 3, 4, 4, 4)
    assert ordered(volumes, LAST).stride() == (192, 1, 48, 12, 3)
    tokens = torch.zeros(2, 7, dtype=torch.int64)
    assert ordered(tokens, LAST) is tokens


def test_sharded_weights_stay_contiguous() -> None:
    sharded = Strategy.of(world_size=2, global_batch_size=2, memory_format="channels_last", sharding="zero3")
    assert with_image_order(model(), sharded)[0].weight.is_contiguous()
