"""Python configuration of torchtitan: a module whose function ``config`` returns a ``Trainer.Config``.

It is read by ``--module`` and ``--config`` (``torchtitan/config/manager.py``); torchtitan 0.3 reads no TOML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from paceline.hardware import PRECISIONS
from paceline.planning.emit.job import EmittedJob, Emitter, Tool, torchrun
from paceline.planning.emit.networks.torchtitan_models import model_lines
from paceline.planning.emit.optimizer import optimizer_arguments
from paceline.planning.emit.rates import peak_rate, rate_remark
from paceline.planning.search.space import PLAIN_GRADIENTS
from paceline.strategy import OPTIMIZERS
from paceline.strategy.offload import OFFLOAD_WEIGHTS
from paceline.strategy.pass_order import GPIPE, ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.sharding import DDP, SHARDINGS, TORCH_SHARDINGS

TOOL = Tool(
    "torchtitan",
    "0.3.0",
    "torchtitan/trainer.py (Trainer.Config), torchtitan/config/configs.py, torchtitan/distributed/parallel_dims.py",
    "`ConfigManager.parse_args`; not run",
)
FUNCTION = "config"
"""Function of the file."""
CONVERTERS: Mapping[str, str] = {
    "fp8-current": "Float8LinearConverter",
    "mxfp8": "MXFP8LinearConverter",
    "nvfp4": "NVFP4LinearConverter",
}
"""Converters of linear layers by precision (``torchtitan/components/quantization``)."""
_SKIPPED: Mapping[str, str] = {
    "fp8-current": 'filter_fqns=["lm_head"], ',
    "mxfp8": 'fqns=["layers"], ',
    "nvfp4": 'fqns=["layers"], ',
}
_REMARKS: Mapping[str, str] = {"fp8-current": "Its fp8 has a scale for each row, not for each tensor."}
"""Differences of its precisions from the plan's."""
_UPDATES: Mapping[str, str] = {"looped": "for-loop", "foreach": "foreach", "fused": "fused"}
"""Its names of the ways to run an optimizer's kernels."""
_IMPORTS = (
    "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
    "from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig",
    "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
    "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
    "from torchtitan.models.common.config_utils import decoder_vocab_size",
    "from torchtitan.trainer import Trainer",
)
_RECOMPUTES: Mapping[str, str] = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
"""Its activation checkpointing by kind."""
_LOSS = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
Arguments = dict[str, object]


def _write(job: EmittedJob) -> str:
    """Return a Python module."""
    _check(job)
    precision = job.strategy.precision
    low = CONVERTERS.get(precision, "")
    converter = f"{low}.Config({_SKIPPED[precision]}model_compile_enabled=True)" if low else ""
    imports, network, assets = model_lines(job, converter)
    if low:
        imports = [f"from torchtitan.components.quantization import {low}", *imports]
    again = job.strategy.parallelism.recomputation
    fields = [
        ("model_spec", "model_spec"),
        ("hf_assets_path", json.dumps(assets)),
        ("dataloader", 'HuggingFaceTextDataLoader.Config(dataset="c4")'),
        ("loss", f"ChunkedLossWrapper.Config(loss_fn={_LOSS})"),
        ("optimizer", _optimizer(job)),
        ("lr_scheduler", f"LRSchedulersContainer.Config({_scheduler(job)})"),
        ("training", _call("TrainingConfig", _training(job))),
        ("parallelism", _call("ParallelismConfig", _parallelism(job))),
        ("activation_checkpoint", _RECOMPUTES[again.kind]),
        ("compile", f"CompileConfig(enable={bool(low)})"),
    ]
    remarks = (job.written_for(TOOL), job.remark, _REMARKS.get(precision, ""), rate_remark(job))
    lines = [
        *(f"# {remark}" for remark in remarks if remark),
        *sorted((*_IMPORTS, *imports)),
        "",
        "",
        f"def {FUNCTION}():",
        *network,
        "    return Trainer.Config(",
        *(f"        {name}={value}," for name, value in fields),
        "    )",
    ]
    return "\n".join(lines) + "\n"


def _call(name: str, arguments: Arguments) -> str:
    """Format a call with a keyword on each line."""
    return f"{name}(\n" + "".join(f"            {key}={value!r},\n" for key, value in arguments.items()) + "        )"


def _check(job: EmittedJob) -> None:
    """Raise UserError for a choice that torchtitan lacks."""
    mesh = job.strategy.parallelism
    if mesh.sharding.shares_out and not mesh.sharding.weights:
        raise job.refused(mesh.sharding.name, "it has DDP and FSDP (zero2, zero3)")
    if not mesh.sharding.shares_out and mesh.model_devices > 1 and mesh.data > 1:
        raise job.refused("ddp with tensor, context or pipeline", "its DDP goes alone; shard with zero2 or zero3")
    if not mesh.context_exchange.passes_around:
        raise job.refused(f"context exchange {mesh.context_exchange}", "keys and values pass around a ring")
    if not OPTIMIZERS[job.optimizer].is_adam:
        raise job.refused(f"optimizer {job.optimizer}", "it has Adam and AdamW")
    again = mesh.recomputation
    if again.layers or (again.parts and not again.by_operation):
        raise job.refused(f"recomputation {mesh.recompute} of some layers or modules", "it has full and selective:op")
    if mesh.sharers % mesh.context:
        raise job.refused(f"shards in groups of {mesh.sharers}", f"its groups hold whole contexts of {mesh.context}")
    if mesh.expert_devices > 1:
        _check_experts(job, mesh.sharers // mesh.context)


def _parallelism(job: EmittedJob) -> Arguments:
    """Return arguments of ``ParallelismConfig``."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    shared, sharers = mesh.sharding.shares_out, mesh.sharers // mesh.context
    arguments: Arguments = {
        "data_parallel_replicate_degree": mesh.data // sharers if shared else mesh.data,
        "data_parallel_shard_degree": sharers if shared else 1,
        "tensor_parallel_degree": mesh.tensor,
        "context_parallel_degree": mesh.context,
        "pipeline_parallel_degree": mesh.pipeline,
    }
    if mesh.tensor > 1:
        arguments["enable_sequence_parallel"] = mesh.sequence
    if shared:
        arguments["fsdp_reshard_after_forward"] = "always" if mesh.sharding.gathers_again else "never"
    if mesh.expert_devices > 1:
        arguments["expert_parallel_degree"] = mesh.expert
    if mesh.pipeline > 1:
        looped = {ONE_FORWARD_ONE_BACKWARD: "Interleaved1F1B" if mesh.virtual_stages > 1 else "1F1B", GPIPE: "GPipe"}
        if mesh.schedule not in looped:
            raise job.refused(f"schedule {mesh.schedule}", f"of this kind it has {', '.join(map(str, looped))}")
        arguments["pipeline_parallel_schedule"] = looped[mesh.schedule]
        arguments["pipeline_parallel_microbatch_size"] = strategy.micro_batch_size
        arguments["module_fqns_per_model_part"] = list(_modules(job))
    return arguments


def _training(job: EmittedJob) -> Arguments:
    """Return arguments of ``TrainingConfig``."""
    strategy, mesh = job.strategy, job.strategy.parallelism
    arguments: Arguments = {
        "local_batch_size": strategy.micro_batch_size * (mesh.micro_batches if mesh.pipeline > 1 else 1),
        "global_batch_size": strategy.global_batch_size,
        "seq_len": job.tokens,
        "mixed_precision_param": "float32" if PRECISIONS[strategy.precision].full else "bfloat16",
    }
    if job.steps:
        arguments["steps"] = job.steps
    if mesh.offload.weights:
        arguments["enable_cpu_offload"] = True
    if mesh.pipeline > 1 or mesh.expert_devices > 1:
        arguments["disable_cuda_graphs"] = True
    return arguments


def _optimizer(job: EmittedJob) -> str:
    """Return the expression of the optimizer."""
    rate = peak_rate(job)
    options = {**({} if rate is None else {"lr": rate}), **optimizer_arguments(job, kernels=False)}
    group = f'pattern=".*", optimizer_name="{OPTIMIZERS[job.optimizer].of_torch}", optimizer_kwargs={options!r}'
    way = _UPDATES.get(job.strategy.weight_update.update, "fused")
    return f'OptimizersContainer.Config(param_groups=[ParamGroupConfig({group})], implementation="{way}")'


def _scheduler(job: EmittedJob) -> str:
    """Return the arguments of the schedule of rates: a warm-up, then the decay of the recipe, else a cosine to a tenth."""
    if job.recipe is None:
        return f'warmup_steps={job.steps // 100}, decay_type="cosine", min_lr_factor=0.1'
    least = job.recipe.end_lr / job.recipe.lr if job.recipe.power else 1.0
    return f'warmup_steps={job.recipe.warmup_steps}, decay_type="linear", min_lr_factor={least:g}'


def _check_experts(job: EmittedJob, sharers: int) -> None:
    """Raise UserError for groups of experts that torchtitan lacks: they borrow devices of shards, contexts and tensors."""
    mesh = job.strategy.parallelism
    if not mesh.sharding.shares_out:
        raise job.refused("groups of experts with ddp", "they are of devices that share out; give zero2 or zero3")
    if mesh.expert_tensor > 1:
        raise job.refused(f"experts divided among {mesh.expert_tensor}", "its experts are whole on a device")
    devices = sharers * mesh.context * mesh.tensor
    if devices % mesh.expert:
        raise job.refused(f"groups of experts of {mesh.expert}", f"it has divisors of {devices}")


def _modules(job: EmittedJob) -> Iterator[list[str]]:
    """Yield the modules of each part, under torchtitan's names."""
    parts = job.parts
    for number, part in enumerate(parts):
        before = ["tok_embeddings"] if number == 0 else []
        after = ["norm", "lm_head"] if number == len(parts) - 1 else []
        yield [*before, *(f"layers.{block}" for block in part), *after]


def _left(job: EmittedJob) -> str:
    """Name the files that torchtitan reads and the file does not hold."""
    _, _, assets = model_lines(job, "")
    tokenizer = f"Put the network's tokenizer into {assets} (scripts/download_hf_assets.py of torchtitan)."
    low = "Products of few bits need torchao." if job.strategy.precision in CONVERTERS else ""
    return " ".join(filter(None, (rate_remark(job), tokenizer, low)))


def _launch(job: EmittedJob, place: str) -> str:
    path = PurePath(place)
    module = path.stem if path.suffix == ".py" else "paceline_config"
    folder = "" if path.parent == PurePath() else f"PYTHONPATH={path.parent} "
    copy = "" if path.suffix == ".py" else f"cp {place} {path.parent / module}.py && "
    return copy + folder + torchrun(job, f"-m torchtitan.train --module {module} --config {FUNCTION}")


_OF_FSDP = tuple(name for name in TORCH_SHARDINGS if SHARDINGS[name].weights)
"""Names of the shardings of FSDP2."""
TORCHTITAN = Emitter(
    tool=TOOL,
    write=_write,
    launch=_launch,
    precisions=("fp32", "bf16", *CONVERTERS),
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
