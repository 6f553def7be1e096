"""Devices of a job in the notations of Slurm: TRES, GRES, MIG profiles, shards.

TRES: ``cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1``, where ``gres/gpu`` is the total of all types (sacct(1), ``AllocTRES``).
GRES: ``gpu:a100:4(IDX:0-3),mps:50`` (gres(5)). ``AllocGRES`` of releases before 20.11 is the total over the nodes of a job
(``_get_gres_alloc`` of slurmctld/node_scheduler.c multiplies by the nodes), ``ReqGRES`` and ``TRES_PER_NODE`` are of one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_ENTRY = re.compile(
    r"^(?:gres[/:])?(?P<name>[A-Za-z][\w.-]*|7696487)(?:[:](?P<type>[^=:(]*[A-Za-z_][^=:(]*))?(?:[=:](?P<count>\d+)(?P<unit>[KMGT]?))?"
    r"(?:\(.*\))?$"
)
_GPU = frozenset({"gpu", "7696487"})
"""Names of GPUs. The number is the id of ``gpu``, its letters as an integer, which old releases print."""
_SLICE = re.compile(r"(?:^|[_\-.: ])(?P<profile>(?P<slices>\d)g\.(?P<memory>\d+)gb)(?P<media>\+me|\.me)?", re.IGNORECASE)
_LONGEST_ENTRY = 200
_MPS_OF_DEVICE = 100
"""Shares of MPS of one GPU, unless a cluster configures another number (gres.html, "MPS Management")."""
SLICE_SHARES = {1: Fraction(1, 7), 2: Fraction(2, 7), 3: Fraction(1, 2), 4: Fraction(4, 7), 7: Fraction(1)}
"""Share of a GPU that a MIG slice takes from other jobs, by its compute slices of seven. Three compute slices take four of
eight memory slices, so two of them fill a GPU (NVIDIA, Multi-Instance GPU User Guide, "Supported MIG Profiles")."""
A30_SHARES = {1: Fraction(1, 4), 2: Fraction(1, 2), 4: Fraction(1)}
"""The same for the A30, which has four compute slices and four memory slices."""


@dataclass(frozen=True, slots=True)
class Held:
    """Devices of one kind.

    Attributes:
        count: number of devices, or of slices.
        device_type: type as written, without the MIG profile; empty: not stated.
        share: fraction of each device. ``profile``: MIG profile; empty: none.
    """

    count: int
    device_type: str = ""
    share: float = 1.0
    profile: str = ""


def split_slice(text: str) -> tuple[str, str, float]:
    """Split the name of a GRES type into device, MIG profile and share of the device: ``a100_3g.20gb`` is half an A100."""
    found = _SLICE.search(text)
    if found is None:
        return text, "", 1.0
    device = text[: found.start()].strip("_-.: ")
    slices = int(found["slices"])
    shares = A30_SHARES if device.casefold().endswith("a30") or found["profile"].lower() in _A30 else SLICE_SHARES
    share = shares.get(slices, Fraction(min(slices, 7), 7))
    return device, found["profile"].lower(), float(share)


_A30 = frozenset({"1g.6gb", "2g.12gb", "4g.24gb"})


@lru_cache(maxsize=4096)
def held_devices(text: str) -> tuple[tuple[Held, ...], str]:
    """Parse a list of TRES or GRES. Returns the GPUs, and a remark if they cannot be told.

    A remark is ``shards`` for shards, whose number a GPU the text does not say, or ``cut off`` for a shortened column.
    """
    total, typed, remark = 0, [], ""
    cut = text.endswith("+")
    entries = _entries(text)
    for entry in entries[:-1] if cut else entries:
        found = _ENTRY.match(entry)
        if found is None:
            continue
        name, count = found["name"].casefold(), int(found["count"] or 1)
        if found["unit"]:
            continue
        if name in _GPU:
            if found["type"]:
                device, profile, share = split_slice(found["type"].strip())
                typed.append(Held(count, device, share, profile))
            else:
                total += count
        elif name == "shard" and count:
            remark = "shards"
        elif name == "mps" and count:
            whole = -(-count // _MPS_OF_DEVICE)
            typed.append(Held(whole, found["type"] or "", count / _MPS_OF_DEVICE / whole))
    named = [each for each in typed if each.count]
    rest = total - sum(each.count for each in named)
    held = (*named, *([Held(rest)] if rest > 0 else []))
    return held, ("" if held else "cut off" if cut else remark)


def tres_text(entries: Iterable[tuple[str, str, float]]) -> str:
    """Join TRES of (type, name, count), as Slurm's JSON lists them, to the text of ``AllocTRES``."""
    return ",".join(f"{kind}{f'/{name}' if name else ''}={int(count)}" for kind, name, count in entries)


def _entries(text: str) -> list[str]:
    """Split at commas outside of brackets: ``gpu:4(IDX:0,2)`` is one entry. Longer ones than an entry can be are left out."""
    entries, start, depth = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth <= 0:
            entries.append(text[start:at].strip())
            start, depth = at + 1, 0
    return [entry for entry in (*entries, text[start:].strip()) if entry and len(entry) <= _LONGEST_ENTRY]
