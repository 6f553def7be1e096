"""Answers as text of eighty columns and as pages that need nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.hardware.prices import price
from paceline.planning import Goal, Space, TrainingTarget, explain, parse_change, plan, whatif
from paceline.planning.search.goal import money
from paceline.planning.search.space import worlds
from paceline.reporting.pages.answer_page import Page, explained_page, plan_page, render, whatif_page, write
from paceline.reporting.text.planning_text import (
    explain_screen,
    explain_table,
    plan_screen,
    ranking_table,
    whatif_screen,
    whatif_table,
)
from paceline.reporting.text.screen import text_of
from paceline.strategy import Strategy
from paceline.units import format_gib
from paceline.workload import Workload

RESNET = Workload.named("resnet-50")
TWO = cluster("V100", 8, 2, "10Gb/s")
PLAIN = Strategy.of(world_size=16, global_batch_size=1024, precision="fp16")
VOID = {"meta", "br", "path", "use", "rect", "input", "img", "link", "circle", "line"}


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[str, str, Page]]:
    """Text, table and page of each question."""
    space = Space(
        clusters=tuple(cluster("A100", local, n, "25Gb/s") for local, n in worlds(4, 2)),
        batches=(1024,),
        compressions=("dense", "terngrad"),
    )
    planned = plan(RESNET, space, Goal("cheapest"), TrainingTarget(total=1e8), why_not={"compression": "terngrad"})
    gained = whatif(RESNET, TWO, PLAIN, [parse_change("network=100Gb/s"), parse_change("nodes+2")])
    said = explain(RESNET, TWO, PLAIN)
    return {
        "plan": (plan_screen(planned).text(why=True), text_of([ranking_table(planned.ranking)]), plan_page(planned)),
        "whatif": (whatif_screen(gained).text(why=True), text_of([whatif_table(gained)]), whatif_page(gained)),
        "explain": (explain_screen(said).text(why=True), text_of([explain_table(said)]), explained_page(said)),
        "predict": (explain_screen(said).text(why=True), text_of([explain_table(said)]), explained_page(said, "prediction")),
    }


KINDS = ("plan", "whatif", "explain", "predict")


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_table_fit_eighty_columns(kind: str, answers: dict[str, tuple[str, str, Page]]) -> None:
    text, table, _ = answers[kind]
    assert max(map(len, text.splitlines())) <= 80 and max(map(len, table.splitlines())) <= 80
    assert len(table.splitlines()) >= 3


def test_the_money_of_an_upgrade_stays_and_what_does_not_fit_is_marked() -> None:
    """Long times, prices of five digits and long titles: every number is there, in columns or in words."""
    wide = Strategy.of(world_size=8, global_batch_size=64)
    changes = [parse_change(t) for t in ("nodes+2", "network=10Gb/s", "network=8x InfiniBand HDR", "nodes+119")]
    found = whatif(Workload.named("mpt-70b"), cluster("T4", 4, 2, "1Gb/s"), wide, changes, scaling="weak")
    for width in (40, 80, 160):
        table, text = text_of([whatif_table(found)], width), " ".join(whatif_screen(found).text(width).split())
        assert max(map(len, table.splitlines())) <= width
        for one in found.outcomes:
            if one.title.startswith("network") or one is found.together:
                assert "nan" not in table and "price is unknown" in text
                continue
            span = f"{money(one.usd_low)[1:]}-{money(one.usd_high)[1:]}"
            for number in (money(one.usd_per_hour)[1:], money(one.usd)[1:], span, f"* {one.title}"):
                assert number in (" ".join(table.split()) if number[0] == "*" else table), (width, number)
            assert f"{format_gib(one.prediction.missing_bytes)} are missing" in text
        assert "* does not fit" in text
    assert len(text_of([whatif_table(found)], 160).splitlines()) == len(found.outcomes) + 1


def test_what_an_upgrade_rests_on_says_whose_it_is(answers: dict[str, tuple[str, str, Page]]) -> None:
    text = " ".join(answers["whatif"][0].split())
    assert "- as it is, nodes+2: Ethernet 10 Gb/s" in text and "- network=100Gb/s, all together: Ethernet 100 Gb/s" in text
    assert "- Workers' compute" not in text and "- The input pipeline" in text


class Tags(HTMLParser):
    """Every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_and_needs_nothing_else(kind: str, answers: dict[str, tuple[str, str, Page]]) -> None:
    _, table, page = answers[kind]
    html = render(page)
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert "http://" not in re.sub(r"<li class=\"note\">.*?</li>", "", html, flags=re.DOTALL).replace("http://www.w3.org", "")
    assert "<svg" in html and 'role="img"' in html
    assert table.strip().splitlines()[-1].strip()[:12].replace("&", "&amp;") in html
    assert render(page) == html
    wanted = {"plan": ["Time against money"], "whatif": ["Gain of each change"]}.get(kind, ["if it vanished"])
    for title in (*wanted, "How it scales", "One step, bar by bar", "To paste"):
        assert title in html


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_shows_the_question_the_answer_and_one_picture(kind: str, answers: dict[str, tuple[str, str, Page]]) -> None:
    page = answers[kind][2]
    html, asked = render(page), dict(page.asked)
    assert asked["model"] == page.title and any(name in asked["machines"] for name in ("A100", "V100"))
    without_numbers = re.sub(r'<details id="numbers.*?</details>', "", html, flags=re.DOTALL)
    opened = re.sub(r"<details.*?</details>", "", without_numbers, flags=re.DOTALL)
    assert opened.count("<svg") == opened.count("<h2>") == 1 and "It rests on" not in opened
    assert "<h2>It rests on</h2></summary>" in html


def test_a_prediction_shows_what_its_machines_cost() -> None:
    machines = cluster("A100", 8, 2, "100Gb/s")
    page = explained_page(explain(RESNET, machines, PLAIN, scale=False), "prediction")
    (cost,) = (card for card in page.cards if card["name"] == "cost")
    hourly = price("A100", node_sizes=(8, 8))
    assert hourly and f"{hourly.usd_per_hour((8, 8)):.2f}" in cost["value"] and "for a million samples" in cost["note"]
    assert dict(page.asked)["machines"].startswith("2 x 8 A100")


def test_it_goes_into_a_directory_or_a_file(tmp_path: Path) -> None:
    page = Page("plan", "a", "b")
    assert write(page, str(tmp_path / "new")) == tmp_path / "new" / "report.html"
    assert write(page, str(tmp_path / "mine.html")).read_text().startswith("<!DOCTYPE html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write(page, str(tmp_path / "file"))


def test_names_are_escaped() -> None:
    assert "<script>alert" not in render(Page("plan", "<script>alert(1)</script>", "b"))
