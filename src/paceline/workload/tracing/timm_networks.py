"""Layer tables of the networks of timm (PyTorch Image Models): kept ones of the most used, others traced when a user names one.

Networks are built on the meta device, so they have shapes but neither weights nor arithmetic. Source: Wightman 2019, PyTorch
Image Models, github.com/huggingface/pytorch-image-models.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from paceline.errors import UserError, needs_torch, shorten, unknown
from paceline.workload.layers import LayerTable
from paceline.workload.tracing.trace import trace

PREFIX = "timm/"
INPUT_EXAMPLE = "give the image as channels x height x width: --input 3x224x224"
_IMAGE = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)x([1-9][0-9]*)")
_SIZE = (3, 224, 224)
_IMAGES = "torchvision"
_DEFINED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)
_DEPRECATED = re.compile(r"^register_model_deprecations\(__name__, \{(.*?)^\}\)", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"^\s*'(\w+)':", re.MULTILINE)
KEPT = files("paceline.workload") / "zoo" / "timm.json.xz"
"""Written by ``benchmarks/timm_tables.py``."""
EARLIER: Mapping[str, str] = MappingProxyType(
    {f"ig_resnext101_32x{width}d": f"resnext101_32x{width}d" for width in (16, 32, 48)}
)
"""Names of earlier versions that timm 1.0 takes for another network: it builds ``resnext101_32x8d`` for all of these."""


@cache
def timm_names() -> frozenset[str]:
    """Return the names of all networks of timm, with those of earlier versions; without timm or torch those of kept tables.

    Reads the text of timm's modules, since their import takes seconds.
    """
    found = find_spec("timm")
    if found is None or found.origin is None or find_spec("torch") is None:
        return frozenset(kept_tables())
    texts = [path.read_text(encoding="utf-8") for path in (Path(found.origin).parent / "models").glob("*.py")]
    names = {name for text in texts for name in _DEFINED.findall(text)}
    earlier = {name for text in texts for block in _DEPRECATED.findall(text) for name in _KEY.findall(block)}
    return frozenset(names | earlier | set(EARLIER) | set(kept_tables()))


@cache
def kept_tables() -> Mapping[str, Any]:
    """Return the tables of the most used networks as JSON, by name, for the size in which each was trained."""
    tables: dict[str, Any] = json.loads(lzma.decompress(KEPT.read_bytes()))
    return tables


def is_timm(name: str) -> bool:
    """Return whether ``name`` is a network of the installed timm, maybe with a tag of its weights: ``resnet50.a1_in1k``."""
    return name.removeprefix(PREFIX).partition(".")[0] in timm_names()


def timm_table(name: str, inputs: str = "", fused_attention: bool = True) -> LayerTable:
    """Return the layer table of a network of timm.

    Args:
        name: name in timm, with ``timm/`` or without.
        inputs: size of an image, ``3x256x256``; empty: the size in which the network was trained.
        fused_attention: do not write scores to memory; else as timm without fused attention.

    Raises:
        UserError: timm or torch is missing, no such network, an input that it does not take; or as ``trace``.
    """
    plain = name.removeprefix(PREFIX).partition(".")[0]
    if plain not in timm_names():
        raise unknown("network of timm", plain, sorted(timm_names()))
    if not inputs and fused_attention and plain in kept_tables():
        return _kept(plain)
    return traced(plain, _size(inputs) if inputs else None, fused_attention)


@cache
def _kept(name: str) -> LayerTable:
    return LayerTable.from_json(kept_tables()[name])


@cache
def traced(name: str, size: tuple[int, ...] | None, fused_attention: bool) -> LayerTable:
    """Trace a network for a size of images; None: the one in which it was trained. Arguments and errors as ``timm_table``."""
    with needs_torch(f"workload {PREFIX}{name}"):
        import torch
    timm, today = _timm(), EARLIER.get(name, name)
    with warnings.catch_warnings(), _attention(timm, fused_attention), torch.device("meta"):
        warnings.simplefilter("ignore")  # earlier names of networks
        try:
            model = timm.create_model(today)
        except RuntimeError as error:  # a name that timm lists, though it dropped its weights' tag
            raise UserError(
                f"network {name} of timm {timm.__version__}: {shorten(str(error).rstrip('.'))}", "give another name"
            ) from error
        usual = tuple(model.pretrained_cfg.get("input_size", _SIZE))
        if size and size != usual:
            model = _resized(timm, today, model, size)
    size = size or usual
    example = torch.empty((2, *size), device="meta")
    sample = f"image {'x'.join(map(str, size))}"
    source = f"timm {timm.__version__}, {today}"
    return trace(model, example, name=PREFIX + name, sample=sample, source=source, loss="cross_entropy", casts=True)


def _size(text: str) -> tuple[int, ...]:
    match = _IMAGE.fullmatch(text)
    if match is None:
        raise UserError(f"input {text!r}", INPUT_EXAMPLE)
    return tuple(map(int, match.groups()))


def _resized(timm: Any, name: str, model: Any, size: tuple[int, ...]) -> Any:
    """Return the network for another size of images, if it is built for one size."""
    try:
        return timm.create_model(name, img_size=size[1:])
    except TypeError:  # a network that takes every size
        return model


@contextmanager
def _attention(timm: Any, fused: bool) -> Iterator[None]:
    """Build networks with or without fused attention, and restore timm's setting."""
    before = timm.layers.use_fused_attn()
    timm.layers.set_fused_attn(fused)
    try:
        yield
    finally:
        timm.layers.set_fused_attn(before)


@cache
def _timm() -> Any:
    """Return the module timm. Raises UserError if it is missing."""
    if find_spec("timm") is None:
        raise UserError("networks of timm need timm", "pip install timm")
    if find_spec(_IMAGES) is not None:
        return _imported()
    finder = _EmptyTorchvision()
    sys.meta_path.append(finder)
    try:
        return _imported()
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == _IMAGES]:
            del sys.modules[name]


def _imported() -> Any:
    import timm

    return timm


class _AnyName(type):
    """Class whose attributes are their own names, as those of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _ModuleOfAnyName(ModuleType):
    """Module in which every name is a class without content."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {})


class _EmptyTorchvision(MetaPathFinder, Loader):
    """Importer of an empty torchvision. timm imports it for reading images, which no trace does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == _IMAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _ModuleOfAnyName(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""
