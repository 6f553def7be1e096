"""The command that compares with INCEPTIONN's published figures: its orderings, its exit code, and the page beside it."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from page_figures import says

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "validation" / "inceptionn" / "compare.py"
DATA = tomllib.loads(SCRIPT.with_name("published.toml").read_text())
KEPT = ROOT / "benchmarks" / "results" / "inceptionn_systems.csv"


@pytest.fixture(scope="module")
def compare() -> Any:
    """The script as a module: its rows are computed once."""
    spec = importlib.util.spec_from_file_location("compare_inceptionn", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(compare: Any) -> list[Any]:
    return list(compare.make_rows(DATA))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, cwd=ROOT, timeout=200)


@pytest.mark.long
def test_the_orderings_hold_and_the_page_shows_what_is_printed() -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILS" not in done.stdout
    printed = done.stdout.splitlines()
    assert max(map(len, printed)) <= 100
    page = SCRIPT.with_name("README.md").read_text(encoding="utf-8")
    block = page.partition("```text\n")[2].partition("```")[0].splitlines()
    assert len(block) == 6 and not [line for line in block if line not in printed]


def test_sentences_of_the_page_are_those_of_the_rows(compare: Any, rows: list[Any]) -> None:
    page = " ".join(SCRIPT.with_name("README.md").read_text(encoding="utf-8").split())
    by = {(r.net, r.system): r for r in rows}

    def errors(system: str, nets: tuple[str, ...]) -> list[float]:
        return [abs(100 * by[net, system].error) for net in nets]

    large = ("alexnet", "resnet-50", "vgg-16")
    ring, coded = errors("INC", large), errors("INC+C", (*large, "hdc"))
    hdc = by["hdc", "INC"].error
    assert (
        says(page, f"INC comes out {min(ring):.0f} to {max(ring):.0f} % too fast (HDC: {100 * hdc:.0f} % too slow)") and hdc > 0
    )
    assert f"INC+C {min(coded):.0f} to {max(coded):.0f} %." in page
    near, far = (by[net, "WA"].comm / by[net, "WA"].published_comm - 1 for net in ("alexnet", "vgg-16"))
    assert says(page, f"the prediction is {100 * near:.0f} % above the one and {-100 * far:.0f} % below the other")
    assert says(page, f"WA is predicted {1 + by['hdc', 'WA'].error:.1f} times too slow")
    grows = {(net, what): (published, predicted) for net, what, published, predicted in compare.scaling(DATA)}
    wa = [grows[net, "wa_8"] for net in DATA["nets"]]
    inc = [tuple(grows[net, "inc_8"][i] / grows[net, "inc_4"][i] for i in (0, 1)) for net in DATA["nets"]]
    assert f"grows {wa[0][1]:.1f} times (published: {min(p for p, _ in wa)} to {max(p for p, _ in wa)})" in page
    assert f"INC's {inc[0][1]:.1f} times ({min(p for p, _ in inc):.1f} to {max(p for p, _ in inc):.1f})" in page


def test_the_rows_of_the_results_are_those_of_the_script(rows: list[Any]) -> None:
    with KEPT.open(newline="") as file:
        kept = list(csv.DictReader(file))
    assert len(kept) == len(rows) == 16
    for row, mine in zip(kept, rows, strict=True):
        assert (row["net"], row["system"], int(row["wire_bytes"])) == (mine.net, mine.system, mine.wire_bytes)
        for name in ("published", "step", "low", "high", "comm", "ours", "error"):
            assert float(row[name]) == pytest.approx(getattr(mine, name), rel=1e-4), (mine.net, mine.system, name)


def test_an_ordering_that_fails_is_an_exit_code(
    compare: Any, rows: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """HDC's compressed ring as slow as its aggregator: no longer the fastest."""
    monkeypatch.setattr(compare, "make_rows", lambda data: rows)
    assert compare.main([]) == 0 and "FAILS" not in capsys.readouterr().out
    slow = next(r.step for r in rows if (r.net, r.system) == ("hdc", "WA"))
    worse = [replace(r, step=slow) if (r.net, r.system) == ("hdc", "INC+C") else r for r in rows]
    monkeypatch.setattr(compare, "make_rows", lambda data: worse)
    assert compare.main([]) == 1
    failing = [line for line in capsys.readouterr().out.splitlines() if line.endswith("FAILS")]
    assert len(failing) == 1 and failing[0].split()[-2] == "3/4"


@pytest.mark.long
def test_json_and_csv_have_every_row(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rows.csv"
    data = json.loads(run("--json", "--out", str(out)).stdout)
    assert len(data["rows"]) == 4 * 4
    row = next(r for r in data["rows"] if (r["net"], r["system"]) == ("alexnet", "INC+C"))
    assert row["published"] == pytest.approx(0.32 * 1.9635)
    assert row["low"] <= row["step"] <= row["high"]
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 16


@pytest.mark.parametrize("net", DATA["nets"])
def test_published_numbers_agree_with_each_other(net):
    facts = DATA["nets"][net]
    parts = dict(facts["seconds"])
    total = parts.pop("total")
    assert sum(parts.values()) == pytest.approx(total, rel=0.01)
    shares = {int(bits): share for bits, share in facts["bits"].items()}
    assert sum(shares.values()) == pytest.approx(100, abs=0.2)
    assert 32 / (sum(bits * share for bits, share in shares.items()) / 100) == pytest.approx(facts["ratio"], rel=0.01)
