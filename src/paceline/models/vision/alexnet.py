"""AlexNet with its two groups and response normalisation: 60,965,224 parameters.

Source: Krizhevsky, Sutskever, Hinton, NeurIPS 2012, in the one-device form of Caffe's bvlc_alexnet (227x227 crops).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from paceline.models.init import he_init


def _lrn() -> nn.LocalResponseNorm:
    return nn.LocalResponseNorm(size=5, alpha=1e-4, beta=0.75, k=1.0)


def alexnet() -> nn.Module:
    """Return AlexNet, from images (B, 3, 227, 227) to logits (B, 1000)."""
    return he_init(
        nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 96, 11, stride=4),
                relu1=nn.ReLU(inplace=True),
                norm1=_lrn(),
                pool1=nn.MaxPool2d(3, stride=2),
                conv2=nn.Conv2d(96, 256, 5, padding=2, groups=2),
                relu2=nn.ReLU(inplace=True),
                norm2=_lrn(),
                pool2=nn.MaxPool2d(3, stride=2),
                conv3=nn.Conv2d(256, 384, 3, padding=1),
                relu3=nn.ReLU(inplace=True),
                conv4=nn.Conv2d(384, 384, 3, padding=1, groups=2),
                relu4=nn.ReLU(inplace=True),
                conv5=nn.Conv2d(384, 256, 3, padding=1, groups=2),
                relu5=nn.ReLU(inplace=True),
                pool5=nn.MaxPool2d(3, stride=2),
                flatten=nn.Flatten(),
                fc6=nn.Linear(256 * 6 * 6, 4096),
                relu6=nn.ReLU(inplace=True),
                drop6=nn.Dropout(0.5),
                fc7=nn.Linear(4096, 4096),
                relu7=nn.ReLU(inplace=True),
                drop7=nn.Dropout(0.5),
                fc8=nn.Linear(4096, 1000),
            )
        )
    )
