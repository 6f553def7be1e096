"""What ``hardware`` and ``workload`` print: at most 80 columns, aligned, nothing cut that the catalogue holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from paceline import hardware
from paceline.reporting.text.catalogue_text import (
    device_screen,
    hardware_screen,
    instance_screen,
    link_screen,
    workload_screen,
    workloads_screen,
)
from paceline.reporting.values import strategy_text
from paceline.strategy import Strategy
from paceline.workload import Coverage, Layer, Operation, Parameter, Workload, names

DEVICES, LINKS = hardware.devices(), hardware.links()


def narrow(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 80 and all(line == line.rstrip() or line.strip() for line in text.splitlines())


@each_row("device", DEVICES)
def test_a_device_fits_and_names_every_source(device: hardware.Device) -> None:
    text = device_screen(device).text(why=True)
    assert narrow(text)
    flat = "".join(text.split())
    facts = [*device.peak_flops.values(), *device.matmul_flops.values(), device.memory, device.memory_bandwidth]
    for fact in facts:
        assert "".join(fact.source.split()) in flat and fact.date in text
    assert device.link in text


@each_row("instance", hardware.instances())
def test_an_instance_fits_and_names_its_source(instance: hardware.Instance) -> None:
    text = instance_screen(instance).text(why=True)
    assert narrow(text)
    assert "".join(instance.source.split()) in "".join(text.split()) and instance.date in text
    assert f"{instance.devices} x {instance.device}" in text
    listed = hardware_screen((), (), [instance]).text(why=True)
    assert narrow(listed) and instance.name in listed
    recalled = "recalled, not checked" in instance.source
    assert (f"{instance.name}*" in listed) == ("* recalled, not checked" in listed) == recalled


@each_row("link", LINKS)
def test_a_link_fits_and_names_every_source(link: hardware.Link) -> None:
    text = link_screen(link).text(why=True)
    assert narrow(text)
    for fact in (link.bandwidth, link.latency):
        assert "".join(fact.source.split()) in "".join(text.split())


@pytest.mark.long
@each_row("name", names())
def test_a_workload_fits(name: str) -> None:
    table = Workload.named(name)
    screen = workload_screen(table)
    text = screen.text(why=True)
    assert narrow(text)
    assert f"{table.num_parameters:,} parameters" in text and table.sample in " ".join(text.split())  # a line may end in it
    rows = {line.split("  ")[0] for line in screen.text(200).splitlines()}
    assert rows >= {layer.name for layer in table.layers}


def test_the_list_of_hardware_is_aligned_and_whole() -> None:
    text = hardware_screen(DEVICES, LINKS).text()
    assert narrow(text) and "…" not in text
    lines = text.splitlines()
    blank = lines.index("", 2)
    head, rows = lines[2], lines[3:blank]
    assert len(rows) == len(DEVICES)
    column = head.index("link")
    for row, device in zip(rows, DEVICES, strict=True):
        facts = (*device.peak_flops.values(), device.memory, device.memory_bandwidth)
        mark = "*" if any("recalled" in fact.source for fact in facts) else ""
        assert row.startswith(f"{device.name}{mark} ") and row[column:] == device.link and row[column - 1] == " "
    for title in ("fp32", "16 bit", "memory", "bandwidth"):
        end = head.index(title) + len(title)
        assert all(row[end] == " " and row[end - 1] != " " for row in rows), title
    links = lines[blank + 2 : lines.index("", blank + 1)]
    assert len(links) == len(LINKS) and all(line.startswith(link.name) for line, link in zip(links, LINKS, strict=True))


def test_the_list_of_workloads_is_aligned_and_whole() -> None:
    tables = [Workload.named(name) for name in names()]
    text = workloads_screen(tables).text(100)
    assert narrow(workloads_screen(tables).text()) and "…" not in text
    head, *rows = text.splitlines()[2 : len(tables) + 3]
    for row, table in zip(rows, tables, strict=True):
        assert row.startswith(f"{table.name} ") and row[head.index("one sample") :] == table.sample
        assert ("*" in row) == (table.tables is not None)
    assert "* and numbers in embedding tables: dlrm 24.0 G, dlrm-dcnv2" in text
    assert "*" not in workloads_screen([Workload.named("lenet5")]).text()


@given(st.text(min_size=1, max_size=90), st.text(max_size=60), st.integers(1, 10**12))
def test_long_names_fit(name: str, kind: str, size: int) -> None:
    name, kind = (" ".join("".join(c for c in text if c.isprintable()).split()) or "x" for text in (name, kind))
    work = (Operation(kind="matmul", backward=back, calls=1, flops=1e19 * (1 + back), bytes=1.0) for back in (False, True))
    layer = Layer(name=name, kind=kind, operations=tuple(work), activation_bytes=1e12)
    parameter = Parameter(name=f"{name}.weight", shape=(size,), layer=0, ready=0)
    given = {"name": name, "layers": (layer,), "parameters": (parameter,), "input_bytes": 4.0, "sample": kind, "source": name}
    table = Workload(**given, coverage=Coverage(ops=2, known=1, unknown={kind: 1}))
    assert narrow(workload_screen(table).text(why=True)) and narrow(workloads_screen([table]).text())


def test_sizes_in_a_strategy_have_units() -> None:
    text = strategy_text(Strategy.of(world_size=4, global_batch_size=64, compression="terngrad").to_json())
    assert "first bucket 1.05 MB, bucket 26.2 MB" in text
    assert "world size 4, global batch size 64" in text and "bytes" not in text
    assert strategy_text({"workers": 2, "exchange": "", "lr": None, "odd_bytes": "many"}) == "workers 2, odd bytes many"
