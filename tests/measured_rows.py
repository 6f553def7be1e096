"""Rows of measurements, made up in the tests: every column of a set, empty but for what is given."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.csv_rows import Row
from paceline.validation.case import Case, Skip
from paceline.validation.sets import adapter

USUAL: Mapping[str, Mapping[str, str]] = {
    "mlperf": {
        "round": "v1.1",
        "submitter": "A",
        "benchmark": "resnet",
        "accelerator": "A100-SXM-80GB",
        "num_nodes": "2",
        "accel_per_node": "8",
        "num_accel": "16",
        "global_batch": "3200",
        "grad_accum": "1",
        "throughput_samples_per_s": "32000",
        "throughput_source": "eval_slope",
        "host_networking": "Storage: 2x ConnectX-6 IB HDR 200Gb/Sec, Compute: 8x ConnectX-6 IB HDR 200Gb/Sec",
    },
    "published": {
        "source": "somebody/simulator @1a2b3c docs/table.md",
        "model": "llama3-70b cut to 8 layers",
        "device": "H100 SXM",
        "num_devices": "8",
        "num_nodes": "1",
        "interconnect": "NVLink",
        "global_batch": "32",
        "micro_batch": "1",
        "seq_len": "4096",
        "precision": "bf16",
        "framework": "Megatron-LM",
        "tp": "2",
        "pp": "1",
        "dp_sharding": "distributed optimizer (ZeRO-1), dp=4",
        "recompute": "none",
        "other_options": "sequence parallel; flash attention",
        "metric": "iteration_time_ms",
        "value": "1500",
        "peer_prediction": "1400",
    },
    "pollux_sia": {
        "model": "imagenet",
        "cluster": "aws",
        "gpu": "T4-16GB",
        "num_nodes": "2",
        "num_gpus": "8",
        "placement": "44",
        "local_batch": "32",
        "step_time_s": "0.5",
        "sync_time_s": "0.1",
    },
    "neusight": {
        "model": "bert_large",
        "seq_len": "512",
        "batch": "4",
        "gpu": "NVIDIA_H100_80GB_HBM3",
        "mode": "train",
        "measured_ms": "400",
        "neusight_pred_ms": "440",
        "habitat_pred_ms": "900",
    },
    "llmfoundry": {
        "model": "MPT-1b",
        "gpu": "h100_80gb",
        "num_gpus": "16",
        "seq_len": "2048",
        "precision": "bf16",
        "sharding": "FULL_SHARD",
        "activation_ckpt": "True",
        "act_cpu_offload": "False",
        "micro_batch": "4",
        "grad_accum": "2",
        "global_batch": "128",
        "tokens_per_s": "131072",
        "interconnect": "1600 Gbps/node RoCE (stated)",
    },
    "nvidia_dle": {
        "framework_dir": "PyTorch",
        "model_dir": "Classification/ConvNets/resnet50v1.5",
        "gpu": "A100-SXM-80GB",
        "num_nodes": "1",
        "num_gpus": "8",
        "precision": "mixed",
        "batch_per_gpu": "256",
        "throughput": "20480",
    },
    "lambda": {
        "system": "2x RTX 4090",
        "num_gpus": "2",
        "model": "resnet50",
        "precision": "amp/fp16",
        "batch_per_gpu_listed": "512",
        "throughput": "2048",
        "unit": "images/s",
    },
    "tf_benchmarks": {
        "model": "VGG16",
        "platform": "P",
        "gpu": "K80",
        "interconnect": "PCIe",
        "num_nodes": "2",
        "num_gpus": "16",
        "batch_per_gpu": "64",
        "precision": "fp32",
        "data": "synthetic",
        "images_per_s": "512",
        "variable_update": "distributed_replicated (PS on worker hosts)",
    },
    "vtrain": {
        "gpu": "A100",
        "num_gpus": "8",
        "hidden": "1024",
        "heads": "16",
        "layers": "12",
        "seq_len": "1024",
        "global_batch": "64",
        "micro_batch": "4",
        "tp": "1",
        "dp": "8",
        "pp": "1",
        "iter_time_ms": "250",
    },
    "megatron_bridge": {
        "model": "LLAMA3_70B",
        "task": "Pre-Training Performance",
        "system": "DGX-H100",
        "container": "25.11",
        "num_gpus": "64",
        "precision": "FP8-CS",
        "global_batch": "128",
        "micro_batch": "1",
        "seq_len": "8192",
        "tp": "4",
        "pp": "8",
        "cp": "1",
        "vp": "5",
        "fsdp": "0",
        "tokens_per_s_per_gpu": "2048",
    },
    "dgxc": {
        "model": "Nemotron4 15b 24.11",
        "table_title": "Nemotron4 15b 24.11 BF16 (TP=4, PP=1, MBS=4, GA=4)",
        "gpu": "H100",
        "num_gpus": "32",
        "precision": "BF16",
        "global_batch": "128",
        "micro_batch": "4",
        "seq_len": "4096",
        "tp": "4",
        "pp": "1",
        "step_time_s": "2",
        "tokens_per_s": "262144",
    },
    "torchtitan": {
        "model": "Llama 3.1 70B",
        "num_gpus": "256",
        "gpu": "H100",
        "parallelism": "FSDP 32, TP 8",
        "local_batch": "16",
        "seq_len": "8192",
        "activation_ckpt": "full",
        "technique": "compile + float8",
        "tokens_per_s_per_gpu": "1024",
        "peak_mem_gib": "64",
    },
    "megatron_table": {
        "model": "22B",
        "gpu": "A100",
        "num_gpus": "8",
        "tp": "8",
        "pp": "1",
        "dp": "1",
        "global_batch": "4",
        "micro_batch": "4",
        "interleave": "1",
        "recompute": "selective",
        "hidden": "6144",
        "heads": "64",
        "layers": "48",
        "seq_len": "2048",
        "iter_time_s": "1.5",
    },
}
"""A row of each set that can be modelled. The figures are made up."""


OPTIONAL = {"published": ("date", "peer_prediction", "raw")}
"""Columns that a file of the set may lack."""


def columns(name: str) -> tuple[str, ...]:
    reader = adapter(name)
    return (*reader.texts, *reader.numbers)


def values(name: str, **changes: str) -> dict[str, str]:
    every = (*columns(name), *OPTIONAL.get(name, ()))
    return {**dict.fromkeys(every, ""), **{k: v for k, v in USUAL[name].items() if k in every}, **changes}


def outcome(name: str, **changes: str) -> Case | Skip:
    """What the adapter makes of the usual row with ``changes``."""
    return adapter(name).read(Row(values(name, **changes), 1, 2, "made_up.csv"))


def case(name: str, **changes: str) -> Case:
    row = outcome(name, **changes)
    assert isinstance(row, Case), row
    return row


def skip(name: str, **changes: str) -> Skip:
    row = outcome(name, **changes)
    assert isinstance(row, Skip), row
    return row


def write(path: Path, name: str, rows: Iterable[Mapping[str, str]]) -> Path:
    """A file of the set, with the usual row changed as each of ``rows`` says."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, (*columns(name), *OPTIONAL.get(name, ())))
        writer.writeheader()
        writer.writerows(values(name, **row) for row in rows)
    return path
