"""Prices say when and where they were listed, and the user's own come first."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.hardware import devices
from paceline.hardware.prices import (
    VARIABLE,
    Price,
    cheapest,
    dollars_text,
    listing_of_cluster,
    listings,
    listings_of_clusters,
    of_devices,
    parse_prices,
    price,
)

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[3] / "shared")) / "data/measured/cloud_prices.csv"
ALL = [one for device in devices() for one in listings(device.name)]


def test_every_listing_has_its_date_and_its_source() -> None:
    assert len(ALL) >= 150
    for one in ALL:
        assert one.usd_per_device_hour > 0 and one.provider and len(one.source) > 15
        assert one.date == "undated" or re.fullmatch(r"20\d\d(-\d\d){0,2}", one.date)
        assert one.date in str(one) and one.source in str(one)
        assert 0 < (one.spot_usd_per_device_hour or 0.01) < one.usd_per_device_hour < 20


def test_machines_are_rented_whole() -> None:
    """AWS lets p4de as eight A100, p5 as one H100 or eight, p3 as one V100, four or eight."""
    for name, hourly in (
        ("A100 SXM 80GB", {1: 27.44705, 2: 27.44705, 8: 27.44705}),
        ("H100", {1: 6.88, 2: 55.04, 8: 55.04}),
        ("V100", {1: 3.06, 2: 12.24, 4: 12.24, 8: 24.48}),
    ):
        listing = next(x for x in listings(name) if x.seller == "AWS" and x.machines)
        assert "a node of fewer devices costs a whole one" in str(listing)
        assert {n: listing.usd_per_hour([n]) for n in hourly} == pytest.approx(hourly)
        assert listing.usd_per_hour([8] * 3) == pytest.approx(3 * hourly[8])
        assert listing.usd_per_hour([1] * 4) == pytest.approx(4 * hourly[1])


def test_more_devices_than_a_machine_has_take_several() -> None:
    listing = price("A100", {"p4de.24xlarge": 24.0})
    assert listing and listing.usd_per_hour([16]) == 48.0
    assert listing.usd_per_device_hour == 3.0 and listing.usd_per_hour([1, 7]) == 48.0


def test_a_device_without_machines_is_rented_by_number() -> None:
    listing = next(x for x in listings("H100") if x.provider == "RunPod Secure")
    assert listing.terms == "" and listing.usd_per_hour([3]) == pytest.approx(3 * 3.99)


@pytest.mark.parametrize("listing", [x for x in ALL if x.machines], ids=str)
def test_a_machine_costs_what_its_devices_do(listing: Price) -> None:
    size, usd = listing.machines[-1]
    assert usd / size == pytest.approx(listing.usd_per_device_hour, rel=1e-3)


def test_the_users_price_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parse_prices(["p5.48xlarge=$50"])
    own = price("H100", whole)
    assert whole == {"p5.48xlarge": 50.0} and own and own.usd_per_device_hour == 6.25 and own.machines == ((8, 50.0),)
    given = parse_prices(["1.5", "h100=$2.50"])
    assert given == {"": 1.5, "H100 SXM": 2.5}
    for name, dollars in (("H100", 2.5), ("RTX 3090", 1.5)):  # no name: of the device that is asked about
        one = price(name, of_devices(given, ["RTX 3090"]))
        assert one and one.usd_per_device_hour == dollars and "given by the user" in str(one)
    assert price("Gaudi 3") is None
    mine = tmp_path / "mine.toml"
    mine.write_text('[[price]]\ndevice = "A100"\nprovider = "us"\nusd_per_device_hour = 0.7\ndate = "2026-11-21"\n')
    monkeypatch.setenv(VARIABLE, str(mine))
    one = price("A100")
    assert one and (one.usd_per_device_hour, one.provider) == (0.7, "us")
    assert price("H100") == cheapest("H100") != one


def test_the_cheapest_that_lets_such_nodes_is_taken() -> None:
    single, eight, nodes = (cheapest("H100", sizes) for sizes in ((1,), (8,), (8, 8)))
    assert single and eight and nodes
    assert single.usd_per_hour([1]) == min(x.usd_per_hour([1]) for x in listings("H100") if not x.market)
    assert eight.usd_per_hour([8]) == min(x.usd_per_hour([8]) for x in listings("H100") if not x.market)
    joined = [x.usd_per_hour([8, 8]) for x in listings("H100") if x.machines and x.machines[-1][0] >= 8 and not x.alone]
    assert nodes.machines and nodes.usd_per_hour([8, 8]) == min(joined)
    assert cheapest("RTX 3090") is None or price("RTX 3090") == cheapest("RTX 3090")


def test_a_marketplace_is_asked_where_no_data_centre_lists_the_device() -> None:
    for name in ("RTX 4090", "H100"):
        taken = cheapest(name)
        assert taken and not taken.market
        assert min(x.usd_per_device_hour for x in listings(name) if x.market) < taken.usd_per_device_hour
    vast = price("GTX 1080 Ti")
    assert vast and vast.market and vast.seller == "Vast"


RENTED = """RTX 3090, RTX 4090, RTX 5090, A10G, A100 SXM 40GB, A100 SXM 80GB, A100 PCIe 80GB, H100 PCIe, H100 NVL, H100 SXM,
H200, B200, B300, GB200, GH200, L4, L40, L40S, T4, A10, A40, RTX A6000, RTX 6000 Ada, V100 SXM2 16GB, MI300X, MI325X, MI355X,
Gaudi, Trainium, Trainium 2, TPU v2, TPU v3, TPU v4, TPU v5e, TPU v5p, TPU v6e, RTX PRO 6000 Server, RTX A4000"""
"""Devices that are commonly rented."""


def test_what_people_rent_has_a_price_and_lists_are_sorted() -> None:
    for name in RENTED.replace("\n", " ").split(", "):
        assert listings(name), name
    for device in devices():
        listed = [(x.market, x.usd_per_device_hour) for x in listings(device.name)]
        assert listed == sorted(listed), device.name
    assert len(ALL) <= 170 and len({x.device for x in ALL}) >= 100


def test_the_age_of_a_listing_is_in_its_text() -> None:
    old, undated = price("K80"), price("TPU v4")
    assert old and old.listed == "AWS p2.8xlarge, listed 2017-03"
    assert undated and undated.listed == "GCP, undated"


def test_several_nodes_are_let_with_a_network_between_them() -> None:
    for name in ("V100", "H100", "A100", "B200"):
        nodes = cheapest(name, (8, 8))
        assert nodes and nodes.joins and not nodes.alone


@pytest.mark.parametrize("text", ["free", "-1", "H100=", "=3", "nan", "inf"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a price"):
        parse_prices([text])


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="H100"):
        parse_prices(["H1000=3"])


MACHINES = "[[price]]\ndevice = 'A100'\nprovider = 'us'\nusd_per_device_hour = 1\ndate = '2026'\nmachines = {0 = 1}"


@pytest.mark.parametrize("text", ["no toml", "[[price]]\ndevice = 'A100'", "price = 3", MACHINES])
def test_a_broken_file_is_one_line(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    monkeypatch.setenv(VARIABLE, str(mine))
    with pytest.raises(UserError, match=r"is not (a file of prices|TOML: .*; its form is that of hardware/prices\.toml)"):
        price("A100")


@pytest.mark.skipif(not SHARED.exists(), reason="needs the collected prices: PACELINE_SHARED names them")
def test_the_listings_are_those_that_were_collected() -> None:
    with SHARED.open() as file:
        seen = {(r["provider_instance"], float(r["usd_per_gpu_hour"])) for r in csv.DictReader(file) if r["usd_per_gpu_hour"]}
    for one in ALL:
        instance = one.provider.split(", ")[0]
        values = [dollars for name, dollars in seen if name.startswith(instance)]
        if values and one.date == "2026-11":  # the others are of other days
            assert any(one.usd_per_device_hour == pytest.approx(v, rel=0.01) for v in values), one


def test_a_price_without_a_name_is_of_the_only_device() -> None:
    assert of_devices({"": 2.0, "B200": 5.0}, {"H100 SXM"}) == {"H100 SXM": 2.0, "B200": 5.0}
    assert of_devices({"B200": 5.0}, ()) == {"B200": 5.0} and of_devices(None, {"B200"}) is None
    for several, which in ((("B200", "H100 SXM"), "one of B200, H100 SXM: B200=2"), ((), "a device: H100=2, or name")):
        with pytest.raises(UserError, match=f"a price of 2 without a device; write it for {which}"):
            of_devices({"": 2.0}, several)


def test_a_bridge_is_in_the_price_of_its_board() -> None:
    pair, board = price("A100 PCIe 80GB NVLink"), price("A100 PCIe 80GB")
    assert pair is not None and pair == board
    own = price("A100 PCIe 80GB NVLink", {"A100 PCIe 80GB NVLink": 1.5})
    assert own is not None and own.usd_per_device_hour == 1.5
    of_board = price("A100 PCIe 80GB NVLink", {"A100 PCIe 80GB": 1.25})
    assert of_board is not None and of_board.usd_per_device_hour == 1.25


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("2 nodes of p5.48xlarge", "AWS p5.48xlarge"),
        ("2x p5.48xlarge", "AWS p5.48xlarge"),
        ("8 p5.48xlarge, EFA", "AWS p5.48xlarge"),
        ("BM.GPU.H100.8", "OCI BM.GPU.H100.8"),
        ("DGX H100", None),
        ("8 H100", None),
        ("", None),
    ],
)
def test_the_listing_of_the_instance_that_a_cluster_names(text: str, provider: str | None) -> None:
    listing = listing_of_cluster(text)
    assert (listing.provider if listing else None) == provider


def test_whole_machines_are_billed() -> None:
    p4de = next(x for x in listings("A100 SXM 80GB") if x.provider == "AWS p4de.24xlarge")
    assert (p4de.billed([1]), p4de.billed([8, 3]), p4de.billed([9])) == (8, 16, 16)
    assert listings("H200")[0].billed([3]) == 3


@pytest.mark.parametrize(("usd", "text"), [(2.1, "$2.10"), (3.4309, "$3.431"), (12.29, "$12.29"), (0.40, "$0.40")])
def test_an_hours_price_has_whole_cents(usd: float, text: str) -> None:
    assert dollars_text(usd) == text


def test_two_instances_of_one_device_have_no_price_of_their_own() -> None:
    assert set(listings_of_clusters(["p5.48xlarge", "p4de.24xlarge", "8 L4"])) == {"H100 SXM", "A100 SXM 80GB"}
    assert listings_of_clusters(["p5.48xlarge", "Azure ND H100 v5"]) == {}


def test_a_provider_in_the_clusters_text_sets_the_price() -> None:
    listed = listing_of_cluster("8x A100-40GB on GCP")
    assert listed is not None and listed.seller == "GCP"
    amazon = listing_of_cluster("amazon 8 A100 40GB")
    assert amazon is not None and amazon.seller == "AWS"
    assert listing_of_cluster("8 A100 40GB") is None
