"""What starts the user's own script: files that hold the strategy, and lines of Python that apply it."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline import Cluster, GradientExchange, Strategy, Workload
from paceline.errors import UserError
from paceline.hardware.prices import listings
from paceline.planning.emit.clouds.dstack import FLEET
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.script import attach_line, lines
from paceline.planning.emit.slurm import SBATCH
from paceline.planning.emit.targets import TARGETS, emit, emitted
from paceline.strategy import COMPRESSIONS, DenseRule

NETWORK = Workload.named("gpt2")
ONE, TWO = Cluster.named("8 A100"), Cluster.named("2x8 A100", network="100Gb/s")
SCRIPTS = [name for name, target in TARGETS.items() if target.runs_script]


def strategy(cluster: Cluster = TWO, **choices: Any) -> Strategy:
    usual = {"world_size": cluster.world_size, "global_batch_size": 256, "precision": "bf16", "optimizer": "adamw"}
    return Strategy.of(**{**usual, **choices})


def written(target: str, cluster: Cluster = TWO, **choices: Any) -> str:
    return emit(target, strategy(cluster, **choices), NETWORK, cluster)


def yaml(text: str) -> dict[str, Any]:
    """The two levels of a file without lists, by name; values as JSON where they are."""

    def value(word: str) -> Any:
        try:
            return json.loads(word)
        except ValueError:
            return word

    tree: dict[str, Any] = {}
    for line in text.splitlines():
        name, found, word = line.partition(": ") if ": " in line else (line.rstrip(":"), ":", "")
        if line.startswith("#") or not found:
            continue
        if line.startswith("  "):
            above = tree[list(tree)[-1]]
            if isinstance(above, dict):  # else a line of a command
                above[name.strip()] = value(word)
        else:
            tree[name] = value(word) if word else {}
    return tree


@pytest.mark.parametrize("target", SCRIPTS)
def test_the_lines_that_put_the_hook_in_are_there_where_gradients_are_compressed(target: str) -> None:
    text = written(target, compression="terngrad", exchange="sharded")
    assert "#   import paceline\n" in text and '#   hook = paceline.attach(model, "terngrad"' in text
    assert "paceline.attach" not in written(target)


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_says_how_its_file_is_started(target: str) -> None:
    for cluster in (ONE, TWO):
        command = TARGETS[target].launch(EmittedJob(target, strategy(cluster, sharding="zero3"), NETWORK, cluster), "a/file")
        assert "a/file" in command and "\n" not in command


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("torchrun", "FIRST_NODE is the host name of the first node."),
        ("megatron", "$HEAD is the host name of the first node."),
        ("accelerate", "$RANK is the number of the node, from 0, $HEAD is the host name of the first node."),
        ("deepspeed", "HOSTS is a file with a line for each node: its host name, then slots=8."),
        ("sbatch", ""),
    ],
)
def test_what_a_command_leaves_open_is_explained(target: str, words: str) -> None:
    two, one = (emitted(EmittedJob(target, strategy(cluster, sharding="zero3"), NETWORK, cluster)) for cluster in (TWO, ONE))
    assert (two.placeholders, one.placeholders) == (words, "")
    if target == "accelerate":
        assert "# Run it on each node: RANK is the number of the node, from 0" in two.text and "RANK" not in one.text


def test_a_torchrun_script_starts_a_process_for_each_device() -> None:
    alone = written("torchrun", ONE).splitlines()[-1]
    assert alone == 'exec torchrun --standalone --nproc-per-node 8 train.py "$@"'
    text = written("torchrun")
    assert text.splitlines()[-1].startswith("exec torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id gpt2 --rdzv-backend c10d ")
    assert '"$HEAD:29500" train.py "$@"' in text and ': "${HEAD:?' in text
    assert "# 16 samples a device: global batch 256" in text


@pytest.mark.parametrize("target", ["torchrun", "sbatch"])
@pytest.mark.parametrize("cluster", [ONE, TWO], ids=["one node", "two nodes"])
def test_scripts_are_bash(target: str, cluster: Cluster) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash: apt-get install bash")
    text = written(target, cluster, compression="terngrad", exchange="sharded")
    done = subprocess.run([bash, "-n"], input=text, text=True, capture_output=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


DOCUMENTED = {
    "job-name", "nodes", "ntasks-per-node", "gpus-per-node", "requeue", "open-mode", "cpus-per-task", "time", "partition",
}  # fmt: skip
"""Options of sbatch: https://slurm.schedmd.com/sbatch.html (22.05 and later)."""


def test_a_batch_script_has_one_task_a_node_and_can_be_requeued() -> None:
    text = written("sbatch")
    options = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if "#SBATCH" in line)
    assert options == {
        "job-name": "gpt2",
        "nodes": "2",
        "ntasks-per-node": "1",
        "gpus-per-node": "8",
        "cpus-per-task": "128",
        "requeue": "",
        "open-mode": "append",
    }
    assert options.keys() <= DOCUMENTED
    head, body = text.split("set -euo pipefail\n")
    assert all(line.startswith("#") for line in head.splitlines())  # Slurm reads options up to the first command
    assert "SLURM_RESTART_COUNT" in body and "srun" in body and '"$head:29500"' in body


def test_accelerate_has_the_kind_that_the_sharding_is() -> None:
    kinds = {s: yaml(written("accelerate", sharding=s))["distributed_type"] for s in ("ddp", "zero1", "zero2", "zero3")}
    assert kinds == {"ddp": "MULTI_GPU", "zero1": "DEEPSPEED", "zero2": "FSDP", "zero3": "FSDP"}
    config = yaml(written("accelerate", sharding="zero2", recompute="full", shard_devices=8))
    assert (config["num_machines"], config["num_processes"], config["mixed_precision"]) == (2, 16, "bf16")
    assert config["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": True,
    }
    sizes = {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}
    assert config["parallelism_config"] == sizes
    zero1 = yaml(written("accelerate", sharding="zero1", grad_accum_steps=2))["deepspeed_config"]
    assert zero1 == {"zero_stage": 1, "gradient_accumulation_steps": 2}
    pictures = emit("accelerate", strategy(sharding="zero3"), Workload.named("resnet-50"), TWO)
    assert yaml(pictures)["fsdp_config"]["fsdp_auto_wrap_policy"] == "SIZE_BASED_WRAP"


def test_clouds_rent_the_nodes_of_the_plan() -> None:
    sky = yaml(written("skypilot"))
    assert (sky["num_nodes"], sky["resources"]) == (2, {"accelerators": "A100-80GB:8"})
    dstack = yaml(written("dstack"))
    assert (dstack["type"], dstack["nodes"], dstack["resources"]) == ("task", 2, {"gpu": "A100:80GB:8"})
    assert dstack["fleets"] == "[gpt2-nodes]"
    fleet = yaml("".join(line.removeprefix(FLEET) + "\n" for line in written("dstack").splitlines() if line.startswith(FLEET)))
    assert {**fleet, "resources": dstack["resources"]} == fleet
    assert (fleet["type"], fleet["name"], fleet["nodes"], fleet["placement"]) == ("fleet", "gpt2-nodes", "0..2", "cluster")
    fast = Cluster.named("2x8 H100", network="8x InfiniBand NDR")
    assert yaml(emit("skypilot", strategy(fast), NETWORK, fast))["resources"]["network_tier"] == "best"
    for name, rented in (("4 RTX 4090", "RTX4090:4"), ("8 MI300X", "MI300X:8")):
        cluster = Cluster.named(name)
        assert yaml(emit("skypilot", strategy(cluster), NETWORK, cluster))["resources"] == {"accelerators": rented}
    assert sky["setup"] == "pip install torch"
    assert yaml(written("skypilot", compression="int8", exchange="ring"))["setup"] == "pip install torch 'paceline[train]'"


def test_the_priced_provider_its_region_and_its_machine_are_pinned() -> None:
    cluster = Cluster.named("2x4 V100", network="200Gb/s EFA")
    listing = next(x for x in listings("V100 SXM2 16GB") if x.seller == "AWS")
    whole = replace(listing, machines=((8, 24.48),))
    for price, there, machine in ((listing, True, 4), (whole, True, 8), (replace(listing, provider="Alibaba gn6e"), False, 4)):
        job = EmittedJob("skypilot", strategy(cluster, precision="fp16"), NETWORK, cluster, price=price)
        sky = yaml(emitted(job).text)["resources"]
        where = {"infra": "aws/us-east-1"} if there else {}
        tier = {"network_tier": "best"}
        assert sky == {**where, "accelerators": f"V100:{machine}", **tier}
        text = emitted(replace(job, target="dstack")).text
        assert ("backends: [aws]\nregions: [us-east-1]\n" in text) == there
        assert f"gpu: V100:16GB:{machine}\n" in text and "--nproc-per-node 4" in text
        assert f"# Priced at {price}." in text


WHOLE = st.fixed_dictionaries(
    {
        "sharding": st.sampled_from(["ddp", "zero1", "zero2", "zero3"]),
        "precision": st.sampled_from(["fp32", "tf32", "bf16", "fp16"]),
        "optimizer": st.sampled_from(["sgd", "momentum", "adam", "adamw", "lars", "lamb"]),
        "recompute": st.sampled_from(["none", "full"]),
        "recompute_layers": st.sampled_from([0, 4]),
        "grad_accum_steps": st.sampled_from([1, 4]),
        "shard_devices": st.sampled_from([0, 8]),
        "bucket_bytes": st.sampled_from([25 << 20, 100 << 20]),
        "compression": st.sampled_from(["dense", "terngrad", "int8", "powersgd"]),
    }
)


@given(WHOLE)
def test_the_lines_are_python_and_hold_every_choice(choices: dict[str, Any]) -> None:
    sharded = choices["sharding"] != "ddp"
    choices |= {"compression": "dense"} if sharded else {"shard_devices": 0}
    if choices["recompute"] == "none":
        choices |= {"recompute_layers": 0}
    chosen = strategy(**choices)
    try:
        emit("torchrun", chosen, NETWORK, TWO)
    except UserError as error:
        assert any(why in error.message for why in ("fp16 with zero", "zero1 in groups"))
        return
    text = "\n".join(lines(EmittedJob("torchrun", chosen, NETWORK, TWO)))
    ast.parse(text)
    mesh = chosen.parallelism
    for there, word in (
        (mesh.sharding.name in ("zero2", "zero3"), "fully_shard("),
        (mesh.sharding.name == "zero2", "reshard_after_forward=False"),
        (mesh.sharding.name == "zero1", "ZeroRedundancyOptimizer("),
        (mesh.shard_devices == 8 and mesh.sharding.name in ("zero2", "zero3"), "(2, 8)"),
        (mesh.recompute.name == "full", "checkpoint("),
        (mesh.recompute_layers == 4, "in 4 blocks"),
        (mesh.micro_batches == 4, "4 micro batches a step"),
        (chosen.precision in ("bf16",), "torch.bfloat16"),
        (chosen.precision == "fp16", "GradScaler()"),
        (chosen.precision == "tf32", "set_float32_matmul_precision"),
        (chosen.gradient_exchange.compression.name != "dense", "paceline.attach("),
        (chosen.bucket_bytes != 25 << 20, "100"),
        (chosen.optimizer == "lamb", "paceline.LAMB"),
    ):
        assert (word in text) == there, word


class Attached:
    """Stands for the package in an emitted line: keeps what ``attach`` was given."""

    def attach(self, model: object, compression: str, **given: Any) -> GradientExchange:
        """The exchange that ``paceline.attach`` makes of it."""
        rule = None
        if "min_elements" in given:
            usual = COMPRESSIONS[compression].rule or DenseRule()
            rule = replace(usual, min_elements=given.pop("min_elements"), names=tuple(given.pop("dense")))
        fields = ("exchange", "clip", "compress_pull", "ranks_per_node", "residual_bits", "residuals_at", "dense_bits")
        named = {name: given.pop(name) for name in fields if name in given}
        return GradientExchange(compression, options=given, dense_rule=rule, **named)


@pytest.mark.parametrize(
    "exchange",
    [
        GradientExchange("terngrad"),
        GradientExchange("terngrad", clip=None),
        GradientExchange("terngrad", "hierarchical", ranks_per_node=8),
        GradientExchange("int8", "sharded", compress_pull=False),
        GradientExchange("topk", options={"density": 0.01}),
        GradientExchange("powersgd", options={"rank": 2}),
        GradientExchange("inceptionn", dense_rule=replace(DenseRule(), min_elements=2048, names=("*.bias",))),
        GradientExchange("dense", "ring"),
        GradientExchange("sign", residual_bits=16, residuals_at="host", dense_bits=16),
        GradientExchange("powersgd", residual_bits=16, dense_bits=16),
    ],
    ids=str,
)
def test_the_line_of_the_hook_makes_the_same_exchange(exchange: GradientExchange) -> None:
    names = {"paceline": Attached(), "model": None}
    exec(attach_line(Strategy.of(world_size=16, global_batch_size=16, **exchange.to_json())), names)
    assert names["hook"] == exchange


@each_row("target", SCRIPTS)
@each_row(
    ("choices", "call"),
    [
        ({"compression": "dense"}, 'hook = paceline.attach(model, "dense", gather_bits=8)'),
        ({"compression": "topk"}, 'hook = paceline.attach(model, "topk", gather_bits=8)'),
        (
            {"compression": "int8", "exchange": "ring", "options": {"block": 64}},
            'hook = paceline.attach(model, "int8", exchange="ring", gather_bits=8, block=64)',
        ),
    ],
)
def test_bits_of_gathered_weights_stand_in_the_script(target: str, choices: dict[str, Any], call: str) -> None:
    text = written(target, sharding="zero2", gather_bits=8, **choices)
    assert call in text and "import paceline" in text


@each_row("target", SCRIPTS)
@each_row(
    ("choices", "why"),
    [
        ({"pipeline": 4, "grad_accum_steps": 4}, "pipeline of 4"),
        ({"tensor": 2}, "tensor parallelism of 2"),
        ({"context": 2}, "context parallelism of 2"),
        ({"recompute": "selective", "sharding": "zero3"}, "recomputation selective"),
        ({"precision": "fp8"}, "precision fp8"),
        ({"sharding": "distributed_optimizer"}, "distributed_optimizer"),
        ({"sharding": "zero3", "offload": "optimizer"}, "offload optimizer"),
        ({"sharding": "zero3", "gradient_bits": 16}, "no option for gradient_bits"),
        ({"sharding": "zero1", "gather_bits": 16, "precision": "bf16"}, "gather_bits with zero1"),
        ({"compression": "int8", "exchange": "parameter_server", "servers": 2}, "2 parameter servers"),
    ],
)
def test_what_a_script_cannot_do_is_refused_by_name(target: str, choices: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"{target} has no option for .*|{why}") as refused:
        written(target, **choices)
    assert why in refused.value.message


@pytest.mark.parametrize(
    ("target", "cluster", "choices", "why"),
    [
        ("accelerate", TWO, {"sharding": "zero3", "recompute": "full", "recompute_layers": 4}, "recomputation of 4 blocks"),
        ("accelerate", TWO, {"sharding": "zero1", "shard_devices": 8}, "zero1 in groups of 8"),
        ("accelerate", TWO, {"sharding": "zero1", "precision": "tf32"}, "zero1 with tf32"),
        ("torchrun", TWO, {"sharding": "zero1", "shard_devices": 8}, "zero1 in groups of 8"),
        ("torchrun", Cluster.named("1+7 A100", network="100Gb/s"), {}, "nodes of 1.7 devices"),
        ("torchrun", Cluster.named("8 TPU v4"), {}, "device TPU v4"),
        ("skypilot", Cluster.named("8 RTX 2060"), {}, "device RTX 2060"),
        ("dstack", Cluster.named("8 K80"), {"precision": "fp32"}, "device K80"),
    ],
)
def test_what_one_of_them_lacks_is_refused_by_name(target: str, cluster: Cluster, choices: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        written(target, cluster, **choices)


def test_a_name_that_schedulers_do_not_take_is_shortened() -> None:
    own = replace(NETWORK, name="My Net: v2/large " * 9)
    text = SBATCH.write(EmittedJob("sbatch", strategy(), own, TWO))
    name = text.split("--job-name=")[1].splitlines()[0]
    assert len(name) <= 40 and name.startswith("my-net-v2-large-my") and Path(name).name == name
