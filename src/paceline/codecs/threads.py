"""Number of threads of the native kernels."""

from __future__ import annotations

import os
import sys

from paceline.codecs.codec import legal

_chosen: int | None = None


def set_threads(count: int | None) -> None:
    """Use ``count`` threads in every native call of this process; None returns to the default. Raises UserError below 1."""
    global _chosen
    legal(count is None or count >= 1, f"{count} threads", "give 1 or more, or None for the default")
    _chosen = count


def chosen() -> int | None:
    """Return the last setting of ``set_threads``."""
    return _chosen


def threads() -> int:
    """Return the threads of the next native call: those set, else torch's if it is loaded, else OMP_NUM_THREADS, else the
    cores."""
    if _chosen is not None:
        return _chosen
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(wanted) if wanted.isdecimal() and int(wanted) else cores()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
