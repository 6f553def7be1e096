"""A training step of a diffusion model: the denoiser, next to it frozen encoders, and text encoders that are trained too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.errors import UserError
from paceline.workload.builders.frozen_network import frozen_layer
from paceline.workload.layers import LayerTable, Parameter
from paceline.workload.sample_size import CACHED, CACHED_LATENTS, CACHED_TEXT, FROZEN_VISION, TRAIN_TEXT, SampleSize


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoder of texts or of images.

    Attributes:
        name: short name.
        table: the network that runs.
        elements: elements of all its weights, with those of a decoder.
        trains: whether scripts that train the text encoder train this one.
    """

    name: str
    table: LayerTable
    elements: int
    trains: bool = False


def encodes_text(asked: SampleSize) -> bool:
    """Return whether text encoders run in a step."""
    return not asked.words & {CACHED, CACHED_TEXT}


def encodes_images(asked: SampleSize) -> bool:
    """Return whether the autoencoder runs in a step."""
    return not asked.words & {CACHED, CACHED_LATENTS}


def check_words(name: str, asked: SampleSize) -> None:
    """Raise UserError for parts of ``--input`` that a diffusion model does not have."""
    wrong = next((word for word in (FROZEN_VISION,) if word in asked.words), "")
    if wrong or asked.images or asked.tokens:
        what = wrong or ("images" if asked.images else "tokens")
        raise UserError(f"--input {what} for {name}", "give a size and words: 512px,cached or 1024x1024,train-text")


def assembled(
    name: str, denoiser: LayerTable, encoders: Sequence[Encoding], asked: SampleSize, size: SampleSize, source: str
) -> LayerTable:
    """Return the table of a step.

    Args:
        asked: size and words that the user gave.
        size: size of a sample.

    Raises:
        UserError: a text encoder to train in a model without one.
    """
    trained = [own for own in encoders if own.trains and TRAIN_TEXT in asked.words]
    if TRAIN_TEXT in asked.words and not trained:
        raise UserError(f"{name} has no CLIP text encoder to train", f"leave {TRAIN_TEXT} out")
    frozen = [own for own in encoders if own not in trained]
    pixels = 3 * (size.frames or 1) * size.height * size.width
    return replace(
        _joined(denoiser, trained, frozen),
        name=name,
        source=f"{source}; {denoiser.source}",
        input_bytes=4.0 * pixels if encodes_images(asked) else denoiser.input_bytes,
        notes=_notes(name, denoiser.sample, asked, trained, frozen),
    )


def _joined(denoiser: LayerTable, trained: Sequence[Encoding], frozen: Sequence[Encoding]) -> LayerTable:
    """Return the denoiser after the trained encoders, which get their gradients last, and the frozen networks."""
    layers = [frozen_layer(f"encoders.{own.name}", own.table) for own in frozen]
    rows: list[tuple[Parameter, str, int]] = []  # with the part and the first layer
    for prefix, table in ((f"{own.name}.", own.table) for own in trained):
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
        resident=sum(own.elements for own in frozen),
    )


def _notes(
    name: str, sample: str, asked: SampleSize, trained: Sequence[Encoding], frozen: Sequence[Encoding]
) -> tuple[str, ...]:
    """Return the sentences about what a sample is and what is counted."""
    usual = "" if asked.pixels else ", the usual size (--input 1024px or 81x480x832 says another)"
    listed = ", ".join(f"{own.name} {own.elements / 1e9:.2f} B" for own in frozen)
    held = (
        f"Frozen networks are whole on every device, and run forward in each step: {listed} (--input cached: latents and "
        "embeddings were computed before)."
        if frozen
        else "Latents and embeddings were computed before: no text encoder and no autoencoder is on the device."
    )
    also = (f"Trained too: {', '.join(own.name for own in trained)}.",) if trained else ()
    return (f"{name}: one sample is {'a' if sample.startswith('clip') else 'an'} {sample}{usual}.", held, *also)
