"""Bytes that have left an emulated host, headers included: behind its card where it has one."""

from __future__ import annotations

from pathlib import Path

LINKS = ("w0", "pl0", "lo")
"""The host's end of the link: behind a card, without one, and where there is no network."""


def sent_bytes() -> int:
    """Bytes so far, counted by the kernel."""
    rows = {
        line.partition(":")[0].strip(): line.partition(":")[2].split()
        for line in Path("/proc/net/dev").read_text().splitlines()
    }
    return int(next(rows[name] for name in LINKS if name in rows)[8])
