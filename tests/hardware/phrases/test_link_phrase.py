"""Networks as people write them, on the machines that they join."""

from __future__ import annotations

import pytest

from each_row import each_row
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.phrases.link_phrase import LinkPhrase, link_phrase
from phrasings import Row, rows


@each_row("row", rows("link_phrasings.csv"))
def test_a_phrase_means_its_network(row: Row) -> None:
    if row["hint"]:
        with pytest.raises(UserError) as refused:
            Cluster.named(row["on"], row["text"])
        assert row["hint"].lower() in str(refused.value).lower()
        return
    assert Cluster.named(row["on"], row["text"]).network.name == row["network"]
    assert Cluster.named(f"{row['on']}, {row['text']}").network.name == row["network"]


@each_row(
    ("text", "meant"),
    [
        ("8 NICs of 400G RoCE", LinkPhrase("400Gb/s RoCE", 8)),
        ("HDR x4", LinkPhrase("HDR", 4, port=True)),
        ("a single NDR port", LinkPhrase("NDR", 1, port=True)),
        ("3200 Gb/s NDR", LinkPhrase("NDR", 8, port=True)),
        ("200G per GPU RoCE", LinkPhrase("200Gb/s RoCE", per_device=True)),
        ("2 and 4 ports of NDR", LinkPhrase("2 and 4 ports of NDR")),
        ("NVLink", LinkPhrase("NVLink", inside=True)),
        ("100 GbE", LinkPhrase("100 GbE", ethernet=True)),
    ],
)
def test_the_parts_of_a_network(text: str, meant: LinkPhrase) -> None:
    assert link_phrase(text) == meant
