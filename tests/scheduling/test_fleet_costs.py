"""Price and power of the types of a cluster, with their sources."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, NodeGroup, with_costs


def test_listings_and_board_limits_are_filled_in() -> None:
    fleet, notes = with_costs(Fleet.named("2x4xT4 + 1x8xA30"))
    t4, a30 = fleet.groups
    assert (t4.watts, a30.watts) == (70, 165) and t4.price > 0 and a30.price == 0
    assert "its board's limit" in notes[0] and "(AWS" in notes[0] and notes[1].startswith("A30: price unknown; 165 W")


def test_what_is_given_stays() -> None:
    (group,) = with_costs(Fleet((NodeGroup.of("T4", 1, 1, price=9.0, watts=5.0),)))[0].groups
    assert (group.price, group.watts) == (9, 5)
    assert with_costs(Fleet.named("2x4xT4"), {"": 2.0})[0].groups[0].price == 2
    two = Fleet.named("2x4xT4 + 1x8x2080Ti")
    assert [group.price for group in with_costs(two, {"RTX 2080 Ti": 0.5, "T4": 3.0})[0].groups] == [3, 0.5]
    with pytest.raises(UserError, match="without a device"):
        with_costs(two, {"": 2.0})


def test_a_price_of_a_device_that_no_node_has_is_refused() -> None:
    two = Fleet.named("2x4xT4 + 1x8x2080Ti")
    for name in ("H100 SXM 80GB", "p5.48xlarge"):
        with pytest.raises(UserError, match=f"a price of {name}; price what the cluster has: T4, RTX 2080 Ti"):
            with_costs(two, {"T4": 1.0, name: 1.0})
    (group,) = with_costs(Fleet.named("1x8xH100"), {"p5.48xlarge": 16.0})[0].groups
    assert group.price == 2
