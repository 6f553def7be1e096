"""Formats of text logs, one row each: how a line of a step is recognized, the quantities in it, and facts about the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paceline.calibration.imports.quantities import parse_number

MS, MIB, GB, GIB = 1e-3, 2.0**20, 2.0**30, 2.0**30
_N = r"(\d(?:[\d.,]*\d)?(?:[eE][-+]?\d+)?|[nN]a[nN])"


@dataclass(frozen=True)
class NumberInLine:
    """A number in a line.

    Attributes:
        pattern: regular expression whose group is the number; it is compiled at its first use.
        scale: factor to the unit of the quantity.
        grouped: True if the writer separates thousands by commas.
    """

    pattern: str
    scale: float = 1.0
    grouped: bool = False

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def read(self, line: str) -> float | None:
        """Return the quantity; None if the line lacks it. A number that is not finite is NaN."""
        found = self._compiled.search(line)
        return None if found is None else parse_number(found[1], self.grouped) * self.scale


def _value(pattern: str, scale: float = 1.0, grouped: bool = False) -> NumberInLine:
    return NumberInLine(pattern.replace("<N>", _N), scale, grouped)


@dataclass(frozen=True)
class FactPattern:
    """A fact about the run in a line.

    Attributes:
        mark: text that a line with the fact contains.
        pattern: regular expression whose group is the value.
        name: column of a table of jobs, or another name of ``RunMeasurement.facts``.
        cell: value in place of the group; empty: the group.
    """

    mark: str
    pattern: str
    name: str
    cell: str = ""

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def read(self, line: str) -> str:
        """Return the value; empty if the line lacks it."""
        if self.mark not in line or not (found := self._compiled.search(line)):
            return ""
        return self.cell or found[1].strip()


def _fact(mark: str, pattern: str, name: str, cell: str = "") -> FactPattern:
    return FactPattern(mark, pattern, name, cell)


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """Format of a text log.

    Attributes:
        name: in answers.
        framework: software that writes it; empty if several do.
        mark: text that a line of a step contains.
        values: quantities (``QUANTITIES``) by name. ``clock`` is an elapsed time as text.
        needed: quantity that makes a line one of a step; empty: any of them.
        facts: facts about the run, in any line.
        settings: facts from a list of settings, ``name ..... value``: the column, and the cell by value. Without cells, the
            cell is the value, except ``None`` and 1.
        stamped: True if lines start with date and time.
        block: text of the line that starts a step, if its quantities are in the indented lines that follow.
        signs: texts of which the file has one; empty: not needed.
        counts_all_tokens: True if the rates count every token of the batch, padding too.
        untimed: next step for a file of the format without times.
        source: where the format was read.
    """

    name: str
    framework: str = ""
    mark: str
    values: Mapping[str, NumberInLine]
    clock: re.Pattern[str] | None = None
    needed: str = ""
    facts: tuple[FactPattern, ...] = ()
    settings: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    stamped: bool = False
    block: str = ""
    signs: tuple[str, ...] = ()
    counts_all_tokens: bool = False
    untimed: str = "give a log of more steps"
    source: str


_MEGATRON_MEMORY = (_fact("max allocated:", r"max allocated: ([0-9.]+)", "memory_mib"),)
_MEGATRON_MESH = (
    _fact("using world size:", r"\btensor-model-parallel size: ([2-9]|\d\d+)\b", "tensor"),
    _fact("using world size:", r"\bcontext-parallel size: ([2-9]|\d\d+)\b", "context"),
    _fact("using world size:", r"\bpipeline-model-parallel size: ([2-9]|\d\d+)\b", "pipeline"),
)
"""Sizes above 1 in the first line of a log (arguments.py, validate_args)."""
_DEEPSPEED_SETTINGS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "train_batch_size": ("global_batch", {}),
    "gradient_accumulation_steps": ("grad_accum", {}),
    "world_size": ("world_size", {}),
    "zero_optimization_stage": (
        "sharding",
        {
            **{"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"},
            **{"disabled": "ddp", "optimizer_states": "zero1", "gradients": "zero2", "weights": "zero3"},
        },
    ),
}
"""Settings that DeepSpeed prints. Its stages of ZeRO are numbers or names (``ZeroStageEnum``)."""
_HF_FACTS = (
    _fact("Num GPUs = ", r"\|\s+(\S[^|]*?)\. Num GPUs = \d", "device"),
    _fact("Data Parallel GPUs = ", r"Data Parallel GPUs = (\d+)", "world_size"),
    _fact("Data Parallel GPUs = ", r"Total batch size \(.*\) = ([\d,]+)", "global_batch"),
    _fact("| Gradient accumulation steps", r"Gradient accumulation steps = (\d+)", "grad_accum"),
    _fact("| Gradient accumulation steps", r"Batch size per device = (\d+)", "micro_batch"),
    _fact("Unsloth", r"(Unsloth)", "framework", "unsloth"),
    _fact("Total train batch size", r"Total train batch size \(.*\) = ([\d,]+)", "global_batch"),
    _fact("batch size per device", r"Instantaneous batch size per device = ([\d,]+)", "micro_batch"),
    _fact("Gradient Accumulation steps", r"Gradient Accumulation steps = ([\d,]+)", "grad_accum"),
    _fact("train_runtime", r"'train_runtime': '?([\d.e+]+)", "train_runtime"),
    _fact("train_runtime", r"'train_steps_per_second': '?([\d.e+-]+)", "train_steps_per_second"),
    _fact("train_runtime", r"'train_samples_per_second': '?([\d.e+-]+)", "train_samples_per_second"),
    _fact("max_allocated", r"'memory/max_allocated \(GiB\)': '?([\d.]+)", "memory_gib"),
    _fact("[axolotl", r"\[(axolotl)[.\]]", "framework"),
    _fact("llamafactory", r"(llamafactory)", "framework", "llama-factory"),
)
_BAR = r"\|\s*\d+/\d+ \["
_BAR_VALUES = {
    "step": _value(r"\|\s*(\d+)/\d+ \["),
    "total": _value(r"\|\s*\d+/(\d+) \["),
    "smoothed_step_s": _value(r",\s*<N>s/(?:it|step|batch)\b"),
    "smoothed_steps_per_s": _value(r",\s*<N>(?:it|step|batch)/s\b"),
}
_BAR_CLOCK = re.compile(r"\|\s*\d+/\d+ \[((?:\d+ days?, )?[\d:]+)<")

FORMATS = (
    TextFormat(
        name="Megatron-LM log",
        framework="megatron",
        mark="elapsed time per iteration (ms):",
        values={
            "step": _value(r"iteration\s+(\d+)"),
            "step_s": _value(r"elapsed time per iteration \(ms\): *<N>", MS),
            "global_batch": _value(r"global batch size: *(\d+)"),
            "device_tflops": _value(r"throughput per GPU \(TFLOP/s/GPU\): *<N>"),
        },
        needed="step_s",
        facts=(_fact("using world size:", r"using world size: (\d+)", "world_size"), *_MEGATRON_MESH, *_MEGATRON_MEMORY),
        settings={
            "tensor_model_parallel_size": ("tensor", {}),
            "pipeline_model_parallel_size": ("pipeline", {}),
            "context_parallel_size": ("context", {}),
            "expert_model_parallel_size": ("expert", {}),
            "virtual_pipeline_model_parallel_size": ("virtual_stages", {}),
            "seq_length": ("seq_len", {}),
            "optimizer": ("optimizer", {}),
            "bf16": ("precision", {"True": "bf16"}),
            "fp16": ("precision", {"True": "fp16"}),
            "fp8": ("precision", {"hybrid": "fp8", "e4m3": "fp8"}),
            "sequence_parallel": ("sequence", {"True": "yes"}),
            "use_distributed_optimizer": ("sharding", {"True": "distributed_optimizer"}),
            "recompute_granularity": ("recompute", {"full": "full", "selective": "selective"}),
            "world_size": ("world_size", {}),
            "micro_batch_size": ("micro_batch", {}),
        },
        source="Megatron-LM core_r0.14, megatron/training/training.py (training_log), arguments.py (_print_args)",
    ),
    TextFormat(
        name="DeepSpeed log",
        framework="deepspeed",
        mark="iter time (s):",
        values={
            "step": _value(r"steps: *(\d+)"),
            "step_s": _value(r"iter time \(s\): *<N>"),
            "samples_per_s": _value(r"samples/sec: *<N>"),
        },
        needed="step_s",
        facts=_MEGATRON_MEMORY,
        settings=_DEEPSPEED_SETTINGS,
        source="DeepSpeed 0.19.8, deepspeed/runtime/pipe/engine.py (train_batch)",
    ),
    TextFormat(
        name="DeepSpeed log",
        framework="deepspeed",
        mark="CurrSamplesPerSec=",
        values={
            "step": _value(r"global_step=(\d+)"),
            "samples_per_s": _value(r"CurrSamplesPerSec=<N>"),
            "memory_bytes": _value(r"MaxMemAllocated=<N>GB", GB),
        },
        needed="samples_per_s",
        settings=_DEEPSPEED_SETTINGS,
        stamped=True,
        source="DeepSpeed 0.19.8, deepspeed/utils/timer.py (ThroughputTimer: without the loading of data), runtime/config.py",
    ),
    TextFormat(
        name="torchtitan log",
        framework="torchtitan",
        mark="tps:",
        values={
            "step": _value(r"step:\s*(\d+)"),
            "device_tokens_per_s": _value(r"tps:\s*<N>", grouped=True),
            "memory_bytes": _value(r"memory:\s*<N>GiB", GIB),
            "device_tflops": _value(r"tflops:\s*<N>", grouped=True),
        },
        needed="device_tokens_per_s",
        facts=(
            _fact("Trainer is initialized", r"global batch size:? (\d+)", "global_batch"),
            _fact("Trainer is initialized", r"local batch size:? (\d+)", "micro_batch"),
            _fact("Trainer is initialized", r"gradient[ _]accumulation[ _]steps:? (\d+)", "grad_accum"),
            _fact("Trainer is initialized", r"sequence length:? (\d+)", "seq_len"),
            _fact("device mesh with parallelism", r"\btp=(\d+)", "tensor"),
            _fact("device mesh with parallelism", r"\bpp=(\d+)", "pipeline"),
            _fact("device mesh with parallelism", r"\bcp=(\d+)", "context"),
            _fact("device mesh with parallelism", r"\bdp_shard=(\d+)", "dp_shard"),
            _fact("device mesh with parallelism", r"\bdp_replicate=(\d+)", "dp_replicate"),
            _fact(" capacity: ", r"(?:CUDA|XPU|HIP) capacity: (.+?) with [\d.]+GiB", "device"),
        ),
        stamped=True,
        counts_all_tokens=True,
        source="torchtitan 0.2, torchtitan/components/metrics.py (log: the rate is of one device), train.py",
    ),
    TextFormat(
        name="MaxText log",
        framework="maxtext",
        mark="completed step:",
        values={
            "step": _value(r"completed step: (\d+)"),
            "step_s": _value(r"seconds: <N>"),
            "device_tokens_per_s": _value(r"Tokens/s/device: <N>"),
            "device_tflops": _value(r"TFLOP/s/device: <N>"),
        },
        needed="step_s",
        facts=(
            _fact("max_target_length:", r"max_target_length: (\d+)", "seq_len"),
            _fact("global_batch_size_to_train_on:", r"global_batch_size_to_train_on: (\d+)", "global_batch"),
            _fact("Num_devices:", r"Num_devices: (\d+)", "world_size"),
        ),
        counts_all_tokens=True,
        source="MaxText, MaxText/metric_logger.py (log_metrics), pyconfig.py, max_utils.py",
    ),
    TextFormat(
        name="llm.c log",
        framework="llm.c",
        mark=" tok/s",
        values={
            "step": _value(r"step\s+(\d+)/"),
            "step_s": _value(r"\|\s*<N> ms\b", MS),
            "tokens_per_s": _value(r"<N> tok/s"),
        },
        needed="step_s",
        facts=(
            _fact("| device ", r"\| device +\| (.+?) +\|", "device"),
            _fact("total_batch_size=", r"seq_len T=(\d+)", "seq_len"),
            _fact("total_batch_size=", r"num_processes=(\d+)", "world_size"),
            _fact("total_batch_size=", r"total_batch_size=(\d+)", "tokens_per_step"),
            _fact("total_batch_size=", r"batch_size B=(\d+)", "micro_batch"),
            _fact("grad_accum_steps=", r"setting grad_accum_steps=(\d+)", "grad_accum"),
        ),
        counts_all_tokens=True,
        source="llm.c, train_gpt2.cu (main)",
    ),
    TextFormat(
        name="nanochat log",
        framework="nanochat",
        mark="tok/sec:",
        values={
            "step": _value(r"step\s+(\d+)"),
            "step_s": _value(r"dt:\s*<N>\s*ms", MS),
            "tokens_per_s": _value(r"tok/sec:\s*<N>", grouped=True),
        },
        needed="step_s",
        facts=(_fact("Total batch size ", r"Total batch size ([\d,]+) =>", "tokens_per_step"),),
        counts_all_tokens=True,
        source="nanochat, scripts/base_train.py; build-nanogpt, train_gpt2.py writes such lines too",
    ),
    TextFormat(
        name="nanoGPT log",
        framework="nanogpt",
        mark=", time ",
        values={"step": _value(r"iter (\d+): loss"), "step_s": _value(r", time <N>ms", MS)},
        needed="step_s",
        facts=(_fact("tokens per iteration", r"tokens per iteration will be: ([\d,]+)", "tokens_per_step"),),
        source="nanoGPT, train.py",
    ),
    TextFormat(
        name="OLMo log",
        framework="olmo",
        mark="throughput/",
        values={
            "step": _value(r"\[step=([\d,]+)/", grouped=True),
            "steps_per_s": _value(r"throughput/device/(?:batches_per_second|BPS)=<N>", grouped=True),
            "device_tokens_per_s": _value(r"throughput/device/(?:tokens_per_second|TPS)=<N>", grouped=True),
            "tokens_total": _value(r"throughput/total[_ ]tokens=<N>", grouped=True),
            "memory_bytes": _value(r"System/Peak GPU Memory \(MB\)=<N>", 1e6, grouped=True),
        },
        needed="steps_per_s",
        facts=(_fact("Device peak FLOPS", r"Device: (.+?), Device peak FLOPS", "device"),),
        block="[step=",
        source="OLMo, olmo/train.py (SpeedMonitor), torch_util.py (decimal MB); OLMo-core, train/callbacks/speed_monitor.py",
    ),
    TextFormat(
        name="NeMo log",
        framework="nemo",
        mark="train_step_timing in s",
        values={
            "step": _value(r"global_step[:=]\s*(\d+)"),
            "step_s": _value(r"train_step_timing in s[:=]\s*<N>"),
            "global_batch": _value(r"global_batch_size[:=]\s*(\d+)"),
        },
        needed="step_s",
        source="NeMo 2, nemo/lightning/pytorch/callbacks/progress_printer.py; NeMo 1's progress bar states the same metric",
    ),
    TextFormat(
        name="Composer log",
        framework="composer",
        mark="throughput/",
        values={
            "step": _value(r"\[batch=(\d+)/"),
            "steps_per_s": _value(r"Train throughput/batches_per_sec: <N>"),
            "samples_per_s": _value(r"Train throughput/samples_per_sec: <N>"),
            "tokens_per_s": _value(r"Train throughput/tokens_per_sec: <N>"),
            "device_tokens_per_s": _value(r"Train throughput/device/tokens_per_sec: <N>"),
            "memory_bytes": _value(r"Train memory/peak_reserved_mem: <N>", 1e9),
        },
        needed="steps_per_s",
        block="[batch=",
        source="Composer 0.32, composer/loggers/console_logger.py, callbacks/speed_monitor.py, memory_monitor.py (gigabytes)",
    ),
    TextFormat(
        name="torchtune log",
        framework="torchtune",
        mark="tokens_per_second_per_gpu:",
        values={
            "step": _value(r"Step (\d+) \|"),
            "device_tokens_per_s": _value(r"tokens_per_second_per_gpu:<N>"),
            "memory_bytes": _value(r"peak_memory_alloc:<N>", GIB),
        },
        needed="device_tokens_per_s",
        source="torchtune 0.6, torchtune/training/metric_logging.py (DiskLogger), recipes/full_finetune_distributed.py",
    ),
    TextFormat(
        name="timm log",
        framework="timm",
        mark="Train: ",
        values={
            "step": _value(r"\[\s*(\d+)/\d+"),
            "step_s": _value(r"Time: <N>s"),
            "samples_per_s": _value(r"Time: [\d.]+s,\s*<N>/s"),
        },
        needed="step_s",
        source="timm 1.0, train.py (train_one_epoch)",
    ),
    TextFormat(
        name="torchvision log",
        framework="torchvision",
        mark="max mem:",
        values={
            "step": _value(r"\[\s*(\d+)/\d+\]"),
            "step_s": _value(r"\btime: <N>"),
            "memory_bytes": _value(r"max mem: (\d+)", MIB),
        },
        needed="step_s",
        source="torchvision 0.24, references/classification/utils.py (MetricLogger.log_every)",
    ),
    TextFormat(
        name="PyTorch ImageNet log",
        mark="\tData ",
        values={"step": _value(r"\[\s*(\d+)/\d+\]"), "step_s": _value(r"\tTime\s+<N>")},
        needed="step_s",
        source="PyTorch examples, imagenet/main.py (ProgressMeter)",
    ),
    TextFormat(
        name="Lightning progress bar",
        framework="lightning",
        mark="v_num",
        values={
            **_BAR_VALUES,
            "step": _value(r"\b(\d+)/\d+ (?:\[|\d+:\d\d:\d\d •)"),
            "total": _value(r"\b\d+/(\d+) (?:\[|\d+:\d\d:\d\d •)"),
            "smoothed_steps_per_s": _value(r"<N>\s*it/s"),
        },
        clock=re.compile(r"\b\d+/\d+ \[?(\d+(?::\d\d)+)(?:<| •)"),
        source="Lightning 2.5, callbacks/progress/tqdm_progress.py, rich_progress.py",
    ),
    TextFormat(
        name="Hugging Face Trainer console",
        framework="transformers",
        mark="%|",
        values=_BAR_VALUES,
        clock=_BAR_CLOCK,
        facts=_HF_FACTS,
        signs=("{'loss':", "'train_runtime':", "***** Running training", "Unsloth"),
        source="transformers 4.57 and 5.24, trainer_callback.py (ProgressCallback), trainer.py; Unsloth 2025.11 (banner)",
    ),
    TextFormat(
        name="progress bar (tqdm)",
        mark="%|",
        values=_BAR_VALUES,
        clock=_BAR_CLOCK,
        source="tqdm 4.67, tqdm/std.py (format_meter)",
    ),
)
"""Formats in order of preference: the first one with lines of steps counts."""
RANK = re.compile(r"^\s*(?:\[(?:rank|default|Rank )(\d+)\]:?|(\d+): )")
"""Process that wrote a line: torchrun's ``[rank0]:``, ``[default0]:``, and ``srun --label``."""
SETTING = re.compile(r"(?:^|[\s:])([a-z][a-z0-9_]*) \.{2,} (\S+)")
"""A line of a list of settings."""
