"""Common parts of the adapters: networks by name, half precision by device, divisible batches."""

from __future__ import annotations

import re
from typing import Any

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.precision import BYTES_PER_ELEMENT, gathered_bytes
from paceline.prediction.mesh.expert_parallel import expert_share
from paceline.prediction.mesh.stages import stages
from paceline.prediction.mesh.tensor_parallel import share
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.sharding import DDP, SHARDINGS, ZERO1
from paceline.strategy.strategy import Strategy
from paceline.validation.case import Case, Keys, PrecisionSource, Setting, Skip
from paceline.workload import TransformerShape, Workload

NO_DEVICE = "device not in the catalogue"
NO_WORKLOAD = "model not among the workloads"
NO_VALUE = "no measurement in the row"
LONG_WAIT = "synchronisation longer than its step"
NO_BATCH = "batch not given, or smaller than the devices"
PARALLEL = "divided among devices, and the row leaves out how"
MESH = "tensor x pipeline x context parallel does not divide the devices"
EXPERTS = "mixture of experts, and the row leaves out how they are divided"
PRECISION = "precision not stated"


_PRECISIONS: tuple[tuple[str, str], ...] = (
    (r"nvfp4|(?<!mx)fp4", "nvfp4"),
    (r"mx[-_ ]?fp8|(fp8|float8)[-_ ]?mx", "mxfp8"),
    (r"(fp8|float8)[-_ ]?(sc\b|sub|block)|(sub-?channel|block-?wise)", "fp8-block"),
    (r"(fp8|float8)[-_ ]?(cs\b|current|tensorwise|rowwise)|current scaling|tensorwise|rowwise", "fp8-current"),
    (r"fp8|float8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16", "fp16"),
    (r"fp32|float32", "fp32"),
)
"""Names of the precisions in tables: NVIDIA's ``FP8-CS``, ``FP8-DS``, ``FP8-SC`` and ``FP8-MX`` are current, delayed,
sub-channel and micro scaling (Megatron-Bridge, ``mixed_precision.py``).
"""


def named(name: str | None, **dimensions: Any) -> Workload | None:
    """Return the workload of that name; None if there is none."""
    if not name:
        return None
    try:
        return Workload.named(name, **dimensions)
    except UserError:
        return None


def half(device: Device) -> str:
    """Return the precision of mixed-precision training: fp16 or bf16 if the device has one, else fp32."""
    preferred = ("fp16", "bf16") if device.kind == "gpu" else ("bf16", "fp16")
    return next((p for p in preferred if p in device.peak_flops), "fp32")


def gpt(layers: int, hidden: int, heads: int, seq_len: int, vocabulary: int) -> Workload | None:
    """Return a GPT of these dimensions, without fused attention."""
    try:
        shape = TransformerShape(layers=layers, hidden=hidden, heads=heads, vocabulary=vocabulary)
        return Workload.from_shape(shape, seq_len, name=f"gpt-{layers}x{hidden}", fused_attention=False)
    except UserError:
        return None


def setting(machines: Cluster, micro_batch: int, precision: str, optimizer: str = "momentum", **choices: Any) -> Setting:
    """Return a setting with ``micro_batch`` samples on each replica at once. Raises UserError as ``Strategy`` does."""
    n = machines.world_size
    replicas = n // (int(choices.get("tensor", 1)) * int(choices.get("pipeline", 1)))
    batch = micro_batch * replicas * int(choices.get("grad_accum_steps", 1))
    strategy = Strategy.of(world_size=n, global_batch_size=batch, precision=precision, optimizer=optimizer, **choices)
    return Setting(machines, strategy)


def divided(
    machines: Cluster,
    workload: Workload,
    batch: int,
    micro_batch: int,
    precision: str,
    *,
    optimizer: str = "adam",
    **mesh: Any,
) -> Setting:
    """Return a model that several devices hold together.

    Args:
        batch: samples of a step over all devices; ``micro_batch``: samples that one replica processes at once.
        mesh: ``tensor``, ``pipeline`` and other choices of ``Strategy.of``. Sequences are divided wherever layers are. Weights
            are sent in 16 bits, or quantised if the recipe can (Megatron-Bridge, ``fp8_param_gather``; torchtitan,
            ``enable_fsdp_float8_all_gather``), gradients in 16 to the owners of their parts (Megatron-Core, distributed
            optimizer; ``grad_reduce_in_fp32`` is off in recipes for speed).

    Raises:
        UserError: the mesh, the batch or the layers do not divide, or the division is not predicted.
    """
    n = machines.world_size
    tensor, pipeline, context = (int(mesh.get(name, 1)) for name in ("tensor", "pipeline", "context"))
    replicas, rest = divmod(n, tensor * pipeline * context)
    if rest or not replicas:
        raise UserError(MESH)
    micro_batches, rest = divmod(batch, replicas * micro_batch)
    if rest or not micro_batches:
        raise UserError(NO_BATCH)
    bits = 0 if BYTES_PER_ELEMENT[precision] == 4 else int(8 * gathered_bytes(precision, 8))
    sharding = SHARDINGS[mesh.get("sharding", DDP.name)]
    shared = sharding.shares_out
    choices: dict[str, Any] = {
        "sequence": tensor > 1,
        "gather_bits": bits if shared else 0,
        "gradient_bits": 16 if shared and bits else 0,
        **(_buckets(replicas * context) if sharding is ZERO1 else {}),
        **mesh,
    }
    strategy = Strategy.of(
        world_size=n, global_batch_size=batch, micro_batches=micro_batches, precision=precision, optimizer=optimizer, **choices
    )
    _check_divides(workload, strategy.parallelism)
    return Setting(machines, strategy)


def _buckets(replicas: int) -> dict[str, int]:
    """Return Megatron-Core's buckets of ``max(40e6, 1e6 x replicas)`` numbers (``DistributedDataParallel``)."""
    size = 4 * max(40_000_000, 1_000_000 * replicas)
    return {"first_bucket_bytes": size, "bucket_bytes": size}


def refused(keys: Keys, error: UserError) -> Skip:
    """Return the reason of ``divided``. A row with inconsistent numbers is not good."""
    return Skip(keys, error.message, good=error.message not in (MESH, NO_BATCH))


def divided_case(
    keys: Keys,
    step_s: float,
    machines: Cluster,
    workload: Workload,
    batch: int,
    micro_batch: int,
    precision: str,
    *,
    precision_from: PrecisionSource = "row",
    year: float = 0.0,
    **mesh: Any,
) -> Case | Skip:
    """Return a tuned run of a model on several devices, or the reason to skip it. Arguments as ``divided`` and ``Case``."""
    try:
        run = divided(machines, workload, batch, micro_batch, precision, **mesh)
    except UserError as error:
        return refused(keys, error)
    return Case(
        keys=keys,
        workload=workload,
        setting=run,
        software="tuned",
        step_s=step_s,
        precision_from=precision_from,
        year=year,
    )


def _check_divides(workload: Workload, mesh: Parallelism) -> None:
    """Raise UserError if layers or heads do not divide, because a visible row must not fail in the predictor."""
    own = share(workload, mesh.tensor, mesh.sequence).workload if mesh.tensor > 1 else workload
    if mesh.expert_devices > 1:
        own = expert_share(own, mesh).workload
    if mesh.pipeline > 1:
        stages(own, mesh.pipeline, mesh.virtual_stages, (mesh.first_stage_layers, mesh.last_stage_layers))


def low_precision(text: str) -> str:
    """Return the precision that a table names, such as ``FP8-CS`` or ``MXFP8``; empty if it cannot be predicted."""
    return next((name for pattern, name in _PRECISIONS if re.search(pattern, text.casefold())), "")


def spread(devices: int, nodes: int) -> tuple[int, ...]:
    """Distribute ``devices`` over ``nodes`` as evenly as possible."""
    fewest, more = divmod(devices, nodes)
    return (fewest + 1,) * more + (fewest,) * (nodes - more)
