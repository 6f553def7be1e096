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
from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.logs.gres import held_devices

SINFO = "sinfo -N -o '%N|%P|%G|%c|%T'"
"""Command whose output says all that is read of Slurm's nodes."""
KUBECTL = "kubectl get nodes -o yaml"
_AWAY = re.compile(r"down|drain|fail|maint|not_resp|unknown|power_down|powered_down|inval|\*$", re.IGNORECASE)
_BLOCK = re.compile(r"^NodeName=(\S+)(.*?)(?=^NodeName=|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"(\w+)=((?:[^\s=]|=(?=\d))*)")
_GPU_RESOURCE = re.compile(r"(?:^|/)(?:gpu|gaudi|tpu|neuron)$")
_TYPE_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_BRACKETS = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<numbers>[\d,\-]+)\](?P<tail>.*)$")


@dataclass(frozen=True, slots=True)
class _PrintedNode:
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
    away = sum(node.away for node in found)
    queues = dict.fromkeys(queue for node in there for queue in node.queues)
    notes = [f"{away} of {len(found)} nodes are down or drained."] if away else []
    if by_node:
        notes.append("No job of the queue names a GPU: nodes count as devices.")
    return QueueNodes(
        devices=np.array([1 if by_node else node.devices for node in there], np.int64),
        types=tuple("node" if by_node else _type(node.device) for node in there),
        names=tuple(node.name for node in there),
        of_queue={queue: tuple(at for at, node in enumerate(there) if queue in node.queues) for queue in queues},
        notes=tuple(notes),
    )


def _type(name: str) -> str:
    plain = name.removeprefix("NVIDIA-").replace("_", " ").replace("-", " ")
    return device(plain).name if plain and is_device(plain) else name


def _merged(nodes: Iterator[_PrintedNode]) -> list[_PrintedNode]:
    """Return each node once, with all its queues."""
    by_name: dict[str, _PrintedNode] = {}
    for node in nodes:
        known = by_name.get(node.name)
        queues = tuple(dict.fromkeys((*(known.queues if known else ()), *node.queues)))
        by_name[node.name] = _PrintedNode(node.name, queues, node.devices, node.device, node.cpus, node.away)
    return list(by_name.values())


def _parsed(source: JobFile) -> Iterator[_PrintedNode]:
    if source.objects is not None:
        yield from _objects(source.objects)
        return
    text = "\n".join(source.lines)
    if "NodeName=" in text:
        yield from _blocks(text)
        return
    yield from _table(source.lines)


def _blocks(text: str) -> Iterator[_PrintedNode]:
    """Yield the nodes of ``scontrol show node``."""
    for name, rest in _BLOCK.findall(text):
        fields = dict(_FIELD.findall(rest))
        count, kind = _gpus(fields.get("Gres", ""))
        queues = tuple(filter(None, fields.get("Partitions", "").split(",")))
        cpus = int(fields.get("CPUTot", "0") or 0)
        yield _PrintedNode(name, queues, count, kind, cpus, bool(_AWAY.search(fields.get("State", ""))))


def _table(lines: Sequence[str]) -> Iterator[_PrintedNode]:
    """Yield the nodes of ``sinfo`` in columns with a header."""
    header: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in (line.split("|") if "|" in line else line.split())]
        if not header:
            header = [cell.casefold() for cell in cells]
            continue
        row = dict(zip(header, cells, strict=False))
        names = row.get("nodelist") or row.get("hostnames") or row.get("node")
        if not names:
            continue
        count, kind = _gpus(row.get("gres", ""))
        cpus = re.sub(r"\D.*", "", row.get("cpus", "")) or "0"
        queue = row.get("partition", "").rstrip("*")
        for name in expanded_nodes(names):
            yield _PrintedNode(
                name, (queue,) if queue else (), count, kind, int(cpus), bool(_AWAY.search(row.get("state", "")))
            )


def _gpus(gres: str) -> tuple[int, str]:
    """Return the number of whole devices and their type. Slices of devices do not count."""
    every, _ = held_devices(re.sub(r"\(S:[^)]*\)", "", gres))
    held = [each for each in every if not each.profile]
    return sum(each.count for each in held), next((each.device_type for each in held if each.device_type), "")


def _objects(objects: Sequence[Any]) -> Iterator[_PrintedNode]:
    """Yield the nodes of Kubernetes, or of ``sinfo --json`` and ``scontrol show node --json``."""
    for item in objects:
        if not isinstance(item, Mapping):
            continue
        if isinstance(item.get("items"), list):
            yield from _objects(item["items"])
        elif isinstance(item.get("nodes"), list):
            yield from (_slurm_node(node) for node in item["nodes"] if isinstance(node, Mapping))
        elif str(item.get("kind", "Node")) == "Node" and "status" in item:
            yield _kubernetes_node(item)


def _slurm_node(node: Mapping[str, Any]) -> _PrintedNode:
    count, kind = _gpus(str(node.get("gres", "")))
    states = node.get("state", "")
    state = " ".join(states) if isinstance(states, list) else str(states)
    queues = tuple(map(str, node.get("partitions") or ()))
    return _PrintedNode(str(node.get("name", "")), queues, count, kind, int(node.get("cpus") or 0), bool(_AWAY.search(state)))


def _kubernetes_node(item: Mapping[str, Any]) -> _PrintedNode:
    metadata, status, spec = item.get("metadata") or {}, item.get("status") or {}, item.get("spec") or {}
    resources = status.get("allocatable") or status.get("capacity") or {}
    count = sum(int(str(value)) for name, value in resources.items() if _GPU_RESOURCE.search(name) and str(value).isdigit())
    labels = metadata.get("labels") or {}
    kind = next((str(labels[label]) for label in _TYPE_LABELS if label in labels), "")
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    away = bool(spec.get("unschedulable")) or any(str(each.get("status")) != "True" for each in ready)
    return _PrintedNode(str(metadata.get("name", "")), (), count, kind, 0, away)


def expanded_nodes(text: str) -> list[str]:
    """Return the names of a list of nodes: ``gpu[001-003,7],login`` is gpu001, gpu002, gpu003, gpu7 and login."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        found = _BRACKETS.match(part.strip())
        if found is None:
            names += [part.strip()] if part.strip() else []
            continue
        for piece in found["numbers"].split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names += expanded_nodes(f"{found['head']}{number:0{len(first)}d}{found['tail']}")
    return names
