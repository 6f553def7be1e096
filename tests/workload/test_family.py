"""The family of a network follows from its layers."""

from __future__ import annotations

import pytest

from paceline.workload import Workload, family
from prediction_toys import make_workload


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("lenet5", "cifar10-terngrad", "resnet-50", "unet3d", "mask-rcnn"), family.CONVOLUTIONAL),
        (("gpt2", "gpt2-xl", "llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "txl-base"), family.DECODER),
        (("bert-base", "bert-large-mlm"), family.ENCODER),
        (("transformer",), family.ENCODER_DECODER),
        (("stable-diffusion",), family.MIXED),
        (("gnmt", "rnnt", "tacotron2", "deepspeech2"), family.RECURRENT),
        (("rgat",), family.GRAPH),
        (("dlrm", "ncf"), family.OTHER),
    ],
)
def test_families_of_the_catalogue(names: tuple[str, ...], expected: str) -> None:
    assert {name: family.family(Workload.named(name)) for name in names} == dict.fromkeys(names, expected)


def test_a_network_of_products_alone_has_no_family() -> None:
    assert family.family(make_workload()) == family.OTHER
