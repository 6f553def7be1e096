"""Peak of a process's resident memory, which Linux can reset."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import suppress
from pathlib import Path


def peak_rss_bytes() -> float:
    """Return the peak resident memory of this process in bytes, since the last ``reset_peak_rss``."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def reset_peak_rss() -> None:
    """Give freed memory back to the system, and restart the peak from the memory in use. Elsewhere than on Linux do nothing."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM
