"""Calls of PyTorch, Lightning and ``paceline.attach`` in a script that wraps its model, and what each states."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from paceline.hardware.precision import PRECISIONS
from paceline.questions.facts import StatedFact
from paceline.questions.readers.source import Source
from paceline.strategy.choices.synonyms import PER_NODE
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.sharding import DDP, ZERO1, ZERO2, ZERO3
from paceline.strategy.strategy import CHOICES

Fact = Callable[..., StatedFact]
_OF_TORCH = {each.of_torch: name for name, each in OPTIMIZERS.items() if each.of_torch and name != "momentum"}
_OTHERS = {each.python.rpartition(".")[2]: name for name, each in OPTIMIZERS.items() if not each.of_torch}
_DTYPES = {each.dtype: name for name, each in reversed(list(PRECISIONS.items())) if each.dtype}
"""Precisions by the type of their numbers, the first of several."""
_SHARDED = frozenset(
    (
        *("fully_shard", "FullyShardedDataParallel", "FSDP", "FSDPStrategy"),
        *("DistributedDataParallel", "DDP", "DDPStrategy", "ZeroRedundancyOptimizer"),
    )
)
TORCH_CALLS = frozenset(
    (
        *_SHARDED,
        *("checkpoint", "MixedPrecisionPolicy", "autocast", "init_device_mesh", "set_float32_matmul_precision", "attach"),
        "gradient_checkpointing_enable",
        *_OF_TORCH,
        *_OTHERS,
    )
)
"""Names of the calls."""


def torch_facts(name: str, call: ast.Call, known: Mapping[str, Any], source: Source) -> Iterator[StatedFact]:
    """Yield what a call states."""

    def fact(stated: str, value: object, rank: int = 0) -> StatedFact:
        return StatedFact(stated, value, source.name, f"{name}(...)", rank)

    if name in _OF_TORCH or name in _OTHERS:
        momentum = name == "SGD" and bool(known.get("momentum"))
        yield fact("optimizer", "momentum" if momentum else _OF_TORCH.get(name) or _OTHERS[name])
    elif name in _SHARDED:
        yield from _sharded(name, call, known, fact)
    elif name == "attach":
        yield from _attached(call, known, fact)
    elif name in ("checkpoint", "gradient_checkpointing_enable"):
        yield fact("recompute", "full")
    else:
        yield from _computed(name, ast.unparse(call), fact)


def _sharded(name: str, call: ast.Call, known: Mapping[str, Any], fact: Fact) -> Iterator[StatedFact]:
    """Yield the sharding of a wrapper."""
    if name in ("DistributedDataParallel", "DDP", "DDPStrategy"):
        yield fact("sharding", DDP.name, 0)
        if "bucket_cap_mb" in known:
            yield fact("bucket_bytes", f"{known['bucket_cap_mb']}MiB")
    elif name == "ZeroRedundancyOptimizer":
        yield fact("sharding", ZERO1.name, 1)
        if found := re.search(r"optim\.(\w+)", ast.unparse(call)):
            yield fact("optimizer", _OF_TORCH.get(found[1], "adamw"))
    else:
        kept = known.get("reshard_after_forward") is False or known.get("sharding_strategy") == "SHARD_GRAD_OP"
        yield fact("sharding", (ZERO2 if kept else ZERO3).name, 2)
        if known.get("sharding_strategy") == "HYBRID_SHARD":
            yield fact("shard_devices", PER_NODE)
        if any(word.arg == "activation_checkpointing_policy" for word in call.keywords):
            yield fact("recompute", "full")
        if known.get("cpu_offload") is True:
            yield fact("offload", "weights+optimizer")


def _computed(name: str, text: str, fact: Fact) -> Iterator[StatedFact]:
    """Yield the precision, or the groups of a mesh."""
    if name == "init_device_mesh":
        if found := re.search(r"\((\d+), (\d+)\).*replicate.*shard", text):
            yield fact("copies", int(found[1]))
    elif name == "set_float32_matmul_precision":
        if "high" in text:
            yield fact("precision", "tf32", 0)
    elif (found := re.search(r"torch\.(\w+16)", text)) and found[1] in _DTYPES:
        yield fact("precision", _DTYPES[found[1]], 1)


def _attached(call: ast.Call, known: Mapping[str, Any], fact: Fact) -> Iterator[StatedFact]:
    """Yield the compression and the choices of ``paceline.attach``."""
    if len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
        yield fact("compression", call.args[1].value)
    for name, value in known.items():
        if name in CHOICES and isinstance(value, str | int | float):
            yield fact(name, value)
