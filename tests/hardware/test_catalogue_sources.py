"""Every number of the catalogue says where it is from, and agrees with the collected measurements where those are."""

from __future__ import annotations

import csv
import datetime
import os
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from paceline.hardware import Fact, device, devices, link, links

FILES = ("devices.toml", "links.toml", "edge.toml")
TODAY = datetime.date.today()


def read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("paceline.hardware").joinpath(name).read_text(encoding="utf-8"))


def numbers(table: Any) -> Iterator[dict[str, Any]]:
    """Every number under ``table``: a table that has a value."""
    if isinstance(table, dict):
        if "value" in table:
            yield table
        else:
            for below in table.values():
                yield from numbers(below)
    elif isinstance(table, list):
        for below in table:
            yield from numbers(below)


def all_facts() -> list[Fact]:
    of_devices = [
        fact
        for one in devices()
        for fact in (
            *(one.memory, one.memory_bandwidth, one.units, one.lanes, one.issued, one.array, one.vector_rate, one.power),
            *one.peak_flops.values(),
            *one.matmul_flops.values(),
        )
        if fact is not None
    ]
    return of_devices + [fact for one in links() for fact in (one.bandwidth, one.latency, one.carried) if fact]


@pytest.mark.parametrize("name", FILES)
def test_every_number_has_a_source_and_every_source_a_number(name: str) -> None:
    data = read(name)
    entries = list(numbers([data[table] for table in ("device", "link", "transport") if table in data]))
    assert len(entries) >= (20 if name == "edge.toml" else 60)
    for entry in entries:
        assert set(entry) <= {"value", "source", "how"}
        assert entry["value"] > 0
        assert entry.get("how", "x").strip()
    beside = {key for key in data["sources"] for entry in entries if f"({key})" in entry.get("how", "")}  # of a clock, say
    assert {entry["source"] for entry in entries} | beside == set(data["sources"])


@pytest.mark.parametrize("name", FILES)
def test_every_source_has_a_title_an_origin_and_a_date(name: str) -> None:
    for key, source in read(name)["sources"].items():
        assert source["title"].strip(), key
        assert ("url" in source) != ("derivation" in source), key
        assert re.match(r"https?://[^ ]+\.[^ ]+", source.get("url", "http://a.b")), key
        assert datetime.date(2026, 1, 1) <= datetime.date.fromisoformat(source["date"]) <= TODAY, key


@pytest.mark.parametrize("name", FILES)
def test_no_unknown_keys(name: str) -> None:
    data = read(name)
    common = {"name", "kind", "aliases", "note"}
    legal = {
        "devices.toml": common
        | {
            "link",
            "units",
            "lanes",
            "issued",
            "array",
            "vector_rate",
            "power",
            "architecture",
            "peak_flops",
            "matmul_flops",
            "memory",
            "memory_bandwidth",
        }
        | {"host_link", "host", "bridge"},
        "links.toml": common
        | {"bandwidth", "latency", "reduces", "joins", "carried", "transport", "start", "reached", "shared"},
        "edge.toml": {"name", "aliases", "cores", "one_core", "all_cores", "bandwidth", "vector"},
    }[name]
    for entry in data["device"] if "device" in data else data["link"]:
        assert set(entry) <= legal, entry["name"]
    assert all(set(entry) == {"lanes", "issued"} for entry in data.get("architectures", {}).values())


def test_nvidia_devices_say_what_a_multiprocessor_does_in_a_cycle() -> None:
    """The clock that follows from the peak is one that a chip has."""
    known = [one for one in devices() if one.lanes is not None]
    assert {one.name for one in known} >= {
        "K80",
        "P100 SXM2",
        "V100 SXM2 16GB",
        "T4",
        "A100 SXM 80GB",
        "RTX 3090",
        "H100 SXM",
        "B200",
    }
    for one in known:
        assert one.issued is not None and one.issued.value >= one.lanes.value and one.units is not None, one.name
        assert 0.8e9 < one.cycles / one.units.value < 2.9e9, one.name


def test_facts_carry_their_source_in_words() -> None:
    for fact in all_facts():
        assert "<http" in fact.source or re.match(r"(assumption|definition|measurement): .", fact.source)
        datetime.date.fromisoformat(fact.date)


def test_only_latencies_are_assumed() -> None:
    assumed = [fact for fact in all_facts() if "assum" in fact.source]
    assert assumed
    assert all(fact in {one.latency for one in links()} for fact in assumed)


def test_memory_is_whole_gibibytes() -> None:
    assert all(one.memory.value % 2**30 == 0 for one in devices())


# Against the table collected from public repositories, which lies beside the checkout or where PACELINE_SHARED says.


@pytest.fixture(scope="module")
def measured() -> Path:
    shared = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2].parent / "shared"))
    folder = shared / "data" / "measured"
    if not folder.is_dir():
        pytest.skip("needs the published measurements: PACELINE_SHARED names the folder with data/measured")
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


# The table's name of a device, and what divides its card into what software sees as one GPU.
DEVICES = {
    "K80 (card = 2 GPUs)": ("K80", 2),
    "TITAN X (Maxwell)": ("TITAN X Maxwell", 1),
    "GTX 1080 Ti": ("GTX 1080 Ti", 1),
    "P100 16GB": ("P100 PCIe", 1),
    "V100 16GB SXM2": ("V100 SXM2 16GB", 1),
    "V100-PCIe-32GB": ("V100 PCIe 32GB", 1),
    "T4": ("T4", 1),
    "RTX 2080 Ti": ("RTX 2080 Ti", 1),
    "Quadro RTX 6000": ("Quadro RTX 6000", 1),
    "RTX 3090": ("RTX 3090", 1),
    "RTX 4090": ("RTX 4090", 1),
    "A10": ("A10", 1),
    "A30": ("A30", 1),
    "A40": ("A40", 1),
    "L4": ("L4", 1),
    "L40S": ("L40S", 1),
    "A100-SXM-40GB": ("A100 SXM 40GB", 1),
    "A100-SXM-80GB": ("A100 SXM 80GB", 1),
    "A100-PCIe-40GB": ("A100 PCIe 40GB", 1),
    "A100-PCIe-80GB": ("A100 PCIe 80GB", 1),
    "H100-PCIe-80GB": ("H100 PCIe", 1),
    "H100-SXM-80GB": ("H100 SXM", 1),
    "H200-SXM": ("H200", 1),
    "GH200": ("GH200", 1),
    "B200-SXM": ("B200", 1),
    "MI250X": ("MI250X GCD", 2),
    "MI300X": ("MI300X", 1),
    "MI325X": ("MI325X", 1),
    "Gaudi2": ("Gaudi 2", 1),
    "Gaudi3": ("Gaudi 3", 1),
    "TPU v3 (chip)": ("TPU v3", 1),
    "TPU v4 (chip)": ("TPU v4", 1),
    "TPU v5e (chip)": ("TPU v5e", 1),
    "TPU v5p (chip)": ("TPU v5p", 1),
    "TPU v6e (chip)": ("TPU v6e", 1),
}

# Where the catalogue means to differ by more than 3 %.
NOT_CLAIMED = {("A100 PCIe 40GB", "matmul"): "measured, it seems, on the SXM board, which has 400 W where this has 250 W"}
"""What the table has and the catalogue leaves out, and why."""
DIFFERS = {
    ("K80", "fp32"): "the table has the base clock; VGG-16 was trained on it faster than that would allow",
    ("TITAN X Maxwell", "fp32"): "the table has the base clock",
    ("GTX 1080 Ti", "fp32"): "the table rounds 11.34 to 11",
    ("A100 PCIe 40GB", "matmul"): "measured on the 80 GB card, whose power limit is higher",
    ("L4", "fp32"): "the table has the highest clock, the datasheet a lower one",
    ("RTX 2080 Ti", "half"): "the table mixes the clocks of the reference card (fp32) and the Founders Edition",
    ("Quadro RTX 6000", "half"): "recalled in the table as half rate; the data sheet says full rate",
    ("MI250X GCD", "fp32"): "the table has the vector rate, half of the matrix rate",
    ("TPU v6e", "fp8"): "no faster than bf16, so that nothing is gained: left out",
    ("Gaudi 3", "link"): "the table counts all 24 ports, of which 3 leave the node",
    ("P100 PCIe 16GB", "link"): "the table has the NVLink of the SXM2 variant",
    ("MI250X GCD", "link"): "per GCD in both, not per card",
    ("Gaudi 2", "link"): "the table counts all 24 ports, of which 3 leave the node",
}


def catalogue_values(name: str) -> dict[str, float]:
    one = device(name)
    values = {precision: fact.value for precision, fact in one.peak_flops.items()}
    values["half"] = values.get("bf16", values.get("fp16", 0.0))
    if "bf16" in one.matmul_flops:
        values["matmul"] = one.matmul_flops["bf16"].value
    values |= {"memory": one.memory.value, "memory_bandwidth": one.memory_bandwidth.value}
    return values | {"link": link(one.link).bandwidth.value}


COLUMNS = {
    "fp32": ("fp32_tflops", 1e12),
    "tf32": ("tf32_tflops_dense", 1e12),
    "half": ("fp16_bf16_tensor_tflops_dense", 1e12),
    "fp8": ("fp8_tflops_dense", 1e12),
    "matmul": ("measured_max_bf16_matmul_tflops", 1e12),
    "memory": ("mem_gb", 2.0**30),
    "memory_bandwidth": ("mem_bw_gbps", 1e9),
    "link": ("nvlink_or_ici_unidir_gbps_per_gpu", 1e9),
}


def test_devices_agree_with_the_collected_table(measured: Path) -> None:
    compared = 0
    for row in rows(measured / "device_catalog.csv"):
        if row["device"] not in DEVICES:
            continue
        name, parts = DEVICES[row["device"]]
        ours = catalogue_values(name)
        for quantity, (column, unit) in COLUMNS.items():
            if not row[column] or (device(name).name, quantity) in DIFFERS or (name, quantity) in NOT_CLAIMED:
                continue
            theirs = float(row[column]) * unit / parts
            assert ours[quantity] == pytest.approx(theirs, rel=0.03), (name, quantity)
            compared += 1
    assert compared > 120


def test_differences_are_still_differences(measured: Path) -> None:
    by_name = {device(name).name: (row, parts) for row, (name, parts) in DEVICES.items()}
    table = {row["device"]: row for row in rows(measured / "device_catalog.csv")}
    for name, quantity in DIFFERS:
        row, parts = by_name[name]
        column, unit = COLUMNS[quantity]
        theirs = float(table[row][column]) * unit / parts
        assert catalogue_values(name).get(quantity) != pytest.approx(theirs, rel=0.03), (name, quantity)


LINKS = {
    "PCIe 3.0 x16": "PCIe 3.0 x16",
    "PCIe 4.0 x16": "PCIe 4.0 x16",
    "PCIe 5.0 x16": "PCIe 5.0 x16",
    **{f"NVLink {generation}": f"NVLink {generation}" for generation in range(1, 6)},
    **{f"Ethernet {speed} Gb/s": f"Ethernet {speed} Gb/s" for speed in (10, 25, 50)},
    "Ethernet 100 Gb/s / IB EDR": "InfiniBand EDR",
    "IB HDR 200 Gb/s": "InfiniBand HDR",
    "IB NDR 400 Gb/s": "InfiniBand NDR",
}


def test_links_agree_with_the_collected_table(measured: Path) -> None:
    table = {row["link"]: float(row["unidirectional_GBps"]) for row in rows(measured / "interconnect_catalog.csv")}
    for theirs, ours in LINKS.items():
        assert link(ours).bandwidth.value == pytest.approx(table[theirs] * 1e9, rel=0.03), ours


def test_latencies_bracket_the_smallest_allreduce(measured: Path) -> None:
    """Eight H100 reduce 8 bytes in 2 x 7 ring steps; a step of gradient size costs more, but not ten times more."""
    first = rows(measured / "nccl_allreduce.csv")[0]
    per_step = float(first["time_us"]) * 1e-6 / (2 * 7)
    assert per_step < link("NVLink 4").latency.value < 10 * per_step
