"""The whole answer."""

import pytest

from market.sites import job, site, two_sites
from paceline.market.federation.federation_answer import answer
from paceline.market.federation.site import Federation


def test_two_sites() -> None:
    told: list[tuple[int, int]] = []
    found = answer(two_sites(), "shapley", progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (3, 3)
    a, b = found.sites
    assert (a.site, a.devices, a.jobs, a.wait_together_s, b.wait_alone_s) == ("A", 8, 3, 0, 500)
    assert a.load == pytest.approx(2010 / 5000)
    assert found.saved == found.one_pool == pytest.approx(2000 / 3600)
    assert a.cost_alone - a.cost_together + a.received == pytest.approx(a.share)
    assert a.lent_hours == b.borrowed_hours == pytest.approx(8 * 1000 / 3600)
    data = found.to_json()
    assert data["stable"] and not data["worse_off"] and not data["leaving"]
    assert [row["site"] for row in data["sites"]] == ["A", "B"]
    assert data["notes"] == ["The link between sites is unknown: data sets arrive at once. State wan and data."]


def test_what_is_unknown_is_said() -> None:
    a = site("A", [job("a", 0, 1, model="net")])
    b = site("B", [job("b", 0, 1)], "1x8xT4")
    notes = answer(Federation(sites=(a, b), wan_bytes_per_s=1e9)).notes
    assert notes[0].startswith("No data set's size is stated") and notes[1].startswith("Some jobs cannot run on some")


def test_one_site_has_nobody_to_share_with() -> None:
    found = answer(Federation(sites=(site("A", [job("a", 0, 10), job("b", 0, 10)]),)))
    assert found.saved == 0 and found.verdict.stable
    assert found.to_json()["verdict"] == ["One site has no other site to share with."]
