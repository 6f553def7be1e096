"""Every choice about shares, exchanges and bits: ``predict``, ``train`` and ``attach`` take it alike, or refuse it alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch

from paceline.errors import UserError
from paceline.hardware import Cluster, aggregation
from paceline.strategy import COMPRESSIONS, EXCHANGES, GradientExchange, Strategy
from paceline.strategy.mesh_rules import GATHER_BITS, GRADIENT_BITS
from paceline.training.attach.attach_arguments import EXCHANGE, Arguments
from paceline.training.attach.attach_sharded import check_gather_bits, exchange_to_run
from paceline.training.runs.training_run import TrainingRun
from paceline.workload import Workload

WORKERS, NODE = 8, 2
CLUSTER = Cluster.named(f"{WORKERS // NODE}x{NODE} A100", "100Gb/s").changed(aggregation=aggregation("Paceline switch"))
MESHES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero1": {"sharding": "zero1"},
    "zero1 in groups": {"sharding": "zero1", "shard_devices": 4},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "zero3 in one group": {"sharding": "zero3", "shard_devices": WORKERS},
    "HSDP": {"sharding": "zero2", "shard_devices": 2},
    "groups of one": {"sharding": "zero3", "shard_devices": 1},
}
OF_CODECS = [
    *(
        {**pull, **dense, **residuals}
        for pull, dense, residuals in product(
            [{}, {"compress_pull": False}], [{}, {"dense_bits": 16}], [{}, {"residual_bits": 16}, {"residuals_at": "host"}]
        )
    ),
    {"ranks_per_node": 2},
]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Unit(NamedTuple):
    """What the checks of ``attach`` see of a unit of FSDP2."""

    owners: int
    replicate_group: str | None
    gathered: torch.dtype
    device: torch.device = torch.device("cpu")


def predicted(choices: Mapping[str, Any]) -> Strategy | None:
    """What is predicted; None where that is refused."""
    try:
        return Strategy.of(world_size=WORKERS, global_batch_size=WORKERS, **choices).settled(Workload.named("lenet5"), CLUSTER)
    except UserError:
        return None


def trained(choices: Mapping[str, Any]) -> GradientExchange | None:
    """What ``train`` runs; None where it refuses."""
    try:
        strategy = Strategy.of(world_size=WORKERS, global_batch_size=WORKERS, **choices)
        run = TrainingRun(model="lenet5", data="digits", strategy=strategy).on_nodes_of(NODE)
    except UserError:
        return None
    return run.strategy.gradient_exchange


def attached(choices: Mapping[str, Any]) -> GradientExchange | None:
    """What ``attach`` runs on a model that FSDP2 has sharded; None where it refuses."""
    given = {name: value for name, value in choices.items() if name in (*EXCHANGE, "gather_bits")}
    arguments = Arguments(choices.get("compression", "dense"), None, given)
    owners = choices.get("shard_devices") or WORKERS
    copies = None if owners == WORKERS else "copies"
    units: Any = [Unit(owners, copies, DTYPES[choices.get("precision", "fp32")])]
    try:
        check_gather_bits(units, arguments.options().gather_bits)
        return exchange_to_run(units, arguments)
    except UserError:
        return None


def exchanges() -> Iterator[dict[str, Any]]:
    """Every compression over every exchange, with the choices about codecs and nodes."""
    for compression, exchange, others in product(COMPRESSIONS, ("", *EXCHANGES), OF_CODECS):
        yield {"compression": compression, "exchange": exchange, **others}


FSDP2 = [name for name, mesh in MESHES.items() if mesh.get("sharding") in ("zero2", "zero3") and name != "groups of one"]
"""Meshes that FSDP2 has. It refuses groups of one itself."""


@pytest.mark.parametrize("mesh", MESHES)
def test_an_exchange_that_is_predicted_is_run(mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(NODE))
    monkeypatch.setenv("PACELINE_SWITCH", "one that adds")
    legal = 0
    for choices in exchanges():
        asked = {**MESHES[mesh], **choices}
        strategy = predicted(asked)
        answer = None if strategy is None else strategy.gradient_exchange
        legal += answer is not None
        assert trained(asked) == answer, asked
        assert mesh not in FSDP2 or attached(asked) == answer, asked
    assert (legal > 20) == (mesh != "groups of one")


@pytest.mark.parametrize("mesh", MESHES)
def test_bits_that_are_predicted_are_run(mesh: str) -> None:
    for precision, gather, gradient in product(DTYPES, GATHER_BITS, GRADIENT_BITS):
        asked = {**MESHES[mesh], "precision": precision, "gather_bits": gather, "gradient_bits": gradient}
        legal = predicted(asked) is not None
        assert mesh not in FSDP2 or (attached(asked) is not None) == legal, asked
        if precision == "fp32":
            of_others = (gather or gradient) if mesh.startswith("zero1") else gradient == 16  # Megatron-Core's, reduce_dtype
            assert (trained(asked) is not None) == (legal and not of_others), asked
