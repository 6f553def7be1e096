"""What is emitted, read by the tools themselves; each test skips where its tool is not installed.

Last run with accelerate 1.15.0, DeepSpeed 0.19.8, SkyPilot 0.14.1, dstack 0.22.5, Slurm 22.05.8, torch 2.13.0.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning.emit.clouds.names import DSTACK_NAMES, SKYPILOT_NAMES
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.targets import TARGETS, emit

NETWORK = Workload.named("gpt2")
CLUSTERS = (Cluster.named("8 A100"), Cluster.named("2x8 A100", network="100Gb/s"))
CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "terngrad", "exchange": "sharded"},
    {"sharding": "zero1", "grad_accum_steps": 2},
    {"sharding": "zero2", "recompute": "full"},
    {"sharding": "zero3", "grad_accum_steps": 2, "precision": "fp32"},
    {"sharding": "zero3", "shard_devices": 4},
)


def cases(*without: str) -> list[tuple[Cluster, Strategy]]:
    """Strategies on one node and on two, those left out that name a choice of ``without``."""
    usual = {"global_batch_size": 256, "precision": "bf16", "optimizer": "adamw"}
    chosen = [choices for choices in CHOICES if not set(without) & set(choices)]
    return [(c, Strategy.of(**{"world_size": c.world_size, **usual, **choices})) for c in CLUSTERS for choices in chosen]


def test_torchrun_parses_its_line() -> None:
    run = pytest.importorskip("torch.distributed.run", reason="needs torch: pip install 'paceline[train]'")
    for cluster, chosen in cases():
        line = emit("torchrun", chosen, NETWORK, cluster).splitlines()[-1].removeprefix("exec torchrun ")
        options = run.parse_args(shlex.split(line.replace("$HEAD", "node-1")))
        assert options.nproc_per_node == "8" and options.training_script == "train.py"
        assert options.standalone == (cluster.num_nodes == 1)
        if cluster.num_nodes > 1:
            assert (options.nnodes, options.rdzv_backend, options.rdzv_endpoint) == ("2", "c10d", "node-1:29500")


def test_torchrun_parses_the_line_of_every_scheduler() -> None:
    run = pytest.importorskip("torch.distributed.run", reason="needs torch: pip install 'paceline[train]'")
    for target in ("sbatch", "skypilot", "dstack"):
        text = emit(target, cases()[-1][1], NETWORK, CLUSTERS[1]).replace("\\\n", " ").replace('\\"', '"')
        line = next(line for line in text.splitlines() if "--nnodes" in line).rstrip('"').split("torchrun ")[1].strip()
        for name in ("SLURM_JOB_NUM_NODES", "SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM"):
            line = line.replace(f"${name}", "2")
        for name in ("SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK"):
            line = line.replace(f"${name}", "1")
        options = run.parse_args(shlex.split(line.removesuffix('"$@')))
        assert (options.nnodes, options.nproc_per_node, options.training_script) == ("2", "8", "train.py"), target


def test_sbatch_takes_the_options_of_its_script(tmp_path: Path) -> None:
    """It reads them before it looks for a controller, and there is none."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        pytest.skip("needs sbatch: apt-get install slurm-client slurm-wlm-basic-plugins")
    settings, script = tmp_path / "slurm.conf", tmp_path / "job.sh"
    settings.write_text("ClusterName=none\nSlurmctldHost=localhost\nAuthType=auth/none\nCredType=cred/none\nGresTypes=gpu\n")
    text = emit("sbatch", cases()[-1][1], NETWORK, CLUSTERS[1])
    for case, said in ((text, "Unable to contact slurm controller"), (text.replace("--requeue", "--requeu-e"), "unrecognized")):
        script.write_text(case)
        environment = {"SLURM_CONF": str(settings), **os.environ}
        done = subprocess.run([sbatch, "--test-only", script], env=environment, capture_output=True, text=True, timeout=200)
        assert said in done.stderr


def test_accelerate_reads_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    monkeypatch.setattr("accelerate.utils.launch.is_port_in_use", lambda port: False)
    for cluster, chosen in cases():
        place = tmp_path / "accelerate.yaml"
        place.write_text(emit("accelerate", chosen, NETWORK, cluster))
        config, mesh = load_config_from_file(str(place)), chosen.parallelism
        assert (config.num_machines, config.num_processes) == (cluster.num_nodes, cluster.world_size)
        assert config.mixed_precision == ("bf16" if chosen.precision == "bf16" else "no")
        line = TARGETS["accelerate"].launch(EmittedJob("accelerate", chosen, NETWORK, cluster), str(place))
        words = shlex.split(line.replace("$RANK", "0").replace("$HEAD", "node-1"))
        options, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(words[2:]))
        assert defaults is not None and options.training_script == "train.py"
        assert options.use_fsdp == (mesh.sharding.name in ("zero2", "zero3"))
        assert options.use_deepspeed == (mesh.sharding.name == "zero1")
        if options.use_fsdp:
            environment = prepare_multi_gpu_env(options)
            assert environment["FSDP_VERSION"] == "2"
            assert environment["FSDP_RESHARD_AFTER_FORWARD"] == str(mesh.sharding.name == "zero3").lower()
            assert environment["FSDP_ACTIVATION_CHECKPOINTING"] == str(mesh.recompute.name == "full").lower()
            sizes = environment.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE"), environment.get("PARALLELISM_CONFIG_DP_SHARD_SIZE")
            assert sizes == ((str(mesh.data // 4), "4") if mesh.shard_devices else (None, None))


def test_deepspeed_reads_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed", reason="needs deepspeed: pip install deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    for cluster, chosen in cases("compression", "recompute", "shard_devices"):
        monkeypatch.setattr("deepspeed.runtime.config.dist.get_rank", lambda: 0)
        monkeypatch.setattr("deepspeed.runtime.config.dist.get_world_size", lambda n=cluster.world_size: n)
        config = DeepSpeedConfig(json.loads(emit("deepspeed", chosen, NETWORK, cluster)))
        assert config.train_batch_size == 256
        assert config.train_micro_batch_size_per_gpu == chosen.micro_batch_size
        assert config.gradient_accumulation_steps == chosen.parallelism.micro_batches
        assert (
            config.zero_optimization_stage == {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[chosen.parallelism.sharding.name]
        )
        assert config.bfloat16_config.enabled == (chosen.precision == "bf16")


def test_skypilot_reads_its_file() -> None:
    pytest.importorskip("sky", reason="needs SkyPilot: pip install skypilot")
    import jsonschema
    import yaml
    from sky.utils import schemas

    for cluster, chosen in cases():
        config = yaml.safe_load(emit("skypilot", chosen, NETWORK, cluster))
        jsonschema.Draft202012Validator(schemas.get_task_schema()).validate(config)
        jsonschema.Draft202012Validator(schemas.get_resources_schema()).validate(config["resources"])
        assert config["num_nodes"] == cluster.num_nodes and config["run"].count("torchrun") == 1


def test_skypilot_has_the_names_of_devices() -> None:
    names = pytest.importorskip("sky.utils.gpu_names", reason="needs SkyPilot: pip install skypilot").CANONICAL_GPU_NAMES
    runpod = pytest.importorskip(
        "sky.catalog.data_fetchers.fetch_runpod", reason="needs SkyPilot: pip install skypilot"
    ).DEFAULT_GPU_INFO
    assert set(SKYPILOT_NAMES.values()) <= {*names, *runpod}


def test_dstack_reads_its_file() -> None:
    configurations = pytest.importorskip(
        "dstack._internal.core.models.configurations", reason="needs dstack: pip install dstack"
    )
    import yaml

    for cluster, chosen in cases():
        task = configurations.parse_run_configuration(yaml.safe_load(emit("dstack", chosen, NETWORK, cluster)))
        gpu = task.resources.gpu
        assert (task.type, task.nodes, gpu.name, gpu.count.min) == ("task", cluster.num_nodes, ["A100"], 8)
        assert gpu.memory.min == gpu.memory.max == 80
        assert "torchrun --nnodes" in task.commands[-1]


def test_dstack_has_the_names_of_devices() -> None:
    gpuhunt = pytest.importorskip("gpuhunt", reason="needs gpuhunt: pip install gpuhunt")
    known = {gpu.name for gpu in (*gpuhunt.KNOWN_NVIDIA_GPUS, *gpuhunt.KNOWN_AMD_GPUS)}
    assert set(DSTACK_NAMES.values()) <= known
