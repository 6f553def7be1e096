"""Short forms of the benchmarks of the network card, so that none of them rots."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import lab

ROOT = Path(__file__).parents[1]


def run(script: str, *arguments: str) -> str:
    """What a benchmark prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.full
@pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}")
def test_the_study_in_the_lab_short(tmp_path: Path) -> None:
    out = tmp_path / "lab.csv"
    run(
        "nic_lab.py",
        "--hosts",
        "2",
        "--links",
        "1Gb/s",
        "--steps",
        "1",
        "--repeats",
        "1",
        "--out",
        str(out),
        "--picture",
        str(tmp_path / "p.svg"),
    )
    found = {(r["system"], r["codec_at"]): r for r in rows(out)}
    assert len(found) == 10 and all(r["replicas_equal"] == "True" for r in found.values())
    assert float(found["INC + C", "nic"]["link_mb"]) < float(found["INC", ""]["link_mb"]) / 1.5
    assert (tmp_path / "p.svg").stat().st_size > 10_000


@pytest.mark.full
@pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}")
def test_networks_through_cards_short(tmp_path: Path) -> None:
    out, picture = tmp_path / "networks.csv", tmp_path / "p.svg"
    few = ["--networks", "hdc", "--links", "1Gb/s", "--hosts", "2", "--warm", "0", "--steps", "1"]
    run("nic_networks.py", *few, "--out", str(out), "--picture", str(picture))
    found = {(r["system"], r["codec_at"]): r for r in rows(out)}
    assert list(found)[:4] == [("WA", ""), ("WA + C", "host"), ("INC", ""), ("INC + C", "host")] and len(found) == 6
    card, dense = found["INC + C", "nic"], found["INC", ""]
    assert float(card["link_mb"]) < float(dense["link_mb"]) / 4  # headers and 28 bytes a segment stay
    assert 0 < float(card["hardware_s"]) <= float(card["predicted_s"]) and card["published_over_wa"] == "0.355"
    assert picture.stat().st_size > 10_000


@pytest.mark.full
def test_the_cycles_are_those_of_the_results(tmp_path: Path) -> None:
    pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")
    out = tmp_path / "cycles.csv"
    run("nic_cycles.py", "--out", str(out))
    kept = rows(ROOT / "benchmarks" / "results" / "nic_cycles.csv")
    names = ("engine", "format", "first_out_cycles", "cycles_a_frame", "beats_out_a_frame")
    assert [[r[n] for n in names] for r in rows(out)] == [[r[n] for n in names] for r in kept]


@pytest.mark.skipif(not shutil.which("yosys"), reason="needs yosys: apt-get install yosys")
def test_the_area_of_one_block(tmp_path: Path) -> None:
    pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")
    out = tmp_path / "area.csv"
    run("nic_area.py", "--blocks", "inceptionn lane", "--families", "ice40", "--seeds", "--out", str(out))
    (row,) = rows(out)
    assert row["block"] == "inceptionn lane" and int(row["lut"]) > 100


@pytest.mark.full
def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")
    run("nic_pictures.py", "--out", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"nic_blocks.svg", "nic_compressor.svg", "nic_decompressor.svg"}


PLACES = {"": "", "host": "host", "nic": "card"}


def lab_lines() -> list[str]:
    """The rows of the study in the lab as the page shows them."""
    lines = []
    for r in rows(ROOT / "benchmarks" / "results" / "nic_lab.csv"):
        times = f"{float(r['exchange_s']):.3g} s ({float(r['exchange_low_s']):.3g} to {float(r['exchange_high_s']):.3g})"
        sent = f"{float(r['link_mb']):.3g} MB | {float(r['comm_cut']):.0%}"
        lines.append(f"| {r['link']} | {r['system']} | {PLACES[r['codec_at']]} | {times} | {sent} |")
    return lines


def network_lines() -> list[str]:
    """The paper's networks as the page shows them: step over WA's and communication cut, measured and predicted."""
    lines = []
    for r in rows(ROOT / "benchmarks" / "results" / "nic_networks.csv"):
        if r["system"] != "WA":
            shown = [
                f"{float(r[f'{whose}over_wa']):.2f} | {float(r[f'{whose}comm_cut']):.0%}" if r[f"{whose}over_wa"] else "- | -"
                for whose in ("", "predicted_", "hardware_")
            ]
            place, published = PLACES[r["codec_at"]], float(r["published_over_wa"])
            lines.append(f"| {r['network']} | {r['link']} | {r['system']} | {place} | {' | '.join(shown)} | {published:.2f} |")
    return lines


@pytest.mark.parametrize(("lines", "least"), [(lab_lines, 31), (network_lines, 25)])
def test_the_tables_of_the_page_are_those_of_the_results(lines: Callable[[], list[str]], least: int) -> None:
    page = (ROOT / "docs" / "nic.md").read_text().splitlines()
    assert len(lines()) >= least and not [line for line in lines() if line not in page]
