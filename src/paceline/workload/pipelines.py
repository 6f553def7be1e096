"""Published diffusion models as they are trained: the denoiser, and next to it frozen text encoders and an autoencoder.

``zoo/pipelines`` has their published configurations, and the tables of their networks for usual sizes of images and clips
(``benchmarks/pipeline_tables.py``). Other sizes are traced, with transformers and diffusers installed.

The usual size of images is the default of diffusers' training scripts (``examples/dreambooth`` and ``examples/text_to_image``,
``--resolution``) where it has one. These scripts hold the encoders on the device and run them in each step, forward alone.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError
from paceline.names import fold
from paceline.workload.builders.frozen_network import frozen_layer
from paceline.workload.layers import LayerTable, Parameter
from paceline.workload.sample_size import (
    CACHED,
    CACHED_LATENTS,
    CACHED_TEXT,
    FROZEN_VISION,
    TRAIN_TEXT,
    SampleSize,
    parse_sample,
)

_ZOO = Path(str(files("paceline.workload") / "zoo" / "pipelines"))
FACTS, TABLES = _ZOO / "configurations.json", _ZOO / "tables.zip"
INDEX = "index.json"
BENCHMARKS: Mapping[str, str] = MappingProxyType({"flux1": "flux.1-dev", "stable-diffusion": "stable-diffusion-2.1"})
"""Models that fine-tuning, or a size, means by the name of a network of MLPerf, which has latents and embeddings from files."""


@dataclass(frozen=True, slots=True)
class FrozenNetwork:
    """Frozen network of a pipeline.

    Attributes:
        library, kind: library and class that define it. ``config``: its published values.
        elements: elements of its weights; 0: those of its table.
        trained: whether scripts that train the text encoder train this one.
    """

    library: str
    kind: str
    config: Mapping[str, Any]
    elements: int = 0
    trained: bool = False


@dataclass(frozen=True, slots=True)
class DiffusionModel:
    """Published diffusion model.

    Attributes:
        denoiser: its configuration in diffusers.
        text: tokens of a text by the part that encodes it.
        autoencoder: the part that makes latents.
        size: usual size of a sample. ``sizes``: further ones with kept tables.
        names: other names.
        scale: pixels and frames that are one latent; None: those of the denoiser's class.
    """

    denoiser: Mapping[str, Any]
    text: Mapping[str, int]
    autoencoder: str
    size: str
    sizes: tuple[str, ...]
    names: tuple[str, ...]
    source: str
    scale: tuple[int, int] | None = None


@cache
def pipelines() -> Mapping[str, DiffusionModel]:
    """Return the published pipelines by name."""
    return MappingProxyType({name: DiffusionModel(**_tuples(row)) for name, row in _facts()["pipelines"].items()})


@cache
def parts() -> Mapping[str, FrozenNetwork]:
    """Return the frozen networks by name."""
    rows = _facts()["parts"]
    return MappingProxyType({name: FrozenNetwork(kind=row["class"], **_without(row, "class")) for name, row in rows.items()})


@cache
def kept_index() -> Mapping[str, tuple[int, str]]:
    """Return the trained parameters and the usual sample of each pipeline."""
    return {name: (row[0], row[1]) for name, row in json.loads(_archive().read(INDEX)).items()}


@cache
def pipeline_name(name: str) -> str:
    """Return the pipeline of a name in any case, with any separators; empty without one."""
    return _folded().get(fold(name), "")


def published(settings: Mapping[str, Any]) -> str:
    """Return the pipeline whose denoiser has all values of a configuration, which may leave some out; empty without one.

    A file that states the class alone, or values of several models, names none.
    """
    own = {key: value for key, value in settings.items() if not key.startswith("_") and value is not None}
    stated = json.loads(json.dumps(own))
    if len(stated) < _LEAST_VALUES:
        return ""
    kind = settings.get("_class_name")
    found = [name for name, entry in pipelines().items() if entry.denoiser["_class_name"] == kind and _agrees(entry, stated)]
    return found[0] if len(found) == 1 else ""


def _agrees(entry: DiffusionModel, stated: Mapping[str, Any]) -> bool:
    return all(key in entry.denoiser and entry.denoiser[key] == value for key, value in stated.items())


def nearest_published(settings: Mapping[str, Any]) -> str:
    """Return advice on a denoiser's configuration that cannot be built: the published model of its class that agrees most, and
    its values that the file leaves out; empty without one.
    """
    kind = settings.get("_class_name")
    same = {name: entry.denoiser for name, entry in pipelines().items() if entry.denoiser["_class_name"] == kind}
    if not same:
        return ""
    name = max(same, key=lambda own: sum(key in settings and settings[key] == value for key, value in same[own].items()))
    missing = {key: value for key, value in same[name].items() if key not in settings and value is not None}
    values = [f"{key} ({json.dumps(value)} there)" for key, value in missing.items() if _is_telling(value)]
    left_out = f"; the file leaves out {', '.join(values[:_MOST_VALUES])}, for which the class has defaults" if values else ""
    return f"{name} is the nearest published model of this class{left_out}: give all values, or name the model"


def _is_telling(value: Any) -> bool:
    """Return whether a value is a width, a number of layers, or a list of them or of blocks."""
    return (type(value) is int and value > 1) or (isinstance(value, list) and len(value) > 1)


_LEAST_VALUES, _MOST_VALUES = 4, 5


def pipeline_table(name: str, inputs: str = "", *, fused_attention: bool = True, given: str = "") -> LayerTable:
    """Return the table of one training step of a published pipeline.

    Args:
        name: one of ``pipelines``.
        inputs: size of a sample and words, as ``parse_sample``.
        fused_attention: do not write scores to memory.
        given: configuration that the values of the pipeline complete; empty: none.

    Raises:
        UserError: a size that the denoiser does not take, or without kept tables and without the libraries.
    """
    from paceline.workload.builders.attention import eager

    asked, entry = parse_sample(inputs) if inputs else SampleSize(), pipelines()[name]
    _check(name, asked)
    sample = parse_sample(asked.pixels or entry.size)
    denoiser = _denoiser(name, sample)
    words = asked.words
    texts = () if words & {CACHED, CACHED_TEXT} else tuple(entry.text.items())
    frozen = [(part, _text_encoder(part, tokens)) for part, tokens in texts]
    trained = [(part, table) for part, table in frozen if TRAIN_TEXT in words and parts()[part].trained]
    if TRAIN_TEXT in words and not trained:
        raise UserError(f"{name} has no CLIP text encoder to train", f"leave {TRAIN_TEXT} out")
    frozen = [pair for pair in frozen if pair not in trained]
    if not words & {CACHED, CACHED_LATENTS}:
        frozen.append((entry.autoencoder, _autoencoder(entry.autoencoder, sample)))
    table = _joined(denoiser, trained, frozen)
    pixels = 3 * (sample.frames or 1) * sample.height * sample.width
    whole = replace(
        table,
        name=name,
        source=f"{entry.source}; {denoiser.source}",
        input_bytes=denoiser.input_bytes if words & {CACHED, CACHED_LATENTS} else 4.0 * pixels,
        notes=_notes(name, denoiser.sample, asked, trained, frozen, given),
    )
    return whole if fused_attention else eager(whole)


def _joined(
    denoiser: LayerTable, trained: Sequence[tuple[str, LayerTable]], frozen: Sequence[tuple[str, LayerTable]]
) -> LayerTable:
    """Return the denoiser after the trained encoders, which get their gradients last, and the frozen networks."""
    layers = [frozen_layer(f"encoders.{part}", table) for part, table in frozen]
    rows: list[tuple[Parameter, str, int]] = []  # with the part and the first layer
    for prefix, table in ((f"{part}.", table) for part, table in trained):
        rows += [(parameter, prefix, len(layers)) for parameter in table.parameters]
        layers += [replace(layer, name=prefix + layer.name) for layer in table.layers]
    rows += [(parameter, "", len(layers)) for parameter in denoiser.parameters]
    layers += denoiser.layers
    made = [replace(p, name=prefix + p.name, layer=p.layer + first) for p, prefix, first in rows]
    order = sorted(range(len(rows)), key=lambda i: (-rows[i][2], rows[i][0].ready))
    ready = {row: place for place, row in enumerate(order)}
    return replace(
        denoiser,
        layers=tuple(layers),
        parameters=tuple(replace(p, ready=ready[i]) for i, p in enumerate(made)),
        resident=sum(_elements(part, table) for part, table in frozen),
    )


def _elements(part: str, table: LayerTable) -> int:
    return parts()[part].elements or table.num_parameters


def _notes(
    name: str,
    sample: str,
    asked: SampleSize,
    trained: Sequence[tuple[str, LayerTable]],
    frozen: Sequence[tuple[str, LayerTable]],
    given: str,
) -> tuple[str, ...]:
    """Return the sentences about what a sample is and what is counted."""
    usual = "" if asked.pixels else ", the usual size (--input 1024px or 81x480x832 says another)"
    listed = ", ".join(f"{part} {_elements(part, table) / 1e9:.2f} B" for part, table in frozen)
    held = (
        f"Frozen networks are whole on every device, and run forward in each step: {listed} (--input cached: latents and "
        "embeddings were computed before)."
        if frozen
        else "Latents and embeddings were computed before: no text encoder and no autoencoder is on the device."
    )
    also = [f"{' and '.join(part for part, _ in trained)} trained too."] if trained else []
    completed = [f"Values that {given} leaves out are those of {name}."] if given else []
    return (*completed, f"{name}: one sample is an {sample}{usual}.".replace("an clip", "a clip"), held, *also)


def _check(name: str, asked: SampleSize) -> None:
    wrong = next((word for word in (FROZEN_VISION,) if word in asked.words), "")
    if wrong or asked.images or asked.tokens:
        what = wrong or ("images" if asked.images else "tokens")
        raise UserError(f"--input {what} for {name}", "give a size and words: 512px,cached or 1024x1024,train-text")


def _denoiser(name: str, size: SampleSize) -> LayerTable:
    entry = pipelines()[name]
    key = f"{name}@{size.pixels}.json"
    if key in _archive().namelist():
        return _kept(key)
    _needs_libraries(name, size, (entry.size, *entry.sizes))
    return _traced_denoiser(name, size)


@cache
def _traced_denoiser(name: str, size: SampleSize) -> LayerTable:
    from paceline.workload.hub.pipeline_tables import denoiser_table

    entry = pipelines()[name]
    return denoiser_table(entry.denoiser, size, entry.scale, name, entry.source)


def _text_encoder(part: str, tokens: int) -> LayerTable:
    return _kept(f"{part}@{tokens}.json")


def _autoencoder(part: str, size: SampleSize) -> LayerTable:
    key = f"{part}@{size.pixels}.json"
    return _kept(key) if key in _archive().namelist() else _traced_autoencoder(part, size)


@cache
def _traced_autoencoder(part: str, size: SampleSize) -> LayerTable:
    from paceline.workload.hub.pipeline_tables import autoencoder_table

    return autoencoder_table(parts()[part].kind, parts()[part].config, size)


def _needs_libraries(name: str, size: SampleSize, sizes: Iterable[str]) -> None:
    if any(find_spec(library) is None for library in ("torch", "diffusers", "transformers")):
        raise UserError(
            f"{name} is kept for {', '.join(sizes)}, not for {size.pixels}",
            "give one of these, or install diffusers, which takes others (pip install 'paceline[hub]')",
        )


@cache
def _kept(key: str) -> LayerTable:
    return LayerTable.from_json(json.loads(_archive().read(key)))


@cache
def _folded() -> Mapping[str, str]:
    return {fold(own): name for name, entry in pipelines().items() for own in (name, *entry.names)}


@cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(TABLES.read_bytes()))


@cache
def _facts() -> Mapping[str, Any]:
    facts: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return facts


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose lists, but those of the configuration, are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def _without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}
