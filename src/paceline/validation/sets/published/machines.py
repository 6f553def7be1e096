"""Devices, nodes and networks of a row, as people write them."""

from __future__ import annotations

import re

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device, Link
from paceline.hardware.instances import device_in, instance
from paceline.hardware.spelling import counted
from paceline.validation.sets import hardware_aliases
from paceline.validation.sets.published.options import leading, written

SEVERAL_KINDS = "several kinds of devices in one run"
NO_DEVICES = "number of devices or nodes below 1"
NODES = "nodes of unequal size, or of an unknown one"
NO_NETWORK = "several nodes, and the row leaves out their network"
_SLICE = {"TPU v5e": 256, "TPU v6e": 256}
"""Chips of the largest slice that one network of links joins (Google Cloud, TPU v5e and v6e)."""
_HOST_NETWORK = {"tpu": (4, "100Gb/s")}
"""Devices of a host and its network, which joins slices (Google Cloud, TPU v4: 4 chips a host)."""


def device(row: Row) -> Device | None:
    """Return the device of the row; None if the catalogue lacks it. Raises UserError for several kinds in one run."""
    text = row.text("device")
    if found := device_in(text) if text else None:
        return found
    if not text:  # the page may be of one instance: benchmarks/trn1/table.csv
        pages = [part for part in re.split(r"[\s/]+", row.text("source")) if instance_named(part)]
        return device_in(pages[0]) if pages else None
    parts = {part.name for piece in re.split(r"\s\+\s|,| and ", text) if (part := device_in(piece))}
    if len(parts) > 1:
        raise UserError(SEVERAL_KINDS)
    return None


def cluster(row: Row, of: Device) -> Cluster:
    """Return the machines of a run.

    Raises:
        UserError: no number of devices or none possible, unequal nodes, or several nodes of boards without a known network.
    """
    if any(re.fullmatch(r"\s*-?0+(\.0*)?\s*|\s*-.*\d.*", row.text(column)) for column in ("num_devices", "num_nodes")):
        raise UserError(NO_DEVICES)
    count, hosts = leading(row.text("num_devices")), leading(row.text("num_nodes"))
    if count is None:
        named = counted(row.text("device"))[0]
        count = named * (hosts or 1) if named else None
    usual = _per_node(row, of)
    if count is None and hosts is None and instance_of(row):
        hosts = written(row.text("other_options"), "nodes") or 1
    if count is None:
        if hosts is None:
            raise UserError("number of devices not stated")
        count = hosts * usual
    if of.kind == "tpu":
        return _slices(of, count, hosts if "slice" in row.text("num_nodes").casefold() else None)
    if of.name in hardware_aliases.NVLINK_DOMAIN:
        found = hardware_aliases.reference_system(of, count)
        if found is None:
            raise UserError(NODES)
        return found
    hosts = hosts or max(1, -(-count // usual))
    if count % hosts:
        raise UserError(NODES)
    each = count // hosts
    inside = "PCIe 4.0 x16" if re.search(r"pcie", row.text("interconnect"), re.IGNORECASE) and "PCIe" not in of.link else ""
    if hosts == 1:
        return hardware_aliases.cluster(of, each, 1, None, inside)
    return hardware_aliases.cluster(of, each, hosts, _between(row, of, each), inside)


def _per_node(row: Row, of: Device) -> int:
    """Return the devices of a full node: of the instance that the row names, else eight, as almost all have."""
    named = instance_of(row)
    return named[1] if named else (4 if of.name in hardware_aliases.NVLINK_DOMAIN else 8)


def instance_of(row: Row) -> tuple[str, int, str] | None:
    """Return the name, the devices and the network of the instance that the row names as its device; None without one."""
    text = re.sub(r"\s*\(.*?\)", "", row.text("device")) or row.text("source")
    return next((found for part in re.split(r"[\s/]+", text) if (found := instance_named(part))), None)


def instance_named(text: str) -> tuple[str, int, str] | None:
    """Return the name, the devices and the network of an instance of several devices; None for other text."""
    try:
        found = instance(text)
    except UserError:
        return None
    return (found.name, found.devices, found.network) if found and found.devices > 1 else None


def _between(row: Row, of: Device, each: int) -> Link | str:
    """Return the network between nodes. Raises UserError if it is unknown."""
    if found := hardware_aliases.network(row.text("interconnect"), each):
        return found
    named = instance_of(row)
    if named and named[2]:
        return named[2]
    if "PCIe" in of.link and not of.name.startswith("A100"):
        raise UserError(NO_NETWORK)
    system = hardware_aliases.reference_system(of, 16)
    if system is None or system.network is None:
        raise UserError(NO_NETWORK)
    return system.network


def _slices(of: Device, count: int, slices: int | None) -> Cluster:
    """Return TPUs in one torus, or in slices that the network of their hosts joins."""
    slices = slices or max(1, count // _SLICE.get(of.name, count))
    if slices == 1:
        return hardware_aliases.torus(of, count)
    if count % slices:
        raise UserError(NODES)
    each = count // slices
    hosts, speed = _HOST_NETWORK["tpu"]
    return hardware_aliases.cluster(of, each, slices, f"{max(1, each // hosts)}x {speed}")
