"""Learning rate of a file whose plan has none: that of a published network of the same size."""

from __future__ import annotations

import math

import numpy as np

from paceline.planning.emit.job import EmittedJob
from paceline.strategy.optimizer import OPTIMIZERS

_SIZES = (125e6, 350e6, 760e6, 1.3e9, 2.7e9, 6.7e9, 13e9, 175e9)
_RATES = (6.0e-4, 3.0e-4, 2.5e-4, 2.0e-4, 1.6e-4, 1.2e-4, 1.0e-4, 0.6e-4)
SOURCE = "GPT-3's for this size (Brown et al. 2020, table 2.1)"


def peak_rate(job: EmittedJob) -> float | None:
    """Return the plan's peak learning rate, else that of GPT-3 of the same size for a transformer under Adam, else None."""
    if job.recipe:
        return job.recipe.lr
    if not (job.workload.attends and job.tokens and OPTIMIZERS[job.optimizer].is_adam) or job.workload.frozen:
        return None
    size = math.log(max(1, job.workload.num_parameters))
    rate = math.exp(np.interp(size, np.log(_SIZES), np.log(_RATES)))
    return float(f"{rate:.2g}")


def rate_remark(job: EmittedJob) -> str:
    """Return a sentence about the source of the rate."""
    rate = peak_rate(job)
    if rate is None:
        return "The file has no learning rate: no source has one for this network, optimizer and batch."
    source = job.recipe.source if job.recipe else f"{SOURCE}; choose your own"
    return f"The learning rate {rate:g} is {source}."
