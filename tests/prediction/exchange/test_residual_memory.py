"""What residuals take of a device's memory and of a step, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.prediction import Predictor
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.exchange_seconds import exchange_seconds
from paceline.prediction.exchange.residual_memory import copied_elements, numbers_kept
from paceline.strategy import BucketPlan, GradientExchange, Strategy
from paceline.units import format_memory
from prediction_toys import IDEAL, make_calibration, make_cluster, make_workload, strategy

WHOLE = 12_000_000
"""Parameters of twelve layers, which DDP's hook exchanges in groups of 8 and of 4 million."""


def gpus(nodes: int = 2) -> Cluster:
    toy = make_cluster(1, nodes)
    return Cluster.of_nodes(replace(toy.device, host_link="PCIe 3.0 x16"), 1, nodes, toy.intra_link, toy.network)


def predicted(machines: Cluster, **choices: Any) -> Any:
    choices = {"compression": "sign", **choices}
    s = Strategy.of(world_size=machines.world_size, global_batch_size=machines.world_size * 4, **choices)
    return Predictor().step(make_workload(12), machines, s)


@pytest.mark.parametrize(
    ("choices", "wanted"),
    [
        ({}, 4 * (WHOLE + 8e6)),
        ({"residual_bits": 16}, 2 * (WHOLE + 8e6) + 4 * 8e6),
        ({"residuals_at": "host"}, 4 * 8e6),
        ({"residual_bits": 16, "residuals_at": "host"}, 4 * 8e6),
        ({"compression": "topk", "options": {"momentum": 0.9}, "residual_bits": 16}, 2 * (2 * (WHOLE + 8e6) + 4 * 8e6)),
        ({"sharding": "zero3", "bucket_bytes": 16_000_000}, 2 * 4 * WHOLE),
        ({"sharding": "zero3", "bucket_bytes": 16_000_000, "residual_bits": 16}, 2 * 2 * WHOLE + 4 * 4e6),
    ],
)
def test_bytes_on_the_device(choices: dict[str, Any], wanted: float) -> None:
    """Kept, with the second copy of all groups but the last (DDP) or of all (FSDP2), and fp32 copies of the largest group."""
    assert predicted(gpus(), **choices).memory["error feedback"] == wanted


def test_on_a_cpu_the_host_s_memory_is_the_device_s() -> None:
    toy = make_cluster(1, 2)
    cpus = Cluster.of_nodes(replace(toy.device, kind="cpu"), 1, 2, toy.intra_link, toy.network)
    there, usual = predicted(cpus, residuals_at="host"), predicted(cpus)
    assert there.memory == usual.memory and there.step_time_s == usual.step_time_s


def test_copies_take_the_link_to_the_host_twice() -> None:
    """A group of a million weights, once before it is encoded and once after its exchange; bfloat16 halves the bytes."""
    rate, network, machines = link("PCIe 3.0 x16").bandwidth.value, make_workload(1), gpus()
    for bits, converted in ((32, 0.0), (16, 8 * 1e6 / 5e11)):  # 8 bytes an element at 500 GB/s, from and to bfloat16
        for place, copied in (("host", bits / 8 * 1e6 / rate), ("", 0.0)):
            s = strategy(2, compression="sign", residual_bits=bits, residuals_at=place).settled(network, machines)
            exchange = exchange_seconds(exchange_plan(network, s, machines.places), machines, IDEAL)
            seconds = dict(zip((p.name for p in exchange.plan.pieces), exchange.pieces.tolist(), strict=True))
            names = [p.name for p in exchange.plan.pieces]
            if not place and bits == 32:
                assert not {"fetch_residuals", "keep_residuals"} & seconds.keys()
                continue
            assert names.index("fetch_residuals") < names.index("encode") and names[-1] == "keep_residuals"
            assert seconds["fetch_residuals"] == pytest.approx(converted + copied)
            assert seconds["keep_residuals"] == pytest.approx(converted + copied)


def test_elements_that_are_copied() -> None:
    plan = BucketPlan(1000, 2, 24)

    def of_eight(**choices: Any) -> Strategy:
        return Strategy.of(world_size=8, global_batch_size=8, residual_bits=16, **choices)

    assert copied_elements(plan, of_eight(compression="sign")) == 1000
    assert copied_elements(plan, of_eight(compression="topk", options={"momentum": 0.5})) == 2000
    assert copied_elements(plan, of_eight(compression="powersgd")) == 1024
    nodes = {"exchange": "hierarchical", "ranks_per_node": 4}
    assert copied_elements(plan, of_eight(compression="sign", **nodes)) == 250
    assert copied_elements(plan, of_eight(compression="sign", sharding="zero3", shard_devices=2)) == 500
    assert copied_elements(plan, Strategy.of(world_size=8, global_batch_size=8, compression="sign")) == 0
    assert [numbers_kept(GradientExchange(name)) for name in ("int8", "sign")] == [0, 1]


def test_said_and_refused() -> None:
    said = [str(a) for a in predicted(gpus(), residual_bits=16, residuals_at="host", dense_bits=16).assumptions]
    assert any("kept as bf16, rounded by chance" in text for text in said)
    assert any("copied over PCIe 3.0 x16 at" in text for text in said)
    assert any(f"in the host's memory, {format_memory(2 * (WHOLE + 8e6))} for each device" in text for text in said)
    assert any("ncompressed tensors travel as bf16" in text for text in said)
    with pytest.raises(UserError, match="its link to the host is not in the catalogue"):
        predicted(make_cluster(1, 2), residuals_at="host")
    with pytest.raises(UserError, match="no measurement of residuals in the host's memory"):
        s = Strategy.of(world_size=2, global_batch_size=8, compression="sign", residuals_at="host")
        Predictor(calibration=make_calibration(compression="sign")).step(make_workload(12), gpus(), s)
