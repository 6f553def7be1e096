"""Outputs of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.calibration.imports.device_state import DeviceState, device_states
from paceline.calibration.imports.run_files import read_run
from paceline.errors import UserError

FILES = Path(__file__).parent / "files"
MIB = 2.0**20


@pytest.mark.parametrize(
    ("name", "states"),
    [
        (
            "nvidia_smi.txt",
            [
                DeviceState(
                    index=0,
                    name="A100-SXM-80GB",
                    utilization=0.84,
                    power_w=175,
                    power_limit_w=400,
                    memory_bytes=33717 * MIB,
                    memory_total_bytes=81252 * MIB,
                    temperature_c=61,
                    performance_state="P0",
                )
            ],
        ),
        (
            "nvidia_smi_query.csv",
            [
                DeviceState(
                    index=index,
                    name="NVIDIA H100 80GB HBM3",
                    utilization=use,
                    power_w=power,
                    power_limit_w=700,
                    memory_bytes=71234 * MIB,
                    memory_total_bytes=81559 * MIB,
                    clock_mhz=clock,
                    max_clock_mhz=1980,
                    readings=3,
                )
                for index, use, power, clock in ((0, 0.97, 651.0, 1400), (1, 0.98, 645.1, 1980))
            ],
        ),
        (
            "nvidia_smi_dmon.txt",
            [
                DeviceState(index=index, utilization=use, power_w=power, temperature_c=degrees, clock_mhz=1410, readings=2)
                for index, use, power, degrees in ((0, 0.43, 311, 64), (1, 0.42, 303, 63))
            ],
        ),
        (
            "nvidia_smi_long.txt",
            [
                DeviceState(
                    index=0,
                    name="NVIDIA GeForce RTX 4090",
                    utilization=0.99,
                    power_w=448.1,
                    power_limit_w=450,
                    memory_bytes=21034 * MIB,
                    memory_total_bytes=24564 * MIB,
                    clock_mhz=2310,
                    max_clock_mhz=3105,
                    temperature_c=71,
                    performance_state="P2",
                    slowed_by=("SW Power Cap",),
                )
            ],
        ),
    ],
)
def test_each_form_is_read(name: str, states: list[DeviceState]) -> None:
    assert list(device_states((FILES / name).read_text().splitlines(keepends=True))) == states
    run = read_run(FILES / name)
    assert (run.kind, run.step_s, run.peak_memory_bytes) == ("nvidia-smi", None, states[0].memory_bytes)
    with pytest.raises(UserError, match=r"is the output of nvidia-smi; .*; it states no step times; give a log"):
        _ = run.steady


def test_values_that_are_not_available_are_left_out() -> None:
    line = "|   0  Tesla T4            Off  | 00000000:00:04.0 Off |                    0 |\n"
    use = "| N/A   36C    P8    N/A / 70W |      0MiB / 15360MiB |     N/A      Default |\n"
    (state,) = device_states([line, use])
    assert (state.name, state.power_w, state.utilization, state.power_limit_w) == ("Tesla T4", None, None, 70)
    assert state.describe() == "Tesla T4: 0 B of 15.0 GiB, 36 C"
