"""Sites and what no site may be."""

import math

import pytest

from market.sites import job, site, two_sites
from paceline.errors import UserError
from paceline.market.site import Federation


def test_a_federation_knows_its_sites() -> None:
    assert two_sites().names == ("A", "B")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"energy_price": -1.0}, "energy price -1"),
        ({"waiting_price": math.nan}, "waiting price nan"),
        ({"cloud_price": -0.5}, "cloud price -0.5"),
        ({"pue": 0.9}, "PUE of 0.9"),
        ({"lends": -1}, "lends -1 devices"),
        ({"borrows": -8}, "borrows -8 devices"),
        ({"notice_s": -1.0}, "notice -1"),
    ],
)
def test_numbers_of_no_use(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        site("A", [job("a", 0, 1)], **changes)


def test_sites_of_no_use() -> None:
    with pytest.raises(UserError, match="site 'A' has no jobs"):
        site("A", [])
    with pytest.raises(UserError, match="a site without a name"):
        site("", [job("a", 0, 1)])
    with pytest.raises(UserError, match="job 'big' asks for 9 devices, and its largest type has 8"):
        site("A", [job("big", 0, 1, 9)])
    a = site("A", [job("a", 0, 1)])
    with pytest.raises(UserError, match="two sites are named 'A'"):
        Federation(sites=(a, a))
    with pytest.raises(UserError, match="without sites"):
        Federation(sites=())
    with pytest.raises(UserError, match="61 sites"):
        Federation(sites=tuple(site(f"s{n}", [job("a", 0, 1)]) for n in range(61)))
    with pytest.raises(UserError, match="a checkpoint every 0 s"):
        Federation(sites=(a,), checkpoint_s=0)
