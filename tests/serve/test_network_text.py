"""Speed and transport of a network are two controls."""

from __future__ import annotations

import pytest

from paceline import hardware
from paceline.serve.network_text import network_text, stated
from paceline.serve.selection import ControlError

NODES = {"device": "H100 SXM", "devices-per-node": "8", "nodes": "2"}


@pytest.mark.parametrize(
    ("network", "transport", "text"),
    [
        ("400Gb/s", "", "400Gb/s"),
        ("400Gb/s", "RoCE", "400Gb/s RoCE"),
        ("100GbE", "RoCE", "100Gb/s RoCE"),
        ("2x 100Gb/s", "TCP", "200Gb/s TCP"),
        ("InfiniBand NDR", "InfiniBand", "InfiniBand NDR"),
        ("EFA", "EFA", "EFA"),
    ],
)
def test_a_transport_belongs_to_a_speed(network: str, transport: str, text: str) -> None:
    assert network_text({**NODES, "network": network, "transport": transport}) == text


def test_a_link_with_another_transport_is_refused_with_its_speed() -> None:
    with pytest.raises(ControlError, match="is InfiniBand, and the transport is TCP; give 3200Gb/s as the network") as caught:
        network_text({**NODES, "network": "InfiniBand NDR", "transport": "TCP"})
    assert caught.value.option == "transport"
    with pytest.raises(ControlError, match="of no network"):
        network_text({**NODES, "transport": "TCP"})
    assert network_text({**NODES, "nodes": "1", "transport": "TCP"}) is None


def test_speed_and_transport_of_a_cluster_mean_its_network_again() -> None:
    cluster = hardware.cluster("H100", 8, 2, "InfiniBand NDR")
    assert stated(cluster) == ("3200Gb/s", "InfiniBand") and stated(hardware.cluster("H100", 8)) == ("", "")
    speed, transport = stated(cluster)
    again = hardware.cluster("H100", 8, 2, network_text({**NODES, "network": speed, "transport": transport}))
    assert again.network.bandwidth.value == cluster.network.bandwidth.value
