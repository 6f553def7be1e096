"""Traced networks of a diffusion pipeline: its denoiser at a size, its text encoders, and the encoder of its autoencoder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError, needs_torch
from paceline.workload.hub.diffusion_inputs import diffusion_examples
from paceline.workload.hub.library import DIFFUSION, TEXT, built, quiet, version
from paceline.workload.hub.networks import hub_table, traced_module
from paceline.workload.layers import LayerTable
from paceline.workload.sample_size import SampleSize
from paceline.workload.tracing.trace import trace

if TYPE_CHECKING:
    import torch


def denoiser_table(
    settings: Mapping[str, Any], size: SampleSize, scale: tuple[int, int] | None, name: str, source: str
) -> LayerTable:
    """Return the table of a denoising network for images or clips of a size.

    Args:
        scale: pixels and frames that are one latent; None: those of the class.

    Raises:
        UserError: as ``built`` and ``diffusion_examples``.
    """
    module, what = built(settings, DIFFUSION)
    return traced_module(module, what, diffusion_examples(module, size, scale), False, name=name, source=source)


def text_encoder_table(kind: str, settings: Mapping[str, Any], tokens: int) -> LayerTable:
    """Return the table of a text encoder, a class of transformers, for texts of ``tokens``. Errors as ``hub_table``."""
    return hub_table({**settings, "architectures": [kind]}, TEXT, tokens, name=kind, source="text encoder")


def autoencoder_table(kind: str, settings: Mapping[str, Any], size: SampleSize) -> LayerTable:
    """Return the table of the encoder of an autoencoder, a class of diffusers. Its parameters are those of the decoder too.

    Raises:
        UserError: an autoencoder that this version of diffusers does not define, or as ``trace``.
    """
    with needs_torch("an autoencoder of diffusers"):
        import torch
    own: Any = getattr(import_module(DIFFUSION), kind, None)
    if own is None:
        raise UserError(f"diffusers {version(DIFFUSION)} defines no {kind}", "pip install -U diffusers")
    frames = (size.frames or 1,) if _takes_clips(kind) else ()
    with quiet():
        with torch.device("meta"):
            module = own.from_config(dict(settings))
        image = torch.empty((2, 3, *frames, size.height, size.width), device="meta")
        sample = f"image {size.pixels}"
        source = f"diffusers {version(DIFFUSION)}, {kind}"
        return trace(_encoder(module), image, name=kind, sample=sample, source=source, loss="mean")


def _takes_clips(kind: str) -> bool:
    """Return whether an autoencoder encodes clips: of images it encodes clips of one frame."""
    return kind not in ("AutoencoderKL", "AutoencoderDC")


def _encoder(autoencoder: Any) -> torch.nn.Module:
    """Return the module that maps images to the parameters of their latents."""
    import torch

    class LatentEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = autoencoder

        def forward(self, images: torch.Tensor) -> Any:
            latent = self.whole.encode(images, return_dict=False)[0]
            return latent if isinstance(latent, torch.Tensor) else latent.parameters

    return LatentEncoder()
