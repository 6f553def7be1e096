"""Constants: each is measured and says where, or is assumed and says why; what reads them gets what the file has."""

from __future__ import annotations

import importlib
import pickle
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import paceline
from each_row import each_row
from paceline import hardware
from paceline.calibration.constants import CATALOGUE, HIGH, LEVELS, LOW, TYPICAL, assumed, efficiency
from paceline.errors import UserError
from paceline.prediction.passes.compute import optimizer_seconds
from paceline.strategy.optimizer import OPTIMIZERS

DATA: dict[str, Any] = tomllib.loads(files("paceline.calibration").joinpath("constants.toml").read_text(encoding="utf-8"))
FITTED = {*DATA["sigmas"], *DATA["shared"], *DATA["ordinary"], *DATA["tuned"], *DATA["ordinary"]["sigmas"]} - {"sigmas"}
ENTRIES = {**DATA["about"], **DATA["assumed"]}


@each_row("name", sorted(FITTED | set(ENTRIES)))
def test_every_constant_has_a_source_or_a_reason(name: str) -> None:
    entry = ENTRIES[name]
    if "source" in entry:
        assert entry["source"].strip() and "status" not in entry
    else:
        assert entry["status"] in ("assumed", "fitted") and len(entry["reason"].split()) >= 5


def test_the_file_says_nothing_of_what_it_does_not_have() -> None:
    assert set(DATA["about"]) == FITTED and not set(DATA["about"]) & set(DATA["assumed"])
    assert all("value" in entry for entry in DATA["assumed"].values())


def test_the_bounds_are_on_both_sides_of_the_typical() -> None:
    for kind, share in TYPICAL.link_share.items():
        assert LOW.link_share[kind] <= share <= HIGH.link_share[kind] <= 1
    assert LOW.codec_cores < TYPICAL.codec_cores < HIGH.codec_cores
    assert LOW.latency_factor > TYPICAL.latency_factor > HIGH.latency_factor
    assert LOW.time_factor > TYPICAL.time_factor > HIGH.time_factor
    assert LOW.concurrent_messages < TYPICAL.concurrent_messages < HIGH.concurrent_messages
    assert TYPICAL.launch_s["tpu"] == pytest.approx(assumed("tpu_launch_share") * TYPICAL.launch_s["gpu"])


@pytest.mark.parametrize(
    ("module", "constant", "name"),
    [
        ("paceline.prediction.passes.compute", "STARVING", "starving_ratio"),
        ("paceline.prediction.passes.compute", "SPLIT", "split_depth"),
        ("paceline.prediction.learning.convergence", "NOISE_FACTOR", "noise_scale_factor"),
        ("paceline.planning.search.ranking", "PLAIN", "plan_plain"),
        ("paceline.planning.search.ranking", "TIE", "plan_tie"),
        ("paceline.planning.search.ranking", "MOST_UNRESOLVED", "plan_unresolved"),
        ("paceline.training.exchanges.gradients.energy_guard", "KEPT", "energy_kept"),
    ],
)
def test_what_is_judged_in_code_is_what_the_file_assumes(module: str, constant: str, name: str) -> None:
    assert getattr(importlib.import_module(module), constant) == assumed(name)


def test_every_assumption_is_read_somewhere() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in Path(paceline.__file__).parent.rglob("*.py"))
    assert [name for name in DATA["assumed"] if f'"{name}"' not in code] == []


def test_they_are_the_same_in_another_process() -> None:
    for constants in CATALOGUE:
        again = pickle.loads(pickle.dumps(constants))
        assert again == constants and hash(again) == hash(constants)
        with pytest.raises(TypeError):
            again.joules["bf16"] = 0.0


def test_older_tuned_software_is_slower_and_what_is_not_known_is_refused() -> None:
    tuned = efficiency("tuned")
    ages = [tuned.of_year(year).time_factor for year in (2019.5, 2021.5, 2023.9, 2026.0, 0.0)]
    assert ages == sorted(ages, reverse=True) and ages[2:] == [1.0] * 3
    assert ages[1] == pytest.approx(tuned.yearly_gain**2.4) and tuned.of_year(2020).of_year(0).time_factor == 1.0
    with pytest.raises(
        UserError, match="a year of ordinary software: how it became faster is not known; give --framework tuned"
    ):
        efficiency("ordinary").of_year(2020)
    with pytest.raises(UserError, match="software of the year 21; give one from 2015 on"):
        tuned.of_year(21)


def test_a_device_has_its_factor_with_and_without_a_bridge_and_not_without_its_chip() -> None:
    bare, pair = hardware.device("A100 PCIe 80GB"), hardware.device("A100 PCIe 80GB NVLink")
    e = replace(efficiency("ordinary"), device_effects={bare.name: 1.25})
    assert (pair.board, e.factor_on(pair.board), e.factor_on("V100")) == (bare.name, 1.25, 1.0)
    seconds = [sum(optimizer_seconds(OPTIMIZERS["adam"], 10**9, 10, bare, c)) for c in (e, replace(e, device_effects={}))]
    assert seconds[0] / seconds[1] == pytest.approx(1.25)
    for level in LEVELS:
        for name in efficiency(level).device_effects:
            assert name not in efficiency(level, hardware.device(name).chip).device_effects
