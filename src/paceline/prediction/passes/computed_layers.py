"""Network as its software computes it: the kernel of attention and the order of the experts."""

from __future__ import annotations

from paceline.calibration.constants import Efficiency
from paceline.prediction.passes.attention_kernel import with_scores
from paceline.prediction.passes.looped_experts import with_looped_experts
from paceline.workload.table import Workload


def as_computed(workload: Workload, e: Efficiency) -> Workload:
    """Return the network with scores in memory if its attention is not fused, and with experts one by one if the framework
    loops over them."""
    network = with_scores(workload, e)
    return with_looped_experts(network) if e.framework.experts == "looped" else network
