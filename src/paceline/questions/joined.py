"""Facts that follow from several others: adapters, offload, groups of devices, micro batches, amounts of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.questions.facts import COMMAND, StatedFact
from paceline.strategy.choices.synonyms import PER_NODE
from paceline.strategy.choices.values import chosen
from paceline.strategy.offload import (
    OFFLOAD_ACTIVATIONS,
    OFFLOAD_CHECKPOINTS,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_WEIGHTS,
    OFFLOADS,
)
from paceline.strategy.parallelism import MODEL
from paceline.strategy.recompute import Recompute
from paceline.strategy.sharding import ALIASES, SHARDINGS, ZERO3, Sharding

Facts = dict[str, StatedFact]
_HOST = "cpu"
"""Offload to the host of what the sharding lets."""
_ANY_NETWORK = "100Gb/s"
NODE, DEVICES = "nodes", "devices_per_node"
_ASKED_LORA = ("adapter", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_bits", "lora_dora", "lora_save")


def joined_facts(facts: Mapping[str, StatedFact]) -> tuple[Facts, list[str]]:
    """Return the facts that options state, and sentences on what was derived.

    Raises:
        UserError: facts that do not go together, or need one that is missing.
    """
    found, notes = dict(facts), list[str]()
    for rule in _RULES:
        rule(found, notes)
    return found, notes


def _adapters(facts: Facts, notes: list[str]) -> None:
    """Join the parts of adapters into one text. Without a kind or a rank the network is trained whole."""
    parts = {name: facts.pop(name) for name in _ASKED_LORA if name in facts}
    stated = {name for name in ("adapter", "lora_rank") if name in parts and not parts[name].assumed}
    if "lora" in facts:
        return
    if not stated:
        _without_adapters(parts.values(), notes)
        return
    kind, first = str(parts["adapter"].value) if "adapter" in parts else "lora", next(iter(parts.values()))
    if "lora_dora" in parts:
        kind = {"lora": "dora", "qlora": "qdora"}[kind]
    texts = [kind]
    for name, word in (
        ("lora_rank", "r"),
        ("lora_targets", "targets"),
        ("lora_bits", "bits"),
        ("lora_alpha", "alpha"),
        ("lora_dropout", "dropout"),
        ("lora_save", "save"),
    ):
        if name in parts and parts[name].value not in (0, "0", 0.0):
            texts.append(f"{word}={parts[name].value}")
    facts["lora"] = replace(first, name="lora", value=",".join(texts), words=", ".join(part.words for part in parts.values()))


def _without_adapters(parts: Iterable[StatedFact], notes: list[str]) -> None:
    """Say that frozen weights of few bits need adapters. Raises UserError for what was typed about adapters without any."""
    for part in parts:
        if part.source == COMMAND:
            raise UserError(f"{part.words} is about adapters, and none are stated", "give --lora r=16 too, or --lora qlora")
        if part.name == "lora_bits" and not part.assumed:
            notes.append(f"{part.where} is left out: without adapters (--lora r=16) the network is trained whole.")


def _offloaded(facts: Facts, notes: list[str]) -> None:
    """Settle what is in the host's memory by the sharding and the recomputation."""
    fact = facts.get("offload")
    if fact is None or not (fact.added or fact.value == _HOST):
        return
    parts = set(str(fact.value).split("+"))
    if _HOST in parts:
        parts = set((OFFLOAD_WEIGHTS if _sharding(facts).gathers_again else OFFLOAD_OPTIMIZER).name.split("+"))
        notes.append(f"{fact.words} is taken as {'+'.join(sorted(parts, reverse=True))} in the host's memory.")
    recomputed = "recompute" in facts and Recompute.of(_plain(facts["recompute"].value)).whole_blocks
    stored, inputs = OFFLOAD_ACTIVATIONS.name, OFFLOAD_CHECKPOINTS.name
    if recomputed and stored in parts:
        parts = parts - {stored} | {inputs}
    if not recomputed and inputs in parts:
        parts.remove(inputs)
        notes.append(f"{fact.words}: without recomputation nothing of it lies in the host's memory.")
    del facts["offload"]
    if parts:
        name = next(name for name in OFFLOADS if set(name.split("+")) == parts)
        facts["offload"] = replace(fact, value=name, added=False)


def _plain(value: object) -> object:
    return value if isinstance(value, bool) else str(value)


def _sharding(facts: Facts) -> Sharding:
    """Return the sharding that is stated; DDP without one."""
    stated = facts.get("sharding")
    return chosen("sharding", str(stated.value) if stated else "ddp", SHARDINGS, ALIASES)


def _machines(facts: Facts, notes: list[str]) -> None:
    """Derive nodes, and devices of a node, from the number of all devices."""
    world = facts.pop("world_size", None)
    if world is None:
        return
    many = int(world.value)
    if "cluster" in facts:
        known = sizes(facts)
        if known and known[0] * known[1] != many:
            raise UserError(
                f"{world.where}, and {facts['cluster'].where} has {known[0] * known[1]} devices", "give one of them"
            )
        return
    nodes, each = facts.get(NODE), facts.get(DEVICES)
    if each is not None and nodes is None:
        count, rest = divmod(many, int(each.value))
        if rest:
            raise UserError(f"{world.where} is no multiple of {each.where}", "correct one of them, or give the machines")
        facts[NODE] = replace(world, name=NODE, value=count)
    elif each is None:
        count = int(nodes.value) if nodes else 1
        if many % count:
            raise UserError(f"{world.where} is no multiple of {count} nodes", "correct one of them, or give the machines")
        facts[DEVICES] = replace(world, name=DEVICES, value=many // count)
    elif int(nodes.value if nodes else 1) * int(each.value) != many:
        assert nodes is not None
        raise UserError(f"{world.where} is not {nodes.where} times {each.where}", "correct one of them, or give the machines")


def sizes(facts: Mapping[str, StatedFact]) -> tuple[int, int] | None:
    """Return the nodes and the devices of each; None if they are unknown."""
    if "cluster" in facts:
        return _named_sizes(str(facts["cluster"].value))
    if "device" in facts and (rented := hardware.instance(str(facts["device"].value))):
        return int(facts[NODE].value) if NODE in facts else 1, rented.devices
    if NODE not in facts and DEVICES not in facts and "device" not in facts:
        return None
    each = str(facts[DEVICES].value) if DEVICES in facts else "1"
    return (int(facts[NODE].value) if NODE in facts else 1, int(each)) if each.isdecimal() else None


def _named_sizes(text: str) -> tuple[int, int] | None:
    """Return the sizes of a cluster by name, whose network an option may name; None for others."""
    for network in (None, _ANY_NETWORK):
        with suppress(UserError):  # the command says what is wrong with it
            machines = Cluster.named(text, network)
            return (machines.num_nodes, machines.devices_per_node) if machines.even else None
    return None


def _replicas(facts: Facts) -> int | None:
    """Return the replicas that work on different samples; None without the number of devices."""
    known = sizes(facts)
    if known is None:
        return None
    model = 1
    for name in MODEL:
        model *= int(facts[name].value) if name in facts else 1
    return max(1, known[0] * known[1] // model)


def _groups(facts: Facts, notes: list[str]) -> None:
    """Settle the number of devices that share one copy."""
    shared, copies = facts.get("shard_devices"), facts.pop("copies", None)
    if shared is not None and shared.value == PER_NODE:
        known = sizes(facts)
        if known is None:
            raise UserError(
                f"{shared.where} shares among the devices of a node, and no machines are named",
                "name them, or give --shard-devices 8",
            )
        del facts["shard_devices"]
        if known[0] > 1:
            facts["shard_devices"] = replace(shared, value=known[1])
            notes.append(f"{shared.words} shares one copy among the {known[1]} devices of a node.")
        return
    if copies is not None and int(copies.value) > 1 and "sharding" not in facts:
        facts["sharding"] = replace(copies, name="sharding", value=ZERO3.name, assumed=True)  # as torchtitan does
    if copies is not None and int(copies.value) > 1 and shared is None and _sharding(facts).shares_out:
        replicas = _replicas(facts)
        if replicas is None:
            notes.append(f"{copies.where} is left out: the number of devices is unknown.")
            return
        context = int(facts["context"].value) if "context" in facts else 1
        if replicas * context % int(copies.value):
            raise UserError(
                f"{copies.where} does not divide the {replicas * context} replicas", "give another number of devices"
            )
        facts["shard_devices"] = replace(copies, name="shard_devices", value=replicas * context // int(copies.value))
        shared = facts["shard_devices"]
    context = int(facts["context"].value) if "context" in facts else 1
    if shared is not None and "data_parallel_shard_degree" in shared.words and context > 1:
        shared = facts["shard_devices"] = replace(shared, value=int(shared.value) * context)  # contexts share too
    if shared is not None and (all_of := _replicas(facts)) is not None and int(shared.value) == all_of * context:
        del facts["shard_devices"]


def _pipelined(facts: Facts, notes: list[str]) -> None:
    """Divide a device's batch into the micro batches of its pipeline (torchtitan)."""
    each, batch = facts.pop("pipeline_micro_batch", None), facts.get("micro_batch_size")
    if each is None or batch is None or "pipeline" not in facts or int(facts["pipeline"].value) == 1:
        return
    total, size = int(batch.value), int(each.value)
    if total % size:
        raise UserError(f"{batch.where} is no multiple of {each.where}", "correct one of them")
    facts["micro_batch_size"] = replace(each, name="micro_batch_size", value=size)
    times = int(facts["grad_accum_steps"].value) if "grad_accum_steps" in facts else 1
    if "global_batch_size" not in facts:
        facts["grad_accum_steps"] = replace(batch, name="grad_accum_steps", value=total // size * times)


def _stages(facts: Facts, notes: list[str]) -> None:
    """Derive virtual stages, and recomputed layers, from the network's number of layers."""
    per_stage = facts.pop("layers_per_virtual_stage", None)
    layers = int(facts["num_layers"].value) if "num_layers" in facts else 0
    stages = int(facts["pipeline"].value) if "pipeline" in facts else 1
    if per_stage is not None and stages > 1:
        if not layers or layers % (stages * int(per_stage.value)):
            notes.append(f"{per_stage.where} is left out: give --virtual-stages.")
        else:
            parts = layers // (stages * int(per_stage.value))
            facts["virtual_stages"] = replace(per_stage, name="virtual_stages", value=parts)
    method, recomputed = facts.pop("recompute_method", None), facts.pop("recomputed_layers", None)
    if method is not None and method.value == "block" and recomputed is not None and "recompute" in facts:
        facts["recompute_layers"] = replace(recomputed, name="recompute_layers")
    facts.pop("num_layers", None)


def _amount(facts: Facts, notes: list[str]) -> None:
    """Turn steps into samples of the global batch, which need a batch."""
    steps, batch = facts.pop("steps", None), facts.get("global_batch_size")
    stated = {"samples", "tokens"} & facts.keys()
    if steps is None or stated:
        return
    epochs = facts.pop("epochs", None)  # steps overrule epochs, as in transformers, training_args.py
    samples = int(batch.value) if batch and str(batch.value).isdecimal() else whole_batch(facts)
    if samples is None:
        notes.append(f"{steps.where} is left out: the batch of all devices is unknown.")
        if epochs is not None:
            facts["epochs"] = epochs
        return
    facts["samples"] = replace(steps, name="samples", value=int(steps.value) * samples)


def _fitting(facts: Facts, notes: list[str]) -> None:
    """Leave out what has no effect next to other facts: sequence parallelism alone, kernels of an update that the host does."""
    tensor = int(facts["tensor"].value) if "tensor" in facts else 1
    if "sequence" in facts and tensor == 1 and facts["sequence"].source != COMMAND:
        del facts["sequence"]
    offload = str(facts["offload"].value) if "offload" in facts else ""
    if OFFLOAD_OPTIMIZER.name in offload.split("+") and "update" in facts and facts["update"].source != COMMAND:
        del facts["update"]


def _arithmetic(facts: Facts, notes: list[str]) -> None:
    """Settle the precision: what stays in fp32 decides if 16 bits are not stated, also not as the device's choice."""
    rest, automatic = facts.pop("products_in_fp32", None), facts.pop("sixteen_bits", None)
    if rest is not None and automatic is None:
        facts.setdefault("precision", replace(rest, name="precision"))


def _whole_steps(facts: Facts, notes: list[str]) -> None:
    """Settle that a file with the batch of a device alone accumulates nothing, as its tool does."""
    batch = facts.get("micro_batch_size")
    if batch is None or batch.source == COMMAND or "grad_accum_steps" in facts:
        return
    if "global_batch_size" in facts:
        return
    facts["grad_accum_steps"] = replace(batch, name="grad_accum_steps", value=1, assumed=True)


def _padded(facts: Facts, notes: list[str]) -> None:
    """Say that samples which are not packed are taken as long as a sequence, and what epochs of packed ones count."""
    packing = facts.pop("packing", None)
    if packing is not None and packing.value is False and "tokens_per_sample" not in facts:
        notes.append(f"{packing.where}: every sample is taken as long as a sequence (--tokens-per-sample mean=400,max=2048).")
    if packing is not None and packing.value is True and "epochs" in facts and "tokens" not in facts:
        notes.append(f"{packing.where}: --data counts full sequences, of several samples each; or give --tokens.")


def whole_batch(facts: Facts) -> int | None:
    """Return the samples of a step over all devices; None without their number."""
    replicas = _replicas(facts)
    if replicas is None or "micro_batch_size" not in facts:
        return None
    times = int(facts["grad_accum_steps"].value) if "grad_accum_steps" in facts else 1
    return int(facts["micro_batch_size"].value) * times * replicas


_RULES: tuple[Callable[[Facts, list[str]], Any], ...] = (
    _adapters,
    _machines,
    _arithmetic,
    _pipelined,
    _whole_steps,
    _groups,
    _offloaded,
    _stages,
    _amount,
    _padded,
    _fitting,
)
"""Rules in order: later ones read what earlier ones state."""
