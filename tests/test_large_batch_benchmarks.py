"""The large-batch studies: what they search, what they read from a run, and a short form of each."""

from __future__ import annotations

import csv
import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")

import branched_batch  # noqa: E402
import critical_batch  # noqa: E402
import critical_batch_summary  # noqa: E402
import large_batch  # noqa: E402
import large_batch_summary  # noqa: E402
from large_tasks import TASKS, Data, read  # noqa: E402
from rows import append  # noqa: E402

SWEEP = critical_batch.Sweep("momentum", 0.7, 0.02, (64, 256))


@pytest.fixture(scope="module")
def data() -> Data:
    whole = read(TASKS["digits"], "")
    return Data(whole.train.first(256), whole.tune.first(50), whole.test.first(100))


def test_search_climbs_to_the_best_rate_and_runs_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def run(task: Any, sweep: Any, data: Any, batch: int, seed: int, lr: float, limit: float) -> dict[str, Any]:
        tried.append(lr)
        samples = 1000 * (1 + math.log2(lr / 0.16) ** 2)
        row = dict.fromkeys(critical_batch.COLUMNS, 0)
        given = {"task": task.name, "optimizer": sweep.optimizer, "target": sweep.target, "batch": batch, "seed": seed}
        return row | given | {"lr": lr, "samples": min(samples, limit), "reached": samples <= limit}

    monkeypatch.setattr(critical_batch, "run", run)
    out = tmp_path / "c.csv"
    arguments = (TASKS["digits"], SWEEP, None, 64, 0, 0.02, out)
    assert critical_batch.search(*arguments) == 0.16 and len(tried) == len(set(tried)) == 5  # type: ignore[arg-type]
    assert max(tried) == 0.32, "its upper neighbour was looked at"
    assert critical_batch.search(*arguments) == 0.16 and len(tried) == 5  # type: ignore[arg-type]


def test_a_sweep_and_the_noise_of_one_run_give_the_same_critical_batch(tmp_path: Path) -> None:
    out, picture = tmp_path / "c.csv", tmp_path / "c.svg"
    critical, least = 1000.0, 50_000.0
    for batch in (100, 400, 1600, 6400):
        samples = least * (1 + batch / critical)
        steps, local = round(samples / batch), batch // 4
        noise = [(n, 1.0 * n, critical / local * n) for n in range(1, steps + 1)]
        row = {
            "task": "lenet",
            "optimizer": "momentum",
            "target": 0.5,
            "batch": batch,
            "seed": 0,
            "lr": 0.1,
            "reached": True,
            "samples": samples,
            "steps": steps,
            "loss": 0.5,
            "local_batch": local,
            "noise": json.dumps(noise),
            "seconds": 1,
        }
        append(out, critical_batch.COLUMNS, row)
        append(out, critical_batch.COLUMNS, {**row, "lr": 0.2, "samples": 2 * samples})
        append(out, critical_batch.COLUMNS, {**row, "lr": 0.4, "samples": 1, "reached": False})
    found = critical_batch_summary.read(out)
    text = critical_batch_summary.table([found])
    assert "**Bcrit 1,000**" in text and text.count("| 1,000 | 1.000 |") == 4, text
    critical_batch_summary.picture([found], picture)
    assert picture.stat().st_size > 1000


def test_a_run_ends_at_its_limit_and_keeps_the_norms(data: Data) -> None:
    row = critical_batch.run(TASKS["digits"], SWEEP, data, batch=128, seed=0, lr=0.02, limit=256)
    assert set(row) == set(critical_batch.COLUMNS) and not row["reached"] and row["samples"] == 256
    (step, signal, noise), *_ = json.loads(row["noise"])
    assert step == 2 and noise > 0 and math.isfinite(signal) and row["local_batch"] == 32


def test_every_optimizer_gets_its_trials_and_the_best_rate_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = large_batch.Study(TASKS["digits"], None, 1, tmp_path / "l.csv")  # type: ignore[arg-type]
    tried: list[float] = []

    def row(optimizer: str, batch: int, seed: int, lr: float, **given: Any) -> dict[str, float]:
        tried.append(lr)
        return {"tune_accuracy": 1 - abs(math.log2(lr / 0.1)) / 100, "tune_loss": 0.0}

    monkeypatch.setattr(study, "row", row)
    assert study.tuned("lamb", 64, 0.1, 5) == 0.1
    assert tried == pytest.approx([0.1, 0.2, 0.05, 0.1414, 0.07071], rel=1e-3), "neighbours first, then between them"


@pytest.mark.full
def test_large_batch_benchmark_short(data: Data, tmp_path: Path) -> None:
    out, picture = tmp_path / "l.csv", tmp_path / "l.svg"
    study = large_batch.Study(TASKS["digits"], data, 1, out)
    for optimizer, batch in (("nesterov", 64), ("lars", 128), ("lamb", 128)):
        study.row(optimizer, batch, 0, 0.02, trial=True)
    plain = study.row("lamb", 128, 0, 0.02, "inceptionn-scaled")
    assert plain["workers"] == 8 and plain["steps"] == 2 and 0 <= plain["test_accuracy"] <= 1
    again = large_batch.Study(TASKS["digits"], data, 1, out)
    assert len(again.rows) == 4 and again.row("lars", 128, 0, 0.02)["optimizer"] == "lars"
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 4, "rows that are there are not run again"
    task, epochs, lines = large_batch_summary.read(out)
    assert [line.compression for line in lines] == ["dense", "dense", "inceptionn-scaled", "dense"]
    assert "| digits | 1 | lamb | 128 | dense | 0.02 (1, an end) |" in large_batch_summary.table([(task, epochs, lines)])
    large_batch_summary.picture([(task, epochs, lines)], picture)
    assert picture.stat().st_size > 1000


def test_characters_predict_the_next_and_parts_share_no_answer(tmp_path: Path) -> None:
    text = "".join(chr(65 + n * n % 60) for n in range(101_016))
    (tmp_path / "input.txt.gz").write_bytes(gzip.compress(text.encode()))
    found = read(TASKS["characters"], str(tmp_path))
    assert [len(part) for part in (found.train, found.tune, found.test)] == [1000, 50_000, 50_000]
    assert torch.equal(found.train.x[1:, -1], found.train.y[:-1]), "the answer to each is what the next one ends with"
    assert TASKS["characters"].model(0)(found.train.x[:2]).shape == (2, 65)


@pytest.mark.full
def test_branched_batch_benchmark_short(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"TASK": TASKS["digits"], "BATCH": 32, "PLACES": (0, 128), "WINDOW": 128, "BRANCHES": (32, 64, 128)}
    for name, value in settings.items():
        monkeypatch.setattr(branched_batch, name, value)
    branched_batch.study(data, 0, out := tmp_path / "b.csv")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["what"], row["samples"]) for row in rows[:2]] == [("branches", "0"), ("branches", "128")]
    assert all(len(row["losses"].split()) == 3 and int(row["critical_batch"]) in settings["BRANCHES"] for row in rows[:2])
    constant, grown = rows[2:]
    assert (
        constant["steps"] == "8" and int(grown["steps"]) <= 8 and grown["losses"].startswith(f"{rows[0]['critical_batch']}@0")
    )


def test_the_committed_batch_that_grows_takes_fewer_steps_and_loses_more_than_the_tolerance() -> None:
    """The page says so. A critical batch of short branches is no promise for the rest of a run."""
    with (BENCHMARKS / "results" / "branched_batch.csv").open() as file:
        rows = list(csv.DictReader(file))
    for seed in {row["seed"] for row in rows}:
        constant, grown = (next(r for r in rows if r["what"] == what and r["seed"] == seed) for what in ("constant", "grown"))
        assert 1 - int(grown["steps"]) / int(constant["steps"]) == pytest.approx(0.75, abs=0.01)
        lost = float(grown["loss"]) - float(constant["loss"])
        assert branched_batch.TOLERANCE < lost < 2 * branched_batch.TOLERANCE
