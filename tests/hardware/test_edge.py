"""Edge processors: names, and figures that fit one another."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.hardware.edge import edge_device, edge_devices


def test_names_are_found_however_they_are_written() -> None:
    assert edge_device("raspberry-pi 5") is edge_device("Pi 5")
    with pytest.raises(UserError, match="Raspberry Pi 4"):
        edge_device("raspbery pi 4")


def test_every_figure_names_its_source_and_fits_the_others() -> None:
    for device in edge_devices():
        for fact in (device.one_core, device.all_cores, device.bandwidth, device.vector):
            assert "https://" in fact.source and fact.date
        slower = 0.8 if " and two of " in device.all_cores.source or " and three of " in device.all_cores.source else 1.0
        assert slower <= 1.01 * device.all_cores.value / (device.cores * device.one_core.value) <= 1.02
        assert 1e9 < device.bandwidth.value < 1e11 and device.vector.value in (128, 256, 512)


def test_more_threads_than_cores_bring_nothing() -> None:
    pi = edge_device("Raspberry Pi 4")
    assert pi.peak(1) == pi.one_core.value and pi.peak(2) == 2 * pi.peak(1) and pi.peak(64) == pi.all_cores.value
