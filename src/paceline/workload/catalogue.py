"""Workloads by name: tables of the package, which need no torch, or a traced ``module:function``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from paceline.errors import UserError, unknown
from paceline.names import fold, look_up
from paceline.workload.builders.attention import eager
from paceline.workload.builders.plain_sizes import is_plain_size, sized_table
from paceline.workload.builders.recommendation import RECOMMENDERS, named_recommender
from paceline.workload.builders.shapes import SHAPES
from paceline.workload.builders.vision_transformer import VITS, named_vit
from paceline.workload.factory import example_input, load_factory, unnamed_class
from paceline.workload.hub.kept import Kept, configurations, kept_models, kept_name, kept_table
from paceline.workload.layers import LayerTable
from paceline.workload.pipelines import BENCHMARKS, kept_index, pipeline_name, pipeline_table, pipelines
from paceline.workload.spelling import spellings
from paceline.workload.tracing.timm_networks import PREFIX, is_timm, timm_names, timm_table
from paceline.workload.tracing.trace import trace

_ZOO = files("paceline.workload") / "zoo"
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "gpt2-small": "gpt2",
        "llama-3.1-8b": "llama-3-8b",
        "llama-3.1-70b": "llama-3-70b",
        "llama-3.3-70b": "llama-3-70b",
        "llama-3.1-405b": "llama-3-405b",
        "meta-llama-3-8b": "llama-3-8b",
        "meta-llama-3-70b": "llama-3-70b",
        "meta-llama-3.1-8b": "llama-3-8b",
        "meta-llama-3.1-70b": "llama-3-70b",
        "meta-llama-3.1-405b": "llama-3-405b",
        "llama-4-scout-17b-16e": "llama-4-scout",
        "llama-4-maverick-17b-128e": "llama-4-maverick",
        "hermes-3-llama-3.1-8b": "llama-3-8b",
        "jamba": "jamba-52b-a12b",
        "jamba-v0.1": "jamba-52b-a12b",
        **{f"granite-4-h-{size}": f"granite-4.0-h-{size}" for size in ("tiny", "small")},
        "deepseek-r1": "deepseek-v3",
        "deepseek-v3.1": "deepseek-v3",
        "deepseek-v3-671b": "deepseek-v3",
        "deepseek3-671b": "deepseek-v3",
        "kimi-k2-1t": "kimi-k2",
        "grok-1-314b": "grok-1",
        "nemotron-3-nano": "nemotron-3-nano-30b-a3b",
        "nemotron-3-5-lightning": "nemotron-3.5-lightning-30b-a3b",
        "nemotron-3-super": "nemotron-3-super-120b-a12b",
        "nemotron-3-ultra": "nemotron-3-ultra-550b-a55b",
        "qwen-3-next": "qwen-3-next-80b-a3b",
        "qwen3-moe-30b": "qwen-3-30b-a3b",
        "qwen3-moe-235b": "qwen-3-235b-a22b",
        **{f"gpt-{size}b": f"gpt3-{size}b" for size in (5, 20, 175)},
        **{f"nemotron-{size}b": f"nemotron-3-{size}b" for size in (8, 22)},
        **{f"nemotron-{size}b": f"nemotron-4-{size}b" for size in (15, 340)},
        "codellama-7b": "llama-2-7b",
        "codellama-13b": "llama-2-13b",
        "codellama-34b": "llama-2-34b",
        **{f"llama-{size}b": f"llama-2-{size}b" for size in (7, 13)},
        **{f"vicuna-{size}b": f"llama-2-{size}b" for size in (7, 13)},
        **{f"qwen-2-{size}b": f"qwen-2.5-{size}b" for size in ("0.5", "1.5", "7", "72")},
        **{
            f"qwen-2.5-{kind}-{size}b": f"qwen-2.5-{size}b"
            for kind in ("coder", "math")
            for size in ("0.5", "1.5", "3", "7", "14", "32")
        },
        "qwq-32b": "qwen-2.5-32b",
        **{f"deepseek-r1-distill-qwen-{size}b": f"qwen-2.5-{size}b" for size in ("1.5", "7", "14", "32")},
        **{f"deepseek-r1-distill-llama-{size}b": f"llama-3-{size}b" for size in ("8", "70")},
        **{f"olmo-2-1124-{size}b": f"olmo-2-{size}b" for size in ("7", "13")},
        "mistral-nemo": "mistral-nemo-12b",
        "nvidia-nemotron-nano-9b-v2": "nemotron-nano-9b-v2",
        "nvidia-nemotron-nano-12b-v2": "nemotron-nano-12b-v2",
        "stable-diffusion-v1-5": "stable-diffusion",
        "phi-1.5-1.3b": "phi-1.5",
        **{
            f"llama-1-{size}b": name
            for size, name in ((7, "llama-2-7b"), (13, "llama-2-13b"), (30, "llama-30b"), (65, "llama-65b"))
        },
        "chatglm2-6b": "chatglm3-6b",
        "zephyr-7b": "mistral-7b",
        "internlm": "internlm-7b",
        "bloom": "bloom-176b",
        "bloom-7b": "bloom-7b1",
        "distilbert": "distilbert-base",
        "stablelm-base-alpha-3b": "stablelm-alpha-3b",
        "stablelm-base-alpha-7b": "stablelm-alpha-7b",
        "gpt-neo-2b7": "gpt-neo-2.7b",
        "flux.1": "flux1",
        "flux.1-schnell": "flux1",
        "flux1-schnell": "flux1",
        "dlrm-v2": "dlrm-dcnv2",
        "rnn-transducer": "rnnt",
        **dict.fromkeys(("vit-s", "vit-s/16", "vit-small", "vit-small-patch16-224", "deit-small-patch16-224"), "vit-s-16"),
        **dict.fromkeys(("vit-b", "vit-b/16", "vit-base", "vit-pytorch", "vit-base-patch16-224"), "vit-b-16"),
        **dict.fromkeys(("bge-base-en-v1.5", "bge-base-en", "e5-base-v2", "e5-base"), "bert-base"),
        **dict.fromkeys(("bge-large-en-v1.5", "bge-large-en", "e5-large-v2", "e5-large"), "bert-large"),
        **dict.fromkeys(("vit-b/32", "vit-base-patch32-224"), "vit-b-32"),
        **dict.fromkeys(("vit-l", "vit-l/16", "vit-large", "vit-large-patch16-224"), "vit-l-16"),
        **dict.fromkeys(("vit-h", "vit-h/14", "vit-huge", "vit-huge-patch14-224"), "vit-h-14"),
    }
)
"""Other names of networks with the same dimensions (Grattafiori et al. 2024, The Llama 3 Herd of Models, arXiv:2407.21783,
table 3; DeepSeek-AI 2025, DeepSeek-R1, arXiv:2501.12948, section 2: trained from DeepSeek-V3-Base, section 2.4: distilled
models keep the network that they are named after; Hui et al. 2024, Qwen2.5-Coder, arXiv:2409.12186, table 1)."""
MOST_LISTED = 8


@cache
def traced() -> tuple[str, ...]:
    """Sorted names of the networks whose module is in the package too."""
    return tuple(sorted(entry.name.removesuffix(".json") for entry in _ZOO.iterdir() if entry.name.endswith(".json")))


@cache
def names() -> tuple[str, ...]:
    """Sorted names of all networks of the package."""
    return tuple(sorted({*traced(), *SHAPES, *RECOMMENDERS, *VITS}))


@cache
def library_models() -> Mapping[str, Kept]:
    """Return the models of transformers and diffusers with kept tables, by name."""
    denoisers = {name: Kept("diffusion", parameters, sample) for name, (parameters, sample) in kept_index().items()}
    others = {name: kept for name, kept in kept_models().items() if not pipeline_name(name)}
    return MappingProxyType({**denoisers, **others})


def canonical(name: str) -> str:
    """Return the package's spelling of a name in any case, with any separators, after its organisation, with the version of its
    weights (``meta-llama/Llama-3.1-8B-Instruct``). Unknown names and ``module:function`` are unchanged.
    """
    if ":" in name or name in names():
        return name
    if name.startswith(PREFIX):
        return name if is_timm(name) else with_image_size(name.removeprefix(PREFIX)) or name
    if own := pipeline_name(name) or kept_name(name):
        return own
    every = tuple(spellings(name))
    if own := next((entry for text in every if (entry := look_up(text, names(), ALIASES) or pipeline_name(text))), ""):
        return own
    return next((entry for text in every if (entry := kept_name(text))), name)


def takes_size(name: str) -> bool:
    """Return whether a named model takes the size of a sample, which denoisers and models of images with text do."""
    return name in pipelines() or "vision_config" in configurations().get(name, {})


def takes_image_size(name: str) -> bool:
    """Return whether the size of an image may be chosen for a named network, which is so for those of timm."""
    return name not in names() and is_timm(name)


def as_fine_tuned(name: str, inputs: str, adapts: bool) -> str:
    """Return the published pipeline that a network of MLPerf means if it has adapters or a size; else the name."""
    return BENCHMARKS.get(name, name) if inputs or adapts else name


def with_image_size(name: str) -> str:
    """Return timm's name of the network, ``timm/resnet50`` for ``resnet-50``; empty if timm has none of that name."""
    plain = fold(name)
    return next((f"{PREFIX}{entry}" for entry in sorted(timm_names()) if fold(entry) == plain), "")


OWN = "a network of your own is its config.json (Hugging Face) or module:function"


def _unknown(name: str) -> UserError:
    """Return the error for an unknown name, with the networks that begin with it, or else the nearest ones."""
    if name.endswith(".py"):
        return unnamed_class(Path(name).expanduser())
    beginning = fold(name)
    family = [entry for entry in names() if beginning and fold(entry).startswith(beginning)]
    if len(family) > 1:
        listed = ", ".join(family[:MOST_LISTED]) + (", ..." if len(family) > MOST_LISTED else "")
        return UserError(f"workload {name!r} is one of several: {listed}", "say which (paceline workload list shows all)")
    if name == PREFIX:
        return UserError(f"workload {name!r} names no network", f"add its name, such as {PREFIX}resnet50")
    if name.startswith(PREFIX) and find_spec("timm") is None:
        return UserError(f"workload {name!r} is not among the kept networks of timm", "pip install timm")
    known = timm_names() if "_" in name or name.startswith(PREFIX) else frozenset()
    if name.startswith(PREFIX):
        plain = name.removeprefix(PREFIX)
        own = canonical(plain)
        fix = f"{own}, without {PREFIX}, is a network of the package" if own in names() else OWN
        return unknown("network of timm", plain, sorted(known), fix)
    return unknown("workload", name, (*names(), *library_models(), *sorted(known)), OWN)


_TEXT_ALONE = "{}: a sample is text alone here; --input image:1024x1024,tokens:512 (with transformers installed) has images."


def layer_table(
    name: str, seq_len: int | None = None, *, fused_attention: bool = True, args: str = "", inputs: str = ""
) -> LayerTable:
    """Return the layer table of a named network, or of the result of ``module:function`` (which needs torch).

    Args:
        name: in any case, with any separators: ``Llama-2-7B``, ``llama2_7b``, ``meta-llama/Llama-3.1-8B``.
        seq_len: tokens of one sample of a transformer; None: the network's own length.
        fused_attention: a transformer does not write scores to memory; else it runs as eager PyTorch without FlashAttention.
        args, inputs: arguments and inputs of ``module:function``, as ``load_factory`` and ``example_input`` take them. Networks
            of timm take inputs too: the size of an image.

    Raises:
        UserError: an unknown name, with the nearest ones; a length for a network without one, or a too large one; or as
            ``load_factory`` and ``trace``.
    """
    name = canonical(name)
    own = seq_len is None and fused_attention
    if name in VITS and seq_len is None:
        return named_vit(name, fused_attention)
    if not own and name not in SHAPES and (":" in name or name in names()):
        fix = "give --input tokens:512" if ":" in name else "language models have, such as llama-3-8b or bert-base"
        raise UserError(f"{name} has no sequence length to choose", fix)
    if ":" in name:
        example = example_input(inputs) if inputs else None
        return trace(load_factory(name, args), example, name=name, source=name)
    if name not in names() and is_plain_size(name):
        return sized_table(name, seq_len, fused_attention)
    if name in pipelines():
        if seq_len is not None:
            raise UserError(f"{name} has no sequence length to choose", "--input 512px chooses the size of its images")
        return pipeline_table(name, inputs, fused_attention=fused_attention)
    if name not in names() and is_timm(name):
        if seq_len is not None:
            raise UserError(f"{name} has no sequence length to choose", "--input 3x288x288 chooses the size of its images")
        return timm_table(name, inputs, fused_attention)
    if name in kept_models():
        if seq_len is not None and seq_len != kept_table(name).tokens:
            raise UserError(
                f"{name} is kept for samples of one size ({kept_models()[name].sample})",
                "for another length give its config.json, with transformers installed (pip install 'paceline[hub]')",
            )
        table = kept_table(name)
        if "text alone" in table.source:
            table = replace(table, notes=(_TEXT_ALONE.format(name),))
        return table if fused_attention else eager(table)
    if name not in names():
        raise _unknown(name)
    if name in RECOMMENDERS:
        return named_recommender(name)
    return _table(name) if own and name in traced() else _shaped(name, seq_len, fused_attention)


@cache
def _table(name: str) -> LayerTable:
    table = LayerTable.from_json(json.loads((_ZOO / f"{name}.json").read_text(encoding="utf-8")))
    published = SHAPES.get(name)
    return table if published is None or published.pairs else replace(table, shape=published.detailed(name))


@cache
def _shaped(name: str, seq_len: int | None, fused_attention: bool) -> LayerTable:
    return SHAPES[name].table(name, seq_len, fused_attention)
