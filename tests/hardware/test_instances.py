"""Instances by name: each finds its own entry, is a node that can be, and brings its network unless another is given."""

from __future__ import annotations

import datetime
import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, cluster, device, instance, instances, link, network
from paceline.hardware.catalogue import is_device
from paceline.hardware.instances import Instance, node
from paceline.hardware.spelling import fold_hardware

SPELLINGS = [(text, entry.name) for entry in instances() for text in (entry.name, *entry.aliases)]
NAMED = """
p5.48xlarge, p4d.24xlarge, p4de.24xlarge, p5e, p5en, p6-b200, g5.48xlarge, g6.48xlarge, g6e.48xlarge, g4dn.12xlarge,
trn1.32xlarge, trn2.48xlarge, a2-highgpu-8g, a2-ultragpu-8g, a3-highgpu-8g, a3-megagpu-8g, a3-ultragpu-8g, a4-highgpu-8g,
g2-standard-96, ND H100 v5, Standard_ND96isr_H100_v5, ND A100 v4, ND96amsr_A100_v4, NC A100 v4, ND H200 v5, BM.GPU.H100.8,
DGX A100, DGX H100, DGX B200, HGX H200, GB200 NVL72, NVIDIA DGX H100, AWS p5.48xlarge, Azure ND H100 v5, dgx-h100, P5.48XLARGE
"""


@each_row("name", NAMED.replace("\n", " ").strip().split(", "))
def test_instances_people_name(name: str) -> None:
    assert instance(name) is not None
    assert Cluster.named(name).world_size == cluster(name).devices_per_node


@each_row(
    ("text", "devices", "name", "between"),
    [
        ("p5.48xlarge", 8, "H100 SXM", 400e9),
        ("p4d.24xlarge", 8, "A100 SXM 40GB", 50e9),
        ("trn2.48xlarge", 16, "Trainium 2", 400e9),
        ("a3-highgpu-8g", 8, "H100 SXM", 100e9),
        ("a3-megagpu-8g", 8, "H100 SXM", 200e9),
        ("ND A100 v4", 8, "A100 SXM 40GB", 200e9),
        ("ND96amsr_A100_v4", 8, "A100 SXM 80GB", 200e9),
        ("ND H100 v5", 8, "H100 SXM", 400e9),
        ("NC A100 v4", 4, "A100 PCIe 80GB", 10e9),
        ("BM.GPU.H100.8", 8, "H100 SXM", 400e9),
        ("g5.48xlarge", 8, "A10G", 12.5e9),
        ("GB200 NVL72", 72, "GB200", 72 * 50e9),
    ],
)
def test_what_a_node_is(text: str, devices: int, name: str, between: float) -> None:
    machines = cluster(text, None, 2)
    assert (machines.devices_per_node, machines.num_nodes, machines.device.name) == (devices, 2, name)
    assert machines.network.bandwidth.value == pytest.approx(between)
    assert machines.intra_link == link(device(name).link)


@each_row("entry", instances())
def test_every_instance_can_be(entry: Instance) -> None:
    assert device(entry.device).name == entry.device
    assert entry.network == "" or network(entry.network).bandwidth.value > 0
    assert cluster(entry.name, None, 2, entry.network or "100Gb/s").world_size == 2 * entry.devices
    assert "<http" in entry.source
    assert datetime.date(2026, 1, 1) <= datetime.date.fromisoformat(entry.date) <= datetime.date.today()


def test_the_file_has_no_other_keys_and_every_source_is_used() -> None:
    data = tomllib.loads(files("paceline.hardware").joinpath("instances.toml").read_text(encoding="utf-8"))
    legal = {"name", "provider", "aliases", "device", "devices", "network", "domain", "source", "how", "note"}
    assert all(set(row) <= legal for row in data["instance"])
    named = [[row["source"]] if isinstance(row["source"], str) else row["source"] for row in data["instance"]]
    assert {source for sources in named for source in sources} == set(data["sources"])
    assert all(re.match(r"https?://[^ ]+\.[^ ]+", source["url"]) and source["title"] for source in data["sources"].values())


# Names.


def test_no_spelling_means_two_instances() -> None:
    meaning: dict[str, str] = {}
    for text, name in SPELLINGS:
        assert meaning.setdefault(fold_hardware(text), name) == name, text


@given(st.sampled_from(SPELLINGS), st.data())
def test_lookup_ignores_case_and_separators(spelling: tuple[str, str], data: st.DataObject) -> None:
    text, name = spelling
    letters = [letter for letter in text if letter not in " -_"]
    gaps = data.draw(st.lists(st.sampled_from(["", "", " ", "-", "_"]), min_size=len(letters), max_size=len(letters)))
    entry = instance("".join(letter.upper() + gap for letter, gap in zip(letters, gaps, strict=True)))
    assert entry is not None and entry.name == name


@each_row(
    "text",
    [
        "",
        "H100",
        "A100",
        "aws",
        "p9.48xlarge",
        "DGX",
        "NVL72",
        "Azure H100",
        "T4 NVL4",
        "H100 NVL2",
        "GB200 NVL0",
        "ml.p9.48xlarge",
    ],
)
def test_no_default_instance(text: str) -> None:
    assert instance(text) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Dell H100 SXM5", "H100 SXM"),
        ("Dell PowerEdge XE9680 H100 SXM5", "H100 SXM"),
        ("Supermicro AS-8125GS-TNHR MI300X", "MI300X"),
        ("HPE Cray XD670 H200", "H200"),
        ("RunPod RTX 4090", "RTX 4090"),
        ("Lambda A100 40GB", "A100 SXM 40GB"),
    ],
)
def test_who_sells_a_server_may_stand_before_the_device(text: str, name: str) -> None:
    assert device(text).name == name


@pytest.mark.parametrize("text", ["Dell", "Dell XE9680", "Supermicro A100 60GB", "lambda"])
def test_a_seller_alone_is_no_device(text: str) -> None:
    with pytest.raises(UserError, match="unknown device"):
        device(text)


# Clusters of them.


def test_a_count_is_of_nodes() -> None:
    assert Cluster.named("2x p5.48xlarge") == Cluster.named("2 p5.48xlarge") == Cluster.named("2x8 p5.48xlarge")
    assert Cluster.named("2x p5.48xlarge").world_size == 16
    assert Cluster.named("3x GB200 NVL72").devices_per_node == 72


def test_the_network_of_the_user_stands_before_its_own() -> None:
    assert Cluster.named("2x p5.48xlarge", "100Gb/s").network.name == "Ethernet 100 Gb/s"
    assert Cluster.named("2x p5.48xlarge", "EFA") == Cluster.named("2x p5.48xlarge")
    with pytest.raises(UserError, match="'EFA' has no speed"):
        Cluster.named("2x g5.48xlarge", "EFA")


@each_row(
    ("text", "gigabits"),
    [
        ("2x8 A100, EFA", 400),
        ("2x8 H100, EFA", 3200),
        ("2x4 H100, EFAv2", 3200),  # half of a p5.48xlarge
        ("2x1 H100, EFA", 100),
        ("2x8 H200, EFAv3", 3200),
        ("2x HGX H100, EFA", 3200),
        ("2x4 GB200, EFA", 1600),
        ("2x GB200 NVL72, EFA", 28800),
        ("1+7 H100, Elastic Fabric Adapter", 3200),
    ],
)
def test_a_transport_of_one_cloud_has_the_speed_of_its_instance_with_such_devices(text: str, gigabits: float) -> None:
    network = Cluster.named(text).network
    assert (network.transport, network.bandwidth.value) == ("EFA", gigabits * 1e9 / 8)
    assert "given by the user" not in network.bandwidth.source


@each_row(
    ("text", "what"),
    [
        ("2x8 MI300X, EFA", "no speed; give it too"),
        ("2x16 H100, EFA", "no speed; give it too"),
        ("2x8 H100, RoCE", "no speed; give it too"),
        ("2x ND H100 v5, EFA", "no speed; give it too"),
        ("2x16 Trainium, EFA", "differ: trn1.32xlarge EFA 800 Gb/s, trn1n.32xlarge EFA 1600 Gb/s; name one"),
    ],
)
def test_a_transport_without_such_an_instance_needs_its_speed(text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        Cluster.named(text)


@each_row(
    ("text", "devices", "nodes"),
    [
        ("GB200 NVL4", 4, 1),
        ("2x NVIDIA GB200 NVL4", 4, 2),
        ("ml.p4de.24xlarge", 8, 1),
        ("2 AWS ml.p4de.24xlarge", 8, 2),
        ("1 node with 8 NVIDIA H100 80GB HBM3", 8, 1),
        ("4 servers of 2x T4", 2, 4),
        ("3 nodes of p5.48xlarge", 8, 3),
    ],
)
def test_words_for_nodes(text: str, devices: int, nodes: int) -> None:
    found = Cluster.named(text) if nodes == 1 or "xlarge" in text else Cluster.named(text, "100Gb/s")
    assert (found.devices_per_node, found.num_nodes) == (devices, nodes)


def test_nodes_of_a_device_need_its_number() -> None:
    with pytest.raises(UserError, match="4x8 H100"):
        Cluster.named("4 nodes of H100", "100Gb/s")


def test_its_own_network_names_its_source() -> None:
    assert "EC2" in Cluster.named("2x p5.48xlarge").network.bandwidth.source
    assert "EC2" not in Cluster.named("2x p5.48xlarge", "3200Gb/s").network.bandwidth.source


@pytest.mark.parametrize("name", ["BM.GPU.H100.8", "g2-standard-8", "gd-8xh100ib-i128", "Gaudi 2 server"])
def test_what_was_recalled_says_so_in_answers_too(name: str) -> None:
    entry = instance(name)
    assert entry is not None and entry.source.startswith("recalled, not checked: ")
    assert cluster(name, None, 2).network.bandwidth.source.startswith("recalled, not checked: ")
    assert "recalled" not in Cluster.named("2x p5.48xlarge").network.bandwidth.source


def test_a_device_and_a_link_that_were_recalled_say_so() -> None:
    recalled = device("TPU v2")
    facts = (*recalled.peak_flops.values(), recalled.memory, recalled.memory_bandwidth, link(recalled.link).bandwidth)
    assert all(fact.source.startswith("recalled, not checked: ") for fact in facts)


def test_another_number_of_devices_is_refused() -> None:
    with pytest.raises(UserError, match=facts("4 devices", "p5.48xlarge", "8", "H100 SXM")):
        Cluster.named("2x4 p5.48xlarge")


@pytest.mark.parametrize("text", ["1+7 p5.48xlarge", "8+8+4 p5.48xlarge", "1+7 ND H100 v5"])
def test_nodes_that_differ_are_no_instances(text: str) -> None:
    with pytest.raises(UserError, match=r"\d\+\d.* devices in a node of .*, which has 8; .*name the device: H100 SXM"):
        Cluster.named(text)
    assert not Cluster.named("1+7 A100", "100Gb/s").even


def test_equal_sizes_are_those_of_the_instance() -> None:
    assert Cluster.named("8+8 p5.48xlarge") == Cluster.named("2x p5.48xlarge")


def test_instances_below_leaf_switches() -> None:
    machines = cluster("p5.48xlarge", None, 4, leaf_nodes=2, oversubscription=2)
    assert (machines.leaf_nodes, machines.oversubscription, machines.world_size) == (2, 2, 32)
    assert machines.network == cluster("p5.48xlarge", None, 2).network


def test_a_name_that_is_a_device_too_keeps_the_users_number() -> None:
    assert node("GB200 NVL72", 8).devices == 8
    assert Cluster.named("1+7 HGX B200", "8x NDR").node_sizes == (1, 7)
    assert Cluster.named("2x8 HGX B200", "8x NDR").world_size == 16
    assert Cluster.named("2x36 GB200 NVL72", "8x NDR").devices_per_node == 36


def test_an_instance_without_a_network_asks_for_one() -> None:
    with pytest.raises(UserError, match="2 nodes have no network"):
        Cluster.named("2x gpu_8x_h100_sxm5")
    assert Cluster.named("gpu_8x_h100_sxm5").world_size == 8


@pytest.mark.parametrize(
    ("count", "devices", "nodes"), [(1, 4, 1), (2, 8, 1), (5, 20, 1), (18, 72, 1), (36, 72, 2), (72, 72, 4), (19, 4, 19)]
)
def test_parts_of_a_rack_are_joined_by_its_switches(count: int, devices: int, nodes: int) -> None:
    machines = cluster("ND GB200 v6", None, count)
    assert (machines.devices_per_node, machines.num_nodes) == (devices, nodes)
    if nodes > 1:
        assert machines.network.bandwidth.value == pytest.approx(devices * 50e9)
    assert machines.intra_link.name == "NVLink 5"


def test_a_network_for_parts_of_a_rack_is_of_each_part() -> None:
    machines = Cluster.named("36x a4x-highgpu-4g", "2x NDR")
    assert machines.network.bandwidth.value == pytest.approx(18 * 2 * 50e9)


@pytest.mark.parametrize(
    ("text", "name"), [("p5.48xlrge", "p5.48xlarge"), ("a3-highgpu-9g", "a3-highgpu-8g"), ("DGXH10", "DGX H100")]
)
def test_a_slip_gets_the_nearest_instance(text: str, name: str) -> None:
    with pytest.raises(UserError, match=f"unknown device '{text}'; nearest: .*{re.escape(name)}"):
        Cluster.named(f"2x {text}", "100Gb/s")


def test_a_device_of_the_users_own_stands_before_an_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[device]]\nname = "trn2"\nkind = "accelerator"\nlink = "NeuronLink 3"\npeak_flops = {bf16 = 1e15}\n'
        "memory = 1e11\nmemory_bandwidth = 3e12\n"
    )
    assert cluster("trn2").world_size == 16
    monkeypatch.setenv("PACELINE_DEVICES", str(own))
    assert (cluster("TRN2").world_size, cluster("trn2").device.name) == (1, "trn2")
    assert cluster("trn2.48xlarge").world_size == 16


@pytest.mark.parametrize(("text", "name"), [spelling for spelling in SPELLINGS if is_device(spelling[0])])
def test_a_name_of_both_means_one_device(text: str, name: str) -> None:
    entry = instance(text)
    assert entry is not None and entry.name == name and device(text).name == entry.device
