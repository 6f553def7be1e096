"""Slices of GPUs are devices of a fleet."""

from __future__ import annotations

import pytest

import paceline
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.mig_slices import PROFILES, slice_type
from scheduling_toys import rigid


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100 1g.5gb", ("A100 1g.5gb", "A100 SXM 40GB", 7, 0)),
        ("a100_1g.10gb", ("A100 1g.10gb", "A100 SXM 80GB", 7, 0)),
        ("A100 PCIe 40GB 3g.20gb", ("A100 3g.20gb", "A100 PCIe 40GB", 2, 0)),
        ("H100 MIG 2x3g.40gb", ("H100 3g.40gb", "H100 SXM", 2, 2)),
        ("NVIDIA A30 MIG 1g.6gb", ("A30 1g.6gb", "A30", 4, 0)),
    ],
)
def test_a_slice_is_named_by_its_device_and_profile(name: str, expected: tuple[str, str, int, int]) -> None:
    found = slice_type(name)
    assert found is not None and (found.name, found.device, found.most, found.count) == expected


def test_what_is_no_slice_is_none_or_refused() -> None:
    assert slice_type("A100") is None and slice_type("A100 SXM 40GB") is None
    for name, says in (("H100 1g.5gb", "legal: 1g.10gb"), ("V100 1g.5gb", "slices of A100"), ("A100 4x3g.20gb", "2 at most")):
        with pytest.raises(UserError, match=says):
            slice_type(name)
    for slices in PROFILES.values():  # no profile promises more than the seven compute slices, or the four of an A30
        assert all(int(profile[0]) * count <= 7 for profile, count in slices.items())


def test_a_fleet_has_slices_with_their_part_of_price_and_power() -> None:
    fleet = Fleet.named("2x8xA100 7x1g.5gb + 1x8xA100")
    assert fleet.types == ("A100 1g.5gb", "A100 SXM 80GB") and fleet.devices == 2 * 56 + 8
    assert Fleet.named("2x56xA100 1g.5gb").devices == 112
    jobs = [rigid("slices", 60, 3, device_types=("a100_1g.5gb",)), rigid("whole", 60, 8, device_types=("A100",))]
    simulated = paceline.schedule(jobs, fleet, "fifo", prices={"A100 SXM 40GB": 7.0, "A100 SXM 80GB": 2.0})
    assert [outcome.spans[0].device for outcome in simulated.schedule.outcomes] == list(fleet.types)
    small, large = (group for group in simulated.schedule.fleet.groups)
    assert small.price == pytest.approx(1.0) and large.price == 2.0 and small.watts == pytest.approx(400 / 7)
