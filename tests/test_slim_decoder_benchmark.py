"""The benchmark of a slimmed decoder has a row for each contender."""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import slim_decoder  # noqa: E402

from tiny_decoders import decoder  # noqa: E402


@pytest.mark.long
def test_each_contender_has_a_row(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    for name in slim_decoder.FILES:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(gzip.compress(b"It was a dark and stormy night, and the rain fell. " * 1500))
    out = tmp_path / "rows.csv"
    options = ["--short", "--steps", "2", "--budget", "decode=1.1x", "--peers", "magnitude", "scratch"]
    slim_decoder.main([*options, "--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(out)])
    rows = list(csv.DictReader(out.open()))
    tokens = {row["contender"]: int(row["tokens"]) for row in rows}
    assert tokens.keys() >= {"whole", "smaller", "magnitude", "scratch"}
    assert tokens["scratch"] == tokens["whole"] + tokens["smaller"] > tokens["magnitude"] == tokens["smaller"]
    assert all(float(row["perplexity"]) > 1 for row in rows)


@pytest.mark.long
def test_the_peer_from_scratch_has_the_sizes_and_all_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, trained = decoder("Qwen3", num_hidden_layers=1), []
    monkeypatch.setattr(slim_decoder, "train_language_model", lambda *given, say: trained.append(given))
    monkeypatch.setattr(slim_decoder, "decoder_to_onnx", lambda model, file: file)
    record: Any = SimpleNamespace(trained={"tokens": 4096.0})
    options = argparse.Namespace(seed=1, lr=1e-3, work=tmp_path)
    given: Any = (None, record, "scratch", None, small, SimpleNamespace(train=None), 8192)
    found = slim_decoder._peer(options, *given)
    assert found is not None and found.tokens == 4096 + 8192
    ((model, _, schedule, teacher),) = trained
    assert schedule.steps * schedule.batch * schedule.window == found.tokens and teacher is None and schedule.share == 0
    pairs = list(zip(model.parameters(), small.parameters(), strict=True))
    assert all(a.shape == b.shape for a, b in pairs) and any(not a.equal(b) for a, b in pairs)


def test_the_answer_on_the_rows_is_that_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    slim_decoder.main(["--summary", "--out", str(ROOT / "benchmarks" / "results" / "slim_decoder.csv")])
    said = capsys.readouterr().out
    assert "at the least loss: fewer bits (whole, int8), 2.28x per token, perplexity +0.1 %" in said
    page = " ".join((ROOT / "docs" / "slim.md").read_text().split())
    for line in ("less removed, int4: 2.21x per token, +3.6 %", "smaller, fp32: 2.21x per token, +7.5 %"):
        speed, _, loss = line.partition(": ")[2].partition(" per token, +")
        assert f"- {line}" in said and f"{loss} more at {speed}" in page
