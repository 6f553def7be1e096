"""What a lab's cards do, as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.codecs import get
from paceline.errors import UserError
from paceline.lab.card_spec import DEFAULT_K, LARGEST_K, CardSpec, parse_card
from paceline.strategy import COMPRESSIONS


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("inceptionn", CardSpec("inceptionn", 10)),
        ("inceptionn-scaled", CardSpec("inceptionn-scaled", 6)),
        ("inceptionn:25.6Gb/s", CardSpec("inceptionn", 10, 3.2e9)),
        ("inceptionn,bound=2^-8", CardSpec("inceptionn", 8)),
        ("inceptionn,bound=2**-15:1GB/s", CardSpec("inceptionn", 15, 1e9)),
        ("inceptionn-scaled,bound=0.0625", CardSpec("inceptionn-scaled", 4)),
    ],
)
def test_what_is_read(text: str, spec: CardSpec) -> None:
    assert parse_card(text) == spec
    assert parse_card(spec.text) == spec


@given(st.sampled_from(sorted(LARGEST_K)), st.integers(1, 14), st.none() | st.floats(1e3, 1e12))
def test_the_text_of_a_spec_is_read_back(codec: str, k: int, rate: float | None) -> None:
    read = parse_card(CardSpec(codec, k, rate).text)
    assert (read.codec, read.k) == (codec, k)
    assert read.rate == pytest.approx(rate, rel=1e-9) if rate else read.rate is None


def test_an_engine_is_a_file_whose_path_may_have_a_colon(tmp_path: Path) -> None:
    library = tmp_path / "a:b.so"
    library.write_bytes(b"")
    spec = parse_card(f"inceptionn,engine={library}")
    assert spec == CardSpec("inceptionn", 10, None, str(library)) and parse_card(spec.text) == spec
    assert parse_card(f"inceptionn,engine={library}:2Gb/s") == CardSpec("inceptionn", 10, 250e6, str(library))


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("int8", "unknown codec of a card 'int8'; legal: inceptionn, inceptionn-scaled", ""),
        ("inceptin", "unknown codec of a card 'inceptin'", "did you mean inceptionn?"),
        ("inceptionn:1b/s", "an engine of 1.00 b/s", "1.00 kb/s to 10.0 Tb/s"),
        ("inceptionn,bound=2^-4,bound=2^-8", "bound is given more than once", "give it once"),
        ("inceptionn:fast", "'fast' is not a bandwidth", "10Gb/s"),
        ("inceptionn:0Gb/s", "'0Gb/s' is not a positive bandwidth", "10Gb/s"),
        ("inceptionn,bound=2^-16", "bound=2^-16", "2^-1 to 2^-15"),
        ("inceptionn-scaled,bound=2^-15", "bound=2^-15", "2^-1 to 2^-14"),
        ("inceptionn,bound=0.3", "bound=0.3", "2^-1 to 2^-15"),
        ("inceptionn,bound=", "bound=", "2^-1 to 2^-15"),
        ("inceptionn,bound=nan", "bound=nan", "2^-1 to 2^-15"),
        ("inceptionn,size=3", "'size=3' is no option of a card", "bound=2^-K"),
        ("inceptionn,engine=", "'engine=' is no option", "engine=PATH"),
        ("inceptionn,engine=/none.so", "no engine /none.so", "shared library"),
    ],
    ids=str,
)
def test_what_cannot_be(text: str, what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_card(text)
    assert what in caught.value.message and fix in caught.value.fix


def test_bounds_are_those_of_the_codecs() -> None:
    bounds = {c.name: o for c in COMPRESSIONS.values() if c.in_card for o in c.options if o.name == "bound"}
    assert {name: o.default for name, o in bounds.items()} == {name: 2.0**-k for name, k in DEFAULT_K.items()}
    assert {name: o.least for name, o in bounds.items()} == {name: 2.0**-k for name, k in LARGEST_K.items()}
    for name, k in DEFAULT_K.items():
        assert get(name).k == k
        get(name, bound=2.0 ** -LARGEST_K[name])
        with pytest.raises(UserError):
            get(name, bound=2.0 ** -(LARGEST_K[name] + 1))
