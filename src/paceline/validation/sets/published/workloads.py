"""Networks of rows by their names, with the dimensions that a row states.

``GPT hidden 1536 layers 16``, ``llama3-70b cut to 12 layers``, ``GPT 52B``: dimensions count before a name, a name before a
size. A GPT of which only the size is stated has the width of the nearest in Narayanan et al. 2021 (arXiv:2104.04473, table 1),
and as many layers as give its size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.validation.sets.language_models import language_model, model_name
from paceline.validation.sets.published.options import LITGPT, written
from paceline.validation.sets.published.vision import vision_network
from paceline.workload import TransformerShape, Workload
from paceline.workload.builders.adapters.insertion import with_adapters
from paceline.workload.builders.adapters.lora import LoRA
from paceline.workload.builders.encoder_decoder import EncoderDecoderShape, encoder_decoder
from paceline.workload.builders.shapes import SHAPES
from paceline.workload.builders.transformer import llama
from paceline.workload.catalogue import canonical, names

WIDTHS: Mapping[float, int] = {
    0.125e9: 768, 0.35e9: 1024, 0.76e9: 1536, 1.3e9: 2048, 1.7e9: 2304, 3.6e9: 3072, 7.5e9: 4096,
    18.4e9: 6144, 39.1e9: 8192, 76.1e9: 10240, 145.6e9: 12288, 310.1e9: 16384,
}  # fmt: skip
"""Widths of GPT by parameters (Brown et al. 2020, arXiv:2005.14165, table 2.1; Narayanan et al. 2021, table 1)."""
HEAD = 128
"""Width of a head of GPT where the number of heads is not stated."""
GPT_TOKENS = 51200
"""GPT-2's vocabulary, padded as Megatron does."""
_CODES = re.compile(r"int8|8-?bit|q-?lora|nf4|int4|4-?bit|gptq|awq", re.IGNORECASE)
_NO_CODES = re.compile(r"quantization[ =](?:none|bf16)", re.IGNORECASE)
ADAPTER = re.compile(
    r"(?<![a-z])(?:finetune_adapter|llama-?adapter|prefix|prompt[-_ ]tuning|p-tuning|ia3|ln_tuning|ppo|dpo|reward)(?![a-z])",
    re.IGNORECASE,
)
ADAPTERS = "fine-tuning other than of all weights or with LoRA"
_CUT = re.compile(r"\(?\b(?:cut to|of|with|first)?\s*(\d+) layers[^)]*\)?", re.IGNORECASE)
_TASK = re.compile(
    r"^(?:run_(?:lora_)?|sft_)(?:clm_|mlm_|image_classification_|qa_|glue_|summarization_|sft_)?|^(?:huggingface|hf)\s+",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([BM])\b", re.IGNORECASE)
_BERT = re.compile(r"bert[-_ ]?(?:hf[-_ ])?(base|large|\d+b)|(base|large)[-_ ]bert", re.IGNORECASE)


def workload(row: Row, seq_len: int | None, pipeline: int) -> Workload | None:
    """Return the network of a row; None if it is unknown.

    Args:
        seq_len: tokens of a sample; None: not stated.
        pipeline: stages, which divide the layers of a GPT whose number of layers is not stated.

    Raises:
        UserError: a network or a way of training that is not modelled.
    """
    text, options = row.text("model"), row.text("other_options")
    if ADAPTER.search(f"{text} {options}"):
        raise UserError(ADAPTERS)
    if found := vision_network(row):
        return found
    name = _TASK.sub("", text)
    known = canonical(name)
    if known in names() and known not in SHAPES:
        return Workload.named(known)
    length = seq_len or _usual_length(text, name)
    for reader in (_pairs, _encoder, _maxtext, _by_dimensions, _named, _sized):
        if found := reader(row, name, length or GUESSED, pipeline):
            if length is None:
                raise UserError(LENGTH)
            return _adapted(found, row)
    return None


LENGTH = "sequence length not stated"
GUESSED = 512
"""Tokens with which it is found out whether a network is known."""
_LENGTHS: tuple[tuple[str, int], ...] = ((r"^run_clm", 1024), (r"^run_mlm_roberta", 512))
"""Tokens of a sequence of scripts that cut texts to blocks (transformers, examples/pytorch/language-modeling)."""


def _usual_length(text: str, name: str) -> int | None:
    """Return the tokens of a sequence where none are stated: those of the script, or of the network in its pre-training."""
    if found := next((tokens for pattern, tokens in _LENGTHS if re.search(pattern, text)), None):
        return found
    if not re.search(r"pre-?train", text, re.IGNORECASE):
        return None
    known = SHAPES.get(model_name(name))
    return known.seq_len if known else 2048 if re.search(r"\bgpt-?3", name, re.IGNORECASE) else None


def _pairs(row: Row, name: str, seq_len: int, pipeline: int) -> Workload | None:
    """Return a T5 of Megatron: a decoder of a quarter of the encoder's tokens."""
    matched = re.search(r"\b(m?)t5\b", name, re.IGNORECASE)
    size = _parameters(name)
    if matched is None or not size or "nemo" not in row.text("framework").casefold():
        return None
    layers, hidden, ffn, heads, width = _T5[min(_T5, key=lambda known: abs(math.log(known / size)))]
    stack = TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_dim=width,
        ffn=ffn,
        vocabulary=MT5_TOKENS if matched[1] else T5_TOKENS,
        gated=True,
        context=seq_len,
    )
    both = EncoderDecoderShape(encoder=replace(stack, causal=False), decoder=stack, source_tokens=seq_len)
    return Workload.of(encoder_decoder(both, seq_len // 4, name=name, fused_attention=False))


_T5: Mapping[float, tuple[int, int, int, int, int]] = {
    0.22e9: (12, 768, 2048, 12, 64),
    3e9: (24, 2048, 5120, 32, 64),
    11e9: (24, 4096, 10240, 64, 64),
}
"""Layers of each stack, width, inner width, heads and their width of T5 by parameters (NVIDIA, NeMo-Framework-Launcher,
conf/training/t5 and mt5: 512 tokens in, 128 out)."""
T5_TOKENS, MT5_TOKENS = 29184, 250112
_BERT_4B = TransformerShape(
    layers=48, hidden=2560, heads=32, vocabulary=30592, context=512, causal=False, segments=2, head="dense"
)
"""NeMo-Framework-Launcher, conf/training/bert/4b.yaml."""


def _encoder(row: Row, name: str, seq_len: int, pipeline: int) -> Workload | None:
    """Return a BERT, pre-trained or fine-tuned."""
    matched = _BERT.search(name)
    if re.search(r"\bbert 4b|4b bert", name, re.IGNORECASE):
        return Workload.from_shape(replace(_BERT_4B, context=seq_len), seq_len, name=name, fused_attention=False)
    if matched is None or re.search(r"distil|albert|deberta|\d+b", name, re.IGNORECASE):
        return None
    size = (matched[1] or matched[2]).casefold()
    tuned = re.search(r"squad|qa|fine-?tun|glue", f"{row.text('model')} {row.text('other_options')}", re.IGNORECASE)
    return Workload.named(f"bert-{size}-{'squad' if tuned else 'mlm'}", seq_len)


def _maxtext(row: Row, name: str, seq_len: int, pipeline: int) -> Workload | None:
    """Return a decoder of MaxText, by its base dimensions and scale (MaxText, pyconfig.py, ``get_individual_scales``: heads and
    feed-forward, then the width, then the layers double in turn)."""
    options = row.text("other_options")
    if "maxtext" not in f"{name} {row.text('framework')}".casefold() or not re.search(
        r"base_emb_dim|global_parameter_scale", options
    ):
        return None
    base = dict(_MAXTEXT) | {key: int(value) for key, value in re.findall(r"\b(base_\w+|head_dim)=(\d+)", options)}
    scale = re.search(r"global_parameter_scale=(\d+)", options)
    cycles, rest = divmod(int(math.log2(int(scale[1]))) if scale else 0, 3)
    heads, hidden = cycles + (rest > 0), cycles + (rest > 1)
    gated = llama(
        base["base_num_decoder_layers"] << cycles,
        base["base_emb_dim"] << hidden,
        base["base_num_query_heads"] << heads,
        base["base_num_kv_heads"] << heads,
        base["base_mlp_dim"] << heads,
        MAXTEXT_TOKENS,
    )
    shapes = [replace(gated, head_dim=base["head_dim"]), replace(gated, head_dim=2 * base["head_dim"], gated=False)]
    known = [Workload.from_shape(shape, seq_len, name=name) for shape in shapes]
    size = _parameters(name) or known[0].num_parameters
    fits = (found for found in known if abs(found.num_parameters / size - 1) < _SAME_SIZE)
    return next(fits, known[0])


_SAME_SIZE = 0.06
"""Difference of a network's parameters from those in its name, which is rounded: its heads and gate are not stated."""
MAXTEXT_TOKENS = 32000
_MAXTEXT: Mapping[str, int] = {
    "base_emb_dim": 2048,
    "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "head_dim": 128,
}
"""MaxText's base configuration (configs/base.yml)."""


def _by_dimensions(row: Row, name: str, seq_len: int, pipeline: int) -> Workload | None:
    """Return a GPT of stated width and layers."""
    said = f"{name}; {row.text('other_options')}"
    hidden = written(said, "hidden")
    if hidden is None or not re.search(r"gpt|opt|bloom|megatron", name, re.IGNORECASE):
        return None
    layers = _layers(said, name) or _layers_of_size(name, hidden)
    if not layers:
        return None
    heads = written(said, "heads") or max(1, hidden // HEAD)
    while hidden % heads:
        heads -= 1
    fused, drops = _is_fused(row), not re.search(r"\bopt\b", name, re.IGNORECASE)
    return _gpt(layers, hidden, heads, written(said, "vocabulary") or GPT_TOKENS, seq_len, fused, drops)


def _layers(said: str, name: str) -> int | None:
    """Return the layers of a text; of several sizes in it (``20B: 8 layers, 200B: 80 layers``), those of the network's own."""
    if (size := _SIZE.search(name)) and (own := re.search(rf"\b{re.escape(size[0])}: (\d+) layers", said)):
        return int(own[1])
    plain = re.sub(r"\b[\d.]+[BM]: \d+ layers", "", said)
    return written(plain, "layers")


def _layers_of_size(name: str, hidden: int) -> int:
    size = _parameters(name)
    return round(size / (12 * hidden**2)) if size else 0


def _parameters(name: str) -> float:
    matched = _SIZE.search(name)
    return float(matched[1]) * (1e9 if matched[2].upper() == "B" else 1e6) if matched else 0.0


@cache
def _gpt(layers: int, hidden: int, heads: int, vocabulary: int, seq_len: int, fused: bool, drops: bool = True) -> Workload:
    """Return a GPT. ``drops``: whether dropout applies to the weights of attention, which OPT leaves (its configuration)."""
    shape = TransformerShape(layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary, attention_dropout=drops)
    return Workload.from_shape(shape, seq_len, name=f"gpt-{layers}x{hidden}-{heads}", fused_attention=fused)


def _named(row: Row, name: str, seq_len: int, pipeline: int) -> Workload | None:
    """Return a network by name, with fewer layers where the row says so."""
    plain = _CUT.sub("", name).strip()
    cut = re.search(r"cut to (\d+) layers", name, re.IGNORECASE)
    return language_model(plain, seq_len, layers=int(cut[1]) if cut else 0)


def _sized(row: Row, name: str, seq_len: int, pipeline: int) -> Workload | None:
    """Return a GPT of which only the number of parameters is stated."""
    size = _parameters(name)
    if not size or not re.search(r"\bgpt(?!-?(neo|j|oss))", name, re.IGNORECASE):
        return None
    hidden = WIDTHS[min(WIDTHS, key=lambda known: abs(math.log(known / size)))]
    layers = max(1, round(size / (12 * hidden**2) / pipeline)) * pipeline
    return _gpt(layers, hidden, max(1, hidden // HEAD), GPT_TOKENS, seq_len, _is_fused(row))


def _is_fused(row: Row) -> bool:
    """Return whether attention is one kernel, which a row of a GPT has to say: Megatron's default writes the scores."""
    said = f"{row.text('other_options')} {row.text('framework')}"
    return re.search(r"(?<!no )flash|\bsdpa\b", said, re.IGNORECASE) is not None


def _adapted(found: Workload, row: Row) -> Workload:
    """Return the network with the adapters that the row states. Raises UserError if no layer has their names."""
    lora = adapters(row, found)
    return with_adapters(found, lora, f"{found.name}-lora-r{lora.rank}") if lora else found


_LORA = re.compile(r"(?<![a-z])(?:q-?)?lora(?![a-z])", re.IGNORECASE)
_TARGETS = re.compile(r"--lora_target_modules((?:\s+['\"]?[a-zA-Z][\w.]*['\"]?)+)")
_TRAINABLE = re.compile(r"trainable parameters ([\d,]+)")
_DEFAULTS: tuple[tuple[str, LoRA], ...] = (
    ("QwenLM/Qwen ", LoRA(64, ("all-linear",), dropout=0.05)),
    ("modelscope/ms-swift", LoRA(8, ("query", "key", "value"), dropout=0.05)),
    (LITGPT, LoRA(8, ("query", "value"), dropout=0.05)),
    ("Automodel", LoRA(8, ("all-linear",))),
)
"""Adapters of a source where a row leaves them out (QwenLM/Qwen, finetune.py: rank 64 for c_attn, c_proj, w1 and w2; ms-swift:
rank 8 for queries, keys and values; all with a dropout of 0.05, as LitGPT, finetune/lora.py; NeMo AutoModel, recipes of peft:
rank 8, all linear layers)."""
_USUAL = LoRA(8, ("query", "value"))
"""Adapters of PEFT where nothing else is known."""


def adapters(row: Row, of: Workload) -> LoRA | None:
    """Return the adapters of a run; None where all weights are trained.

    Trained parameters tell rank and targets (LitGPT), else ``--lora_rank`` and ``--lora_target_modules``, else the defaults of
    the source.
    """
    said = f"{row.text('model')} {row.text('other_options')}"
    if not _LORA.search(said) or re.search(r"Model Type \[FULL\]|full-parameter", said, re.IGNORECASE):
        return None
    usual = next((lora for source, lora in _DEFAULTS if source in row.text("source")), _USUAL)
    bits, trained = _bits(f"{said} {row.text('precision')}"), _TRAINABLE.search(said)
    embeddings = re.search(r"lora \(emb\)", said, re.IGNORECASE) is not None
    if trained and (found := _of_size(of, int(trained[1].replace(",", "")))):
        return replace(found, bits=bits, embeddings=embeddings, dropout=usual.dropout)
    rank = written(said, "rank") or usual.rank
    targets = _TARGETS.search(said)
    chosen = tuple(targets[1].replace("'", "").split()) if targets else usual.targets
    fused = any(layer.name.endswith(".qkv") for layer in of.layers)
    chosen = ("qkv",) if fused and not targets and "query" in chosen else chosen
    return LoRA(rank, chosen, bits, embeddings, usual.dropout)


def _bits(said: str) -> int:
    """Return the bits of frozen weights that a text names; 0: those of the precision."""
    codes = None if _NO_CODES.search(said) else _CODES.search(said)
    return 0 if codes is None else 8 if "8" in codes[0] else 4


def _of_size(of: Workload, parameters: int) -> LoRA | None:
    """Return the adapters that have so many parameters: the usual ones of several."""
    for targets in (("query", "value"), ("qkv",), ("attention",), ("all-linear",)):
        for rank in (8, 4, 16, 32, 64):
            try:
                if with_adapters(of, LoRA(rank, targets)).num_parameters == parameters:
                    return LoRA(rank, targets)
            except UserError:
                break
    return None
