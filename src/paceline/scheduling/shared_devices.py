"""Devices that several jobs share, each with a fraction of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ROUNDING = 1e-9
"""Tolerance of sums of fractions."""


def best_fit(loads: Sequence[float], share: float) -> int | None:
    """Return the fullest device that still has room for a fraction; None if there is none."""
    fitting = [slot for slot, load in enumerate(loads) if load + share <= 1 + ROUNDING]
    return max(fitting, key=lambda slot: loads[slot]) if fitting else None


class SharedDevices:
    """Fractions of devices by node. A fraction lies within one device."""

    def __init__(self) -> None:
        self._nodes: dict[int, list[dict[str, float]]] = {}

    def loads(self) -> Mapping[int, Sequence[float]]:
        """Used fraction of each shared device, by node."""
        return {node: [sum(jobs.values()) for jobs in devices] for node, devices in self._nodes.items()}

    def join(self, name: str, node: int, share: float) -> int:
        """Give a job its fraction on a node, and return the number of further devices that are shared now: 0 or 1."""
        devices = self._nodes.setdefault(node, [])
        slot = best_fit([sum(jobs.values()) for jobs in devices], share)
        if slot is not None:
            devices[slot][name] = share
            return 0
        devices.append({name: share})
        return 1

    def leave(self, name: str, node: int) -> int:
        """Take back the fraction of a job, and return the number of devices that are free again: 0 or 1."""
        devices = self._nodes[node]
        slot = next(slot for slot, jobs in enumerate(devices) if name in jobs)
        del devices[slot][name]
        if devices[slot]:
            return 0
        del devices[slot]
        if not devices:
            del self._nodes[node]
        return 1
