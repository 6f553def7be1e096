"""Reader of tasks of SkyPilot and dstack: nodes, devices, and the command that starts the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import UserError
from paceline.questions.facts import Reading, StatedFact
from paceline.questions.readers.launches import add_device, read_commands
from paceline.questions.readers.source import Source

_VARIABLES = ("SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM")
_NODES, _DEVICES = ("num_nodes", "nodes"), ("accelerators", "gpu")


def is_cloud(tree: Mapping[str, Any]) -> bool:
    """Return whether a tree is a task of SkyPilot or dstack."""
    return isinstance(tree.get("resources"), Mapping) and ("run" in tree or "commands" in tree)


def read_cloud(tree: Mapping[str, Any], source: Source) -> Reading:
    """Return what a task states."""
    found = Reading()
    run = tree.get("run") or tree.get("commands")
    text = "\n".join(map(str, run)) if isinstance(run, list) else str(run)
    nodes = next((tree[name] for name in _NODES if isinstance(tree.get(name), int)), 1)
    given = "".join(f"{name}={nodes}\n" for name in _VARIABLES)
    try:
        found.add(read_commands(Source(source.name, given + text, source.folder))[0])
    except UserError:
        found.unknown.append(f"{source.name}: its command")
    found.facts.append(StatedFact("nodes", nodes, source.name, f"{nodes} nodes"))
    stated = next((tree["resources"][name] for name in _DEVICES if name in tree["resources"]), None)
    kind, _, many = str(stated).partition(":")
    if stated is not None:
        words = f"resources {stated}"
        each = int(many) if many.isdecimal() else 1
        found.facts.append(StatedFact("devices_per_node", each, source.name, words))
        add_device(kind, source, words, found)
        found.understood += 2
    found.ignored += [f"{source.name}: {name}" for name in tree if name not in ("resources", "run", "commands", *_NODES)]
    return found
