"""Script of Lightning's Trainer, which imports the module and its data from the user's script."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.hardware import PRECISIONS
from paceline.planning.emit.job import SCRIPT, EmittedJob, Emitter, Tool, torchrun
from paceline.planning.emit.optimizer import optimizer_import, optimizer_lines
from paceline.planning.emit.script import batch_text, check
from paceline.planning.emit.torchrun import SEARCHED
from paceline.planning.search.space import PLAIN_GRADIENTS
from paceline.strategy import BUCKET_BYTES
from paceline.strategy.offload import OFFLOAD_WEIGHTS
from paceline.strategy.sharding import DDP, SHARDINGS, TORCH_SHARDINGS

TOOL = Tool(
    "Lightning",
    "2.6.6",
    "lightning/pytorch/trainer/trainer.py, lightning/pytorch/strategies/fsdp.py and ddp.py",
    "a toy trained",
)
_PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""Values of the Trainer's ``precision``."""
_ACCELERATORS = {"gpu": "gpu", "cpu": "cpu"}
"""Values of the Trainer's ``accelerator`` by kind of device."""
_SHARDINGS = [name for name in TORCH_SHARDINGS if SHARDINGS[name] is DDP or SHARDINGS[name].weights]


def _write(job: EmittedJob) -> str:
    _check(job)
    strategy, mesh = job.strategy, job.strategy.parallelism
    imported = [*(["Block"] if mesh.sharding.weights else []), "data", "model"]
    lines = [f"# {job.written_for(TOOL)}"]
    lines += [f"# {job.remark}"] if job.remark else []
    lines += [f"# In {SCRIPT}, which stands for your script: your LightningModule as model, its data and its Block's class."]
    lines += [f"#   {line}" for line in _module_lines(job)]
    lines += ["import lightning", "import torch", f"from {SCRIPT.removesuffix('.py')} import {', '.join(imported)}", ""]
    if PRECISIONS[strategy.precision].truncates:
        lines.append('torch.set_float32_matmul_precision("high")')
    lines += ["trainer = lightning.Trainer(", *(f"    {name}={value}," for name, value in _arguments(job)), ")"]
    return "\n".join([*lines, "trainer.fit(model, data)", ""])


def _check(job: EmittedJob) -> None:
    """Raise UserError for choices that Lightning's Trainer lacks."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    if job.cluster.device.kind not in _ACCELERATORS:
        raise job.refused(f"device {job.cluster.device.name}", f"it has {', '.join(_ACCELERATORS)} here")
    if not job.cluster.even:
        raise job.refused(f"nodes of {job.cluster.node_text} devices", "it starts equally many processes on each node")
    if str(mesh.sharding) not in _SHARDINGS:
        raise job.refused(str(mesh.sharding), f"of PyTorch it has {', '.join(_SHARDINGS)}")
    if mesh.sharding.weights and PRECISIONS[strategy.precision].scales_loss:
        raise job.refused(f"fp16 with {mesh.sharding}", "FSDP is written here for fp32, tf32 and bf16")
    if not strategy.gradient_exchange.is_plain or mesh.gather_bits:
        raise job.refused(f"{strategy.gradient_exchange}", "torchrun starts a script with the hook")
    if mesh.recompute_layers:
        raise job.refused(f"recomputation of {mesh.recompute_layers} blocks", "it recomputes all")
    if mesh.sharding.weights and strategy.bucket_bytes != BUCKET_BYTES:
        raise job.refused(f"units of {strategy.bucket_bytes} bytes", "its units are blocks")
    check(job)


def _arguments(job: EmittedJob) -> Iterator[tuple[str, str]]:
    """Yield the Trainer's arguments."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    yield "accelerator", f'"{_ACCELERATORS[job.cluster.device.kind]}"'
    yield "devices", str(job.cluster.devices_per_node)
    yield "num_nodes", str(job.cluster.num_nodes)
    yield "strategy", _strategy(job)
    yield "precision", f'"{_PRECISIONS[strategy.precision]}"'
    if mesh.micro_batches > 1:
        yield "accumulate_grad_batches", str(mesh.micro_batches)
    if job.steps:
        yield "max_steps", str(job.steps)


def _strategy(job: EmittedJob) -> str:
    """Return the Trainer's strategy."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    if job.cluster.world_size == 1 and not mesh.offload:
        return '"auto"'
    if not mesh.sharding.weights:
        size = "" if strategy.bucket_bytes == BUCKET_BYTES else f"bucket_cap_mb={strategy.bucket_bytes / 2**20:g}"
        return f"lightning.pytorch.strategies.DDPStrategy({size})"
    again, groups = mesh.sharding.gathers_again, bool(mesh.shard_devices)
    kind = ("HYBRID_SHARD" if again else "_HYBRID_SHARD_ZERO2") if groups else ("FULL_SHARD" if again else "SHARD_GRAD_OP")
    arguments = [f'sharding_strategy="{kind}"', "auto_wrap_policy={Block}"]
    if mesh.recompute:
        arguments.append("activation_checkpointing_policy={Block}")
    if groups:
        arguments.append(f"device_mesh=({mesh.data // mesh.shard_devices}, {mesh.shard_devices})")
    if mesh.offload:
        arguments.append("cpu_offload=True")
    return f"lightning.pytorch.strategies.FSDPStrategy({', '.join(arguments)})"


def _module_lines(job: EmittedJob) -> Iterator[str]:
    """Yield lines of the module for choices that are no arguments of the Trainer."""
    mesh = job.strategy.parallelism
    if mesh.recompute and not mesh.sharding.weights:
        yield "hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)  # in every block"
    if package := optimizer_import(job):
        yield f"import {package}"
    for line in optimizer_lines(job):
        yield line.replace("model.parameters()", "self.parameters()").replace("Muon(model", "Muon(self")
    yield f"# {batch_text(job)}: global batch {job.strategy.global_batch_size:,}"


def _launch(job: EmittedJob, place: str) -> str:
    return torchrun(job, place)


LIGHTNING = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=tuple(_PRECISIONS),
    searched={**SEARCHED, **PLAIN_GRADIENTS, "shardings": tuple(_SHARDINGS), "divided_shardings": tuple(_SHARDINGS)},
    offloads=(OFFLOAD_WEIGHTS.name,),
)
