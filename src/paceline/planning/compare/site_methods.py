"""Methods that train on several sites, each as choices of a strategy, for ``site_map``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from paceline.strategy import LOCAL_RECIPES, Strategy
from paceline.strategy.exchanges.hierarchical import HIERARCHICAL

USUAL: Mapping[str, Any] = {}
"""No further choices: each method has its usual exchange."""


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

    def on_sites(self, strategy: Strategy, sites: int, sync_every: int, between: Mapping[str, Any] = USUAL) -> Strategy:
        """Return the strategy of so many sites, each with the strategy and the batch of one site.

        Args:
            between: further choices, of the exchange between sites.

        Raises:
            UserError: choices that do not go together, such as an exchange that does not carry the compression.
        """
        devices = strategy.world_size
        choices = {"world_size": sites * devices, "global_batch_size": sites * strategy.global_batch_size, **self.choices}
        if strategy.parallelism.sharding.weights:
            choices["shard_devices"] = devices
        if self.local:
            choices["sync_every"] = sync_every
            choices |= {"worker_devices": devices} if devices > 1 else {}
        elif devices > 1 and not strategy.parallelism.sharding.weights:
            choices["exchange"] = HIERARCHICAL.name  # a site adds its gradients up before it sends them
        if "sync_delay" in choices:
            choices["sync_delay"] = max(1, min(choices["sync_delay"], sync_every // choices.get("fragments", 1)))
        return strategy.changed(**{**choices, **between})


def _methods() -> Iterator[SiteMethod]:
    """Yield the methods of the file."""
    text = files("paceline.planning.compare").joinpath("site_methods.toml").read_text(encoding="utf-8")
    for entry in tomllib.loads(text)["method"]:
        recipe = LOCAL_RECIPES.get(entry.pop("recipe", ""))
        if recipe is not None:
            of_recipe = {name: value for name, value in recipe.choices.items() if name != _EVERY}
            entry["choices"] = of_recipe | entry.get("choices", {})
            entry["source"] = recipe.source
        yield SiteMethod(**entry)


_EVERY = "sync_every"
SITE_METHODS = tuple(_methods())
"""Methods of a map, in the order in which they change training: the first of those that are about equally fast counts."""
