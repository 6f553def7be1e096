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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError
from paceline.names import fold
from paceline.workload.builders.attention import eager
from paceline.workload.diffusion_step import Encoding, assembled, check_words, encodes_images, encodes_text
from paceline.workload.layers import LayerTable
from paceline.workload.sample_size import SampleSize, parse_sample

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
        given: configuration that has the values of the pipeline; empty: none.

    Raises:
        UserError: a size that the denoiser does not take, or without kept tables and without the libraries.
    """
    asked, entry = parse_sample(inputs) if inputs else SampleSize(), pipelines()[name]
    check_words(name, asked)
    size = parse_sample(asked.pixels or entry.size)
    denoiser = _denoiser(name, size)
    encoders = [_encoder(part, _kept(f"{part}@{tokens}.json")) for part, tokens in entry.text.items() if encodes_text(asked)]
    if encodes_images(asked):
        encoders.append(_encoder(entry.autoencoder, _autoencoder(entry.autoencoder, size)))
    table = assembled(name, denoiser, encoders, asked, size, entry.source)
    if given:
        completed = f"{given} has the values of {name}; those that it leaves out are taken from there."
        table = replace(table, notes=(completed, *table.notes))
    return table if fused_attention else eager(table)


def _encoder(part: str, table: LayerTable) -> Encoding:
    own = parts()[part]
    return Encoding(part, table, own.elements or table.num_parameters, own.trained)


def _denoiser(name: str, size: SampleSize) -> LayerTable:
    entry = pipelines()[name]
    key = f"{name}@{size.pixels}.json"
    if key in _archive().namelist():
        return _kept(key)
    needs_libraries(name, size, (entry.size, *entry.sizes))
    return _traced_denoiser(name, size)


@cache
def _traced_denoiser(name: str, size: SampleSize) -> LayerTable:
    from paceline.workload.hub.pipeline_tables import denoiser_table

    entry = pipelines()[name]
    return denoiser_table(entry.denoiser, size, entry.scale, name, entry.source)


def _autoencoder(part: str, size: SampleSize) -> LayerTable:
    key = f"{part}@{size.pixels}.json"
    return _kept(key) if key in _archive().namelist() else _traced_autoencoder(part, size)


@cache
def _traced_autoencoder(part: str, size: SampleSize) -> LayerTable:
    from paceline.workload.hub.pipeline_tables import autoencoder_table

    return autoencoder_table(parts()[part].kind, parts()[part].config, size)


def needs_libraries(name: str, size: SampleSize | None = None, sizes: Iterable[str] = ()) -> None:
    """Raise UserError if a library that traces networks is missing. ``sizes``: those with kept tables."""
    if any(find_spec(library) is None for library in ("torch", "diffusers", "transformers")):
        kept = f" is kept for {', '.join(sizes)}, not for {size.pixels}" if size else " is no published model"
        fix = "give one of these, or install diffusers, which takes others" if size else "install diffusers, which traces it"
        raise UserError(f"{name}{kept}", f"{fix} (pip install 'paceline[hub]')")


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
