"""Networks of torchtitan: those of its registries, and others of Llama's design from their dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.networks.megatron_settings import shape_of
from paceline.workload.builders.transformer import TransformerShape, llama
from paceline.workload.details import Details


@dataclass(frozen=True, slots=True)
class Registered:
    """A network of a registry (``torchtitan/models/MODULE/__init__.py``).

    Attributes:
        assets: folder of its tokenizer, as its ``config_registry.py`` names it.
    """

    module: str
    flavor: str
    assets: str


def _registered(module: str, folder: str, flavors: Mapping[str, str]) -> dict[str, Registered]:
    return {name: Registered(module, flavor, f"./assets/hf/{folder.format(flavor=flavor)}") for name, flavor in flavors.items()}


REGISTERED: Mapping[str, Registered] = {
    **_registered("llama3", "Llama-3.1-{flavor}", {f"llama-3-{size}": size.upper() for size in ("8b", "70b", "405b")}),
    **_registered("llama3", "Llama-3.2-{flavor}", {f"llama-3.2-{size}": size.upper() for size in ("1b", "3b")}),
    **_registered(
        "qwen3",
        "Qwen3-{flavor}",
        {f"qwen-3-{size}": size.upper() for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")},
    ),
    **_registered("deepseek_v3", "DeepSeek-V3.1-Base", {"deepseek-v3": "671B"}),
    **_registered("gpt_oss", "gpt-oss-{flavor}", {f"gpt-oss-{size}": size for size in ("20b", "120b")}),
}
"""Networks of the registries by their names here."""
_LLAMA_IMPORTS = (
    "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
    "from torchtitan.models import llama3",
    "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm",
    "from torchtitan.protocols.model_spec import ModelSpec",
)


def model_lines(job: EmittedJob, converter: str) -> tuple[list[str], list[str], str]:
    """Return the imports of the network, the lines that make ``model_spec``, and the folder of its tokenizer.

    Args:
        converter: expression of the converter of its linear layers; empty without one.

    Raises:
        UserError: torchtitan has no such network.
    """
    own = REGISTERED.get(job.workload.name)
    if own:
        converters = f", converters=[{converter}]" if converter else ""
        call = f'    model_spec = model_registry("{own.flavor}"{converters})'
        return [f"from torchtitan.models.{own.module} import model_registry"], [call], own.assets
    shape = shape_of(job)
    if shape is None or not _is_llama(shape):
        has = f"{', '.join(REGISTERED)}, and other networks of Llama's design"
        raise job.refused(job.workload.name, f"its registries have {has}")
    return list(_LLAMA_IMPORTS), _llama_lines(job, shape, converter), f"./assets/hf/{job.title}"


def _is_llama(shape: TransformerShape) -> bool:
    """Return whether a network has the design of Llama, whose dimensions alone differ."""
    plain = llama(shape.layers, shape.hidden, shape.heads, shape.kv_heads or shape.heads, shape.ffn, shape.vocabulary)
    same = replace(plain, tied=shape.tied, details=shape.details, kv_heads=shape.kv_heads)
    return shape == same or replace(shape, fused_qkv=False) == same


def _llama_lines(job: EmittedJob, shape: TransformerShape, converter: str) -> list[str]:
    """Return lines that build the network with the parts of ``models/llama3``."""
    details = shape.details or Details()
    base = f"{details.rotary_base:g}" if details.rotary_base else "10000"
    convert = [f"    network = {converter}.build().convert(network)"] if converter else []
    embedding = "llama3._EMBEDDING_SKIP_INIT" if shape.tied else "llama3._EMBEDDING_INIT"
    return [
        f"    dim, vocabulary = {shape.hidden}, {shape.vocabulary}",
        "    layers = llama3._build_llama3_layers(",
        f"        n_layers={shape.layers},",
        "        dim=dim,",
        f"        n_heads={shape.heads},",
        f"        n_kv_heads={shape.kv_heads or shape.heads},",
        f"        hidden_dim={shape.ffn},",
        f"        rope=ComplexRoPE.Config(dim={shape.head_width}, max_seq_len={job.tokens}, theta={base}),",
        '        attn_backend="flex",',
        "    )",
        "    network = llama3.Llama3Model.Config(",
        "        dim=dim,",
        "        vocab_size=vocabulary,",
        f"        enable_weight_tying={shape.tied},",
        f"        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=dim, param_init={embedding}),",
        "        norm=RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),",
        "        lm_head=Linear.Config(in_features=dim, out_features=vocabulary, param_init=llama3._output_linear_init(dim)),",
        "        layers=layers,",
        "    )",
        *convert,
        "    model_spec = ModelSpec(",
        '        name="llama3",',
        f'        flavor="{job.title}",',
        "        model=network,",
        "        parallelize_fn=llama3.parallelize_llama,",
        "        pipelining_fn=pipeline_llm,",
        "        post_optimizer_build_fn=None,",
        "        state_dict_adapter=llama3.Llama3StateDictAdapter,",
        "    )",
    ]
