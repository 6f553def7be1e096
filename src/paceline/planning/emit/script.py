"""Lines of Python for a strategy in the user's own training script, which wrap the model, and the limits of such lines.

``torch.distributed.fsdp.fully_shard``: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline import hardware
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.optimizer import import_lines, optimizer_lines
from paceline.strategy import BUCKET_BYTES, CLIP, FIRST_BUCKET_BYTES, GradientExchange, Strategy
from paceline.strategy.choices.choice import declared
from paceline.strategy.choices.choice_values import WholeNumber
from paceline.strategy.choices.values import plain
from paceline.strategy.mesh_rules import GATHER_FORMATS
from paceline.strategy.sharded_exchange import usual_exchange
from paceline.strategy.sharding import DISTRIBUTED, ZERO1

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def check(job: EmittedJob) -> None:
    """Raise UserError for choices that a script that wraps a whole model cannot run."""
    mesh, exchange = job.strategy.parallelism, job.strategy.gradient_exchange
    frameworks = "megatron and torchtitan do; plan --emit writes them too"
    for count, what in (
        (mesh.pipeline, f"a pipeline of {mesh.pipeline}"),
        (mesh.tensor, f"tensor parallelism of {mesh.tensor}"),
        (mesh.context, f"context parallelism of {mesh.context}"),
        (mesh.expert_devices, f"groups of experts of {mesh.expert_devices}"),
    ):
        if count > 1:
            raise job.refused(what, f"it starts a script, and does not divide the network; {frameworks}")
    if mesh.sharding is DISTRIBUTED:
        raise job.refused(mesh.sharding.name, "it is Megatron-Core's; PyTorch has zero1")
    if mesh.sharding is ZERO1 and mesh.shard_devices:
        raise job.refused(f"zero1 in groups of {mesh.shard_devices}", "ZeroRedundancyOptimizer is written for all devices")
    if mesh.gather_bits and not mesh.sharding.weights:
        raise job.refused(f"gather_bits with {mesh.sharding}", "ZeroRedundancyOptimizer sends weights as they are")
    if mesh.recompute and not mesh.recompute.whole_blocks:
        raise job.refused(
            f"recomputation {mesh.recompute}", "the model's code chooses parts of a block; whole blocks are written"
        )
    if mesh.sharding.weights and hardware.PRECISIONS[job.strategy.precision].scales_loss:
        raise job.refused(f"fp16 with {mesh.sharding}", "FSDP2 comes without a scaler of the loss; bf16 needs none")
    if job.strategy.first_bucket_bytes not in (FIRST_BUCKET_BYTES, job.strategy.bucket_bytes):
        raise job.refused(f"a first bucket of {job.strategy.first_bucket_bytes} bytes", "DDP has its own size for it")
    if exchange.exchange.uses_switch:
        raise job.refused("exchange switch", "paceline.attach runs what hosts exchange among themselves")


def hooked(job: EmittedJob) -> bool:
    """Return whether gradients or weights are exchanged in another way than PyTorch's."""
    exchange = job.strategy.gradient_exchange
    plain = exchange.is_plain
    return not plain or job.strategy.parallelism.gather_bits > 0


_KEYWORDS = sorted(
    (item for item in declared(GradientExchange) if item.option and item.field not in ("compression", "exchange")),
    key=lambda item: isinstance(item.values, WholeNumber),
)
"""Choices that are keywords of ``attach`` as they are, numbers of ranks last."""


def attach_line(strategy: Strategy) -> str:
    """Return the call of ``paceline.attach`` that runs the exchanges of a strategy, without defaults."""
    exchange = strategy.gradient_exchange
    described = exchange.compression
    arguments = [f'"{exchange.compression}"']
    if exchange.exchange is not usual_exchange(exchange.compression, strategy.parallelism.to_owners):
        arguments.append(f'exchange="{exchange.exchange}"')
    if exchange.compression.clips and exchange.clip != CLIP:
        arguments.append(f"clip={exchange.clip}")
    rule, usual = exchange.dense_rule, described.rule
    if rule is not None and usual is not None and rule != usual:
        arguments += [f"min_elements={rule.min_elements}", f"dense={list(rule.names)}"]
    for item in _KEYWORDS:
        if (value := getattr(exchange, item.field)) != item.default:
            arguments.append(f"{item.name}={plain(value)!r}")
    if bits := strategy.parallelism.gather_bits:
        arguments.append(f"gather_bits={bits}")
    if (form := strategy.parallelism.gather_format) != GATHER_FORMATS[0]:
        arguments.append(f"gather_format={form!r}")
    arguments += [f"{name}={value!r}" for name, value in dict(exchange.options).items()]
    return f"hook = paceline.attach(model, {', '.join(arguments)})"


def batch_text(job: EmittedJob) -> str:
    """Describe the batch of one device."""
    micro = job.strategy.parallelism.micro_batches
    times = f", {micro:,} micro batches a step" if micro > 1 else ""
    samples = job.strategy.micro_batch_size
    return f"{samples:,} sample{'s' * (samples > 1)} a device{' and micro batch' * (micro > 1)}{times}"


def lines(job: EmittedJob) -> Iterator[str]:
    """Yield lines for the script: Python and remarks on it. Call ``check`` first."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    yield from import_lines(job, hooked(job))
    if hardware.PRECISIONS[strategy.precision].truncates:
        yield 'torch.set_float32_matmul_precision("high")'
    if mesh.recompute:
        where = f"in {mesh.recompute_layers} blocks" if mesh.recompute_layers else "in every block"
        yield f"hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)  # {where}"
    if mesh.sharding.weights:
        yield from _fully_sharded(job)
    else:
        yield from _replicated(job)
    yield f"# {batch_text(job)}: global batch {strategy.global_batch_size:,}"


def _replicated(job: EmittedJob) -> Iterator[str]:
    """Yield DDP, its hook, and an optimizer that may shard its state."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    if mesh.sharding is ZERO1:
        yield "import torch.distributed.optim"
    yield f"model = torch.nn.parallel.DistributedDataParallel(model{_buckets(job)})"
    scaled = hardware.PRECISIONS[strategy.precision].scales_loss
    if scaled:
        yield "scaler = torch.amp.GradScaler()"
    if hooked(job):
        line = attach_line(strategy)
        yield f"{line[:-1]}, grad_scaler=scaler)" if scaled else line
    yield from optimizer_lines(job, sharded=mesh.sharding is ZERO1)
    if dtype := hardware.PRECISIONS[strategy.precision].dtype:
        yield f'with torch.autocast("cuda", dtype=torch.{dtype}): loss = ...'
    if mesh.micro_batches > 1:
        yield "with model.no_sync(): ...  # all micro batches of a step but the last"


def _buckets(job: EmittedJob) -> str:
    """Return DDP's argument for buckets of another size than its default."""
    first, rest = job.strategy.first_bucket_bytes, job.strategy.bucket_bytes
    return "" if (first, rest) == (FIRST_BUCKET_BYTES, BUCKET_BYTES) else f", bucket_cap_mb={rest / 2**20:g}"


def _fully_sharded(job: EmittedJob) -> Iterator[str]:
    """Yield FSDP2 calls: one unit per block, and one for all other layers."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    yield "import torch.distributed.fsdp"
    arguments = [f"reshard_after_forward={mesh.sharding.gathers_again}"]
    if mesh.shard_devices:
        sizes = (mesh.data // mesh.shard_devices, mesh.shard_devices)
        yield f'mesh = torch.distributed.init_device_mesh("cuda", {sizes}, mesh_dim_names=("replicate", "shard"))'
        arguments.insert(0, "mesh=mesh")
    if dtype := hardware.PRECISIONS[strategy.precision].dtype:
        yield f"policy = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.{dtype})"
        arguments.append("mp_policy=policy")
    given = ", ".join(arguments)
    size = f"  # units of at least {strategy.bucket_bytes / 2**20:g} MiB" if strategy.bucket_bytes != BUCKET_BYTES else ""
    yield f"for block in blocks: torch.distributed.fsdp.fully_shard(block, {given}){size}"
    yield f"torch.distributed.fsdp.fully_shard(model, {given})"
    if hooked(job):
        yield attach_line(strategy)
    yield from optimizer_lines(job)
