"""The networks that Paceline knows by name, as plain modules: what ``train --model NAME`` trains and tables describe.

Needs torch. Their layer tables, which do not, are in ``paceline.workload``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.errors import unknown
from paceline.models.alexnet import alexnet
from paceline.models.bert import VOCABULARY as BERT_VOCABULARY
from paceline.models.bert import bert_base, bert_large
from paceline.models.cifar import cifar10_terngrad
from paceline.models.googlenet import googlenet
from paceline.models.gpt2 import CONTEXT as GPT2_CONTEXT
from paceline.models.gpt2 import VOCABULARY as GPT2_VOCABULARY
from paceline.models.gpt2 import gpt2
from paceline.models.hdc import hdc
from paceline.models.lenet import lenet5
from paceline.models.resnet import resnet50
from paceline.models.vgg import vgg_16, vgg_a


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One sample as it enters a network: real values where ``tokens`` is 0, else integers below ``tokens``."""

    shape: tuple[int, ...]
    tokens: int = 0

    def example(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """A random batch: float32 (batch, *shape) from N(0, 1), or int64 tokens."""
        if self.tokens:
            return torch.randint(self.tokens, (batch, *self.shape), device=device)
        return torch.randn((batch, *self.shape), device=device)


@dataclass(frozen=True, slots=True)
class Model:
    """A named network. ``loss`` is over logits: ``cross_entropy`` against a class index for each row of logits."""

    function: Callable[[], nn.Module]
    input: InputSpec
    sample: str
    source: str
    loss: str = "cross_entropy"


_MNIST, _IMAGENET = InputSpec((1, 28, 28)), InputSpec((3, 224, 224))
_BERT = InputSpec((128,), tokens=BERT_VOCABULARY)

REGISTRY: dict[str, Model] = {
    "lenet5": Model(lenet5, _MNIST, "image 1x28x28", "Caffe lenet_train_test; Han et al. 2015, arXiv:1506.02626"),
    "cifar10-terngrad": Model(
        cifar10_terngrad,
        InputSpec((3, 24, 24)),
        "image 3x24x24",
        "Wen et al. 2017, arXiv:1705.07878; wenwei202/terngrad",
    ),
    "hdc": Model(hdc, _MNIST, "image 1x28x28", "Li et al., MICRO 2018 (INCEPTIONN)"),
    "alexnet": Model(
        alexnet, InputSpec((3, 227, 227)), "image 3x227x227", "Krizhevsky et al., NeurIPS 2012; Caffe bvlc_alexnet"
    ),
    "vgg-a": Model(vgg_a, _IMAGENET, "image 3x224x224", "Simonyan, Zisserman 2014, arXiv:1409.1556"),
    "vgg-16": Model(vgg_16, _IMAGENET, "image 3x224x224", "Simonyan, Zisserman 2014, arXiv:1409.1556"),
    "googlenet": Model(googlenet, _IMAGENET, "image 3x224x224", "Szegedy et al. 2014, arXiv:1409.4842"),
    "resnet-50": Model(
        resnet50,
        _IMAGENET,
        "image 3x224x224",
        "He et al. 2015, arXiv:1512.03385; v1.5 as Goyal et al. 2017, arXiv:1706.02677",
    ),
    "bert-base": Model(bert_base, _BERT, "sequence of 128 tokens", "Devlin et al. 2018, arXiv:1810.04805"),
    "bert-large": Model(bert_large, _BERT, "sequence of 128 tokens", "Devlin et al. 2018, arXiv:1810.04805"),
    "gpt2": Model(
        gpt2,
        InputSpec((GPT2_CONTEXT,), tokens=GPT2_VOCABULARY),
        "sequence of 1024 tokens",
        "Radford et al. 2019 (GPT-2)",
    ),
}


def model(name: str) -> Model:
    """The registry entry of ``name``. Raises UserError, with the nearest names, for any other."""
    if name not in REGISTRY:
        raise unknown("model", name, REGISTRY)
    return REGISTRY[name]


def build(name: str) -> nn.Module:
    """A fresh network, on torch's current default device, drawn from its current generator."""
    return model(name).function()
