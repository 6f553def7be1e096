"""Tables of sites, as a terminal shows them."""

from __future__ import annotations

import numpy as np

from paceline.hardware import Cluster
from paceline.planning.compare.site_map import SiteMap
from paceline.planning.compare.site_methods import SITE_METHODS
from paceline.prediction.learning.local_loss import FurtherTokens
from paceline.reporting.text.site_text import map_screen, wins

GB = 1e9 / 8
# dense gradients take 100, 10 and 1 s, local steps 2, 1.5 and 1.2 s; a site alone takes 1 s
MAP = SiteMap(
    workload="gpt2",
    site=Cluster.named("1 A100"),
    site_batch=8,
    alone_s=1.0,
    sync_every=30,
    bandwidths=(GB, 10 * GB, 100 * GB),
    sites=(2,),
    methods=tuple(m for m in SITE_METHODS if m.name in ("dense", "diloco")),
    step_s=np.array([[[100.0, 10.0, 1.0]], [[2.0, 1.5, 1.2]]]),
    fits={"dense": True, "diloco": False},
    impossible={"int8": "no room"},
)


def known(most: float) -> FurtherTokens:
    return FurtherTokens(0.01, 0.02, 1.0, most, 2, "arXiv")


def diloco(most: float) -> dict[str, FurtherTokens]:
    return {"diloco": known(most)}


def test_a_map_shows_the_fastest_with_its_share_and_where_local_steps_win() -> None:
    text = map_screen(MAP, {2: diloco(1.3)}).text()
    assert "D 50%" in text and "D 67%" in text and ". 100%" in text
    assert "int8: no room" in text and "Does not fit the memory of a device: diloco." in text
    assert "at most 30%" in text and "DiLoCo alone" in text
    assert "unknown here, not zero, for all local steps" in " ".join(map_screen(MAP, {2: {}}).text().split())


def test_the_bandwidth_where_local_steps_win_is_between_two_of_the_map() -> None:
    assert wins(MAP, 2, {}).startswith("<") and wins(MAP, 2, {}).endswith("?")
    assert wins(MAP, 2, diloco(60.0)) == "nowhere"
    assert wins(MAP, 2, diloco(float("inf"))) == "unknown"
    assert wins(MAP, 2, {"streaming": known(1.0)}) == "nowhere", "a law of a method that is not in the map"
    # log-linear between 10 Gb/s, where dense takes 10 / 1.5, and 100 Gb/s, where it takes 1 / 1.2
    share = np.log(10 / 1.5 / 1.01) / (np.log(10 / 1.5 / 1.01) - np.log(1 / 1.2 / 1.01))
    assert np.isclose(MAP.local_below(2), 10 * GB * 10**share)
