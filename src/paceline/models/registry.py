"""Named networks: the function that builds each, its sample and its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.errors import unknown
from paceline.models.ncf import ITEMS, ncf
from paceline.models.rgat import FEATURES as NODE_FEATURES
from paceline.models.rgat import NODES, rgat
from paceline.models.sequences.bert import VOCABULARY as BERT_VOCABULARY
from paceline.models.sequences.bert import bert_base, bert_large
from paceline.models.sequences.gpt2 import CONTEXT as GPT2_CONTEXT
from paceline.models.sequences.gpt2 import VOCABULARY as GPT2_VOCABULARY
from paceline.models.sequences.gpt2 import gpt2
from paceline.models.sequences.recurrent import BINS, deepspeech2, gnmt
from paceline.models.sequences.recurrent import VOCABULARY as GNMT_VOCABULARY
from paceline.models.sequences.transformer_xl import (
    BASE_LENGTH,
    LARGE_LENGTH,
    WHOLE_LARGE_LENGTH,
    WORDS,
    transformer_xl_base,
    transformer_xl_base_whole,
    transformer_xl_large,
    transformer_xl_large_whole,
)
from paceline.models.speech.rnnt import FEATURES as SPEECH_FEATURES
from paceline.models.speech.rnnt import STEPS, rnnt
from paceline.models.speech.tacotron2 import CHARACTERS, SYMBOLS, tacotron2
from paceline.models.speech.waveglow import SEGMENT, waveglow
from paceline.models.vision.alexnet import alexnet
from paceline.models.vision.cifar import cifar10_terngrad
from paceline.models.vision.compact import conv_m, conv_m_small
from paceline.models.vision.detection import mask_rcnn, retinanet, ssd_resnet34, ssd_resnet50
from paceline.models.vision.diffusion import stable_diffusion
from paceline.models.vision.flux import CHANNELS, TOKENS, flux1
from paceline.models.vision.googlenet import googlenet
from paceline.models.vision.hdc import hdc
from paceline.models.vision.inception import inception_v3
from paceline.models.vision.lenet import lenet5
from paceline.models.vision.resnet import resnet18, resnet18_cifar, resnet34, resnet50, resnet101, resnet152, resnext101
from paceline.models.vision.unet3d import unet3d
from paceline.models.vision.vgg import vgg_16, vgg_a
from paceline.models.vision.yolov3 import yolov3


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One sample as the input of a network: real values if ``tokens`` is 0, else integers below ``tokens``."""

    shape: tuple[int, ...]
    tokens: int = 0

    def example(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return a random batch: float32 (batch, *shape) from N(0, 1), or int64 tokens."""
        if self.tokens:
            return torch.randint(self.tokens, (batch, *self.shape), device=device)
        return torch.randn((batch, *self.shape), device=device)


@dataclass(frozen=True, slots=True)
class Entry:
    """A named network.

    ``loss`` is over logits: ``cross_entropy`` with a class index for each row of logits, or ``mean`` of all outputs if the
    network's own loss is not counted.
    """

    function: Callable[[], nn.Module]
    input: InputSpec
    sample: str
    source: str
    loss: str = "cross_entropy"


_MNIST, _IMAGENET = InputSpec((1, 28, 28)), InputSpec((3, 224, 224))
_RESNET = "He et al. 2015, arXiv:1512.03385, table 1; strides as in v1.5"
_TRANSFORMER_XL = "Dai et al. 2019, arXiv:1901.02860; NVIDIA DeepLearningExamples"
_WHOLE = f"{_TRANSFORMER_XL}, with a softmax over all words as lambdal/deeplearning-benchmark"
_BERT = InputSpec((128,), tokens=BERT_VOCABULARY)

REGISTRY: dict[str, Entry] = {
    "lenet5": Entry(lenet5, _MNIST, "image 1x28x28", "Caffe lenet_train_test; Han et al. 2015, arXiv:1506.02626"),
    "cifar10-terngrad": Entry(
        cifar10_terngrad,
        InputSpec((3, 24, 24)),
        "image 3x24x24",
        "Wen et al. 2017, arXiv:1705.07878; wenwei202/terngrad",
    ),
    "hdc": Entry(hdc, _MNIST, "image 1x28x28", "Li et al., MICRO 2018 (INCEPTIONN)"),
    "alexnet": Entry(
        alexnet, InputSpec((3, 227, 227)), "image 3x227x227", "Krizhevsky et al., NeurIPS 2012; Caffe bvlc_alexnet"
    ),
    "vgg-a": Entry(vgg_a, _IMAGENET, "image 3x224x224", "Simonyan, Zisserman 2014, arXiv:1409.1556"),
    "vgg-16": Entry(vgg_16, _IMAGENET, "image 3x224x224", "Simonyan, Zisserman 2014, arXiv:1409.1556"),
    "googlenet": Entry(googlenet, _IMAGENET, "image 3x224x224", "Szegedy et al. 2014, arXiv:1409.4842"),
    "conv-m": Entry(conv_m, _IMAGENET, "image 3x224x224", "Wu et al., CVPR 2017, arXiv:1703.04071; widths of our own"),
    "conv-m-small": Entry(conv_m_small, _MNIST, "image 1x28x28", "Wu et al., CVPR 2017, arXiv:1703.04071; widths of our own"),
    "inception-v3": Entry(
        inception_v3, InputSpec((3, 299, 299)), "image 3x299x299", "Szegedy et al. 2015, arXiv:1512.00567; no auxiliary head"
    ),
    "resnet-18-cifar": Entry(
        resnet18_cifar, InputSpec((3, 32, 32)), "image 3x32x32", "He et al. 2015, arXiv:1512.03385; kuangliu/pytorch-cifar"
    ),
    "resnet-18": Entry(resnet18, _IMAGENET, "image 3x224x224", _RESNET),
    "resnet-34": Entry(resnet34, _IMAGENET, "image 3x224x224", _RESNET),
    "resnet-50": Entry(
        resnet50,
        _IMAGENET,
        "image 3x224x224",
        "He et al. 2015, arXiv:1512.03385; v1.5 as Goyal et al. 2017, arXiv:1706.02677",
    ),
    "resnet-101": Entry(resnet101, _IMAGENET, "image 3x224x224", _RESNET),
    "resnet-152": Entry(resnet152, _IMAGENET, "image 3x224x224", _RESNET),
    "resnext-101": Entry(resnext101, _IMAGENET, "image 3x224x224", "Xie et al. 2016, arXiv:1611.05431: 32x4d"),
    "ssd-resnet34": Entry(
        ssd_resnet34, InputSpec((3, 300, 300)), "image 3x300x300", "Liu et al. 2016, arXiv:1512.02325; MLPerf v1.1", "mean"
    ),
    "ssd-resnet50": Entry(
        ssd_resnet50,
        InputSpec((3, 300, 300)),
        "image 3x300x300",
        "Liu et al. 2016, arXiv:1512.02325; NVIDIA DeepLearningExamples",
        "mean",
    ),
    "retinanet": Entry(
        retinanet, InputSpec((3, 800, 800)), "image 3x800x800", "Lin et al. 2017, arXiv:1708.02002; MLPerf v2.0", "mean"
    ),
    "mask-rcnn": Entry(
        mask_rcnn, InputSpec((3, 800, 1344)), "image 3x800x1344", "He et al. 2017, arXiv:1703.06870; MLPerf v1.1", "mean"
    ),
    "unet3d": Entry(
        unet3d,
        InputSpec((1, 128, 128, 128)),
        "volume 128x128x128",
        "Isensee et al. 2018, arXiv:1809.10486; MLPerf v1.1 (KiTS19)",
        "mean",
    ),
    "yolov3": Entry(
        yolov3, InputSpec((3, 448, 448)), "image 3x448x448", "Redmon, Farhadi 2018, arXiv:1804.02767; Pascal VOC", "mean"
    ),
    "ncf": Entry(ncf, InputSpec((2,), tokens=ITEMS), "user and item", "He et al. 2017, arXiv:1708.05031; MovieLens-1M", "mean"),
    "deepspeech2": Entry(
        deepspeech2,
        InputSpec((1, BINS, 400)),
        "speech of 4 s",
        "Amodei et al. 2015, arXiv:1512.02595; petuum/adaptdl benchmark",
        "mean",
    ),
    "txl-base": Entry(
        transformer_xl_base, InputSpec((BASE_LENGTH,), tokens=WORDS), "segment of 192 words", _TRANSFORMER_XL, "mean"
    ),
    "txl-large": Entry(
        transformer_xl_large, InputSpec((LARGE_LENGTH,), tokens=WORDS), "segment of 384 words", _TRANSFORMER_XL, "mean"
    ),
    "txl-base-softmax": Entry(
        transformer_xl_base_whole, InputSpec((BASE_LENGTH,), tokens=WORDS), "segment of 192 words", _WHOLE, "mean"
    ),
    "txl-large-softmax": Entry(
        transformer_xl_large_whole, InputSpec((WHOLE_LARGE_LENGTH,), tokens=WORDS), "segment of 256 words", _WHOLE, "mean"
    ),
    "waveglow": Entry(
        waveglow,
        InputSpec((1, SEGMENT)),
        "8000 audio samples",
        "Prenger et al. 2019, arXiv:1811.00002; NVIDIA DeepLearningExamples",
        "mean",
    ),
    "tacotron2": Entry(
        tacotron2,
        InputSpec((CHARACTERS,), tokens=SYMBOLS),
        "clip of 870 frames",
        "Shen et al. 2018, arXiv:1712.05884; NVIDIA DeepLearningExamples",
        "mean",
    ),
    "rnnt": Entry(
        rnnt, InputSpec((STEPS, SPEECH_FEATURES)), "utterance of 12.3 s", "Graves 2012, arXiv:1211.3711; MLPerf v1.0", "mean"
    ),
    "rgat": Entry(
        rgat,
        InputSpec((sum(NODES.values()), NODE_FEATURES)),
        "paper and neighbours",
        "Busbridge et al. 2019, arXiv:1904.05811; MLPerf v4.0 (IGBH-Full)",
    ),
    "flux1": Entry(
        flux1,
        InputSpec((TOKENS, CHANNELS)),
        "latent of 256 tokens",
        "Black Forest Labs 2024, FLUX.1-schnell, the released model; MLPerf v5.1",
        "mean",
    ),
    "gnmt": Entry(
        gnmt,
        InputSpec((2, 27), tokens=GNMT_VOCABULARY),
        "sentences of 27 tokens",
        "Wu et al. 2016, arXiv:1609.08144; MLPerf v0.7",
    ),
    "stable-diffusion": Entry(
        stable_diffusion, InputSpec((4, 64, 64)), "latent 4x64x64", "Rombach et al. 2022, arXiv:2112.10752; MLPerf v3.1", "mean"
    ),
    "bert-base": Entry(bert_base, _BERT, "sequence of 128 tokens", "Devlin et al. 2018, arXiv:1810.04805"),
    "bert-large": Entry(bert_large, _BERT, "sequence of 128 tokens", "Devlin et al. 2018, arXiv:1810.04805"),
    "gpt2": Entry(
        gpt2,
        InputSpec((GPT2_CONTEXT,), tokens=GPT2_VOCABULARY),
        "sequence of 1024 tokens",
        "Radford et al. 2019 (GPT-2)",
    ),
}


def model(name: str) -> Entry:
    """Return the registry entry of ``name``. Raises UserError, with the nearest names, for an unknown one."""
    if name not in REGISTRY:
        raise unknown("model", name, REGISTRY)
    return REGISTRY[name]


def build(name: str) -> nn.Module:
    """Build a network on torch's default device, with weights from its default generator."""
    return model(name).function()
