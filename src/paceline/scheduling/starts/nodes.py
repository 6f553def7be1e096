"""Nodes of a live cluster, as ``sinfo``, ``scontrol show node`` or ``kubectl get nodes`` print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.gres import held_devices, split_slice
from paceline.scheduling.traces.logs.kubernetes import slice_type, split_product
from paceline.scheduling.traces.logs.slurm_jobs import expanded_nodes

SINFO = "sinfo -N -o '%N|%P|%G|%c|%T'"
"""Command whose output says all that is read of Slurm's nodes."""
KUBECTL = "kubectl get nodes -o yaml"
_AWAY = re.compile(r"down|drain|fail|maint|not_resp|unk|inval|future|resv|reserved|blocked|[*$]$", re.IGNORECASE)
"""States of nodes that start no job of everybody (sinfo(1), "NODE STATE CODES"): ``*`` is no response, ``$`` maintenance."""
_POWER = re.compile(r"power\w*", re.IGNORECASE)
"""States of nodes that save power. Slurm starts them for jobs (power_save.html)."""
_BLOCK = re.compile(r"^NodeName=(\S+)(.*?)(?=^NodeName=|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"(\w+)=((?:[^\s=]|=(?=\d))*)")
_GPU_RESOURCE = re.compile(r"(?:^|/)(?:gpu|gaudi|tpu|neuron)$")
_SLICE_RESOURCE = re.compile(r"/mig-\d+g\.\d+gb", re.IGNORECASE)
_TYPE_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")


@dataclass(frozen=True, slots=True)
class _PrintedNode:
    """Node, or the MIG slices of one profile on it."""

    name: str
    queues: tuple[str, ...]
    devices: int
    device: str
    cpus: int
    away: bool


def parse_nodes(source: JobFile, by_node: bool = False) -> QueueNodes:
    """Return the nodes that a program printed. Nodes that are down or drained are left out.

    Args:
        by_node: count nodes, where the jobs of the cluster name no GPUs.

    Raises:
        UserError: no node, or none with a device.
    """
    found = _merged(_parsed(source))
    if not found:
        raise UserError(f"{source.name} names no node", f"print it with {SINFO}, scontrol show node, or {KUBECTL}")
    there = [node for node in found if not node.away and (node.devices or by_node)]
    if not there:
        state = "no node has a GPU" if any(not node.away for node in found) else "all are down or drained"
        raise UserError(
            f"{source.name} has {len(found)} nodes, and {state}", "print the nodes with the GPUs, or give `cluster`"
        )
    names = {node.name: node.away for node in found}
    away = tuple(name for name, is_away in names.items() if is_away)
    there = list({node.name: node for node in there}.values()) if by_node else there
    queues = dict.fromkeys(queue for node in there for queue in node.queues)
    verb = "is" if len(away) == 1 else "are"
    notes = [f"{len(away)} of {len(names)} nodes {verb} down, drained or reserved."] if away else []
    if by_node:
        notes.append("No job of the queue names a GPU: nodes count as devices.")
    return QueueNodes(
        devices=np.array([1 if by_node else node.devices for node in there], np.int64),
        types=tuple("node" if by_node else _type(node.device) for node in there),
        names=tuple(node.name for node in there),
        of_queue={queue: tuple(at for at, node in enumerate(there) if queue in node.queues) for queue in queues},
        away=away,
        notes=tuple(notes),
    )


def _type(name: str) -> str:
    plain = name.removeprefix("NVIDIA-").replace("_", " ").replace("-", " ")
    return device(plain).name if plain and is_device(plain) else name


def _slice_type(name: str, profile: str) -> str:
    """Return the type of the MIG slices of a device, as fleets name them: ``A100 1g.10gb``."""
    return slice_type(_type(name) if name else "", profile)


def _merged(nodes: Iterator[_PrintedNode]) -> list[_PrintedNode]:
    """Return each node once, and once for each of its types of slices, with all its queues."""
    by_name: dict[tuple[str, str], _PrintedNode] = {}
    for node in nodes:
        key = node.name, node.device
        known = by_name.get(key)
        queues = tuple(dict.fromkeys((*(known.queues if known else ()), *node.queues)))
        by_name[key] = _PrintedNode(node.name, queues, node.devices, node.device, node.cpus, node.away)
    return list(by_name.values())


def _parsed(source: JobFile) -> Iterator[_PrintedNode]:
    if source.objects is not None:
        yield from _objects(source.objects)
        return
    text = "\n".join(source.lines)
    if "NodeName=" in text:
        yield from _blocks(text)
        return
    yield from _table(source)


def _blocks(text: str) -> Iterator[_PrintedNode]:
    """Yield the nodes of ``scontrol show node``."""
    for name, rest in _BLOCK.findall(text):
        fields = dict(_FIELD.findall(rest))
        queues = tuple(filter(None, fields.get("Partitions", "").split(",")))
        cpus = int(fields.get("CPUTot", "0") or 0)
        for count, kind in _gpus(fields.get("Gres", "")):
            yield _PrintedNode(name, queues, count, kind, cpus, _is_away(fields.get("State", "")))


def _table(source: JobFile) -> Iterator[_PrintedNode]:
    """Yield the nodes of ``sinfo`` in columns with a header. Raises UserError for a column of devices that was cut off."""
    for row in _rows(source):
        names = row.get("nodelist") or row.get("hostnames") or row.get("node")
        if not names:
            continue
        if row.get("gres", "").endswith("+"):
            raise UserError(f"{source.name} cuts off the devices of {names} ({row['gres']})", f"print wider columns: {SINFO}")
        cpus = re.sub(r"\D.*", "", row.get("cpus", "")) or "0"
        queue = row.get("partition", "").rstrip("*")
        away = _is_away(row.get("state", ""))
        for name in expanded_nodes(names):
            for count, kind in _gpus(row.get("gres", "")):
                yield _PrintedNode(name, (queue,) if queue else (), count, kind, int(cpus), away)


def _rows(source: JobFile) -> Iterator[dict[str, str]]:
    """Yield the cells of each row by their column, in columns of fixed width or between bars or blanks."""
    table = source.table
    if table is not None and table.cuts:
        header = [column.casefold() for column in table.header]
        for line in table.rows()[0]:
            yield {name: line.text(column) for name, column in zip(header, table.header, strict=True)}
        return
    header = []
    for text in source.lines:
        cells = [cell.strip() for cell in (text.split("|") if "|" in text else text.split())]
        if header:
            yield dict(zip(header, cells, strict=False))
        else:
            header = [cell.casefold() for cell in cells]


def _is_away(state: str) -> bool:
    """Return whether a node in a state of Slurm takes no new job."""
    return bool(_AWAY.search(_POWER.sub("", state)))


def _gpus(gres: str) -> list[tuple[int, str]]:
    """Return the number of devices of each type: whole ones, if there are any or no slices, and then MIG slices."""
    every, _ = held_devices(re.sub(r"\(S:[^)]*\)", "", gres))
    found: dict[str, int] = {}
    for each in sorted(every, key=lambda each: bool(each.profile)):
        kind = _slice_type(each.device_type, each.profile) if each.profile else each.device_type
        found[kind] = found.get(kind, 0) + each.count
    return [(count, kind) for kind, count in found.items()] or [(0, "")]


def _objects(objects: Sequence[Any]) -> Iterator[_PrintedNode]:
    """Yield the nodes of Kubernetes, or of ``sinfo --json`` and ``scontrol show node --json``."""
    for item in objects:
        if not isinstance(item, Mapping):
            continue
        if isinstance(item.get("items"), list):
            yield from _objects(item["items"])
        elif isinstance(item.get("sinfo"), list):
            for group in item["sinfo"]:
                yield from _sinfo_group(group) if isinstance(group, Mapping) else ()
        elif isinstance(item.get("nodes"), list):
            for node in item["nodes"]:
                yield from _slurm_node(node) if isinstance(node, Mapping) else ()
        elif str(item.get("kind", "Node")) == "Node" and "status" in item:
            yield from _kubernetes_node(item)


def _sinfo_group(group: Mapping[str, Any]) -> Iterator[_PrintedNode]:
    """Yield the nodes of an entry of ``sinfo --json``: nodes of one partition, state and configuration."""
    about = {"state": texts(group, "node", "state"), "gres": texts(group, "gres", "total")}
    states = group.get("node", {}).get("state") if isinstance(group.get("node"), Mapping) else None
    names = group.get("nodes", {}).get("nodes") if isinstance(group.get("nodes"), Mapping) else None
    for name in names if isinstance(names, list) else ():
        queue = texts(group, "partition", "name") or texts(group, "partition")
        yield from _slurm_node(
            {**about, "state": states or about["state"], "name": name, "partitions": [queue] if queue else []}
        )


def _slurm_node(node: Mapping[str, Any]) -> Iterator[_PrintedNode]:
    states = node.get("state", "")
    state = " ".join(states) if isinstance(states, list) else str(states)
    queues = tuple(map(str, node.get("partitions") or ()))
    for count, kind in _gpus(str(node.get("gres", ""))):
        yield _PrintedNode(str(node.get("name", "")), queues, count, kind, int(node.get("cpus") or 0), _is_away(state))


def _kubernetes_node(item: Mapping[str, Any]) -> Iterator[_PrintedNode]:
    """Yield a node with its whole devices, and with its MIG slices of each profile.

    Under the strategy ``mixed`` of NVIDIA's device plugin each profile is a resource, ``nvidia.com/mig-1g.10gb``. Under
    ``single`` slices are ``nvidia.com/gpu``, and the product in the label names their profile.
    """
    metadata, status, spec = item.get("metadata") or {}, item.get("status") or {}, item.get("spec") or {}
    resources = status.get("allocatable") or status.get("capacity") or {}
    counts = {str(name): int(str(value)) for name, value in resources.items() if str(value).isdigit()}
    count = sum(number for name, number in counts.items() if _GPU_RESOURCE.search(name))
    slices = {name: number for name, number in counts.items() if number and _SLICE_RESOURCE.search(name)}
    labels = metadata.get("labels") or {}
    product = next((str(labels[label]) for label in _TYPE_LABELS if label in labels), "")
    base, profile, _ = split_product(product)
    kind = _slice_type(base, profile) if profile else product
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    away = bool(spec.get("unschedulable")) or any(str(each.get("status")) != "True" for each in ready)
    name = str(metadata.get("name", ""))
    if count or not slices:
        yield _PrintedNode(name, (), count, kind, 0, away)
    for resource, number in slices.items():
        yield _PrintedNode(name, (), number, _slice_type(base, split_slice(resource)[1]), 0, away)
