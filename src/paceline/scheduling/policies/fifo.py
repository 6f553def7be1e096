"""Policy of first in, first out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from paceline.scheduling.policies.solvers.rigid import filled
from paceline.scheduling.state import Decision, State


def fifo(state: State) -> Decision:
    """Serve jobs in order of arrival. The first job that does not fit blocks the rest. Running jobs keep their devices."""
    return replace(filled(state, np.arange(len(state.jobs)), blocking=True), holds_until_s=math.inf)
