"""Sites and what no site may be."""

import math
from contextlib import suppress

import pytest

from market.sites import job, site, two_sites
from paceline.errors import UserError
from paceline.market.federation.site import LONGEST_NAME, Federation, amount, priced
from paceline.market.ledger.ledger import Origin


def test_a_federation_knows_its_sites() -> None:
    assert two_sites().names == ("A", "B")


def test_a_name_that_a_site_may_have_enters_the_ledger() -> None:
    for length in (LONGEST_NAME, LONGEST_NAME + 1):
        made = []
        for make in (lambda name: site(name, [job(name, 0, 1)]), lambda name: Origin("0" * 64, name, 0, "1")):
            with suppress(UserError):
                made.append(make("x" * length))
        assert len(made) == (2 if length == LONGEST_NAME else 0)


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
    for name in ("a\nb", "a\0", "\x1b[31mred", "\u202eabc"):
        with pytest.raises(UserError, match=r"^the name .* has characters that cannot be printed") as refused:
            site(name, [job("a", 0, 1)])
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="of a job at site 'A' has characters that cannot be printed"):
        site("A", [job("a\tb", 0, 1)])
    with pytest.raises(UserError, match="job 'big' asks for 9 devices, and its largest type has 8"):
        site("A", [job("big", 0, 1, 9)])
    a = site("A", [job("a", 0, 1)])
    with pytest.raises(UserError, match="two sites are named 'A'"):
        Federation(sites=(a, a))
    with pytest.raises(UserError, match="without sites"):
        Federation(sites=())
    with pytest.raises(UserError, match="61 sites"):
        Federation(sites=tuple(site(f"s{n}", [job("a", 0, 1)]) for n in range(61)))
    for currency in ("", " ", "\n", "x" * 21):
        with pytest.raises(UserError, match="the currency"):
            Federation(sites=(a,), currency=currency)
    with pytest.raises(UserError, match="a checkpoint every 0 s"):
        Federation(sites=(a,), checkpoint_s=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.0, "0"), (1234.5, "1,234"), (-1234.5, "-1,234"), (0.01234, "0.0123"), (99.96, "100"), (99.9, "99.9")],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


def test_signs_and_currencies() -> None:
    assert (amount(5, sign=True), amount(-5, sign=True), amount(0, sign=True)) == ("+5", "-5", "0")
    assert priced(1200, "$") == "$1,200" and priced(-1200, "$") == "-$1,200"
    assert priced(1200, "job-hours") == "1,200 job-hours"
