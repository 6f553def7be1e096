"""Networks of transformers and diffusers from their configuration, on the meta device: no weights, no network access."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.errors import UserError, needs_torch, shorten, shown
from paceline.names import near_names

TEXT, DIFFUSION = "transformers", "diffusers"
_CHECKS = "TRANSFORMERS_DISABLE_TORCH_CHECK"
_TASKS = (
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForSeq2SeqLM",
    "AutoModelForImageTextToText",
    "AutoModelForImageClassification",
    "AutoModelForCTC",
    "AutoModelForPreTraining",
    "AutoModel",
)
"""Tasks in the order of preference, for a file that names no class."""
_PAIRS = ("AutoModelForSpeechSeq2Seq", "AutoModelForSeq2SeqLM")
"""Tasks of an encoder with a decoder, whose decoder alone is a model too."""
_HEADS = ("AutoModelForCausalLM", "AutoModelForMaskedLM")
"""Tasks of a file that names a class without a head. Encoders of images, and pairs of encoders, are trained as they are."""
_FIXED = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "apply_spec_augment": False}
"""Values that let chance decide how much work a step has."""


def library_of(settings: Mapping[str, Any]) -> str:
    """Return the library that defines a configuration; empty if the file does not say, or the library is not installed."""
    own = DIFFUSION if "_class_name" in settings else TEXT if settings.get("model_type") else ""
    return own if own and find_spec("torch") is not None and find_spec(own) is not None else ""


def built(settings: Mapping[str, Any], library: str) -> tuple[Any, str]:
    """Return the module of a configuration on the meta device, and the library with its version and class.

    Code that a checkpoint brings along is never run.

    Raises:
        UserError: a kind of model that the library does not define, or values that its class refuses.
    """
    with needs_torch("a configuration of Hugging Face"):
        import torch
    kind = str(settings.get("_class_name") if library == DIFFUSION else settings.get("model_type"))
    with quiet():
        try:
            with torch.device("meta"):
                module = _diffusion(settings, kind) if library == DIFFUSION else _transformer(dict(settings), kind)
        except UserError:
            raise
        except Exception as error:
            what = shorten((str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:"), 160)
            raise UserError(
                f"{library} {version(library)} does not build {kind!r}: {what}", "check the configuration"
            ) from error
    return module, f"{library} {version(library)}, {type(module).__name__}"


def language_model(settings: Mapping[str, Any]) -> tuple[Any, str] | None:
    """Return the language model of a model with several towers, as ``built`` does; None if transformers has none alone.

    Some versions of transformers cannot run the whole: the forward pass of Llama 4 in 5.24 fails with and without images.
    """
    inner = settings.get("text_config")
    if not isinstance(inner, Mapping) or not inner.get("model_type"):
        return None
    module, what = built(inner, TEXT)
    return module, f"{what}; its language model alone"


def _transformer(settings: dict[str, Any], kind: str) -> Any:
    transformers: Any = import_module(TEXT)
    known_kinds = transformers.CONFIG_MAPPING

    if kind not in known_kinds:
        near = near_names(kind, list(known_kinds))
        known = f"nearest: {', '.join(near[:3])}" if near else "nothing is near"
        raise UserError(f"transformers {transformers.__version__} defines no model_type {kind!r}; {known}", _OWN_CODE)
    config = known_kinds[kind].from_dict(settings)
    config._experts_implementation = "eager"
    for name, value in _FIXED.items():
        if hasattr(config, name):
            setattr(config, name, value)
    for own in (config, *(part for part in vars(config).values() if isinstance(part, transformers.PreTrainedConfig))):
        for token in ("pad_token_id", "mask_token_id"):
            if getattr(own, token, 0) is None:
                setattr(own, token, 0)  # which row of the embedding it is changes nothing here
    named = [own for name in settings.get("architectures") or () if (own := getattr(transformers, str(name), None))]
    tasks: tuple[str, ...] = _HEADS if named else _TASKS
    if getattr(config, "is_encoder_decoder", False):
        tasks = (*_PAIRS, *(task for task in tasks if task not in _PAIRS))
    bare = transformers.AutoModel._model_mapping.get(type(config), None)
    if named and named[0] is not bare:  # with a head, or a part such as T5EncoderModel
        return named[0](config)
    for task in tasks:
        if type(config) in getattr(transformers, task)._model_mapping:
            return getattr(transformers, task).from_config(config)
    if named:
        return named[0](config)
    raise UserError(f"transformers {transformers.__version__} has no model of {kind!r} to train", _OWN_CODE)


_OWN_CODE = "code of a checkpoint is never run; trace the module: write a function that returns it, and name it module:function"


def _diffusion(settings: Mapping[str, Any], kind: str) -> Any:
    diffusers: Any = import_module(DIFFUSION)

    own = getattr(diffusers, kind, None)
    if own is None or not hasattr(own, "from_config"):
        raise UserError(f"diffusers {diffusers.__version__} defines no {shown(kind)}", _OWN_CODE)
    return own.from_config(dict(settings))


@cache
def version(library: str) -> str:
    """Return the version of an installed library."""
    from importlib import metadata

    return metadata.version(library)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' advice on configurations off the terminal, and their checks of values out of a trace."""
    before = logging.root.manager.disable  # a library sets the levels of its loggers when it is imported in here
    checked = os.environ.get(_CHECKS)
    os.environ[_CHECKS] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            yield
    finally:
        logging.disable(before)
        if checked is None:
            del os.environ[_CHECKS]
        else:
            os.environ[_CHECKS] = checked
