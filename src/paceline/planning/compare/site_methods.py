"""Methods that train on several sites, each as choices of a strategy, for ``site_map``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.strategy import LOCAL_RECIPES, Strategy


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


def _of_recipe(name: str, letter: str, title: str) -> SiteMethod:
    """Return a published recipe as a method."""
    recipe = LOCAL_RECIPES[name]
    choices = {key: value for key, value in recipe.choices.items() if key != "sync_every"}
    return SiteMethod(name, letter, title, choices, source=recipe.source)


SITE_METHODS = (
    SiteMethod("dense", ".", "gradients in every step", local=False),
    SiteMethod("int8", "c", "gradients in every step, in 8 bits", {"compression": "int8"}, local=False),
    _of_recipe("diloco", "D", "local steps, dense pseudo-gradients"),
    SiteMethod(
        "muloco",
        "M",
        "local steps of Muon, pseudo-gradients in 4 bits",
        {"compression": "int4", "optimizer": "muon"},
        source="Therien et al. 2025, arXiv:2505.23725",
    ),
    SiteMethod(
        "streaming",
        "T",
        "local steps, fragments in turn in 4 bits, hidden behind the next steps",
        {"compression": "int4", "fragments": 3, "sync_delay": 5},
        source="Douillard et al. 2025, arXiv:2501.18512: 4 bits, 5 steps that overlap",
    ),
    _of_recipe("sparseloco", "S", "local steps, top-k of 1/64 with residuals in place of the outer momentum"),
)
"""Methods of a map, in the order in which they change training: the first of those that are about equally fast counts."""
