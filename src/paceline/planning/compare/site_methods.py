"""Methods that train on several sites, each as choices of a strategy, for ``site_map``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.strategy import Strategy


@dataclass(frozen=True, slots=True)
class SiteMethod:
    """A way for sites to train together.

    Attributes:
        letter: its mark in a table.
        choices: its choices, as ``Strategy.of`` names them.
        local: whether it takes local steps. The interval is then an argument of the map.
        source: paper and section.
    """

    name: str
    letter: str
    title: str
    choices: Mapping[str, Any] = field(default_factory=dict)
    local: bool = True
    source: str = ""

    def on_sites(self, strategy: Strategy, sites: int, sync_every: int) -> Strategy:
        """Return the strategy of so many sites, each with the strategy and the batch of one site. Raises UserError."""
        devices = strategy.world_size
        choices = {"world_size": sites * devices, "global_batch_size": sites * strategy.global_batch_size, **self.choices}
        if strategy.parallelism.sharding.weights:
            choices["shard_devices"] = devices
        if self.local:
            choices["sync_every"] = sync_every
            choices |= {"worker_devices": devices} if devices > 1 else {}
        if "sync_delay" in choices:
            choices["sync_delay"] = max(1, min(choices["sync_delay"], sync_every // choices.get("fragments", 1)))
        return strategy.changed(**choices)


SITE_METHODS = (
    SiteMethod("dense", ".", "gradients in every step", local=False),
    SiteMethod("int8", "c", "gradients in every step, in 8 bits", {"compression": "int8"}, local=False),
    SiteMethod(
        "diloco",
        "D",
        "local steps, dense pseudo-gradients",
        source="Douillard et al. 2023, arXiv:2311.08105",
    ),
    SiteMethod(
        "streaming",
        "T",
        "local steps, fragments in turn in 4 bits, hidden behind the next steps",
        {"compression": "int4", "fragments": 3, "sync_delay": 5},
        source="Douillard et al. 2025, arXiv:2501.18512: tau = 5, 4 bits",
    ),
    SiteMethod(
        "sparseloco",
        "S",
        "local steps, top-k of 1/64 with residuals in place of the outer momentum",
        {"compression": "topk", "options": {"density": 1 / 64, "value_bits": 16}, "outer_lr": 1.0, "outer_momentum": 0.0},
        source="Sarfi et al. 2025, arXiv:2508.15706",
    ),
)
"""Methods of a map. Of equally fast ones the first counts."""
