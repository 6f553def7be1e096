"""What a lab is made of, without making one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.lab.topology import INTERFACE, MIN_BURST, PREFIX, burst, queue, topology


def lines(*args: object, **more: object) -> list[str]:
    return [" ".join(command) for command in topology(*args, **more).commands()]  # type: ignore[arg-type]


def test_names_and_addresses() -> None:
    made = topology(3, "1Gb/s", "my-lab")
    assert made.namespaces == ("paceline-my-lab-switch", "paceline-my-lab-h0", "paceline-my-lab-h1", "paceline-my-lab-h2")
    assert made.addresses == ("10.77.0.1", "10.77.0.2", "10.77.0.3")
    assert made.link == 125e6


def test_every_command_stays_inside_the_labs_namespaces() -> None:
    for command in topology(4, "1Gb/s").commands():
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
    assert topology(4, None).difference(one) == "loopback, not 1.00 Gb/s each way"
