"""What a lab is made of, without making one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.lab.topology import INTERFACE, MIN_BURST, PREFIX, WIRE, burst, card_queue, queue, receive_window, topology


def lines(*args: object, **more: object) -> list[str]:
    return [" ".join(command) for command in topology(*args, **more).commands()]  # type: ignore[arg-type]


def test_names_and_addresses() -> None:
    made = topology(3, "1Gb/s", "my-lab")
    assert made.namespaces == ("paceline-my-lab-switch", "paceline-my-lab-h0", "paceline-my-lab-h1", "paceline-my-lab-h2")
    assert made.addresses == ("10.77.0.1", "10.77.0.2", "10.77.0.3")
    assert made.link == 125e6


def test_every_command_stays_inside_the_labs_namespaces() -> None:
    cards = topology(2, "1Gb/s", latency="1ms", nic="inceptionn", nic_ports="30000-40000", mtu=9000, ipv6=True)
    for command in [*topology(4, "1Gb/s").commands(), *cards.commands()]:
        inside = command[1] == "-n" and command[2].startswith(PREFIX)
        assert inside or command[1].startswith(f"--net=/var/run/netns/{PREFIX}"), command


def test_a_bucket_each_way() -> None:
    bucket = "root tbf rate 1000000000bit burst 125000 limit 2500000"
    found = lines(2, "1Gb/s")
    for host in (0, 1):
        assert f"tc -n paceline-lab-h{host} qdisc add dev {INTERFACE} {bucket}" in found
        assert f"tc -n paceline-lab-switch qdisc add dev p{host} {bucket}" in found


def test_latency_comes_once_on_each_way_and_in_front_of_the_bucket() -> None:
    found = [line for line in lines(2, "1Gb/s", latency="100us") if "qdisc" in line]
    netem = [line for line in found if "netem" in line]
    assert netem == [
        f"tc -n paceline-lab-h{host} qdisc add dev pl0 root handle 1: netem limit 100000 delay 100us" for host in (0, 1)
    ]
    assert sum("parent 1:1 handle 10: tbf" in line for line in found) == 2 and len(found) == 6
    assert not any("netem" in line for line in lines(2, "1Gb/s"))


def test_a_card_is_between_a_host_and_its_cable() -> None:
    found = lines(2, "1Gb/s", latency="100us", nic="inceptionn")
    for host in ("paceline-lab-h0", "paceline-lab-h1"):
        assert f"ip -n {host} tuntap add dev {INTERFACE} mode tap" in found
        assert f"ip -n {host} link set {WIRE} arp off" in found
        assert not any("addr add" in line and WIRE in line for line in found)
        shaped = [line for line in found if f"-n {host} qdisc" in line]
        assert len(shaped) == 2 and all(f"dev {WIRE}" in line for line in shaped)  # latency and bucket are the cable's
    assert not any(WIRE in line or "tuntap" in line for line in lines(2, "1Gb/s"))


def test_large_frames_are_for_every_end_of_every_cable_and_ports_for_every_host() -> None:
    found = lines(2, "1Gb/s", nic="inceptionn", mtu=9000, nic_ports="30000-40000")
    ends = [line.split()[2:6] for line in found if line.endswith("mtu 9000")]
    assert sorted((end[0][-6:], end[3]) for end in ends) == [
        *(("lab-h0", INTERFACE), ("lab-h0", WIRE), ("lab-h1", INTERFACE), ("lab-h1", WIRE)),
        *(("switch", "p0"), ("switch", "p1")),
    ]
    rules = [line for line in found if "nft" in line]
    assert len(rules) == 2 and all(rule.count("30000-40000") == 4 and rule.count("dscp set 0x0a") == 4 for rule in rules)
    assert not any("mtu" in line or "nft" in line for line in lines(2, "1Gb/s", nic="inceptionn"))


@given(st.floats(min_value=125e3, max_value=50e9), st.none() | st.floats(1e-6, 0.1))
def test_what_waits_for_a_card_is_bounded_and_enough(link: float, latency: float | None) -> None:
    made = topology(2, link, latency=latency, nic="inceptionn")
    assert card_queue(made) >= 2 * MIN_BURST + 2 * link * (latency or 0) - 1
    window = receive_window(made)
    assert 512 << 10 <= window <= 32 << 20
    assert window >= min(32 << 20, link * (latency or 0) * 32 - 1)


@given(st.floats(min_value=125e3, max_value=50e9))
def test_a_bucket_holds_a_packet_and_a_queue_holds_a_bucket(link: float) -> None:
    assert burst(link) >= MIN_BURST
    assert burst(link) <= max(MIN_BURST, link / 500)
    assert queue(link) >= 10 * burst(link)


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"hosts": 0}, "0 hosts", "from 1 to 250"),
        ({"hosts": 251}, "251 hosts", "from 1 to 250"),
        ({"link": "1Gbs"}, "'1Gbs' is not a bandwidth", "10Gb/s"),
        ({"link": "1kb/s"}, "a link of 1.00 kb/s", "at least 1.00 Mb/s"),
        ({"link": float("nan")}, "a link of", "at least"),
        ({"latency": "100"}, "'100' is not a time", "100us"),
        ({"latency": "1ns"}, "a latency of 1.00 ns", "from 1us"),
        ({"name": "../x"}, "'../x' is not a lab's name", "a to z"),
        ({"name": "a" * 31}, "is not a lab's name", "up to 30"),
        ({"name": "Lab"}, "is not a lab's name", "a to z"),
        ({"name": "-a"}, "is not a lab's name", "a to z"),
        ({"nic": "int8"}, "unknown codec of a card 'int8'", ""),
        ({"link": None, "nic": "inceptionn"}, "loopback has no network cards", "give a link"),
        ({"link": None, "ipv6": True}, "loopback has no IPv6", "give a link"),
        ({"link": None, "mtu": 9000}, "loopback has no MTU", "give a link"),
        ({"mtu": 1000}, "an MTU of 1000 B", "from 1280 to 9216"),
        ({"nic_ports": "1-2"}, "ports are marked for network cards", "--nic"),
        ({"nic": "inceptionn", "nic_ports": "9-3"}, "'9-3' are no ports", "20000-30000"),
        ({"nic": "inceptionn", "nic_ports": "x"}, "'x' are no ports", "20000-30000"),
    ],
    ids=str,
)
def test_what_cannot_be(given: dict[str, object], what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        topology(**{"hosts": 4, "link": "1Gb/s", **given})  # type: ignore[arg-type]
    assert what in caught.value.message and fix in caught.value.fix


def test_a_difference_is_in_words() -> None:
    one = topology(4, "1Gb/s")
    assert one.difference(topology(4, "1000Mb/s")) == ""
    assert one.difference(topology(3, "1Gb/s")) == "4 hosts, not 3"
    text = one.difference(topology(4, "10Gb/s", latency="1ms"))
    assert text == "1.00 Gb/s each way, not 10.0 Gb/s each way and no latency, not a latency of 1.00 ms"
    card = topology(4, "1Gb/s", nic="inceptionn", nic_ports="7", mtu=9000, ipv6=True)
    assert card.difference(topology(4, "1Gb/s", nic="inceptionn,bound=2^-10", nic_ports="7-7", mtu=9000, ipv6=True)) == ""
    assert card.difference(one) == (
        "cards inceptionn,bound=2^-10, not no cards and ports 7-7 marked, not no ports marked "
        "and an MTU of 9000 B, not 1500 B and IPv6, not IPv4 alone"
    )
    assert topology(4, None).difference(one) == "loopback, not 1.00 Gb/s each way"
