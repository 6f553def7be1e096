"""NVIDIA's recipes of mixtures of experts: exchange, overlap and recomputation by model, chip, precision and release.

Sources, in NVIDIA-NeMo/Megatron-Bridge: ``scripts/performance/configs`` up to release 26.04, ``megatron/bridge/perf_recipes``
from 26.06 on (``cuda_graph_impl``, ``moe_flex_dispatcher_backend``, ``overlap_moe_expert_parallel_comm``,
``recompute_modules``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_RELEASE = re.compile(r"(\d\d)\.(\d\d)")
FULL_GRAPHS_SINCE = 2026.4
"""Year of release 26.06, whose MXFP8 recipes for Blackwell capture whole steps and overlap the exchange of experts."""
_DEDUPLICATED = {"expert_exchange": "once_per_node"}
_OVERLAPPED = {"expert_overlap": True}
_ON_HOPPER: Mapping[str, Mapping[str, Any]] = {
    "deepseek-v3": {**_DEDUPLICATED, **_OVERLAPPED},
    "qwen-3-30b-a3b": _DEDUPLICATED,
    "qwen-3-235b-a22b": _OVERLAPPED,
    "nemotron-3-nano-30b-a3b": {**_DEDUPLICATED, "recompute": "selective:moe,layernorm"},
}
_ON_BLACKWELL: Mapping[str, Mapping[str, Any]] = {
    "deepseek-v3": _DEDUPLICATED,
    "kimi-k2": _DEDUPLICATED,
    "qwen-3-30b-a3b": _DEDUPLICATED,
    "qwen-3-235b-a22b": _DEDUPLICATED,
    "qwen-3-next-80b-a3b": _DEDUPLICATED,
    "nemotron-3-nano-30b-a3b": _DEDUPLICATED,
    "nemotron-3.5-lightning-30b-a3b": _DEDUPLICATED,
    "nemotron-3-super-120b-a12b": _DEDUPLICATED,
    "nemotron-3-ultra-550b-a55b": {**_DEDUPLICATED, "recompute": "selective:moe_act", "sharding": "zero3", "shard_devices": 64},
}
_WHOLE_GRAPHS = ("deepseek-v3", "gpt-oss-120b", "qwen-3-30b-a3b", "qwen-3-235b-a22b")


WORKLOADS: Mapping[str, str] = {"deepseek-v3": "deepseek-v3-mtp"}
"""Networks that the recipes train with a module for a further token (``recipes/deepseek``: ``mtp_num_layers``)."""


def year(release: str) -> float:
    """Return the time of a container such as ``26.06.01 NeMo Container``; 0 if its name has none."""
    matched = _RELEASE.match(release.strip())
    return 2000 + int(matched[1]) + (int(matched[2]) - 1) / 12 if matched else 0.0


def recipe(model: str, architecture: str, precision: str, released: float) -> dict[str, Any]:
    """Return the choices of a recipe as those of ``Strategy.of``; empty for an unknown recipe.

    Args:
        model: name of the workload. ``released``: ``year`` of the container.
    """
    if architecture != "Blackwell":
        own = dict(_ON_HOPPER.get(model, {}))
    elif model in _WHOLE_GRAPHS and precision == "mxfp8" and released >= FULL_GRAPHS_SINCE:
        own = {**_DEDUPLICATED, **_OVERLAPPED}
    else:
        own = dict(_ON_BLACKWELL.get(model, {}))
    if model == "gpt-oss-120b" and not own:
        own["recompute"] = "selective:layernorm,moe_act"
    if model == "deepseek-v3" and architecture == "Blackwell":
        own["recompute"] = "selective:mlp" if precision in ("fp8-current", "nvfp4") else "selective:mla_up_proj"
    return own
