"""Every listing of a price as clusters, each by its cheapest listing."""

from __future__ import annotations

import pytest

from paceline.hardware.prices import every_listing
from paceline.planning.ask.rentals import Rental, rentals


def shape(rental: Rental) -> tuple[str, int, int]:
    return rental.cluster.device.name, rental.cluster.devices_per_node, rental.cluster.num_nodes


def test_every_listed_device_can_be_rented() -> None:
    assert {rental.cluster.device.name for rental in rentals()} == {listing.device for listing in every_listing()}


def test_a_listing_without_an_instance_is_one_node() -> None:
    """Nobody says what joins several nodes there."""
    h200 = [rental for rental in rentals() if rental.cluster.device.name == "H200"]
    assert [shape(rental) for rental in h200] == [("H200", 8, 1)]
    assert h200[0].listing.provider == "Nebius, 8 a node"


def test_an_instance_has_its_network_and_several_nodes() -> None:
    p4de = [rental for rental in rentals() if rental.cluster.device.name == "A100 SXM 80GB"]
    assert [shape(rental)[1:] for rental in p4de] == [(8, 1), (8, 2), (8, 4), (8, 8)]
    assert {rental.cluster.network.name for rental in p4de if rental.cluster.num_nodes > 1} == {"EFA 400 Gb/s"}


def test_each_cluster_has_its_cheapest_listing() -> None:
    own = [(*shape(rental), rental.cluster.network.name) for rental in rentals()]
    assert len(own) == len(set(own))
    (eight,) = [rental for rental in rentals() if shape(rental) == ("H100 SXM", 8, 1)]
    least = min(x.usd_per_hour([8]) for x in every_listing() if x.device == "H100 SXM") / 8
    assert eight.usd_per_device_hour == pytest.approx(least)


def test_the_users_own_price_stands_before_the_listings() -> None:
    own = rentals({"H100 SXM": 1.5})
    assert {rental.usd_per_device_hour for rental in own if rental.cluster.device.name == "H100 SXM"} == {1.5}
    assert {rental.usd_per_device_hour for rental in own if rental.cluster.device.name == "B200"} != {1.5}
