"""Every key of an emitted file is one that the tool's release knows, by the kept names of ``emit_schemas.json``."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from emit_schemas import TITAN, load
from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.hardware.prices import price
from paceline.planning.emit.clouds.dstack import FLEET
from paceline.planning.emit.clouds.names import PROVIDERS
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.nemo import RECIPES
from paceline.planning.emit.networks.torchtitan_models import REGISTERED
from paceline.planning.emit.targets import TARGETS, emitted

SCHEMAS = load()
CLUSTERS = (Cluster.named("8 A100"), Cluster.named("4x8 A100", network="3200Gb/s EFA"))
NETWORKS = ("gpt2", "llama-2-7b", "qwen-3-30b-a3b")
OTHERS = ("llama-3-8b", "qwen-2.5-7b", "qwen-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "gemma-2-9b", "opt-1.3b")
CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "fp32"},
    {"compression": "terngrad", "exchange": "sharded"},
    {"sharding": "zero1", "grad_accum_steps": 2},
    {"sharding": "zero1", "tensor": 2, "sequence": True, "pipeline": 2, "grad_accum_steps": 4},
    {"sharding": "zero1", "pipeline": 4, "virtual_stages": 3, "grad_accum_steps": 4},
    {"sharding": "zero1", "precision": "fp8", "context": 2, "context_exchange": "all_to_all"},
    {"sharding": "zero1", "expert": 8},
    {"sharding": "zero2", "recompute": "full"},
    {"sharding": "zero3", "recompute": "selective"},
    {"sharding": "zero3", "recompute": "selective:op", "precision": "mxfp8"},
    {"sharding": "zero3", "shard_devices": 4, "precision": "fp8-current"},
    {"sharding": "zero3", "offload": "weights+optimizer"},
    {"sharding": "zero3", "tensor": 2, "sequence": True, "context": 2, "pipeline": 2, "grad_accum_steps": 4},
)


def files(target: str, names: Sequence[str] = NETWORKS) -> Iterator[str]:
    """Files of all strategies that a target has on some networks."""
    for name in names:
        for cluster in CLUSTERS[name != NETWORKS[0] :]:
            for choices in CHOICES:
                usual = {"world_size": cluster.world_size, "global_batch_size": 256, "precision": "bf16", "optimizer": "adamw"}
                listing = price(cluster.device.name)
                try:
                    chosen = Strategy.of(**{**usual, **choices})
                    job = EmittedJob(target, chosen, Workload.named(name), cluster, samples=1e6, price=listing)
                    yield emitted(job).text
                except UserError:
                    continue


def of_options(schema: Mapping[str, Any], words: list[str]) -> set[str]:
    """Words that are no options of a command, or values that an option does not have."""
    wrong, option = set(), ""
    for word in words:
        if word.startswith("--"):
            option = word.removeprefix("--").partition("=")[0]
            known = option in (*schema["flags"], *schema["values"], *schema["lists"])
            wrong |= set() if known else {word}
        elif option in schema["flags"] or word not in schema["choices"].get(option, [word]):
            wrong.add(f"{option} {word}")
    return wrong


def of_torchrun(schema: Mapping[str, Any], text: str) -> set[str]:
    line = text.splitlines()[-1].removeprefix("exec torchrun ")
    return of_options(schema, shlex.split(line)[:-2])


def of_megatron(schema: Mapping[str, Any], text: str) -> set[str]:
    return of_options(schema, shlex.split(text, comments=True))


def of_nemo(schema: Mapping[str, Any], text: str) -> set[str]:
    option, recipe, *words = shlex.split(text, comments=True)
    names = [word.partition("=")[0] for word in words]
    parts = {name for name in names if "." in name and name.split(".")[1] not in schema[name.split(".")[0]]}
    whole = {name for name in names if "." not in name} - {"comm_overlap", "mixed_precision"}
    return parts | whole | ({recipe} - set(schema["recipes"])) | ({option} - {"--recipe"})


def of_yaml(text: str) -> tuple[set[str], dict[str, set[str]]]:
    """Keys of the first level, and those below each."""
    top: set[str] = set()
    below: dict[str, set[str]] = {}
    for line in text.splitlines():
        if found := re.match(r"(\w+):", line):
            name = found[1]
            top.add(name)
        elif found := re.match(r"  (\w+): ", line):
            below.setdefault(name, set()).add(found[1])
    return top, below


def of_accelerate(schema: Mapping[str, Any], text: str) -> set[str]:
    top, below = of_yaml(text)
    inside = {name for names in below.values() for name in names}
    return (top - set(schema["file"])) | (inside - set(schema["sections"]))


def of_deepspeed(schema: Mapping[str, Any], text: str) -> set[str]:
    config = json.loads(text)
    wrong = set(config) - set(schema["file"]) - {"_comment"}
    zero = config["zero_optimization"]
    tables = {"zero_optimization": zero, "tensor_parallel": config.get("tensor_parallel", {})}
    tables |= {"activation_checkpointing": config.get("activation_checkpointing", {})}
    tables |= {name: zero[name] for name in ("offload_optimizer", "offload_param") if name in zero}
    return wrong | {name for table, keys in tables.items() for name in set(keys) - set(schema[table])}


def of_skypilot(schema: Mapping[str, Any], text: str) -> set[str]:
    top, below = of_yaml(text.partition("run: |")[0] + "run: |")
    values = set(re.findall(r"infra: (\w+)", text)) - set(schema["clouds"])
    tiers = set(re.findall(r"network_tier: (\w+)", text)) - set(schema["network_tier"])
    return (top - set(schema["file"])) | (below["resources"] - set(schema["resources"])) | values | tiers


def of_dstack(schema: Mapping[str, Any], text: str) -> set[str]:
    fleet = "\n".join(line.removeprefix(FLEET) for line in text.splitlines() if line.startswith(FLEET))
    wrong: set[str] = set()
    for kind, one in (("file", text), ("fleet", fleet)):
        top, below = of_yaml(one)
        wrong |= (top - set(schema[kind])) | (below["resources"] - set(schema["resources"]))
    return wrong | set(re.findall(r"backends: \[(\w+)\]", text)) - set(schema["backends"])


def of_slurm(schema: Mapping[str, Any], text: str) -> set[str]:
    return set(re.findall(r"^#SBATCH --([a-z-]+)", text, re.MULTILINE)) - set(schema["file"])


def of_calls(schema: Mapping[str, Any], text: str) -> set[str]:
    """Keywords of calls that a class or a function of the tool does not have."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [(ast.unparse(call.func), {word.arg or "" for word in call.keywords}) for call in calls]
    return {f"{name}({key})" for name, keys in named if name in schema for key in keys - set(schema[name])}


def of_torchtitan(schema: Mapping[str, Any], text: str) -> set[str]:
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    names = {ast.unparse(call.func) for call in calls if not ast.unparse(call.func).endswith(("build", "convert"))}
    known = {*TITAN, "model_registry", "llama3._build_llama3_layers", "llama3._output_linear_init", "decoder_vocab_size"}
    return of_calls(schema, text) | (names - known)


READERS: Mapping[str, Callable[[Mapping[str, Any], str], set[str]]] = {
    "torchrun": of_torchrun,
    "sbatch": of_slurm,
    "accelerate": of_accelerate,
    "deepspeed": of_deepspeed,
    "skypilot": of_skypilot,
    "dstack": of_dstack,
    "megatron": of_megatron,
    "nemo": of_nemo,
    "torchtitan": of_torchtitan,
    "lightning": of_calls,
}


@pytest.mark.parametrize("names", [NETWORKS, pytest.param(OTHERS, marks=pytest.mark.long)], ids=["some", "others"])
@pytest.mark.parametrize("target", READERS)
def test_every_key_of_a_file_is_known_to_its_tool(target: str, names: Sequence[str]) -> None:
    texts = list(files(target, names))
    assert len(texts) >= 6
    assert {key for text in texts for key in READERS[target](SCHEMAS[target], text)} == set()
    assert all(f"for {TARGETS[target].tool}." in text for text in texts)


@pytest.mark.parametrize(
    ("target", "right", "wrong"),
    [
        ("torchrun", "--nproc-per-node", "--nproc-a-node"),
        ("sbatch", "--cpus-per-task", "--cpus-a-task"),
        ("accelerate", "mixed_precision:", "mixed:"),
        ("deepspeed", '"overlap_comm"', '"overlap_common"'),
        ("skypilot", "accelerators:", "gpus:"),
        ("dstack", "placement:", "place:"),
        ("megatron", "--num-layers", "--layers"),
        ("nemo", "dataset.seq_length", "dataset.length"),
        ("torchtitan", "data_parallel_shard_degree", "shard_degree"),
        ("lightning", "num_nodes", "nodes"),
    ],
)
def test_a_key_that_its_tool_does_not_know_is_found(target: str, right: str, wrong: str) -> None:
    text = next(text for text in files(target) if right in text)
    assert READERS[target](SCHEMAS[target], text.replace(right, wrong))


def test_the_kept_names_are_of_the_release_that_a_target_names() -> None:
    for target, schema in SCHEMAS.items():
        assert TARGETS[target].tool.version == schema["version"], target
    page = (Path(__file__).parents[2] / "docs" / "emit.md").read_text(encoding="utf-8")
    assert [target for target, kind in TARGETS.items() if f"| {kind.tool} | {kind.tool.checked} |" not in page] == []


def test_recipes_flavors_and_providers_exist() -> None:
    assert set(RECIPES.values()) <= set(SCHEMAS["nemo"]["recipes"])
    for own in REGISTERED.values():
        assert own.flavor in SCHEMAS["torchtitan"][f"flavors of {own.module}"], own
    assert {one.skypilot for one in PROVIDERS.values()} - {""} <= set(SCHEMAS["skypilot"]["clouds"])
    assert {one.dstack for one in PROVIDERS.values()} - {""} <= set(SCHEMAS["dstack"]["backends"])
