"""Faults, injected into a small job of real processes: what every rank does then, how soon, and what it says.

``run(NAME, FOLDER)`` runs one; ``FAULTS`` has them all. A job has two ranks, each as if alone on its node, as torchrun starts
them, and waits 3 s for a rank that does not answer. Its network idles, so that several jobs share a core.
"""

from __future__ import annotations

import disk_faults
import network_faults
import process_faults
import unlike_rank_faults
from fault_ranks import FEATURES, LIMIT_S
from fault_registry import FAULTS, LONG, missing, run

__all__ = ["FAULTS", "FEATURES", "KINDS", "LIMIT_S", "LONG", "missing", "run"]
KINDS = (process_faults, disk_faults, unlike_rank_faults, network_faults)
"""What has registered them."""
