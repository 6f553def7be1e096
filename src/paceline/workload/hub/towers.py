"""Towers of images next to a language model: tokens of an image, and the layers of the tower for images of a size.

The tower's layers follow from its modules: each linear layer runs over the patches of the images, those of the projector over
what remains of them, and each block attends within one image, or within windows of it (Bai et al. 2025, Qwen2.5-VL,
arXiv:2502.13923, section 2.1). The language model is traced with the tokens of text and images in one sequence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from paceline.errors import UserError
from paceline.workload.builders.attention import attention
from paceline.workload.builders.frozen_network import frozen_layer
from paceline.workload.builders.layer_builders import WORD, LayerSpec, elementwise, lay_out, linear, normalisation, positions
from paceline.workload.hub.roles import block_of, named
from paceline.workload.layers import Layer, LayerTable, Parameter
from paceline.workload.sample_size import FROZEN_VISION, SampleSize

GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe", "mistral3")
"""Kinds that take images of every size: patches of a grid, of which a square of neighbours is one token."""
TILES = {"llama4": 16}
"""Kinds that divide an image into tiles of one size, with the most tiles. Several get a small copy of the whole image too."""
FIXED = ("llava", "vipllava", "gemma3", "paligemma")
"""Kinds that resize every image to one size."""
MOST_PIXELS = 1_003_520
"""Pixels of the usual image of ``GRIDS``: the most that Qwen2-VL's processor keeps by default (transformers 5.24,
``models/qwen2_vl/image_processing_qwen2_vl.py``, 28 x 28 x 1280)."""
_LANGUAGE = re.compile(r"(^|\.)(language_model|text_model|lm_head)(\.|$)")
_PROJECTOR = re.compile(r"(^|\.)\w*(projector|merger)\w*(\.|$)")
_MIXED = re.compile(r"(^|\.)(qkv|v_proj)$")
_EXPANDED = re.compile(r"(^|\.)(fc1|linear_fc1|up_proj)$")


@dataclass(frozen=True, slots=True)
class SeenImages:
    """Images of one sample.

    Attributes:
        height, width: pixels of one as the tower sees it.
        count: their number. ``runs``: runs of the tower for one, as of tiles.
        patches: of one run. ``tokens``: of one image in the language model's sequence.
    """

    height: int
    width: int
    count: int
    runs: int
    patches: int
    tokens: int

    @property
    def text(self) -> str:
        """The images as a part of a sample's description."""
        return f"{'one image' if self.count == 1 else f'{self.count} images'} 3x{self.height}x{self.width}"


def has_tower(config: Any) -> bool:
    """Return whether the images of a kind of model are known here."""
    return config.model_type in (*GRIDS, *TILES, *FIXED)


def is_usual(config: Any) -> bool:
    """Return whether a kind's usual sample, too, takes its images from here: its own forward pass cannot be traced with one."""
    return config.model_type in (*GRIDS, *TILES)


def seen_images(config: Any, size: SampleSize) -> SeenImages:
    """Return the images of a sample.

    Raises:
        UserError: a size that the model resizes to its own.
    """
    kind, vision = config.model_type, config.vision_config
    patch, count = vision.patch_size, size.images or 1
    if kind in GRIDS:
        merge = int(getattr(vision, "spatial_merge_size", 0) or getattr(config, "spatial_merge_size", 1))
        cell = patch * merge
        side = int(MOST_PIXELS**0.5) // cell * cell
        high, wide = (max(1, round(pixels / cell)) * cell for pixels in (size.height or side, size.width or side))
        patches = (high // patch) * (wide // patch)
        return SeenImages(high, wide, count, 1, patches, patches // merge**2)
    side = vision.image_size
    high, wide = size.height or side, size.width or side
    patches = (side // patch) ** 2
    if kind in TILES:
        tiles = min(TILES[kind], ceil(high / side) * ceil(wide / side))
        runs = tiles + (tiles > 1)
        return SeenImages(high, wide, count, runs, patches, runs * round(patches * vision.pixel_shuffle_ratio**2))
    if (high, wide) != (side, side):
        raise UserError(f"{kind} resizes images to {side}x{side}", f"leave the size out, or give image:{side}x{side}")
    tokens = getattr(config, "mm_tokens_per_image", None) or getattr(config, "image_seq_length", None) or patches
    return SeenImages(side, side, count, 1, patches, tokens)


def with_images(table: LayerTable, module: Any, seen: SeenImages, words: frozenset[str]) -> LayerTable:
    """Return a language model's table with the tower of images in front.

    Args:
        table: of a pass with text alone; layers without work are replaced.
        module: the whole model.
        words: ``FROZEN_VISION`` freezes the tower, but not its projector.
    """
    specs = _specs(module, seen)
    tower, weights = lay_out(specs)
    names = named(tower, 0)
    tower = tuple(replace(layer, name=name) for layer, name in zip(tower, names, strict=True))
    frozen = [i for i, spec in enumerate(specs) if FROZEN_VISION in words and not _PROJECTOR.search(spec.name)]
    parts: list[tuple[Layer, list[Parameter]]] = []
    held = {i: [p for p in weights if p.layer == i] for i in range(len(tower))}
    if frozen:
        body = replace(table, layers=tuple(tower[i] for i in frozen), parameters=())
        parts.append((frozen_layer("encoders.vision", body), []))
    parts += [(tower[i], held[i]) for i in range(len(tower)) if i not in frozen]
    others = {p.name for p in weights}
    owners: dict[int, list[Parameter]] = {}
    for parameter in table.parameters:
        if parameter.name not in others:
            owners.setdefault(parameter.layer, []).append(parameter)
    idle = {p.layer for p in table.parameters if p.name in others}
    parts += [(layer, owners.get(i, [])) for i, layer in enumerate(table.layers) if i not in idle or layer.operations]
    flat = [(index, parameter) for index, (_, own) in enumerate(parts) for parameter in own]
    order = sorted(range(len(flat)), key=lambda i: (-flat[i][0], -i))
    ready = {row: place for place, row in enumerate(order)}
    return replace(
        table,
        layers=tuple(layer for layer, _ in parts),
        parameters=tuple(replace(p, layer=index, ready=ready[i]) for i, (index, p) in enumerate(flat)),
        frozen=table.frozen + sum(p.size for i in frozen for p in held[i]),
        sample=f"{table.sample}, {seen.text}",
        input_bytes=table.input_bytes + WORD * 3 * seen.count * seen.height * seen.width,
    )


def _specs(module: Any, seen: SeenImages) -> list[LayerSpec]:
    """Return the layers of the tower and of its projector, with the weights of its modules."""
    vision = module.config.vision_config
    rows = float(seen.patches * seen.runs * seen.count)
    whole = int(getattr(vision, "hidden_size", 0) if module.config.model_type != "qwen2_vl" else vision.embed_dim)
    left = rows  # after the projector has joined neighbours
    made: list[LayerSpec] = []
    blocks: dict[str, int] = {}
    for path, own in module.named_modules():
        held = [(name, tuple(p.shape)) for name, p in own.named_parameters(recurse=False)]
        if not held or _LANGUAGE.search(path):
            continue
        shape = next((shape for name, shape in held if name == "weight"), held[0][1])
        if _PROJECTOR.search(path) and len(shape) == 2 and shape[1] > whole and shape[1] % whole == 0:
            left = rows / (shape[1] // whole)
        made.append(_spec(path, own, held, shape, left if _PROJECTOR.search(path) else rows))
        block = block_of(path)
        if block and not _PROJECTOR.search(path):
            number = blocks.setdefault(block, len(blocks))
            made += _inside(path, block, number, shape, rows, vision, seen)
    return made


def _spec(path: str, module: Any, held: list[tuple[str, tuple[int, ...]]], shape: tuple[int, ...], rows: float) -> LayerSpec:
    """Return the layer of a module by the shape of its weight: a product, a convolution over patches, or a norm."""
    bias = any(name == "bias" for name, _ in held)
    kind = type(module).__name__
    if "Embedding" in kind and len(shape) == 2:
        spec = positions(path, rows, *shape)
    elif len(shape) >= 2 and (len(shape) == 2 or "Conv" in kind):
        spec = linear(path, rows, prod(shape[1:]), shape[0], bias=bias, kept_half=True)
        if "Conv" in kind:  # images need no gradient
            spec = replace(spec, operations=tuple(o for o in spec.operations if not (o.backward and o.grows == "m")))
    else:
        spec = normalisation(path, rows, max(prod(shape), 1), rms=not bias)
    return replace(spec, weights=tuple(reversed(held)))


def _inside(
    path: str, block: str, number: int, shape: tuple[int, ...], rows: float, vision: Any, seen: SeenImages
) -> list[LayerSpec]:
    """Return the work of a block between its products: attention after the values, the activation after the expansion."""
    if _MIXED.search(path):
        heads = int(getattr(vision, "num_heads", 0) or getattr(vision, "num_attention_heads", 1))
        width = (shape[0] // 3 if path.endswith("qkv") else shape[0]) // heads
        full = getattr(vision, "fullatt_block_indexes", None)
        window = int(getattr(vision, "window_size", 0) or 0) // vision.patch_size
        near = min(float(window * window), seen.patches) if window and full is not None and number not in full else seen.patches
        return [attention(f"{block}attention.mix", near, near, round(heads * rows / near), round(heads * rows / near), width)]
    if _EXPANDED.search(path):
        x = WORD * rows * shape[0]
        gated = path.endswith("up_proj")
        kept = x * (1 + gated)
        adds = 2 * 3 * WORD * rows * shape[-1]
        return [
            elementwise(f"{block}act", "Activation", (1, (2 + gated) * x), (1, (3 + 2 * gated) * x), kept),
            elementwise(f"{block}sum", "Add", (2, adds), (2, adds)),
        ]
    return []
