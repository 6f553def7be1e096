"""Machines as people write them: a table of phrasings with what each means, and every form read back."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.phrases.machine_phrase import machine_phrase
from paceline.units import format_bandwidth
from phrasings import Row, rows
from processor_budget import slowness


def check(row: Row) -> None:
    """A phrase means the device, the numbers and the network of its row, or is refused with the row's hint."""
    if row["hint"]:
        with pytest.raises(UserError) as refused:
            Cluster.named(row["text"])
        assert row["hint"].lower() in str(refused.value).lower(), str(refused.value)
        return
    cluster = Cluster.named(row["text"])
    found = (cluster.device.name, cluster.node_text, str(cluster.num_nodes))
    assert found == (row["device"], row["devices"], row["nodes"])
    assert not row["network"] or cluster.network.name == row["network"]


@each_row("row", [*rows("machine_phrasings.csv"), *rows("unseen_phrasings.csv")])
def test_a_phrase_means_its_machines(row: Row) -> None:
    check(row)


DEVICES = ("H100", "A100 40GB", "RTX 4090", "V100-SXM2-32GB", "MI300X", "2080 Ti", "L40S")
LINKS = ("8x InfiniBand NDR", "400Gb/s RoCE", "100Gb/s TCP", "EFA 3200Gb/s", "4x Slingshot 11", "10Gb/s")


@given(st.sampled_from(DEVICES), st.integers(2, 8), st.integers(2, 64), st.sampled_from(LINKS), st.data())
def test_a_cluster_is_read_from_every_form(device: str, each: int, nodes: int, link: str, data: st.DataObject) -> None:
    meant = Cluster.named(f"{nodes}x{each} {device}", link)
    machines = data.draw(
        st.sampled_from(
            [
                f"{nodes}x{each} {device}",
                f"{nodes} x {each} x {device}",
                f"{nodes}*{each}*{device}",
                f"{nodes} nodes x {each} {device}",
                f"{nodes} nodes of {each} {device}",
                f"{nodes} servers with {each}x {device} each",
                f"{each}x{device}, {nodes} nodes",
                f"{device}:{each}, {nodes} nodes",
                f"{device} x {each} x {nodes} nodes",
                f"{nodes * each} {device} on {nodes} nodes",
                f"{nodes * each} {device} ({each} per node)",
                f"{nodes * each} {device}, {each} GPUs per node",
                f"--nodes={nodes} --gres=gpu:{device}:{each}",
                f"--nodes {nodes} --gpus-per-node={device}:{each}",
                "+".join([str(each)] * nodes) + f" {device}",
            ]
        )
    )
    joined = data.draw(st.sampled_from([", ", " with ", " + "]))
    assert Cluster.named(f"{machines}{joined}{link}") == Cluster.named(machines, link) == meant


@each_row(
    ("text", "what"),
    [
        ("8 H100, 2 nodes, NDR", facts("in all, or of each node", "2x8 H100", "2x4 H100")),
        ("8x H100 and 8x A100", facts("names two machines", "H100", "A100")),
        ("2 nodes, 4 nodes, 8 H100", facts("2 and 4 nodes", "one number")),
        ("9 H100 on 2 nodes, NDR", facts("9 devices on 2 nodes", "no equal nodes")),
        ("2 nodes of 8 H100, 20 GPUs, NDR", facts("20", "two of the three")),
        ("2 3 4 5 H100", facts("too many numbers", "2x8 H100")),
        ("A100 60GB", facts("unknown device 'A100 60GB'")),
        ("4 A100 nodes, NDR", facts("not stated", "4x8 A100")),
        ("8 H100, wifi", facts("unknown network 'wifi'", "10Gb/s")),
    ],
)
def test_what_has_no_single_meaning_is_refused_with_lines_to_copy(text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        Cluster.named(text)


def test_a_phrase_is_read_in_less_than_a_millisecond() -> None:
    """The middle of the table's phrasings, none of which was read before; the files are read already. On a slow machine it may
    take as much longer as other work."""
    machine_phrase("8 T4")
    times = []
    for row in rows("machine_phrasings.csv"):
        start = time.process_time()
        with suppress(UserError):
            machine_phrase(f" {row['text']} ")
        times.append(time.process_time() - start)
    assert sorted(times)[len(times) // 2] < 1e-3 * slowness()


@given(st.floats(1e9, 4e11), st.integers(1, 8))
def test_a_speed_anywhere_is_the_network(bandwidth: float, ports: int) -> None:
    speed = format_bandwidth(bandwidth)
    assert machine_phrase(f"2x8 H100, {ports}x {speed} RoCE").network == f"{ports} x {speed} RoCE"
