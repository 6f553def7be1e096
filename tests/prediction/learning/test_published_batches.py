"""The largest published batch: a network's own, else one of its family that is no larger than it."""

from __future__ import annotations

import pytest

from paceline.prediction.learning.published_batches import UNPUBLISHED, published_batch
from paceline.workload import Workload
from prediction_toys import make_workload


@pytest.mark.parametrize(
    ("name", "samples", "source"),
    [
        ("resnet-50", 65536, "75.9 % top-1 on ImageNet"),
        ("mask-rcnn", 272, "mAP on COCO"),
        ("vgg-16", 65536, "ResNet-50 with LARS"),
        ("bert-base", 65536, "BERT large with LAMB"),
        ("gpt2", 2048, "Pythia"),
        ("gpt2-xl", 4096, "OLMo 1B"),
        ("llama-3-8b", 512, "OLMo 1B"),
        ("gpt3-175b", 4096, "GPT-3 175B"),
        ("llama-3-405b", 2048, "Llama 3 405B"),
        ("deepseek-v3", 15360, "DeepSeek-V3"),
        ("retinanet", 2048, "MLPerf Training v2.0"),
        ("dlrm", UNPUBLISHED, "no batch is published for networks of no known family"),
    ],
)
def test_the_batch_is_that_of_a_publication(name: str, samples: int, source: str) -> None:
    batch = published_batch(Workload.named(name))
    assert batch.samples == samples and source in batch.source and f"{samples:,} samples" in str(batch)


def test_longer_sequences_make_smaller_batches() -> None:
    assert published_batch(Workload.named("gpt2-xl", 512)).samples == 2 * published_batch(Workload.named("gpt2-xl")).samples
    assert published_batch(Workload.named("bert-base", 512)).samples == 16384


def test_weights_that_are_frozen_count() -> None:
    assert "OLMo 1B" in published_batch(Workload.named("llama-2-70b-lora")).source


def test_a_network_of_no_family_is_bounded_too() -> None:
    assert published_batch(make_workload()).samples == UNPUBLISHED
