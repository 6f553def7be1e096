"""The catalogue's look-ups, and the physics its numbers must respect."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster, Device, Link, cluster, device, devices, link, links, network
from paceline.hardware.spelling import fold_hardware
from paceline.validation.sets import hardware_aliases as spelling
from python_calls import work_of

SPELLINGS = {
    "device": [(text, entry.name) for entry in devices() for text in (entry.name, *entry.aliases)],
    "link": [(text, entry.name) for entry in links() for text in (entry.name, *entry.aliases)],
}


def test_pairs_with_a_bridge_are_named_so() -> None:
    for name in ("RTX A6000 NVLink", "NVIDIA RTX A6000 with NVLink", "rtx_a6000 nvlink bridge"):
        one = device(name)
        assert (one.name, one.link, one.host_link) == ("RTX A6000 NVLink", "NVLink bridge GA102", "PCIe 4.0 x16")
        assert one.memory == device("RTX A6000").memory and device(one.name) == one
    assert device("A100 PCIe 80GB NVLink").link == "NVLink bridge GA100"
    assert all(link(one.bridge).joins == 2 for one in devices() if one.bridge)
    with pytest.raises(UserError, match="unknown device 'RTX 4090 NVLink'"):
        device("RTX 4090 NVLink")
    with pytest.raises(UserError, match="4 devices in a node: NVLink bridge GA102 joins at most 2"):
        Cluster.named("4 RTX A6000 NVLink")


# What there is.


def test_counts() -> None:
    assert len(devices()) >= 25
    assert len(links()) >= 15


NAMED = """
K80, P100, V100, T4, A10, A30, A40, A100, H100, H200, GH200, B200, L4, L40S, GTX1080, GTX 1080 Ti, RTX 2080 Ti, RTX3090,
RTX4090, MI250X, MI300X, MI325X, Gaudi2, Gaudi3, TPU v3, TPU v4, TPU v5e, TPU v5p, Xeon, H100 NVL, H200 NVL, A10G, Gaudi,
7900 XTX, GC200, Bow IPU, TPU7x, Ironwood, GB200 NVL72, H20, H800, A800, RTX 5070, RTX 5070 Ti, RTX 5060 Ti, RTX 4060 Ti,
RTX 4070, RTX 4070 SUPER, RTX 3060, RTX 3070, RTX A2000, RTX A4500, RTX A5500, RTX 2000 Ada, RTX 4000 Ada, RTX 4500 Ada,
RTX 5000 Ada, RTX PRO 4000 Blackwell, RTX PRO 4500 Blackwell, RTX PRO 5000 Blackwell, RTX PRO 6000 Max-Q, A16, A2, T4G, M60,
TITAN V, Gaudi 3 PCIe, TPU v2, Trainium, Trainium 2, Trainium 3, L20, R9700
"""


@each_row("name", NAMED.replace("\n", " ").strip().split(", "))
def test_devices_people_name(name: str) -> None:
    assert isinstance(device(name), Device)


@each_row(
    ("alias", "name"),
    [
        ("a100", "A100 SXM 80GB"),
        ("A100-80", "A100 SXM 80GB"),
        ("A100-40", "A100 SXM 40GB"),
        ("h100", "H100 SXM"),
        ("v100", "V100 SXM2 16GB"),
        ("p100", "P100 PCIe 16GB"),
        ("mi250x", "MI250X GCD"),
        # as CUDA reports them
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("Tesla K80", "K80"),
        # as drivers and lists of results spell them
        ("H200-SXM-141GB", "H200"),
        ("AMD Instinct MI300X 192GB HBM3", "MI300X"),
        ("NVIDIA B200-SXM-180GB", "B200"),
        ("NVIDIA H100-SXM5-80GB", "H100 SXM"),
        ("a100_80gb", "A100 SXM 80GB"),
        ("h100_80gb", "H100 SXM"),
        ("a100_40gb", "A100 SXM 40GB"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA GH200 144GB HBM3e", "GH200 144GB"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200-NVL-141GB", "H200 NVL"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("Habana Gaudi", "Gaudi"),
        ("Intel Gaudi", "Gaudi"),
        ("Graphcore Bow IPU", "IPU Bow"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Max-Q"),
        ("NVIDIA GeForce RTX 5060 Ti", "RTX 5060 Ti 16GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
    ],
)
def test_alias_means_the_most_common_variant(alias: str, name: str) -> None:
    assert device(alias).name == name


@each_row("kind", ["device", "link"])
def test_no_spelling_means_two_things(kind: str) -> None:
    meaning: dict[str, str] = {}
    for text, name in SPELLINGS[kind]:
        assert meaning.setdefault(fold_hardware(text), name) == name, text


# Looking up.


def respell(draw: st.DrawFn, text: str) -> str:
    """``text`` in another mix of cases, with spaces, dashes and underscores strewn in or taken out."""
    letters = [c for c in text if c not in " -_"]
    gaps = draw(st.lists(st.sampled_from(["", "", " ", "-", "_", " - "]), min_size=len(letters), max_size=len(letters)))
    upper = draw(st.lists(st.booleans(), min_size=len(letters), max_size=len(letters)))
    return "".join((c.upper() if up else c.lower()) + gap for c, gap, up in zip(letters, gaps, upper, strict=True))


@given(st.data())
def test_device_lookup_ignores_case_and_separators(data: st.DataObject) -> None:
    text, name = data.draw(st.sampled_from(SPELLINGS["device"]))
    assert device(data.draw(st.composite(respell)(text))).name == name


@given(st.data())
def test_link_lookup_ignores_case_and_separators(data: st.DataObject) -> None:
    text, name = data.draw(st.sampled_from(SPELLINGS["link"]))
    respelt = data.draw(st.composite(respell)(text))
    assert link(respelt).name == name
    assert network(respelt).name == name


def test_unknown_device_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown device 'A10O'; nearest: .*A100"):
        device("A10O")


@each_row("text", [text for text, _ in SPELLINGS["device"]])
def test_files_and_command_line_find_the_same_device(text: str) -> None:
    assert spelling.device(text) == device(text)
    assert spelling.device(f"8x NVIDIA {text} (SomeCloud)") == device(text)


def test_unknown_link_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown link 'NVLink 9'; nearest: NVLink"):
        link("NVLink 9")


@each_row("text", ["", " ", "nvidia", "tesla", "A", "A100 SXM 60GB", "A100 60GB HBM2e", "K80 24GB"])
def test_no_default_device(text: str) -> None:
    with pytest.raises(UserError):
        device(text)


# Clusters from texts.


def test_cluster() -> None:
    machines = cluster("gtx1080", 4, 8, "10Gb/s")
    assert machines.world_size == 32
    assert machines.device.name == "GTX 1080"
    assert machines.intra_link.name == "PCIe 3.0 x16"
    assert machines.network.name == "Ethernet 10 Gb/s"


def test_one_node_needs_no_network() -> None:
    machines = cluster("h100", 8, 1, None)
    assert machines.network == machines.intra_link == link("NVLink 4")
    assert cluster("h100", 8, 1, "1x HDR").network.name == "InfiniBand HDR"


def test_several_nodes_need_a_network() -> None:
    with pytest.raises(UserError, match="2 nodes have no network"):
        cluster("h100", 8, 2)


@each_row("counts", [(0, 1), (1, 0), (-1, 2)])
def test_counts_start_at_one(counts: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="whole number from 1 up"):
        cluster("h100", *counts, "HDR")


# Physics.


@each_row("entry", devices())
def test_device_is_consistent(entry: Device) -> None:
    assert entry.peak_flops
    assert set(entry.peak_flops) <= set(hardware.PRECISIONS)
    assert link(entry.link).name == entry.link
    assert 2**30 <= entry.memory.value <= 16 * 2**40
    assert 1e11 <= entry.memory_bandwidth.value <= (1e14 if entry.name.startswith("IPU") else 1e13)  # an IPU's is on the chip
    peaks = [entry.peak_flops[p].value for p in ("fp32", "tf32", "bf16") if p in entry.peak_flops]
    assert peaks == sorted(peaks)
    for precision, measured in entry.matmul_flops.items():
        assert 0.3 * entry.peak(precision).value < measured.value <= entry.peak(precision).value


@each_row("entry", links())
def test_link_is_consistent(entry: Link) -> None:
    assert 1e8 <= entry.bandwidth.value <= 2e12
    assert 1e-7 <= entry.latency.value <= 1e-4


@each_row(
    "names",
    [
        [f"NVLink {generation}" for generation in range(1, 6)],
        [f"PCIe {generation}" for generation in (3, 4, 5)],
        [f"{speed}GbE" for speed in (1, 10, 25, 40, 50, 100, 200, 400)],
        ["FDR", "EDR", "HDR", "NDR"],
        ["TPU v3 ICI", "TPU v5p ICI"],
        ["Gaudi 2 scale-up", "Gaudi 3 scale-up"],
        ["Infinity Fabric MI250X", "Infinity Fabric MI300X"],
        ["PCIe 3", "NVLink 1"],
    ],
)
def test_faster_links_are_faster(names: list[str]) -> None:
    rates = [link(name).bandwidth.value for name in names]
    assert rates == sorted(set(rates))


@each_row(("slower", "faster"), [("K80", "P100"), ("P100", "V100"), ("V100", "A100"), ("A100", "H100"), ("H100", "B200")])
def test_generations_gain(slower: str, faster: str) -> None:
    assert max(f.value for f in device(slower).peak_flops.values()) < max(f.value for f in device(faster).peak_flops.values())


def test_k80_and_mi250x_are_per_gpu_not_per_card() -> None:
    assert device("K80").memory.value == 12 * 2**30
    assert device("K80").memory_bandwidth.value == 240e9
    assert device("K80").peak("fp32").value == pytest.approx(8.74e12 / 2)
    assert device("MI250X").peak("bf16").value == pytest.approx(383e12 / 2)


@each_row("name", ["K80", "TITAN X"])
def test_no_half_precision_before_pascal(name: str) -> None:
    assert list(device(name).peak_flops) == ["fp32"]


@each_row("name", ["GTX 1080", "GTX 1080 Ti", "TITAN Xp", "GTX 1070", "Tesla P40"])
def test_small_pascal_boards_convert_fp16_and_compute_in_fp32(name: str) -> None:
    half, full = (device(name).peak(precision) for precision in ("fp16", "fp32"))
    assert half.value == pytest.approx(full.value / 2) and "computed in fp32" in half.source


@each_row("name", ["P100 PCIe", "P100 SXM2"])
def test_p100_fp16_is_twice_fp32(name: str) -> None:
    assert set(device(name).peak_flops) == {"fp32", "fp16"}
    assert device(name).peak("fp16").value == pytest.approx(2 * device(name).peak("fp32").value, rel=0.01)


@each_row("name", ["V100", "V100 32GB", "V100 PCIe", "T4", "RTX 2080 Ti", "Quadro RTX 6000"])
def test_volta_and_turing_have_fp16_tensor_cores_only(name: str) -> None:
    assert set(device(name).peak_flops) == {"fp32", "fp16"}
    assert device(name).peak("fp16").value >= 3.9 * device(name).peak("fp32").value


@each_row("name", ["A10", "A30", "A40", "A100", "L4", "L40S", "H100", "H200", "GH200", "B200", "MI300X"])
def test_ampere_and_later_have_every_precision(name: str) -> None:
    assert set(device(name).peak_flops) >= set(hardware.PRECISIONS) - set(hardware.RECIPES)
    assert device(name).peak("bf16").value == pytest.approx(2 * device(name).peak("tf32").value, rel=0.03)


@each_row("name", ["L4", "L40S", "H100", "H100 PCIe", "H200", "GH200", "B200", "GB200", "MI300X", "Gaudi 2"])
def test_fp8_is_dense_and_twice_bf16(name: str) -> None:
    assert device(name).peak("fp8").value == pytest.approx(2 * device(name).peak("bf16").value, rel=0.02)


@each_row("name", ["V100", "T4", "A100", "A10", "RTX 3090", "TPU v4", "MI250X"])
def test_no_fp8_before_hopper_and_ada(name: str) -> None:
    assert "fp8" not in device(name).peak_flops


@each_row("name", ["RTX 2080 Ti", "RTX 3090", "RTX 4090"])
def test_geforce_tensor_rate_is_with_fp32_accumulate(name: str) -> None:
    assert device(name).peak("fp16").value <= 4.05 * device(name).peak("fp32").value
    assert "fp32 accumulate" in device(name).note


def test_only_the_newest_tpu_gains_by_fp8() -> None:
    assert all(set(entry.peak_flops) == {"bf16"} for entry in devices() if entry.kind == "tpu" and entry.name != "TPU7x")
    assert device("TPU7x").peak("fp8").value == 2 * device("TPU7x").peak("bf16").value


# The package.


def test_examples_of_the_docstring() -> None:
    assert doctest.testmod(hardware).failed == 0
    assert doctest.testmod(hardware).attempted > 0


def test_public_names_exist() -> None:
    assert hardware.__all__ == sorted(hardware.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
    assert all(hasattr(hardware, name) for name in hardware.__all__)


@pytest.mark.parametrize("module", ["cluster", "device"])
def test_functions_win_over_the_modules_of_their_name(module: str) -> None:
    """``hardware.device`` is the look-up whichever of package and module is imported first."""
    code = f"import paceline.hardware.{module}; from paceline.hardware import {module}; assert callable({module})"
    path = str(Path(hardware.__file__).parents[2])
    subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"], check=True)


def test_import_is_light() -> None:
    source = str(Path(hardware.__file__).parents[2])
    found = f"import sys; sys.path.insert(0, {source!r})\n"
    imported = work_of(f"{found}import paceline.hardware", "-S")
    assert not imported.modules & {"torch", "numpy", "tomllib", "importlib.resources", "difflib"}
    seven = "asyncio, email.message, http.server, multiprocessing.pool, tarfile, unittest.mock, xml.etree.ElementTree"
    library = work_of(f"{found}import {seven}", "-S")
    assert imported.calls < library.calls, "it makes seven tenths of the calls of these seven modules of the standard library"


@each_row("entry", [entry for entry in devices() if entry.architecture == "Ada"])
def test_a_tensor_core_of_ada_does_128_products_a_clock(entry: Device) -> None:
    """Ordinary cores do 128 in a multiprocessor, its four tensor cores 512, or half of them where they accumulate in fp32."""
    ratio = entry.peak("bf16").value / entry.peak("fp32").value
    assert ratio == pytest.approx(2, rel=0.02) or ratio == pytest.approx(4, rel=0.02)


@each_row(
    ("text", "name", "devices"),
    [
        ("1CC 2x H100 80GB SXM5", "H100 SXM", 2),
        ("LambdaCloud 8xV100 16GB", "V100 SXM2 16GB", 8),
        ("4xGH-96", "GH200", 4),
        ("A100 80GB (DGX SuperPOD)", "A100 SXM 80GB", 1),
    ],
)
def test_a_count_and_a_provider_around_a_device(text: str, name: str, devices: int) -> None:
    for found in (Cluster.named(text), cluster(text)):
        assert (found.device.name, found.world_size) == (name, devices)
    counted = spelling.device(text)
    assert counted is not None and counted.name == name


def test_a_count_is_never_dropped() -> None:
    with pytest.raises(UserError, match="unknown device"):
        cluster("2x H100", devices_per_node=4)
    with pytest.raises(UserError, match="unknown device"):
        device("2x H100")
    assert spelling.device("8x RTX 3090 + 8x TITAN RTX") is None
