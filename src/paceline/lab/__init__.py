"""An emulated cluster on one Linux machine, with a network namespace per host, a switch, and a token bucket per cable.

A laptop can show how a real cluster of N hosts affects a training job: the link's rate, a host that dies, a pulled cable.
    Without the required privileges, :func:`loopback` runs the same command on 127.0.0.1, unshaped.
"""

from __future__ import annotations

from paceline.lab.card import CardCounters
from paceline.lab.kernel import has_netem, missing
from paceline.lab.lab import Lab, Loopback, down, find, labs, loopback, up
from paceline.lab.processes import HostFailed, HostResult
from paceline.lab.status import Counters, LabStatus

__all__ = [
    "CardCounters",
    "Counters",
    "HostFailed",
    "HostResult",
    "Lab",
    "LabStatus",
    "Loopback",
    "down",
    "find",
    "has_netem",
    "labs",
    "loopback",
    "missing",
    "up",
]
