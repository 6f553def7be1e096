"""Part of the TOML file of torchtitan.

Names: ``torchtitan/config/job_config.py``, ``Parallelism``, ``Training``, ``ActivationCheckpoint``; pipelines of named modules:
``module_fqns_per_model_part``. It refuses DDP with other dimensions (``models/llama3/infra/parallelize.py``). Groups of
experts: ``torchtitan/distributed/parallel_dims.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from paceline.hardware import PRECISIONS, RECIPES
from paceline.planning.emit.job import EmittedJob, Emitter, torchrun
from paceline.planning.search.space import PLAIN_GRADIENTS
from paceline.strategy import OPTIMIZERS
from paceline.strategy.offload import OFFLOAD_WEIGHTS
from paceline.strategy.pass_order import GPIPE, ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.sharding import DDP, SHARDINGS, TORCH_SHARDINGS


def _write(job: EmittedJob) -> str:
    """Return a part of a TOML file."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    if mesh.sharding.shares_out and not mesh.sharding.weights:
        raise job.refused(mesh.sharding.name, "it has DDP and FSDP (zero2, zero3)")
    if not mesh.sharding.shares_out and mesh.model_devices > 1 and mesh.data > 1:
        raise job.refused("ddp with tensor, context or pipeline", "its DDP goes alone; shard with zero2 or zero3")
    if mesh.tensor > 1 and not mesh.sequence:
        raise job.refused("tensor without sequence parallelism", "its tensor parallelism comes with it")
    if not mesh.context_exchange.passes_around:
        raise job.refused(f"context exchange {mesh.context_exchange}", "keys and values pass around a ring")
    if not OPTIMIZERS[job.optimizer].is_adam:
        raise job.refused(f"optimizer {job.optimizer}", "it has Adam and AdamW")
    again = mesh.recomputation
    if again.layers or (again.parts and not again.by_operation):
        raise job.refused(f"recomputation {mesh.recompute} of some layers or modules", "it has full and selective:op")
    if mesh.sharers % mesh.context:
        raise job.refused(f"shards in groups of {mesh.sharers}", f"its groups hold whole contexts of {mesh.context}")
    shared = mesh.sharding.shares_out
    sharers = mesh.sharers // mesh.context
    if mesh.expert_devices > 1:
        _check_experts(job, sharers)
    tables: dict[str, dict[str, object]] = {
        "parallelism": {
            "data_parallel_replicate_degree": mesh.data // sharers if shared else mesh.data,
            "data_parallel_shard_degree": sharers if shared else 1,
            "tensor_parallel_degree": mesh.tensor,
            "context_parallel_degree": mesh.context,
            "pipeline_parallel_degree": mesh.pipeline,
        },
        "training": {
            "local_batch_size": strategy.micro_batch_size * (mesh.micro_batches if mesh.pipeline > 1 else 1),
            "global_batch_size": strategy.global_batch_size,
            "seq_len": job.tokens,
        },
        "activation_checkpoint": {"mode": again.kind, **({"selective_ac_option": "op"} if again.parts else {})},
        "optimizer": {"name": OPTIMIZERS[job.optimizer].of_torch},
    }
    if shared:
        tables["parallelism"]["fsdp_reshard_after_forward"] = "always" if mesh.sharding.gathers_again else "never"
        if mesh.offload.weights:
            tables["training"]["enable_cpu_offload"] = True
        tables["training"]["mixed_precision_param"] = PRECISIONS[strategy.precision].dtype or "float32"
    if mesh.expert_devices > 1:
        tables["parallelism"]["expert_parallel_degree"] = mesh.expert
        tables["parallelism"]["expert_tensor_parallel_degree"] = mesh.expert_tensor
    if mesh.context > 1:
        tables["parallelism"]["context_parallel_rotate_method"] = "alltoall"
    if mesh.pipeline > 1:
        looped = {ONE_FORWARD_ONE_BACKWARD: "Interleaved1F1B" if mesh.virtual_stages > 1 else "1F1B", GPIPE: "GPipe"}
        if mesh.schedule not in looped:
            raise job.refused(f"schedule {mesh.schedule}", f"of this kind it has {', '.join(map(str, looped))}")
        tables["parallelism"]["pipeline_parallel_schedule"] = looped[mesh.schedule]
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = strategy.micro_batch_size
        tables["parallelism"]["module_fqns_per_model_part"] = list(_modules(job))
    if strategy.precision in RECIPES:
        tables["model"] = {"converters": ["float8"]}
    remarks = "".join(f"# {text}\n" for text in (job.remark, _left(job)) if text)
    return remarks + "\n".join(_toml(tables))


def _check_experts(job: EmittedJob, sharers: int) -> None:
    """Raise UserError for groups of experts that torchtitan lacks (``parallel_dims.py``).

    A group must hold whole context groups. Unless experts are divided by their width, it must also hold whole tensor groups of
    devices that shard one copy.
    """
    mesh = job.strategy.parallelism
    if not mesh.sharding.shares_out:
        raise job.refused("groups of experts with ddp", "they are of devices that share out; give zero2 or zero3")
    if mesh.expert_tensor not in (1, mesh.tensor):
        raise job.refused(f"experts divided among {mesh.expert_tensor}", f"it has 1, or tensor's {mesh.tensor}")
    least = mesh.context * (mesh.tensor if mesh.expert_tensor == 1 else 1)
    if mesh.expert % least or sharers * least % mesh.expert:
        raise job.refused(f"groups of experts of {mesh.expert}", f"it has multiples of {least} that divide {sharers * least}")


def _modules(job: EmittedJob) -> Iterator[list[str]]:
    """Yield the modules of each part, under torchtitan's names."""
    parts = job.parts
    for number, part in enumerate(parts):
        before = ["tok_embeddings"] if number == 0 else []
        after = ["norm", "output"] if number == len(parts) - 1 else []
        yield [*before, *(f"layers.{block}" for block in part), *after]


def _toml(tables: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    for name, values in tables.items():
        yield f"[{name}]"
        for key, value in values.items():
            yield f"{key} = {json.dumps(value)}"
        yield ""


def _left(job: EmittedJob) -> str:
    """Name the missing learning rate, for which torchtitan has a default."""
    return "The file has no learning rate: torchtitan's default, 8e-4, is used until you add lr to [optimizer]."


def _launch(job: EmittedJob, place: str) -> str:
    return torchrun(job, f"-m torchtitan.train --job.config_file {place}")


_OF_FSDP = tuple(name for name in TORCH_SHARDINGS if SHARDINGS[name].weights)
"""Names of the shardings of FSDP2."""
TORCHTITAN = Emitter(
    write=_write,
    launch=_launch,
    precisions=("fp32", "bf16", "fp8-current"),  # its float8 has one scale a tensor, of the tensor itself
    searched={
        **PLAIN_GRADIENTS,
        "schedules": (ONE_FORWARD_ONE_BACKWARD.name,),
        "offloads": False,
        "recomputes": ("none", "selective:op", "full"),
        "shardings": (DDP.name, *_OF_FSDP),
        "divided_shardings": _OF_FSDP,
    },
    left=_left,
    trains_transformers=True,
    offloads=(OFFLOAD_WEIGHTS.name,),
)
