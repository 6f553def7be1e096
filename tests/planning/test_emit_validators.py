"""What is emitted, read by the tools themselves; each test skips where its tool is not installed.

The releases of the last run stand in the targets (``TOOL``).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emit_schemas import megatron_arguments
from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.hardware.prices import price
from paceline.planning.emit.clouds.dstack import FLEET
from paceline.planning.emit.clouds.names import DSTACK_NAMES, SKYPILOT_NAMES
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.targets import TARGETS, Emitted, emit, emitted

pytestmark = pytest.mark.long
NETWORK = Workload.named("gpt2")
CLUSTERS = (Cluster.named("8 A100"), Cluster.named("2x8 A100", network="3200Gb/s EFA"))
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
        text = emit(target, cases()[-1][1], NETWORK, CLUSTERS[1]).replace("\\\n", " ")
        line = next(line for line in text.splitlines() if "--nnodes" in line).split("torchrun ")[1].strip()
        line = line.replace("$SLURM_JOB_NUM_NODES", "2")
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


def test_skypilot_reads_its_file(tmp_path: Path) -> None:
    task = pytest.importorskip("sky", reason="needs SkyPilot: pip install skypilot").Task
    place = tmp_path / "task.yaml"
    for cluster, chosen in cases():
        listing = price(cluster.device.name)
        job = EmittedJob("skypilot", chosen, NETWORK, cluster, price=listing)
        place.write_text(emitted(job).text)
        read = task.from_yaml(str(place))
        (rented,) = read.resources
        assert read.num_nodes == cluster.num_nodes and read.run.count("torchrun") == 1 and "torch" in read.setup
        assert rented.accelerators == {"A100-80GB": 8} and str(rented.cloud) == "AWS"
        assert (rented.network_tier is not None) == (cluster.network.transport == "EFA" and cluster.num_nodes > 1)


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
        text = emitted(EmittedJob("dstack", chosen, NETWORK, cluster, price=price(cluster.device.name))).text
        task = configurations.parse_apply_configuration(yaml.safe_load(text))
        gpu = task.resources.gpu
        assert (task.type, task.nodes, gpu.name, gpu.count.min) == ("task", cluster.num_nodes, ["A100"], 8)
        assert gpu.memory.min == gpu.memory.max == 80
        assert "torchrun --nnodes" in task.commands[-1] and "torch" in task.commands[0]
        lines = [line.removeprefix(FLEET) for line in text.splitlines() if line.startswith(FLEET)]
        fleet = configurations.parse_apply_configuration(yaml.safe_load("\n".join(lines)))
        assert (fleet.type, fleet.name, fleet.nodes.max, fleet.backends) == (
            "fleet",
            task.fleets[0].name,
            cluster.num_nodes,
            task.backends,
        )


def test_dstack_has_the_names_of_devices() -> None:
    gpuhunt = pytest.importorskip("gpuhunt", reason="needs gpuhunt: pip install gpuhunt")
    known = {gpu.name for gpu in (*gpuhunt.KNOWN_NVIDIA_GPUS, *gpuhunt.KNOWN_AMD_GPUS)}
    assert set(DSTACK_NAMES.values()) <= known


MESHES: tuple[dict[str, Any], ...] = (
    {"sharding": "zero3"},
    {"sharding": "zero2", "recompute": "full", "shard_devices": 8},
    {"sharding": "zero3", "tensor": 2, "sequence": True, "context": 2},
    {"sharding": "zero3", "pipeline": 4, "virtual_stages": 2, "grad_accum_steps": 8, "recompute": "selective:op"},
    {"sharding": "zero1", "tensor": 4, "sequence": True, "pipeline": 2, "grad_accum_steps": 8},
    {"sharding": "zero1", "pipeline": 4, "virtual_stages": 3, "grad_accum_steps": 8},
    {"sharding": "zero1", "precision": "fp8", "context": 2, "context_exchange": "all_to_all"},
    {"sharding": "zero1", "expert": 8},
    {},
)
NAMES = ("llama-3-8b", "llama-2-7b", "gpt2", "qwen-3-30b-a3b", "deepseek-v3", "gpt-oss-20b")


def divided(target: str) -> list[Emitted]:
    """Files of divided networks on 64 devices."""
    cluster, found = Cluster.named("8x8 H100", network="8x InfiniBand NDR"), []
    for name in NAMES:
        for choices in MESHES:
            usual = {"world_size": 64, "global_batch_size": 512, "precision": "bf16", "optimizer": "adamw"}
            job = EmittedJob(target, Strategy.of(**{**usual, **choices}), Workload.named(name), cluster, samples=1e6)
            with suppress(UserError):
                found.append(emitted(job))
    assert len(found) >= 20
    return found


def test_torchtitan_reads_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = pytest.importorskip("torchtitan.config", reason="needs torchtitan: pip install torchtitan").ConfigManager
    monkeypatch.syspath_prepend(tmp_path)
    for number, file in enumerate(divided("torchtitan")):
        (tmp_path / f"emitted_{number}.py").write_text(file.text)
        words = shlex.split(file.launch(f"emitted_{number}.py").partition("torchtitan.train ")[2])
        config = manager().parse_args(words)
        mesh, read = file.job.strategy.parallelism, config.parallelism
        assert (read.tensor_parallel_degree, read.pipeline_parallel_degree) == (mesh.tensor, mesh.pipeline)
        assert config.training.steps == file.job.steps


def test_megatron_parses_and_checks_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks ask for properties of a device and for the environment of a rank."""
    if "EMIT_SOURCES" not in os.environ:
        pytest.skip("needs megatron-core: EMIT_SOURCES=FOLDER with its unpacked wheel")
    arguments = megatron_arguments()
    device = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda *_: device)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "64")):
        monkeypatch.setenv(name, value)
    for file in divided("megatron"):
        monkeypatch.setattr("sys.argv", ["pretrain_gpt.py", *shlex.split(file.text, comments=True)])
        one = "CUDA_DEVICE_MAX_CONNECTIONS=1" in file.launch("FILE")
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1" if one else "8")
        read = arguments.parse_args()
        arguments.validate_args(read, {})
        assert read.data_parallel_size == file.job.strategy.parallelism.data and read.train_iters == file.job.steps


def test_hydra_parses_the_overrides_of_nemo() -> None:
    parser = pytest.importorskip(
        "hydra.core.override_parser.overrides_parser", reason="needs hydra: pip install hydra-core"
    ).OverridesParser.create()
    for file in divided("nemo"):
        option, recipe, *words = shlex.split(file.text, comments=True)
        read = {override.key_or_group: override.value() for override in parser.parse_overrides(words)}
        mesh = file.job.strategy.parallelism
        assert option == "--recipe" and recipe.endswith("_pretrain_config")
        assert read["model.tensor_model_parallel_size"] == mesh.tensor and read["model.sequence_parallel"] is mesh.sequence


def test_shells_give_the_words_of_a_file_to_xargs(tmp_path: Path) -> None:
    xargs = shutil.which("xargs")
    if xargs is None:
        pytest.skip("needs xargs: apt-get install findutils")
    for target in ("megatron", "nemo"):
        file = divided(target)[-1]
        (tmp_path / "file").write_text(file.text)
        command = file.launch("file").partition("xargs")[0] + "xargs printf '%s\\n'"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.stdout.splitlines() == shlex.split(file.text, comments=True)
