"""Workload: the layer table of a network by name, by tracing a module, or from dimensions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError, check_count, needs_torch, shorten, shown
from paceline.workload import catalogue
from paceline.workload.builders.adapters.insertion import with_adapters
from paceline.workload.builders.adapters.lora import EXAMPLE, LoRA, parse_lora
from paceline.workload.builders.transformer import TransformerShape, transformer
from paceline.workload.configs.config_values import NotRead
from paceline.workload.configs.huggingface import LONGEST_USUAL, table_of
from paceline.workload.hub.kept import configurations, kept_table
from paceline.workload.hub.library import DIFFUSION, library_of
from paceline.workload.hub.networks import hub_table
from paceline.workload.hub.pipeline_folder import INDEX, folder_table
from paceline.workload.layers import LayerTable
from paceline.workload.pipelines import nearest_published, pipeline_table, published
from paceline.workload.sample_size import parse_sample
from paceline.workload.tracing import trace as tracing
from paceline.workload.tracing.timm_networks import PREFIX

if TYPE_CHECKING:
    from torch import nn


class Workload(LayerTable):
    """Network as the input of a prediction. Its attributes are those of ``LayerTable``.

    ``Workload.named``, ``trace``, ``from_shape`` and ``from_config`` make one; all attributes by name do too.

    Raises:
        UserError: an attribute is missing, unknown or without its name.
    """

    if not TYPE_CHECKING:  # a type checker sees the attributes of LayerTable

        def __init__(self, *given: object, **attributes: object) -> None:
            try:
                super().__init__(*given, **attributes)
            except TypeError:  # of the call: LayerTable only stores what it is given
                what = shorten(", ".join([*map(shown, given), *attributes]), 80)
                instead = (
                    "use Workload.named('resnet-50'), Workload.trace(module, inputs) or Workload.from_config('config.json')"
                )
                raise UserError(f"Workload({what}) is not a layer table", instead) from None

    @classmethod
    def of(cls, table: LayerTable) -> Workload:
        """Return the workload of a layer table."""
        return cls(**{field.name: getattr(table, field.name) for field in fields(LayerTable)})

    @classmethod
    def named(
        cls,
        name: str,
        seq_len: int | None = None,
        *,
        fused_attention: bool = True,
        args: str = "",
        inputs: str = "",
        lora: LoRA | str = "",
    ) -> Workload:
        """Return a network by its name: one of the package, a Hugging Face ``config.json`` or the folder of a checkpoint, or
        the result of ``module:function`` or ``file.py:Class`` (which need torch).

        Args:
            name: in any case, with spaces, dashes or underscores: ``Llama-2-7B``, ``llama_2_7b``. A path is one that ends in
                ``.json``, or a folder with a separator in its text: ``./my-model``.
            seq_len: tokens of one sample of a transformer; None: the network's own length.
            fused_attention: do not write the scores of a transformer to memory; else as eager PyTorch without FlashAttention.
            args: arguments of a function or a class: ``hidden=512,layers=4``.
            inputs: its example input: ``3x224x224``, ``tokens:512``; for a network of timm the size of an image; for denoisers
                and models of images with text the size of a sample, and words (``sample_size``): ``512px,cached``.
            lora: adapters; all other weights are frozen: ``r=16``.

        Raises:
            UserError: an unknown name, with the nearest ones; a length for a network without, or too large; or as ``trace``.
        """
        if not isinstance(name, str):
            raise UserError(f"workload {name!r}", "give a name (paceline workload list), or a paceline.Workload")
        if seq_len is not None and type(seq_len) is not int:
            seq_len = check_count(seq_len, "tokens of a sequence")
        if ":" not in name and args:
            raise _not_code(name, args)
        if is_pipeline(name):
            if seq_len is not None:
                raise UserError(f"{name} has no sequence length to choose", "--input 512px chooses the size of its images")
            whole = _of_folder(name, fused_attention, inputs)
        elif is_config(name):
            whole = _configured(name, seq_len, fused_attention, inputs)
        elif ":" in name:
            with needs_torch(f"workload {name}"):
                table = catalogue.layer_table(name, seq_len, fused_attention=fused_attention, args=args, inputs=inputs)
                whole = cls.of(table)
        else:
            own = catalogue.as_fine_tuned(catalogue.canonical(name), inputs, bool(lora))
            if inputs and not catalogue.takes_size(own):
                if not catalogue.takes_image_size(name):
                    _named(own, None, True)  # an unknown name is the error then
                    raise _not_code(name, args)
                own = PREFIX + name.removeprefix(PREFIX)
            other_length = seq_len is not None and own in configurations() and seq_len != kept_table(own).tokens
            if own in configurations() and (inputs or other_length):
                source = kept_table(own).source
                whole = _of_settings(configurations()[own], seq_len, own, source, fused_attention, inputs)
            else:
                whole = _named(own, seq_len, fused_attention, inputs)
        return whole.with_lora(lora) if lora else whole

    @classmethod
    def trace(
        cls,
        model: nn.Module | Callable[[], Any],
        inputs: Any = None,
        *,
        name: str = "",
        sample: str = "",
        source: str = "",
        loss: tracing.Loss = "mean",
    ) -> Workload:
        """Return the layer table of one training step of ``model``. Arguments as ``workload.tracing.trace.trace``."""
        with needs_torch("Workload.trace"):
            return cls.of(tracing.trace(model, inputs, name=name, sample=sample, source=source, loss=loss))

    @classmethod
    def from_shape(
        cls, shape: TransformerShape, seq_len: int, *, name: str = "", source: str = "", fused_attention: bool = True
    ) -> Workload:
        """Return a transformer. Arguments and errors: ``paceline.workload.builders.transformer.transformer``."""
        return cls.of(transformer(shape, seq_len, name=name, source=source, fused_attention=fused_attention))

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | str | Path | Any,
        seq_len: int | None = None,
        *,
        name: str = "",
        fused_attention: bool = True,
    ) -> Workload:
        """Return a model from its Hugging Face configuration, without its weights. Usual language models need no torch; others
        are built and traced by the library that defines them (``hub``).

        Args:
            config: a ``config.json`` or its folder, its contents as a mapping, or an object with ``to_dict()``.
            seq_len: tokens of one sample; by default the longest sequence of the configuration, at most 8,192.
            name: name of the workload; by default that of the configuration.
            fused_attention: do not write the scores of attention to memory; else as eager PyTorch without FlashAttention.

        Raises:
            UserError: an unreadable file, an unknown kind of model, or a missing dimension.
        """
        settings, source = _settings(config)
        given = name or str(settings.get("_name_or_path") or settings.get("model_type", ""))
        return _of_settings(settings, seq_len, given, source, fused_attention)

    def with_lora(self, lora: LoRA | str) -> Workload:
        """Return the network with its weights frozen and adapters added: ``with_lora("r=16,targets=q_proj+v_proj")``.

        Raises:
            UserError: as ``paceline.workload.builders.adapters.insertion.with_adapters``, or text that describes no LoRA.
        """
        if not isinstance(lora, LoRA | str):
            raise UserError(f"LoRA {shown(lora)}", EXAMPLE)
        return with_adapters(self, parse_lora(lora) if isinstance(lora, str) else lora)


@cache
def _named(name: str, seq_len: int | None, fused_attention: bool, inputs: str = "") -> Workload:
    """Return one object per name, because results computed from a workload are cached with it."""
    return Workload.of(catalogue.layer_table(name, seq_len, fused_attention=fused_attention, inputs=inputs))


def _not_code(name: str, args: str) -> UserError:
    """Return the error for arguments or an input of a network whose table is fixed."""
    if args:
        return UserError(f"--args for {name}, which is no code", "leave it out")
    sized = catalogue.with_image_size(name)
    wanted = f"{sized} takes other sizes of images" if sized else "leave it out"
    return UserError(f"--input for {name}, whose input has one size", wanted)


def is_pipeline(name: str) -> bool:
    """Return whether ``name`` is the folder of a pipeline of diffusers, or its index."""
    return name.endswith(INDEX) or ((os.sep in name or name == ".") and (Path(name).expanduser() / INDEX).is_file())


@cache
def _of_folder(name: str, fused_attention: bool, inputs: str) -> Workload:
    """Return one object per folder, because its trace takes seconds."""
    path = Path(name).expanduser()
    return Workload.of(folder_table(path if path.is_dir() else path.parent, inputs, fused_attention=fused_attention))


def is_config(name: str) -> bool:
    """Return whether ``name`` is the path of a configuration, or of a folder that has one."""
    if name.endswith(".json"):
        return True
    return (os.sep in name or "/" in name or name == ".") and (Path(name).expanduser() / "config.json").is_file()


def _configured(path: str, seq_len: int | None, fused_attention: bool, inputs: str) -> Workload:
    """Return the workload of a path, named after the file's model name, or else after its folder."""
    settings, source = _settings(path)
    file = Path(source).resolve()
    usual = file.parent.name if file.name == "config.json" else file.stem
    name = str(settings.get("_name_or_path") or usual)
    return _of_settings(settings, seq_len, name, source, fused_attention, inputs)


def _of_settings(
    settings: Mapping[str, Any], seq_len: int | None, name: str, source: str, fused_attention: bool, inputs: str = ""
) -> Workload:
    """Return the workload of a configuration: a published pipeline with its denoiser, one of the package's own tables, or else
    what the library that defines the model builds.
    """
    if "_class_name" in settings and seq_len is None and (own := published(settings)):
        return Workload.of(pipeline_table(own, inputs, fused_attention=fused_attention, given=name))
    try:
        if inputs:
            raise NotRead(f"{name} takes no --input", "leave it out")
        return Workload.of(table_of(settings, seq_len, name=name, source=source, fused_attention=fused_attention))
    except NotRead as refused:
        library = library_of(settings)
        if not library:
            raise UserError(refused.message, f"{_INSTALL}; {refused.fix}") from None
    text = json.dumps(settings, sort_keys=True, default=str)
    return _of_library(text, library, seq_len, name, source, fused_attention, inputs)


_INSTALL = "transformers and diffusers read more kinds (pip install 'paceline[hub]')"


@cache
def _of_library(
    text: str, library: str, seq_len: int | None, name: str, source: str, fused_attention: bool, inputs: str
) -> Workload:
    """Return one object per configuration, because its trace takes seconds."""
    settings: dict[str, Any] = json.loads(text)
    size = parse_sample(inputs) if inputs else None
    chosen: dict[str, Any] = {"fused_attention": fused_attention, "usual": LONGEST_USUAL, "size": size}
    try:
        return Workload.of(hub_table(settings, library, seq_len, name=name, source=source, **chosen))
    except UserError as error:
        if library == DIFFUSION and size is None and (advice := nearest_published(settings)):
            raise UserError(error.message, advice) from None
        raise


def _settings(config: Any) -> tuple[Mapping[str, Any], str]:
    """Return the configuration as a mapping, and its source."""
    if isinstance(config, str | Path):
        config = Path(config).expanduser()
        path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"cannot read {path}: {error}", "give a config.json or its folder") from None
        config, source = loaded, str(path)
    else:
        source = "Hugging Face configuration"
        config = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(config, Mapping):
        raise UserError(f"a configuration that is a {type(config).__name__}", "give a mapping, a config.json or its folder")
    return config, source
