"""Hosts against what their sources say, and the part that each device gets."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.hardware import Fact, device, devices
from paceline.hardware.hosts import host_of, host_share, hosts, missing_host


def test_every_device_names_a_host_that_exists() -> None:
    named = {one.host for one in devices() if one.host}
    assert named <= hosts().keys()
    assert {one.name for one in devices() if missing_host(one)} == {
        *("Gaudi", "Gaudi 2", "Gaudi 3", "IPU GC200", "IPU Bow", "Trainium", "Trainium 2", "Trainium 3"),
        *("Ascend 910B", "Ascend 910C", "Xeon Platinum 8380"),
        *("GB10", "Jetson AGX Orin 64GB", "Jetson AGX Orin 32GB", "Jetson Orin NX 16GB", "Jetson Orin Nano 8GB"),
    }
    for one in hosts().values():
        assert one.devices >= 1 and one.uplink >= 1 and 1e10 < one.memory_bandwidth.value < 2e12 and one.cores >= 8
        assert all("<http" in text or re.match(r"(assumption|definition): ", text) for text in (one.source,))
        assert not one.larger or one.larger in hosts()
        assert one.name in named or one.name in {other.larger for other in hosts().values()}


def test_devices_of_a_node_share_memory_cores_and_links() -> None:
    a100 = host_share(device("A100"), 8)
    assert (a100.memory_bandwidth, a100.cores, a100.link_share) == (409.6e9 / 8, 16, 0.5)
    alone = host_share(device("A100"), 1)  # a slice of the node, with a switch that no other uses
    assert (alone.memory_bandwidth, alone.cores, alone.link_share) == (a100.memory_bandwidth, 16, 1)
    assert host_share(device("V100 SXM3 32GB"), 16).link_share == 0.25  # 3 GB/s each, as ZeRO-Infinity measured


def test_a_desktop_holds_two_boards_and_a_server_more() -> None:
    one, two, four = (host_share(device("RTX 3090"), count) for count in (1, 2, 4))
    assert one.host == two.host == "desktop, PCIe 4.0" and four.host == "server, PCIe 4.0"
    assert two.memory_bandwidth == one.memory_bandwidth / 2 and (one.link_share, two.link_share) == (1, 0.5)


def test_a_superchip_has_its_own_host() -> None:
    gh200, gb200 = (host_share(device(name), 8) for name in ("GH200", "GB200"))
    assert (gh200.memory_bandwidth, gh200.cores, gh200.ranks) == (384e9, 72, 1)
    assert (gb200.memory_bandwidth, gb200.cores, gb200.ranks) == (256e9, 36, 2)
    assert (gh200.link.bandwidth.value * gh200.link_share, gb200.link.bandwidth.value * gb200.link_share) == (450e9, 225e9)
    assert hosts()["Grace, two devices"].node_memory(8) == 4 * hosts()["Grace, two devices"].memory.value


def test_a_device_may_state_its_rate_and_an_unknown_host_is_refused() -> None:
    own = replace(device("A100"), host="", host_bandwidth=Fact(5e10, "own", ""))
    assert host_share(own, 4).memory_bandwidth == 5e10 and host_of(own) is None
    assert host_share(replace(own, host="DGX A100"), 8).memory_bandwidth == 5e10
    with pytest.raises(UserError, match="the link to the host of Trainium is not in the catalogue"):
        host_share(device("Trainium"))
    with pytest.raises(UserError, match="the host of A100 SXM 80GB is not in the catalogue"):
        host_share(replace(own, host_bandwidth=None))
