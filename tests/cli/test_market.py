"""``paceline market``: the answers, what is written, and mistakes on one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.market.ledger.ledger import LedgerReader

ROOT = Path(__file__).parents[2]
SITES = str(ROOT / "examples" / "sites.toml")
LENDERS = str(ROOT / "examples" / "lenders.csv")


def test_the_whole_answer_is_meant_where_no_action_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", SITES, "--json"]) == 0
    short = json.loads(capsys.readouterr().out)
    assert main(["market", "all", SITES, "--json"]) == 0
    assert short == json.loads(capsys.readouterr().out)
    assert [site["site"] for site in short["sites"]] == ["north", "south", "west"]
    assert sum(site["received"] for site in short["sites"]) == pytest.approx(0)
    assert {row[0] for row in short["mechanism"]} == {"efficiency", "individual rationality", "budget balance", "truthfulness"}


@pytest.mark.everyday("shapley")
@pytest.mark.parametrize("rule", ["credits", "prices", "shapley", "least-core"])
def test_every_rule_writes_a_page_and_a_ledger_that_agrees(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["market", SITES, "--rule", rule, "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    data = json.loads(capsys.readouterr().out)
    page = Path(data["report"]).read_text()
    assert "Who lends to whom" in page and ("Prices over time" in page) == (rule == "prices")
    ledger = LedgerReader(Path(data["ledger"]))
    ledger.verify()
    balances = ledger.balances("micro-credits" if rule == "credits" else "micro-currency")
    assert sum(balances.values()) == 0
    for site in data["sites"]:
        credits = (site["lent_hours"] - site["borrowed_hours"]) * 3600
        expected = credits if rule == "credits" else site["received"]
        assert balances.get(site["site"], 0) / 1e6 == pytest.approx(expected, abs=0.1)
    # The same again makes the same entries, and posts none twice.
    posted = len(ledger)
    assert main(command) == 0
    assert len(LedgerReader(Path(data["ledger"]))) == posted


def test_a_ledger_of_another_rule_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", SITES, "--out", str(tmp_path), "--brief"]) == 0
    before = LedgerReader(tmp_path / "ledger.sqlite").head
    assert main(["market", SITES, "--rule", "shapley", "--out", str(tmp_path), "--brief"]) == 2
    assert "has rule credits, shapley was given" in capsys.readouterr().err
    assert LedgerReader(tmp_path / "ledger.sqlite").head == before


def test_the_gain_of_a_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", "gain", SITES, "--site", "north", "--draws", "10", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["low"] <= data["high"] and data["gain"] == pytest.approx(data["alone"] - data["together"])
    assert data["most_lent"] <= 16  # what the site states
    assert main(["market", "gain", SITES, "--site", "north", "--draws", "10"]) == 0
    assert "Sensitivity" in capsys.readouterr().out


def test_a_rule_is_found_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["market", "gain", SITES, "--site", "north", "--draws", "10"], ["market", SITES]):
        assert main([*command, "--rule", "Credits", "--brief"]) == 0
        assert "under credits" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("command", [[], ["emit", "--for", "slurm"]])
@pytest.mark.parametrize("out", ["", " ", "a\0b"])
def test_a_directory_has_a_name(
    command: list[str], out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["market", *command, SITES, "--out", out]) == 2
    assert f"--out {out!r} names no directory; give one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_stability_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", "stable", SITES, "--rule", "shapley"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "would do better by themselves" in text and "A division exists that keeps everyone: least-core." in text
    assert main(["market", "stable", SITES, "--rule", "least-core", "--brief"]) == 0
    assert capsys.readouterr().out.startswith("it holds: Nobody gains by leaving")


@pytest.mark.long
def test_what_sites_share_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", "equilibrium", SITES, "--price", "0.5", "--choices", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["equilibrium"] and data["best_is_of_all"] and data["equilibria_are_all"]
    assert 1 <= data["price_of_stability"] <= data["price_of_anarchy"]
    assert [site["shares"] for site in data["sites"]] in [each["shares"] for each in data["equilibria"]]
    worst = data["equilibria"][-1]["saving_per_hour"]
    assert data["price_of_anarchy"] == pytest.approx(data["best_saving_per_hour"] / worst)
    assert data["weighted_price_of_anarchy"] > 5 and data["price_of_anarchy"] < 1.1
    assert main(["market", "equilibrium", SITES, "--price", "0", "--choices", "3"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the sites share 0 devices" in text
    assert "The price of anarchy has no bound: the only equilibrium found saves no $." in text


@pytest.mark.long
def test_a_price_that_follows_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alike = tmp_path / "alike.toml"
    alike.write_text(Path(SITES).read_text().replace("A100", "V100"))
    command = ["market", "equilibrium", str(alike), "--price", "1", "--choices", "2", "--dynamic"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["dynamic_price"]
    assert found["converged"] and not found["oscillates"] and found["period_steps"] is None
    assert found["price"] == pytest.approx(1.67, abs=0.005)  # as docs/market.md says
    assert sum(found["bought"]) == pytest.approx(0, abs=1e-3) and found["bought"][0] > 0
    assert main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"The price comes to rest at ${found['price']:.3g} a device and hour: demand equals supply." in text


def test_a_lender_that_throttles_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    speeds = str(ROOT / "examples" / "lenders.csv")
    assert main(["market", "audit", speeds, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["throttling"] == ["west"] and data["rate_any"] == pytest.approx(0.01, rel=0.05)
    assert main(["market", "audit", speeds, "--k", "9", "--brief"]) == 0
    assert "no lender" in capsys.readouterr().out


def test_a_lender_alone_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.csv").write_text("job,model,lender,achieved_per_s,predicted_per_s\na,net,west,5,10\n")
    assert main(["market", "audit", str(tmp_path / "one.csv"), "--brief"]) == 0
    words = capsys.readouterr().out
    assert words == "no lender can be judged: an audit compares sites: give jobs of one model at two sites or more\n"
    assert main(["market", "audit", str(tmp_path / "one.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judged"] == 0


def test_limits_as_files_of_slurm_and_kueue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", "emit", SITES, "--for", "slurm"]) == 0
    text = capsys.readouterr().out
    assert "clusters=north,south,west" in text and "KillWait=30" in text and "GraceTime=90" in text
    assert main(["market", "emit", SITES, "--for", "kueue", "--out", str(tmp_path)]) == 0
    assert "lendingLimit: 16" in (tmp_path / "federation.yaml").read_text()
    assert main(["market", "emit", SITES, "--for", "kueue", "--out", str(tmp_path / "federation.yaml")]) == 2
    assert "cannot write into" in capsys.readouterr().err


@pytest.mark.long
def test_the_auction_is_posted_run_by_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", SITES, "--rule", "auction", "--out", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    ledger = LedgerReader(Path(data["ledger"]))
    balances = ledger.balances("micro-currency")
    assert sum(balances.values()) == 0
    for site in data["sites"]:
        assert balances[site["site"]] / 1e6 == pytest.approx(site["received"], abs=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["market", "nowhere.toml"], "cannot read nowhere.toml"),
        (["market", SITES, "--rule", "shaply"], "did you mean shapley?"),
        (["market", "gain", SITES, "--site", "nort"], "unknown site 'nort'"),
        (
            ["market", "equilibrium", SITES, "--price", "1e300"],
            "a price of 1e+300; give the price of a device and hour, from 0 to",
        ),
        (["market", "equilibrium", SITES, "--price", "nan"], "a price of nan; give the price"),
        (["market", "gain", SITES, "--site", "north", "--draws", "0"], "0 draws; give a whole number from 10 (fewer"),
        (["market", "gain", SITES, "--site", "north", "--draws", "1" + "0" * 21], "draws; give a whole number from 10 (fewer"),
        (["market", "equilibrium", SITES, "--price", "inf"], "a price of inf; give the price"),
        (["market", "equilibrium", SITES, "--price=-1"], "a price of -1; give the price"),
        (["market", "gain", SITES], "--site"),
        (["market", "emit", SITES, "--for", "pbs"], "unknown target 'pbs'"),
        (["market", "audit", SITES], "the columns"),
        (["market", "audit", LENDERS, "--sigma", "1e-9"], "--sigma 1e-09; give a number from 0.001 to 10"),
        (["market", "audit", LENDERS, "--k", "1e300"], "k: 1e+300; give standard errors above 0, up to 40"),
        (["market", "equilibrium", SITES, "--price", "3"], "a price of 3.0 with 2.5 in the cloud"),
        (["market", "equilibrium", SITES, "--price", "1", "--alpha", "-1"], "alpha is -1.0"),
        (["market", "equilibrium", SITES, "--price", "1", "--dynamic"], "one price of 2 device types"),
        (["market", "equilibrium", SITES, "--price", "1", "--choices", "1"], "1 choices of a site; give a whole number from 2"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
