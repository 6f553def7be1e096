"""LeNet-5 of Caffe, common in papers on pruning and gradient compression: 431,080 parameters.

Source: Caffe, examples/mnist/lenet_train_test.prototxt; totals in Han et al. 2015 (arXiv:1506.02626), table 3. It
differs from LeCun et al. 1998 (60 k parameters) in its widths, its max pooling and its single rectifier.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def lenet5() -> nn.Module:
    """Return LeNet-5, from images (B, 1, 28, 28) to logits (B, 10)."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 20, 5),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(50 * 4 * 4, 500),
            relu1=nn.ReLU(),
            fc2=nn.Linear(500, 10),
        )
    )
