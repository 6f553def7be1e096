"""Cards that compress: found by any spelling, with a rate that counts cycles, and every number with a source."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.hardware import Cluster, Nic, cluster, nic, nics
from paceline.hardware.device import Fact


def test_every_number_has_a_source_and_every_name_finds_its_card() -> None:
    for card in nics():
        facts = [value for f in fields(Nic) if isinstance(value := getattr(card, f.name), Fact)]
        assert len(facts) >= 5 and all(number.value > 0 and number.source and number.date for number in facts)
        assert all(nic(name.upper()) is card for name in (card.name, *card.aliases))
    assert nic() is nics()[0] and nic("inceptionn") is nics()[0]


def test_the_authors_prototype_is_slower_than_its_line() -> None:
    prototype, goal = nic("VC709"), nic("INCEPTIONN goal")
    assert prototype.rate(1448, 66) * 8 == pytest.approx(2.1e9) and prototype.line_rate * 8 == 10e9
    assert goal.rate(1448, 66) * 8 == pytest.approx(25.6e9 * 1448 / (49 * 32))


@given(payload=st.integers(1, 9000), headers=st.integers(0, 200), clock=st.floats(1e6, 1e9), beats=st.sampled_from((0.5, 1)))
def test_an_engine_passes_a_frame_beat_by_beat(payload: int, headers: int, clock: float, beats: float) -> None:
    card = replace(nics()[0], clock=Fact(clock, "here", ""), beats=Fact(beats, "here", ""))
    cycles = len(range(0, headers, 32)) + len(range(0, payload, 32))
    assert card.rate(payload, headers) == pytest.approx(payload / (cycles / beats / clock))
    assert card.rate(payload, headers) <= 32 * clock * beats * (1 + 1e-9)
    assert card.latency_s == pytest.approx((card.compress.value + card.decompress.value) / clock)


def test_a_rate_that_is_given_replaces_the_engine_s() -> None:
    card = nic("inceptionn:5Gb/s")
    assert card.rate(1448, 66) == card.rate(64, 66) == 5e9 / 8 and "5.00 Gb/s" in card.name
    assert nic("vc709:5Gb/s").rate(1448, 66) * 8 == pytest.approx(2.1e9)  # the host's side still limits it


@pytest.mark.parametrize(
    ("name", "words"), [("inceptoin", "unknown network card 'inceptoin'"), ("inceptionn:fast", "bandwidth"), (3, "card 3")]
)
def test_a_mistake_is_named(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        nic(name)


def test_a_cluster_keeps_its_card_through_changes_and_json() -> None:
    four = cluster("A100", 1, 4, "10Gb/s").changed(nic=nic("vc709"))
    assert four.changed(num_nodes=8).nic == four.nic and four.changed(nic=None).nic is None
    assert Cluster.from_json(asdict(four)) == four
    with pytest.raises(UserError, match="another card"):
        four.changed(nic="vc709")


def test_the_help_of_the_command_line_names_those_of_the_catalogue() -> None:
    from paceline.cli.arguments.prediction_arguments import CARDS, SWITCHES
    from paceline.hardware import aggregations, nics

    assert CARDS.split(", ") == [card.name for card in nics()]
    assert SWITCHES.split(", ") == [switch.name for switch in aggregations()]
