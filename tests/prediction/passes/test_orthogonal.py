"""Muon's orthogonalization: its matrices, its FLOPs, and who computes them."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.passes.orthogonal import matrices, matrix_elements, newton_schulz_flops, newton_schulz_seconds
from paceline.strategy import Strategy
from paceline.workload import Workload

NET = Workload.named("llama-3.2-1b")
NODE = Cluster.named("8 H100")


def step(optimizer: str, **choices: Any) -> Any:
    usual: dict[str, Any] = {"world_size": 8, "global_batch_size": 8, "precision": "bf16"}
    return Predictor().step(NET, NODE, Strategy.of(**{**usual, "optimizer": optimizer, **choices}))


def test_its_matrices_are_those_of_blocks() -> None:
    """16 blocks of 2048 with keys of 512 and an expansion to 8192; the embedding and the norms are AdamW's."""
    found = {(m, n): count for m, n, count in matrices(NET).T.tolist()}
    assert found == {(2048, 2048): 32, (512, 2048): 32, (2048, 8192): 48}
    assert matrix_elements(NET) == 16 * (2 * 2048**2 + 2 * 512 * 2048 + 3 * 2048 * 8192)
    a, b, c = (5 * (4 * m * m * n + 2 * m**3) for m, n in ((2048, 2048), (512, 2048), (2048, 8192)))
    assert newton_schulz_flops(NET) == 32 * a + 32 * b + 48 * c


def test_it_runs_below_the_peak_and_above_half_of_it() -> None:
    constants = Predictor().constants
    seconds, launches = newton_schulz_seconds(NET, NODE.device, constants)
    rate = newton_schulz_flops(NET) / seconds
    assert 0.4 < rate / NODE.device.peak("bf16").value < 1 and 0 < launches < seconds


def test_replicas_share_out_the_matrices() -> None:
    """Also those that have all state, which gather the results; replicas of local steps have other gradients."""
    ways: dict[str, dict[str, Any]] = {"ddp": {}, "zero1": {"sharding": "zero1"}, "zero3": {"sharding": "zero3"}}
    products, _ = newton_schulz_seconds(NET, NODE.device, Predictor().constants)
    for way, choices in ways.items():
        found, plain = step("muon", **choices), step("adamw", **choices)
        assert found.exposed["compute"] - plain.exposed["compute"] == pytest.approx(products / 8)
        assert found.memory["optimizer state"] == pytest.approx(
            4 * (2 * NET.num_parameters - matrix_elements(NET)) / (1 if way == "ddp" else 8), rel=1e-3
        )
    local, plain = step("muon", sync_every=10), step("adamw", sync_every=10)
    assert local.exposed["compute"] - plain.exposed["compute"] == pytest.approx(products)
