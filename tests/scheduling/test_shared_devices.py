"""Fractions of devices share one device and never straddle two."""

from __future__ import annotations

from paceline.scheduling.shared_devices import SharedDevices, best_fit


def test_a_fraction_goes_to_the_fullest_device_that_has_room() -> None:
    assert best_fit([0.3, 0.5, 0.9], 0.4) == 1 and best_fit([0.7, 0.8], 0.4) is None
    shared = SharedDevices()
    assert [shared.join(name, 0, share) for name, share in (("a", 0.46), ("b", 0.46), ("c", 0.46))] == [1, 0, 1]
    assert shared.join("d", 0, 0.08) == 0 and [round(load, 2) for load in shared.loads()[0]] == [1.0, 0.46]
    assert [shared.leave(name, 0) for name in "abdc"] == [0, 0, 1, 1] and not shared.loads()
