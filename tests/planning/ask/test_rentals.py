"""Every listing of a price as clusters, each by its cheapest listing."""

from __future__ import annotations

import pytest

from paceline.hardware import device
from paceline.hardware.prices import every_listing
from paceline.planning.ask.rentals import Rental, rentals


def shape(rental: Rental) -> tuple[str, int, int]:
    return rental.cluster.device.name, rental.cluster.devices_per_node, rental.cluster.num_nodes


def test_every_gpu_of_a_data_centre_can_be_rented() -> None:
    let = {x.device for x in every_listing() if not x.market and device(x.device).kind == "gpu"}
    assert {rental.cluster.device.name for rental in rentals()} == let


def test_a_listing_without_an_instance_is_one_node() -> None:
    """Nobody says what joins several nodes there."""
    ada = [rental for rental in rentals() if rental.cluster.device.name == "RTX 6000 Ada"]
    assert [shape(rental)[1:] for rental in ada] == [(1, 1), (2, 1), (4, 1), (8, 1)]
    assert {rental.listing.provider for rental in ada} == {"Verda"}


def test_an_instance_has_its_network_and_several_nodes() -> None:
    p4de = [rental for rental in rentals() if rental.listing.provider == "AWS p4de.24xlarge"]
    assert [shape(rental)[1:] for rental in p4de] == [(8, 2), (8, 4), (8, 8)]
    assert {rental.cluster.network.name for rental in p4de} == {"EFA 400 Gb/s"}


def test_each_cluster_has_its_cheapest_listing() -> None:
    own = [(*shape(rental), rental.cluster.network.name) for rental in rentals()]
    assert len(own) == len(set(own))
    (eight,) = [rental for rental in rentals() if shape(rental) == ("H100 SXM", 8, 1)]
    least = min(x.usd_per_hour([8]) for x in every_listing() if x.device == "H100 SXM" and not x.market) / 8
    assert eight.usd_per_device_hour == pytest.approx(least)


def test_the_users_own_price_stands_before_the_listings() -> None:
    own = rentals({"H100 SXM": 1.5})
    assert {rental.usd_per_device_hour for rental in own if rental.cluster.device.name == "H100 SXM"} == {1.5}
    assert {rental.usd_per_device_hour for rental in own if rental.cluster.device.name == "B200"} != {1.5}
