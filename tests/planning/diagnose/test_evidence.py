"""Evidence from logs, states of devices and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.calibration.imports.device_state import DeviceState
from paceline.calibration.imports.run_measurement import RunMeasurement
from paceline.errors import UserError
from paceline.planning.diagnose.evidence import DENIAL, HINT, PROOF, read_files, said_evidence, state_evidence
from planning.diagnose.test_question import TWO

BUSY = DeviceState(index=0, name="A100", utilization=0.98, power_w=380, power_limit_w=400, clock_mhz=1400, max_clock_mhz=1410)
MEMORY = 80 * 2.0**30


def causes_of(*states: DeviceState, memory: float | None = None) -> set[str]:
    run = RunMeasurement(file="x", kind="nvidia-smi", devices=states, memory_bytes=memory)
    return {fact.cause for fact in state_evidence(run, TWO.step, MEMORY) if fact.factor > 1}


def test_states_of_devices() -> None:
    assert causes_of(BUSY) == set()
    assert causes_of(replace(BUSY, clock_mhz=900)) == {"clocks"}
    assert causes_of(replace(BUSY, slowed_by=("SW Thermal Slowdown",))) == {"clocks"}
    assert causes_of(BUSY, replace(BUSY, index=1, utilization=0.0)) == {"fewer-devices"}
    assert causes_of(replace(BUSY, utilization=0.3)) == {"loader", "storage", "slow-host"}
    assert "network-tcp" in causes_of(replace(BUSY, power_w=120))


def test_memory_of_the_run() -> None:
    predicted = TWO.step.memory_bytes
    assert causes_of(memory=predicted) == set()
    assert causes_of(memory=1.8 * predicted) == {"fp32", "eager-attention"}
    assert "recompute" in causes_of(memory=0.5 * predicted)
    assert causes_of(memory=0.97 * MEMORY) == {"allocator"}


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("GPU utilization 40 %", "loader"),
        ("slow in the first epoch only", "storage"),
        ("slower on two nodes", "network-tcp"),
        ("no NVLink", "slow-link"),
        ("shared GPU memory is in use", "driver-memory"),
        ("it got hot", "clocks"),
    ],
)
def test_words_hint_at_causes(words: str, cause: str) -> None:
    assert {fact.cause: fact.factor for fact in said_evidence(words)}[cause] == HINT


def test_a_busy_device_speaks_against_the_loader() -> None:
    assert {fact.cause: fact.factor for fact in said_evidence("gpu util is 99%")}["loader"] == pytest.approx(1 / HINT)
    with pytest.raises(UserError, match="hints at no cause"):
        said_evidence("it rains")


def test_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("x [0] NCCL INFO NET/Socket : Using eth0\nx via P2P/IPC\n", encoding="utf-8")
    found = read_files([str(log)])
    assert {(fact.cause, fact.factor) for fact in found.evidence} == {("network-tcp", PROOF), ("no-p2p", DENIAL)}
    assert found.speed is None


def test_a_log_has_the_speed(tmp_path: Path) -> None:
    log = tmp_path / "gpt.log"
    log.write_text("".join(f"iter {n}: loss 3.1, time 562.00ms, mfu 20.00%\n" for n in range(9)), encoding="utf-8")
    found = read_files([str(log)])
    assert found.speed is not None and found.speed.value == pytest.approx(0.562)


def test_a_file_without_either_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "x.log"
    empty.write_text("nothing here\n", encoding="utf-8")
    with pytest.raises(UserError):
        read_files([str(empty)])
