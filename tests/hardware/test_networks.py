"""Networks from text: links, several links, speeds, and speeds with what carries bytes over them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import Link, link, links, network
from paceline.hardware.networks import by_transport, described, transport, transport_unsaid, transports


@each_row(
    ("text", "name"),
    [
        ("10Gb/s", "Ethernet 10 Gb/s"),
        ("10Gbps", "Ethernet 10 Gb/s"),
        ("1.25GB/s", "Ethernet 10 Gb/s"),
        ("0.1Tb/s", "Ethernet 100 Gb/s"),
        ("1 Gb/s", "Ethernet 1 Gb/s"),
        ("10GbE", "Ethernet 10 Gb/s"),
        ("ib hdr", "InfiniBand HDR"),
        ("nvlink4", "NVLink 4"),
        ("1x EDR", "InfiniBand EDR"),
    ],
)
def test_network_of_the_catalogue(text: str, name: str) -> None:
    assert network(text).name == name


def test_network_of_another_bandwidth() -> None:
    ethernet = network("12Gb/s")
    assert (ethernet.name, ethernet.kind) == ("Ethernet 12.0 Gb/s", "ethernet")
    assert ethernet.bandwidth.value == 1.5e9
    assert ethernet.bandwidth.source == "given by the user"
    assert ethernet.latency.value == link("10GbE").latency.value
    assert ethernet.latency.source.startswith("as Ethernet 10 Gb/s: ")


@given(st.floats(1e3, 1e15))
def test_any_bandwidth_is_kept(bandwidth: float) -> None:
    assert network(f"{bandwidth!r}B/s").bandwidth.value == pytest.approx(bandwidth, rel=1e-3)


def test_several_links() -> None:
    eight = network("8x InfiniBand HDR")
    assert eight.name == "8x InfiniBand HDR"
    assert eight.bandwidth.value == 8 * 25e9
    assert eight.bandwidth.source.startswith("8 x ")
    assert eight.latency == link("HDR").latency
    assert network("4 x 100Gb/s").bandwidth.value == 4 * 12.5e9


@each_row("text", ["", "foo", "Infinyband", "0x EDR", "8x", "8x foo", "10", "10 gb", "-10Gb/s", "10GB"])
def test_no_default_network(text: str) -> None:
    with pytest.raises(UserError):
        network(text)


def test_unknown_network_names_the_nearest_and_the_other_way() -> None:
    with pytest.raises(UserError, match=facts("nearest: InfiniBand EDR", "bandwidth", "10Gb/s")):
        network("Infinyband EDR")


# Speeds as they are written.


@each_row(
    "text",
    [
        "100G",
        "100g",
        "100 G",
        "100GbE",
        "100GE",
        "100 Gbps",
        "100Gb/s Ethernet",
        "ethernet 100Gb/s",
        "100 gigabit",
        "100 Gigabit Ethernet",
    ],
)
def test_a_hundred_gigabits(text: str) -> None:
    assert network(text).name == "Ethernet 100 Gb/s"


def test_any_ethernet_may_be_called_by_its_speed() -> None:
    assert network("800GbE").bandwidth.value == 100e9
    assert network("3,200 Gb/s").bandwidth.value == 400e9
    assert network("8x 400G").bandwidth.value == 400e9


# Transports.


@each_row(
    ("text", "name"),
    [
        ("Slingshot", "Slingshot 11"),
        ("slingshot-11", "Slingshot 11"),
        ("4x Slingshot", "4x Slingshot 11"),
        ("100Gb/s Slingshot", "Slingshot 10"),
        ("Omni-Path", "Omni-Path 100"),
        ("2x OPA", "2x Omni-Path 100"),
        ("400 Gb/s Omni-Path", "Omni-Path 400"),
        ("CN5000", "Omni-Path 400"),
        ("400 Gbps EFA", "EFA 400 Gb/s"),
        ("efa 3200Gb/s", "EFA 3.20 Tb/s"),
        ("3,200 Gb/s EFA", "EFA 3.20 Tb/s"),
        ("200Gb/s RoCE", "RoCE 200 Gb/s"),
        ("RoCE v2 400Gb/s", "RoCE 400 Gb/s"),
        ("100Gb/s RoCE", "RoCE 100 Gb/s"),
        ("TCP 400G", "TCP 400 Gb/s"),
        ("1600Gb/s GPUDirect-TCPXO", "GPUDirect-TCPX 1.60 Tb/s"),
        ("InfiniBand 400 Gb/s", "InfiniBand NDR"),
        ("200G IB", "InfiniBand HDR"),
        ("IB 800 Gb/s", "InfiniBand XDR"),
        ("8x 400Gb/s InfiniBand", "8x InfiniBand NDR"),
        ("8x400Gb/s InfiniBand", "8x InfiniBand NDR"),
    ],
)
def test_a_speed_with_its_transport(text: str, name: str) -> None:
    assert network(text).name == name


def test_transports_differ_in_what_they_carry() -> None:
    remote, plain = network("100Gb/s RoCE"), network("100Gb/s TCP")
    assert remote.bandwidth.value == plain.bandwidth.value
    assert remote.carried is None and remote.latency.value < plain.latency.value
    assert plain.carried is not None and plain.carried.value == pytest.approx(math.sqrt(0.1), rel=1e-3)
    assert network("5Gb/s TCP").carried is None


def rate_and_latency(entry: Link) -> tuple[float, float]:
    return entry.bandwidth.value * (entry.carried.value if entry.carried else 1.0), entry.latency.value


SOLD = [entry.bandwidth.value * 8 / 1.0005 for entry in links() if entry.kind in ("ethernet", "infiniband")]
"""Bits/s just below the speeds of the catalogue, where a threshold would be."""


@given(st.sampled_from(SOLD) | st.floats(1e6, 1e14), st.sampled_from(["", *transports()]))
def test_a_little_more_speed_makes_little_difference_over_every_transport(bits: float, carrier: str) -> None:
    """The rate grows with the speed and no faster than it; the latency never grows, and falls by less than the speed grows."""
    slow, fast = (network(f"{speed / 1e9:.12f}Gb/s {carrier}") for speed in (bits, bits * 1.001))
    (rate, latency), (more, less) = rate_and_latency(slow), rate_and_latency(fast)
    assert more / rate * (1 + 1e-5) >= 1 and more / rate <= 1.001 * (1 + 1e-5)
    assert 1 / 1.001 <= less / latency <= 1


@given(st.floats(1e6, 1e14))
def test_a_speed_alone_costs_what_tcp_costs(bits: float) -> None:
    alone, tcp = network(f"{bits / 1e9:.12f}Gb/s"), network(f"{bits / 1e9:.12f}Gb/s TCP")
    assert rate_and_latency(alone) == pytest.approx(rate_and_latency(tcp))
    assert (transport_unsaid(alone), transport_unsaid(tcp)) == (True, False)


@each_row("text", ["100Gb/s", "400G", "100GbE", "Ethernet 40 Gb/s", "8x 200Gb/s"])
def test_a_speed_alone_may_be_either(text: str) -> None:
    both = by_transport(network(text))
    assert list(both) == ["RDMA", "TCP"]
    assert both["RDMA"].bandwidth == both["TCP"].bandwidth == network(text).bandwidth
    assert rate_and_latency(both["TCP"]) == rate_and_latency(network(text))
    assert both["RDMA"].carried is None and both["RDMA"].latency == network("100Gb/s RoCE").latency
    assert both["RDMA"].name.replace("RoCE", "Ethernet") == network(text).name


@each_row("text", ["100Gb/s RoCE", "TCP 100G", "EFA 400G", "InfiniBand HDR", "8x InfiniBand NDR", "800Gb/s TCPX"])
def test_a_transport_that_is_said_leaves_nothing_open(text: str) -> None:
    assert network(text).transport and not by_transport(network(text))


@each_row(
    ("before", "text", "after"),
    [
        ("100Gb/s RoCE", "400Gb/s", "RoCE 400 Gb/s"),
        ("TCP 100Gb/s", "400G", "TCP 400 Gb/s"),
        ("TCP 100Gb/s", "100GbE", "TCP 100 Gb/s"),
        ("EFA 400G", "3200Gb/s", "EFA 3.20 Tb/s"),
        ("InfiniBand HDR", "400Gb/s", "InfiniBand NDR"),
        ("8x InfiniBand HDR", "3200Gb/s", "InfiniBand 3.20 Tb/s"),
        ("InfiniBand HDR SHARP", "400Gb/s", "InfiniBand NDR SHARP"),
        ("InfiniBand HDR", "400GbE", "Ethernet 400 Gb/s"),
        ("InfiniBand HDR", "8x 400GbE", "8x Ethernet 400 Gb/s"),
        ("100Gb/s RoCE", "400Gb/s TCP", "TCP 400 Gb/s"),
        ("100Gb/s", "400Gb/s", "Ethernet 400 Gb/s"),
        ("NVLink 4", "400Gb/s", "Ethernet 400 Gb/s"),
    ],
)
def test_a_speed_alone_takes_the_transport_of_what_it_replaces(before: str, text: str, after: str) -> None:
    assert network(text, network(before)).name == after


@given(st.floats(1e9, 1e13))
def test_tcp_carries_more_over_a_faster_line_and_never_more_than_it(bits: float) -> None:
    slow, fast = network(f"{bits / 1e9:.6f}Gb/s TCP"), network(f"{2 * bits / 1e9:.6f}Gb/s TCP")
    rates = [entry.bandwidth.value * (entry.carried.value if entry.carried else 1) for entry in (slow, fast)]
    assert rates[0] <= rates[1] * (1 + 1e-9) and rates[1] <= fast.bandwidth.value


@each_row("name", [text for entry in transports().values() for text in (entry.name, *entry.aliases)])
def test_every_name_of_a_transport_finds_it(name: str) -> None:
    for text in (name, name.upper(), name.lower().replace(" ", "-")):
        carrier = transport(text)
        assert carrier is not None and name in (carrier.name, *carrier.aliases)
        assert network(f"640Gb/s {text}").name == f"{carrier.name} 640 Gb/s"


def test_no_alias_means_two_transports() -> None:
    names = [text.casefold() for entry in transports().values() for text in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


@given(st.sampled_from([f"{carrier} {speed}Gb/s" for carrier in transports() for speed in (1, 40, 100, 400, 640, 3200)]))
def test_a_network_is_read_by_the_name_it_gets(text: str) -> None:
    entry = network(text)
    again = network(entry.name)
    assert (again.kind, again.latency.value) == (entry.kind, entry.latency.value)
    assert again.bandwidth.value == pytest.approx(entry.bandwidth.value, rel=5e-3)


@each_row("text", ["100Gb/s foo", "EFA 3200", "RoCE", "10 gb RoCE", "fast 100Gb/s lane", "100GB RoCE", "TCP"])
def test_no_default_transport(text: str) -> None:
    with pytest.raises(UserError):
        network(text)


def test_ethernet_of_the_catalogue_is_unchanged_by_transports() -> None:
    assert {entry.name for entry in links() if entry.kind == "ethernet"} > {"EFA 400 Gb/s", "Ethernet 400 Gb/s"}
    assert network("390Gb/s").latency.source.startswith("as Ethernet 400 Gb/s")


@each_row("text", ["tcp", "RoCE", "infiniband"])
def test_a_transport_alone_needs_a_speed(text: str) -> None:
    with pytest.raises(UserError, match=facts(f"network '{text}'", "no speed", "100Gb/s")):
        network(text)


@each_row(
    ("text", "bytes_per_s"),
    [
        ("8x ConnectX-7 IB NDR 400Gb/s", 400e9),
        ("NVLink (a mesh), InfiniBand 100 Gb/s (1 x EDR)", 12.5e9),
        ("4 x 100 Gb/s RoCE a node", 50e9),
        ("2x HPE Slingshot-11 (aws-ofi-nccl)", 50e9),
    ],
)
def test_descriptions_of_machines_are_networks(text: str, bytes_per_s: float) -> None:
    assert network(text).bandwidth.value == pytest.approx(bytes_per_s)
    found = described(text, 8)
    assert found is not None and found.bandwidth.value == pytest.approx(bytes_per_s)


def test_text_without_a_network_is_refused_as_before() -> None:
    for text in ("NVLink, PCIe", "Mellanox ConnectX-6", "a node"):
        assert described(text) is None
        with pytest.raises(UserError, match="unknown network"):
            network(text)


@each_row(
    ("text", "name"),
    [
        ("Omni-Path 100 Gb/s x 4", "4x Omni-Path 100"),
        ("Omni-Path x4", "4x Omni-Path 100"),
        ("InfiniBand NDR 400Gb/s x8", "8x InfiniBand NDR"),
        ("400G IB (8 per node)", "8x InfiniBand NDR"),
        ("4 NICs of 200Gb/s Slingshot", "4x Slingshot 11"),
        ("InfiniBand NDR x8", "8x InfiniBand NDR"),
        ("400Gb/s RoCE x 4", "4x RoCE 400 Gb/s"),
        ("8x InfiniBand NDR (8 per node)", "8x InfiniBand NDR"),
        ("RoCE v2 3200 Gb/s (8 x 400)", "RoCE 3.20 Tb/s"),
        ("Slingshot 800Gb/s", "Slingshot 800 Gb/s"),
        ("InfiniBand 800Gb/s", "InfiniBand XDR"),
        ("EFA v3 3200Gb/s", "EFA 3.20 Tb/s"),
        ("NDR InfiniBand", "InfiniBand NDR"),
        ("8x EDR IB", "8x InfiniBand EDR"),
        ("NVIDIA Quantum-2 InfiniBand", "InfiniBand NDR"),
        ("Quantum-2 NDR", "InfiniBand NDR"),
        ("SHARP InfiniBand HDR", "InfiniBand HDR SHARP"),
        ("NDR200", "InfiniBand HDR"),
        ("8x NDR200 InfiniBand", "8x InfiniBand HDR"),
        ("InfiniBand HDR100", "InfiniBand EDR"),
        ("NDR400", "InfiniBand NDR"),
    ],
)
def test_number_of_links_anywhere_in_the_text(text: str, name: str) -> None:
    assert network(text).name == name


@pytest.mark.parametrize(
    "text",
    [
        "4x NDR x8",
        "2x 200Gb/s Slingshot (4 per node)",
        "Dual-port HDR 200Gb/s",
        "EFAv2",
        "EFA",
        "EDR200",
        "HDR NDR",
    ],
)
def test_unclear_number_of_links_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        network(text)


def test_lanes_of_a_slot_are_no_links() -> None:
    found = described("ConnectX-7 NDR 400Gb/s PCIe 5.0 x16")
    assert found is not None and found.name == "InfiniBand NDR"
