"""The CIFAR-10 network of TernGrad: two convolutions with response normalisation, three fully connected layers.

Source: wenwei202/terngrad, ``cifar10_alexnet`` with 24x24 crops; the shapes are those of TensorFlow's CIFAR-10
tutorial, which gives 1,068,298 parameters and about 19.5 M multiply-adds an image.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

_POOLED = 24 // 4  # two poolings of stride 2


def _lrn() -> nn.LocalResponseNorm:
    # TensorFlow takes alpha per element (0.001 / 9) and a radius of 4; torch takes alpha per window and its full width.
    return nn.LocalResponseNorm(size=9, alpha=0.001, beta=0.75, k=1.0)


def cifar10_terngrad() -> nn.Module:
    """Return TernGrad's network, from images (B, 3, 24, 24) to logits (B, 10). Initial weights and biases are the source's."""
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 64, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(3, stride=2, padding=1),
            norm1=_lrn(),
            conv2=nn.Conv2d(64, 64, 5, padding=2),
            relu2=nn.ReLU(),
            norm2=_lrn(),
            pool2=nn.MaxPool2d(3, stride=2, padding=1),
            flatten=nn.Flatten(),
            fc3=nn.Linear(64 * _POOLED * _POOLED, 384),
            relu3=nn.ReLU(),
            fc4=nn.Linear(384, 192),
            relu4=nn.ReLU(),
            logits=nn.Linear(192, 10),
        )
    )
    start = {
        "conv1": (0.05, 0.0),
        "conv2": (0.05, 0.1),
        "fc3": (0.04, 0.1),
        "fc4": (0.04, 0.1),
        "logits": (1 / 192, 0.0),
    }
    for name, (std, bias) in start.items():
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.constant_(layer.bias, bias)
    return model
