"""Transformers that classify images, from their dimensions or Hugging Face configurations (Dosovitskiy et al. 2020,
arXiv:2010.11929, section 3.1; Touvron et al. 2020, DeiT, arXiv:2012.12877, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from paceline.errors import UserError
from paceline.workload.builders.layer_builders import WORD, LayerSpec, cross_entropy, dropout, linear, memory
from paceline.workload.builders.transformer import TransformerShape, as_table, blocks, norm
from paceline.workload.configs.config_values import Config, drops, flag, number
from paceline.workload.layers import LayerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """Dimensions of a transformer over the patches of an image.

    Attributes:
        blocks: its blocks; their vocabulary and positions are not used.
        image, patch: pixels of a side. ``channels``: numbers of a pixel.
        extra: trained tokens in addition to the patches: that of the class, and DeiT's of distillation.
        labels: classes of an image.

    Raises:
        UserError: patches that do not fill the image.
    """

    blocks: TransformerShape
    image: int
    patch: int
    channels: int
    extra: int
    labels: int

    def __post_init__(self) -> None:
        if min(self.image, self.patch, self.channels, self.labels) < 1 or self.image % self.patch:
            raise UserError(
                f"patches of {self.patch} pixels in an image of {self.image}", "the image is a multiple of the patch"
            )

    @property
    def tokens(self) -> int:
        """Number of patches and extra tokens of an image."""
        return (self.image // self.patch) ** 2 + self.extra


def vision_transformer(shape: VisionShape, *, name: str, source: str = "", fused_attention: bool = True) -> LayerTable:
    """Return the layer table of one training step on images and their classes."""
    inner, s, h = shape.blocks, shape.tokens, shape.blocks.hidden
    parts = [_patches(shape), _positions(shape)]
    parts += [dropout("drop", s * h)] if inner.dropout else []
    block = blocks(inner, s, fused_attention)
    parts += [part.named(f"blocks.{i}.") for i in range(inner.layers) for part in block]
    parts += [norm(inner, "norm", s, h), linear("head", 1, h, shape.labels), cross_entropy("loss", 1, shape.labels)]
    pixels = shape.channels * shape.image**2
    return as_table(parts, name, source, f"image {shape.channels}x{shape.image}x{shape.image}", WORD * pixels)


def _patches(shape: VisionShape) -> LayerSpec:
    """Return a convolution whose stride is its kernel: one product for each patch. Its data need no gradient."""
    patch, h = shape.patch, shape.blocks.hidden
    whole = linear("patches", shape.tokens - shape.extra, shape.channels * patch**2, h)
    operations = tuple(
        replace(o, kind="conv", window=patch**2) if o.kind == "matmul" else o
        for o in whole.operations
        if not (o.backward and o.grows == "m")
    )
    weights = ("bias", (h,)), ("weight", (h, shape.channels, patch, patch))
    return replace(whole, kind="Conv2d", operations=operations, weights=weights)


def _positions(shape: VisionShape) -> LayerSpec:
    """Return the extra tokens in front of the patches, and trained positions for all of them."""
    h, x = shape.blocks.hidden, WORD * shape.tokens * shape.blocks.hidden
    operations = memory(False, 2, 4 * x, x), memory(True, 3, 3 * x, 2 * x)
    tokens = [(f"token{i}", (1, 1, h)) for i in range(shape.extra)]
    return LayerSpec("positions", "Positions", operations, weights=(*tokens, ("weight", (1, shape.tokens, h))))


def _configured(config: Config, extra: int) -> tuple[VisionShape, int]:
    hidden = number(config, "hidden_size")
    inner = TransformerShape(
        layers=number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=number(config, "num_attention_heads"),
        ffn=number(config, "intermediate_size"),
        vocabulary=1,
        qkv_bias=flag(config, "qkv_bias", True),
        causal=False,
        fused_qkv=False,
        dropout=drops(config, "hidden_dropout_prob", "attention_probs_dropout_prob"),
    )
    shape = VisionShape(
        blocks=inner,
        image=number(config, "image_size", default=224),
        patch=number(config, "patch_size", default=16),
        channels=number(config, "num_channels", default=3),
        extra=extra,
        labels=len(config.get("id2label") or ()) or number(config, "num_labels", default=2),
    )
    return shape, shape.tokens


VISION: Mapping[str, Callable[[Config], tuple[VisionShape, int]]] = MappingProxyType(
    {"deit": lambda config: _configured(config, 2), "vit": lambda config: _configured(config, 1)}
)


def _vit(layers: int, hidden: int, heads: int, patch: int) -> VisionShape:
    inner = TransformerShape(
        layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, vocabulary=1, qkv_bias=True, causal=False, dropout=False
    )
    return VisionShape(blocks=inner, image=224, patch=patch, channels=3, extra=1, labels=1000)


VITS: Mapping[str, VisionShape] = MappingProxyType(
    {
        "vit-s-16": _vit(12, 384, 6, 16),
        "vit-b-16": _vit(12, 768, 12, 16),
        "vit-b-32": _vit(12, 768, 12, 32),
        "vit-l-16": _vit(24, 1024, 16, 16),
        "vit-h-14": _vit(32, 1280, 16, 14),
    }
)
"""Named transformers over images of 224 pixels: Dosovitskiy et al. 2020, table 1; S: Touvron et al. 2020 (DeiT), table 1."""


def named_vit(name: str, fused_attention: bool = True) -> LayerTable:
    """Return the table of one of ``VITS``, for ImageNet's 1,000 classes."""
    source = "Dosovitskiy et al. 2020 (ViT), arXiv:2010.11929, table 1; S: DeiT, arXiv:2012.12877, table 1"
    return vision_transformer(VITS[name], name=name, source=source, fused_attention=fused_attention)
