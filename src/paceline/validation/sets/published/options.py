"""Choices of a run from the cells of a row: whole numbers, the mesh, sharding and recomputation, wherever they are written.

Tables have columns for a few choices; the others are in ``other_options`` as their authors wrote them: ``TP 2 PP 1 MBS 24``,
``vpp 4``, ``accumulation 8``, ``--gradient_accumulation_steps 2``, ``remat_policy=full``. A column counts before text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.prediction.mesh.expert_parallel import expert_count, has_experts
from paceline.strategy.sharding import SHARDINGS
from paceline.workload import Workload

_SAYS = r"(?:\s*[=:]\s*|\s+|)"
_WRITTEN: Mapping[str, str] = {
    "tp": r"\bTP|tensor[_ -](?:model[_ -])?parallel(?:ism|[_ -]size)?",
    "pp": r"\bPP(?! chunks)|pipeline[_ -](?:model[_ -])?parallel(?:ism|[_ -]size)?",
    "cp": r"\bCP|context[_ -]parallel(?:ism|[_ -]size)?",
    "ep": r"\bEP|expert[_ -](?:model[_ -])?parallel(?:ism|[_ -]size)?",
    "etp": r"\bETP|expert[_ -]tensor[_ -]parallel(?:ism|[_ -]size)?",
    "vp": r"\bVP|\bvpp|virtual[_ -](?:pipeline|stages)[\w-]*",
    "dp": r"\bDP",
    "micro_batch": r"\bMBS|\bmicro_bsz|Mic-BS|per_device_(?:train_)?batch_size",
    "global_batch": r"\bGBS|Glob-BS|global[_ -]batch(?:[_ -]size)?",
    "local_batch": r"\bLBS|local[_ -]batch(?:[_ -]size)?",
    "accumulation": r"\bGA|\bGAS|\bmicro_num|(?:gradient[_ -])?accumulation(?:[_ -]steps)?",
    "seq_len": r"\bseq(?:[_ -]len(?:gth)?)?|max_(?:target|seq)_length|max_length",
    "layers": r"\bN?layers",
    "hidden": r"\bN?hidden(?:[_ -]size)?",
    "heads": r"\bN?heads",
    "vocabulary": r"\bvocab(?:ulary)?(?:[_ -]size)?",
    "rank": r"lora[_ -]?(?:rank|r)\b|\brank",
}
"""Names of a choice in text, in front of its number."""
_BEHIND: Mapping[str, str] = {
    "tp": r"(\d+)xNC\(TP\)",
    "vp": r"(\d+) virtual stages",
    "accumulation": r"(\d+) micro batches per replica",
    "layers": r"\b(\d+) layers",
    "heads": r"\b(\d+) heads",
    "nodes": r"\b(\d+) ?nodes",
}
"""Choices whose number comes first."""
MOST: Mapping[str, int] = {"layers": 1000, "hidden": 10**6, "heads": 10**4, "vocabulary": 10**7, "vp": 1000}
"""Largest number of a choice that a run can have; a larger one is a slip. Any other: ``LARGEST``."""
LARGEST = 10**7
_UNSAID = ("", "-", "n/a", "na", "none", "null", "not stated")
_NO_RECOMPUTE = re.compile(r"^none|^no\b|^off|false|disabled|^not? ", re.IGNORECASE)
_SHARDINGS: tuple[tuple[str, str], ...] = (
    (r"fsdp|hsdp|zero-?(?:dp)?\s*(?:stage|o)?[\s-]*3|fully.sharded|full_shard", "zero3"),
    (r"zero-?\s*(?:stage)?[\s-]*2|shard_grad_op", "zero2"),
    (r"distributed.optimizer", "distributed_optimizer"),
    (r"zero-?\s*(?:stage)?[\s-]*1|bf16 optimizer", "zero1"),
    (r"\bzero\b(?![\s-]*0)", "zero3"),
)
"""Shardings by their names; ZeRO without a stage is the third, which alone fits where tables say no more."""
LITGPT = "Lightning-AI/litgpt"
_SINGLE = re.compile(r"^(?:fsdp|dp|zero\w*)\s*1$", re.IGNORECASE)


_POLICIES = (
    (r"minimal", 0.0),
    (r"except_mlpwi", 0.45),
    (r"except_mlp", 0.65),
    (r"qkv_proj|out_proj|custom|decoder_layer_input", 1.0),
    (r"save_|dots", 0.0),
)
"""Policies of MaxText (``remat_policy`` in configs/base.yml), on the device or with results in the host's memory, and the share
of a block's products that they compute again. The feed-forward layer has two thirds of them, one third is its second product.
``custom`` keeps the input of each block by default."""


_ACTIVATIONS_MOVED = re.compile(r"\bcpu_offloading\b(?!\s*[=:]\s*(?:false|0))|activation[-_ ]offload", re.IGNORECASE)
"""Options of Megatron-Core and others that move activations to the host."""


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{_WRITTEN[name]}){_SAYS}(\d[\d,]*)(k?)(?![\d.])", re.IGNORECASE)


def number(row: Row, name: str, *columns: str) -> int | None:
    """Return the whole number of a choice: in its column, else in ``other_options``; None where it is not stated.

    Args:
        columns: columns of that choice; by default the one of its name.
    """
    for column in columns or (name,):
        if found := leading(row.text(column)):
            return found
    return written(row.text("other_options"), name)


def leading(text: str) -> int | None:
    """Return the whole number at the beginning of a cell such as ``128 (minibatch)``; None without one, or for 0."""
    if text.casefold() in _UNSAID:
        return None
    matched = re.match(r"\s*(\d[\d,]{0,12})(\.0*)?(?![\d.])", text)
    return _possible("", int(matched[1].replace(",", ""))) if matched else None


def _possible(name: str, number: int) -> int | None:
    return number if 0 < number <= MOST.get(name, LARGEST) else None


def written(text: str, name: str) -> int | None:
    """Return the number that a text gives for a choice of ``_WRITTEN``; None where it gives none."""
    if name in _WRITTEN and (matched := _pattern(name).search(text)):
        return _possible(name, int(matched[1].replace(",", "")[:12]) * (1000 if matched[2] else 1))
    if name in _BEHIND and (matched := re.search(_BEHIND[name], text, re.IGNORECASE)):
        return _possible(name, int(matched[1][:12]))
    return None


def sharding(row: Row) -> str:
    """Return the sharding of weights, gradients and optimizer states, a name of ``SHARDINGS``; empty if unstated."""
    text = row.text("dp_sharding") or row.text("framework")
    if not row.text("dp_sharding") and "QwenLM/Qwen " in row.text("source"):
        if "full-parameter" in row.text("other_options").casefold():
            return "zero3"  # finetune_ds.sh, on one device too
        return "zero2" if leading(row.text("num_devices")) != 1 else "ddp"  # finetune_lora_ds.sh, finetune_lora_single_gpu.sh
    if _SINGLE.match(text):
        return "ddp"
    named = next((name for pattern, name in _SHARDINGS if re.search(pattern, text, re.IGNORECASE)), "")
    return named or ("ddp" if row.text("dp_sharding") else "")


def offload(row: Row) -> str:
    """Return what is in the host's memory, a name of ``OFFLOADS``.

    Text on recomputation or Megatron-Core's options may state activations. Policies of MaxText that move a few results of each
    block are not told apart from those that keep them.
    """
    said = f"{row.text('framework')} {row.text('dp_sharding')}".casefold()
    parts: list[str] = []
    if "offload" in said:
        whole = "full offload" in said and SHARDINGS[sharding(row) or "ddp"].weights
        parts.append("weights+optimizer" if whole else "optimizer")
    text = row.text("recompute").casefold()
    if ("offload" in text and _of_policy(text) is None) or _ACTIVATIONS_MOVED.search(row.text("other_options")):
        parts.append("activations")
    return "+".join(parts) or "none"


def recompute(row: Row) -> str:
    """Return what runs again in the backward pass, as ``Strategy.of`` takes it; empty where nothing is stated.

    Raises:
        UserError: text that names no recomputation.
    """
    text = row.text("recompute").casefold() or _in_options(row)
    if text in _UNSAID and text != "none":
        return "full" if _scripts_recompute(row) else ""
    if _NO_RECOMPUTE.search(text):
        return "" if "not stated" in text else "none"
    if (policy := _of_policy(text)) is not None:
        return "full" if policy else "none"
    if re.search(r"select|\bsac\b|\bop\b", text):
        by_operation = re.search(r"torchtitan|torchao", f"{row.text('framework')} {row.text('source')}", re.IGNORECASE)
        return "selective:op" if by_operation and "layer" not in text else "selective"
    if re.search(r"full|^on\b|true|yes|checkpoint|uniform|block|^all|every|layer|\bac\b", text):
        return "full"
    if "offload" in text:  # activations move, and nothing is computed again
        return "none"
    raise UserError(f"recompute {text}")


def _of_policy(text: str) -> float | None:
    """Return the share of a block's products that a policy of MaxText computes again; None for other text."""
    return next((share for pattern, share in _POLICIES if re.search(pattern, text)), None)


def recomputed_share(row: Row) -> float:
    """Return the share of the blocks that run again, such as 1/3 of them; 1 where it is not stated. A policy that keeps some
    products of each block counts as blocks."""
    if policy := _of_policy(row.text("recompute").casefold()):
        return policy
    matched = re.search(r"(?<![\d/])([1-9])/([1-9])(?![\d/])|every (\d+)", row.text("recompute"))
    if matched is None:
        return 1.0
    return 1 / int(matched[3]) if matched[3] else min(1.0, int(matched[1]) / int(matched[2]))


def sharing_devices(row: Row, replicas: int, per_node: int) -> int:
    """Return how many neighbouring replicas share one copy of the weights or states; 0: all of them."""
    text = f"{row.text('dp_sharding')} {row.text('other_options')}".casefold()
    stated = re.search(r"(?:group|shard(?:s|ing)?(?: over| among)?|hsdp)[ =:]*(\d+)(?!\d)", row.text("dp_sharding").casefold())
    inside = re.search(r"hsdp|hybrid.?shard|(?:inside|within|in) an? (?:slice|node|pod)", text)
    size = int(stated[1]) if stated else per_node if inside else 0
    return size if 1 < size < replicas and replicas % size == 0 else 0


def _scripts_recompute(row: Row) -> bool:
    """Return whether the source's scripts recompute whole blocks.

    QwenLM/Qwen recomputes (finetune/*.sh: ``--gradient_checkpointing``). NVIDIA-NeMo/Automodel does where it fine-tunes with a
    pipeline (examples/llm_finetune, ``qwen2_5_32b_peft_benchmark.yaml``; examples/benchmark/configs/peft,
    ``llama_3_3_70b_instruct_squad_peft_pp.yaml``: ``activation_checkpointing: true``). LitGPT does on several devices
    (finetune/lora.py, ``FSDPStrategy``: ``activation_checkpointing_policy={Block}``).
    """
    source = row.text("source")
    if LITGPT in source:
        return (number(row, "num_devices") or 1) > 1
    tuned_in_stages = "lora" in row.text("model").casefold() and (number(row, "pp") or 1) > 1
    return "QwenLM/Qwen " in source or ("NeMo/Automodel " in source and tuned_in_stages)


def holds_whole_gradients(row: Row) -> bool:
    """Return whether each device adds up gradients of all weights, frozen ones too, in spite of shards.

    LitGPT does not exchange gradients until the last micro batch (``fabric.no_backward_sync``). FSDP then keeps those of whole
    flat parameters (PyTorch, ``FullyShardedDataParallel.no_sync``), in which frozen and trained weights of a block are one.
    """
    return LITGPT in row.text("source")


def _in_options(row: Row) -> str:
    """Return what ``other_options`` says about recomputation; a method without its number of layers recomputes none (NeMo,
    ``activations_checkpoint_num_layers`` of 0)."""
    text = row.text("other_options").casefold()
    if matched := re.search(r"\bactivations\s+(\w+)?\s*(selective|full)?\b", text):
        return matched[2] if matched[2] and matched[2].startswith("select") else "none"
    if re.search(r"gradient[_ -]checkpointing(?![_ ]*(?:false|=\s*false))", text):
        return "full"
    return ""


def mesh(row: Row) -> dict[str, Any]:
    """Return the division of the devices as choices of ``Strategy.of``."""
    sizes = {
        "tensor": number(row, "tp") or 1,
        "pipeline": number(row, "pp") or 1,
        "context": number(row, "cp") or 1,
        "expert": number(row, "ep") or 1,
        "virtual_stages": number(row, "vp") or 1,
    }
    if sizes["pipeline"] == 1:
        sizes["virtual_stages"] = 1
    return sizes


def sequence(row: Row, longest: bool = False) -> int | None:
    """Return the tokens of a sequence; 0 where they differ, None where they are not stated.

    Args:
        longest: the longest of unequal sequences, which sets the peak of memory.
    """
    text, model = row.text("seq_len"), row.text("model")
    if phase := re.search(r"\bPh(?:ase)?[ -]?([12])\b", model, re.IGNORECASE):
        return {"1": 128, "2": 512}[phase[1]]  # BERT's; columns of some tables have 128 for both
    if found := leading(text):
        return found
    if text:
        words = [word.casefold() for word in re.findall(r"[A-Za-z]{3,}", model)]
        named = re.findall(r"([A-Za-z][\w.]*(?: \d)?) (\d{2,})", text.partition("longest")[2] or text)
        own = next((int(tokens) for name, tokens in named if name.split()[0].casefold().rstrip(".-") in words), None)
        limit = re.search(r"max_length (\d+)", text)
        return (own or (int(limit[1]) if limit else 0)) if longest else 0
    return written(row.text("other_options"), "seq_len")


def memory_in(raw: str, devices: int) -> float | None:
    """Return the bytes of a device in a row that is published as ``6.7G / 1.0s/it``, which counts all ``devices``; None in any
    other."""
    matched = re.search(r"(\d+(?:\.\d+)?)\s*Gi?B? / [\d.]+\s*s/it", raw)
    return float(matched[1]) * 2.0**30 / devices if matched else None


def sequence_parallel(row: Row, since: str) -> bool:
    """Return whether the parts of a block that tensor parallelism leaves whole are divided along the sequence.

    Args:
        since: month in which that became known; earlier rows have none, later ones do unless they or their scripts deny it
            (NVIDIA-NeMo/Automodel: ``sequence_parallel: false``).
    """
    text = row.text("other_options")
    if stated := re.search(r"sequence[_ ]parallel(?:ism)?[=:\s]*(\w*)", text, re.IGNORECASE):
        return stated[1].casefold() not in ("false", "off", "no", "0", "nodes")
    if re.search(r"deepspeed|oneflow", row.text("framework"), re.IGNORECASE) or _scripts_recompute(row):
        return False
    return not row.text("date") or row.text("date") >= since


def expert_exchange(row: Row, network: Workload, devices: int, stated: int) -> dict[str, Any]:
    """Return how tokens travel to experts, as choices of ``Strategy.of``.

    A dispatcher of tokens without a stated degree has experts on as many devices as share the weights.

    Args:
        devices: replicas of the other layers; ``stated``: devices that hold one copy of the experts, as the row says.
    """
    said = row.text("other_options").casefold()
    dispatched = re.search(r"deep-?ep|hybrid-?ep", said) is not None
    choices: dict[str, Any] = {}
    if has_experts(network) and dispatched and stated == 1 and not row.text("ep").strip("-"):
        choices["expert"] = math.gcd(devices, expert_count(network))
    if dispatched and choices.get("expert", stated) > 1:
        choices["expert_exchange"] = "once_per_node"
    if etp := written(said, "etp"):
        choices["expert_tensor"] = etp
    return choices


def wide_gradients(row: Row) -> bool:
    """Return whether gradients are added in 32 bits."""
    said = f"{row.text('precision')} {row.text('other_options')}"
    return (
        re.search(r"fp32 gradient|gradients? in fp32|grad\w* (?:reduce|accum\w*)[ _]in[ _]fp32", said, re.IGNORECASE)
        is not None
    )


_NO_OVERLAP = re.compile(r"overlap (?:is |was )?(?:switched |turned )?off|(?<!zero )no overlap|without overlap", re.IGNORECASE)


def overlap(row: Row) -> bool | None:
    """Return False if the row switched overlap of exchanges and passes off; None where it does not say so."""
    return False if _NO_OVERLAP.search(row.text("other_options")) else None
