"""The benchmark of slimmed language models: a short form, its text and its models; and the published figures beside it."""

from __future__ import annotations

import csv
import gzip
import math
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")

import slim_language  # noqa: E402
from language_tasks import FILES, STEPS, LstmModel, Text, TransformerModel, perplexity, train  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up book in which a word says much of the next."""
    draw, words, at = random.Random(0), [], 0
    for _ in range(10_000):
        at = (at * 3 + draw.randrange(4)) % 120
        words.append("abcdefghijklmno"[at % 15] + "xyzuvw"[at % 6] + "pqrst"[at % 5])
    path: Path = tmp_path_factory.mktemp("books") / FILES["tinyshakespeare"]
    path.parent.mkdir()
    path.write_bytes(gzip.compress(" ".join(words).encode()))
    return path.parents[1]


def test_a_text_has_three_parts_the_commonest_words_and_one_for_the_others(tmp_path: Path) -> None:
    file = tmp_path / FILES["tinyshakespeare"]
    file.parent.mkdir()
    file.write_bytes(gzip.compress(b"To be, or not to be:\nto see! " + b"to be " * 6))
    text = Text.read("tinyshakespeare", tmp_path, 3)
    assert (len(text.train), len(text.tune), len(text.test)) == (19, 2, 3) and text.vocabulary == 3
    assert text.train[:10].tolist() == [0, 1, 2, 2, 2, 0, 1, 2, 2, 0]


@pytest.mark.parametrize("network", ["lstm", "transformer"])
def test_a_model_sees_no_word_before_it_is_read(network: str) -> None:
    torch.manual_seed(0)
    model = LstmModel(50, 16, (16, 16), 0.0) if network == "lstm" else TransformerModel(50, 16, 8, ((2, 32),), 0.0)
    x = torch.randint(0, 50, (2, STEPS))
    other = x.clone()
    other[:, 20:] = (other[:, 20:] + 1) % 50
    with torch.no_grad():
        apart = (model.eval()(x)[0] - model(other)[0]).abs().amax((0, 2))
    assert float(apart[:20].max()) < 1e-5 < float(apart[20:].min())


def test_training_is_left_at_its_best_epoch_and_a_perplexity_is_that_of_the_tokens() -> None:
    torch.manual_seed(0)
    tokens = torch.arange(4000) % 10
    text = Text(tokens, tokens[:800], tokens[:800], 10)
    model = LstmModel(10, 8, (8,), 0.0)
    with torch.no_grad():
        model.output.weight.zero_(), model.output.bias.zero_()
    assert math.isclose(perplexity(model, text.tune), 10.0, rel_tol=1e-5)
    trained = train(model, text, torch.optim.Adam(model.parameters(), 0.05), 8)
    assert trained.tune == min(trained.curve) < 5
    assert math.isclose(perplexity(model, text.tune), trained.tune, rel_tol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("network", ["lstm", "transformer"])
def test_language_benchmark_short(folder: Path, tmp_path: Path, network: str) -> None:
    out = tmp_path / "rows.csv"
    slim_language.main(["--short", "--network", network, "--data", str(folder), "--out", str(out)])
    rows = {row["contender"]: row for row in csv.DictReader(out.open())}
    assert list(rows)[:3] == ["whole", "slimmed", "from scratch"]
    whole, slimmed, scratch = (rows[name] for name in ("whole", "slimmed", "from scratch"))
    assert slimmed["sizes"] == scratch["sizes"] != whole["sizes"] and slimmed["epochs"] == scratch["epochs"]
    assert int(slimmed["parameters"]) < int(whole["parameters"])
    assert all(float(row["ms"]) > 0 and 1 < float(row["test_perplexity"]) < 100 for row in rows.values())


def test_published_sizes_give_the_published_weights_and_multiplications() -> None:
    """Penn Treebank's 10,000 words, an embedding of 1,500, one bias a gate as in TensorFlow."""
    rows = list(csv.DictReader((ROOT / "validation" / "edge" / "iss.csv").open()))
    assert {row["status"] for row in rows} == {"verified", "recalled"} and all(row["source"] for row in rows)
    value = {(row["network"], row["what"]): float(row["value"]) for row in rows}
    products = {}
    for first, second in ((1500, 1500), (373, 315)):
        gates = 4 * first * (1500 + first) + 4 * second * (first + second)
        products[first] = gates + 10_000 * second
        weights = 10_000 * 1500 + products[first] + 4 * (first + second) + 10_000
        assert math.isclose(weights / 1e6, value[f"LSTM {first} {second}", "weights"], abs_tol=0.06)
    assert math.isclose(products[1500] / products[373], value["LSTM 373 315", "fewer multiplications"], rel_tol=0.005)
