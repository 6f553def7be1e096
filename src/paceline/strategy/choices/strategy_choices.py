"""Declarations of the choices that ``Strategy`` itself holds."""

from __future__ import annotations

from dataclasses import MISSING, replace
from typing import Any

from paceline.hardware.precision import ALIASES as PRECISION_ALIASES
from paceline.hardware.precision import PRECISIONS, RECIPES
from paceline.strategy.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import (
    ONE_OF,
    RUNS,
    RUNS_AS_GIVEN,
    TRAFFIC,
    WRITTEN,
    EmitRule,
    Need,
    Searched,
    StrategyChoice,
    Trained,
    choice,
)
from paceline.strategy.choices.choice_values import ByteSize, Name, WholeNumber
from paceline.strategy.frameworks.loss import LOSS_ALIASES, LOSSES
from paceline.strategy.memory_format import ALIASES as FORMAT_ALIASES
from paceline.strategy.memory_format import CHANNELS_LAST, MEMORY_FORMATS
from paceline.strategy.memory_format import RULE as FORMAT_RULE
from paceline.strategy.optimizer import DEFAULT, OPTIMIZER_ALIASES, OPTIMIZERS
from paceline.strategy.updates.weight_update import TRAINED_OPTIMIZERS, check_optimizer
from paceline.strategy.usual_precision import RULE
from paceline.strategy.worker_counts import check_batch
from paceline.units import format_bytes

TRAINED_BATCH = 64
"""Samples of a global batch that ``train`` takes by default."""
BATCH = StrategyChoice(
    values=WholeNumber("samples in a global batch"),
    default=MISSING,
    help="samples a step, over all devices (default: the most for each device that fits: a power of two up to 1,024)",
    option="global-batch",
    metavar="B",
    common=True,
    word="global-batch",
    example="1024",
    column="",
    said=True,
    told_apart=True,
    strategy_needs=(check_batch,),
    train=replace(RUNS, help=f"samples a step, over all workers (default {TRAINED_BATCH})"),
    emit=WRITTEN,
    plan=Searched("batches", help="only this one; may be repeated"),
    label="Global batch",
    unset="the most that fits",
    affects=("bytes", "time", "memory", "numerics"),
    synonyms=tool_names.BATCH,
)
PRECISION: Any = choice(
    "fp32",
    Name("precision", PRECISIONS, PRECISION_ALIASES, few=len(PRECISIONS)),
    "{legal} ({default})",
    rule=RULE,
    common=True,
    metavar="P",
    example="bf16",
    said=True,
    told_apart=True,
    recorded=True,
    train=Trained(
        "precision {value}",
        "train in fp32, bf16, or on a GPU in fp16 or tf32: torch alone quantises no products",
        runs=lambda strategy: strategy.precision not in RECIPES,
        option=True,
        help="fp32, bf16; on a GPU also fp16, tf32 (default fp32)",
    ),
    plan=Searched("precisions", help=ONE_OF),
    label="Precision",
    start="bf16",
    affects=TRAFFIC,
    unset="the device's usual",
    emit=WRITTEN,
    synonyms=tool_names.PRECISION,
)

MEMORY_FORMAT: Any = choice(
    "",
    Name("memory format", MEMORY_FORMATS, FORMAT_ALIASES, optional=True),
    "order of the numbers of images, {legal} (default {default})",
    rule=FORMAT_RULE,
    other_options=("layout",),
    other_words=("layout",),
    metavar="F",
    example=CHANNELS_LAST,
    later=True,
    title="{value}",
    title_rank=5,
    affects=("time", "numerics"),
    train=RUNS,
    plan=Searched(single=True, help="{help}"),
    source="PyTorch, Channels Last Memory Format",
    synonyms=tool_names.MEMORY_FORMAT,
    emit=EmitRule("memory format {value}", "the script converts its model and its inputs"),
)

OPTIMIZER: Any = choice(
    "",
    Name("optimizer", OPTIMIZERS, OPTIMIZER_ALIASES, optional=True, few=len(OPTIMIZERS)),
    "{legal} (default {default})",
    rule=DEFAULT,
    unset="the usual one",
    metavar="O",
    example="adam",
    said=True,
    affects=("time", "memory", "numerics"),
    recorded=True,
    strategy_needs=(check_optimizer,),
    train=TRAINED_OPTIMIZERS,
    synonyms=tool_names.OPTIMIZER,
    plan=Searched("optimizer", single=True, help="{help}"),
    emit=WRITTEN,
)

LOSS: Any = choice(
    "",
    Name("loss", LOSSES, LOSS_ALIASES, optional=True),
    "how the loss over the vocabulary is computed, {legal} (default {default})",
    rule="the framework's own",
    metavar="L",
    example="chunked",
    later=True,
    title="loss {value}",
    title_rank=5,
    affects=("time", "memory"),
    plan=Searched(single=True, help="{help}"),
    strategy_needs=(
        Need(
            lambda strategy: strategy.parallelism.whole,
            "a loss {value} and layers divided among devices, which compute parts of the logits",
            "leave loss out",
        ),
    ),
    emit=EmitRule("loss {value}", "the script computes its loss"),
    synonyms=tool_names.LOSS,
    source="Hsu et al. 2024, arXiv:2410.10989; Wijmans et al. 2024, arXiv:2411.09009",
)

FIRST_BUCKET: Any = choice(
    FIRST_BUCKET_BYTES,
    ByteSize("bytes in the first bucket"),
    "DDP's first bucket",
    option="",
    word="",
    said=True,
    train=RUNS_AS_GIVEN,
    source="PyTorch, DistributedDataParallel",
    emit=WRITTEN,
)

BUCKET: Any = choice(
    BUCKET_BYTES,
    ByteSize("bytes in a bucket"),
    f"DDP's buckets after the first, and the least that FSDP gathers: 100MB (default {BUCKET_BYTES >> 20}MiB)",
    option="bucket",
    topic="exchange",
    metavar="SIZE",
    example="25MiB",
    said=True,
    train=RUNS_AS_GIVEN,
    synonyms=tool_names.BUCKET,
    title=lambda strategy: f"buckets of {format_bytes(strategy.bucket_bytes)}",
    title_rank=5,
    plan=Searched("buckets", values=(BUCKET_BYTES, 4 * BUCKET_BYTES), option=False),
    source="PyTorch, DistributedDataParallel",
    emit=WRITTEN,
    detour=lambda strategy: strategy.bucket_bytes != BUCKET_BYTES,
)
