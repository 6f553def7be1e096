"""Further tokens of local steps: the published laws, and their own arithmetic backwards."""

from __future__ import annotations

import math

import pytest

from paceline.prediction.learning.local_loss import finding_of, further_of, further_tokens, sources, token_factor
from paceline.strategy import Strategy
from paceline.strategy.local.local_recipes import with_recipe
from paceline.workload import Workload

HOFFMANN = {"E": 1.69, "A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}


def test_the_laws_hold_the_loss_that_was_measured() -> None:
    # 8 workers at 2.4B parameters: 1.1 % more loss (arXiv:2503.09799, table 4, as later reports quote it)
    of_eight = further_tokens(2.4e9, 8, 30)
    assert of_eight is not None and of_eight.loss_low < 0.011 < of_eight.loss_high
    # small networks lose more, and more workers lose more
    small, large = further_tokens(35e6, 8, 30), further_tokens(2.4e9, 2, 30)
    assert small is not None and large is not None
    assert small.loss_low > of_eight.loss_high > large.loss_high
    assert 1 <= large.low <= large.high < of_eight.low < of_eight.high < math.inf


def test_the_further_tokens_give_the_loss_back() -> None:
    count, tokens, more = 1e9, 2e10, 0.01
    factor = token_factor(HOFFMANN, count, tokens, more)

    def loss(of: float) -> float:
        return HOFFMANN["E"] + HOFFMANN["A"] / count ** HOFFMANN["alpha"] + HOFFMANN["B"] / of ** HOFFMANN["beta"]

    assert (1 + more) * loss(factor * tokens) == pytest.approx(loss(tokens))
    assert token_factor(HOFFMANN, count, tokens, 0.0) == 1
    assert math.isinf(token_factor(HOFFMANN, count, tokens, 0.5))


@pytest.mark.parametrize(("parameters", "workers", "every"), [(1e6, 4, 30), (72e9, 4, 30), (1e9, 64, 30), (1e9, 4, 500)])
def test_what_no_law_covers_is_unknown(parameters: float, workers: int, every: int) -> None:
    assert further_tokens(parameters, workers, every) is None


def test_the_sentence_has_both_ranges() -> None:
    known = further_tokens(1.3e9, 4, 30)
    assert known is not None
    assert "0.4% to 0.8% more loss for equal tokens: an equal loss takes 8% to 18% further tokens." in known.sentence()
    assert known.sentence().endswith(
        "They hold for 2 to 8 workers, 35M to 10B parameters, 30 local steps, tuned rates, and are extrapolated beyond 2.4B."
    )
    none = further_tokens(10e9, 2, 30)
    assert none is not None and none.words == "none" and "no further tokens" in none.sentence()
    small = further_tokens(6e9, 4, 30)
    assert small is not None and small.low == 1 < small.high and small.words.startswith("at most ")
    assert all("arXiv" in source for source in (known.source, *sources()))


@pytest.mark.parametrize(
    ("recipe", "choices", "published"),
    [
        ("diloco", {}, ""),
        ("diloco", {"sync_every": 500}, "DiLoCo"),
        ("sparseloco", {}, "SparseLoCo"),
        ("muloco", {"optimizer": "muon"}, "MuLoCo"),
        ("diloco", {"compression": "int4", "fragments": 3, "sync_delay": 5}, "Streaming DiLoCo"),
        ("diloco", {"round_deadline_s": 0.0, "max_age": 2}, "Decoupled DiLoCo"),
        ("diloco", {"compression": "int8"}, None),
        ("diloco", {"outer_lr": 1.0, "outer_momentum": 0.0}, None),
        ("diloco", {"optimizer": "momentum"}, None),
    ],
)
def test_the_laws_hold_for_diloco_alone(recipe: str, choices: dict[str, object], published: str | None) -> None:
    plain = {"world_size": 4, "global_batch_size": 32, "sync_every": 30}
    strategy = Strategy.of(**with_recipe(recipe, plain | choices))  # type: ignore[arg-type]
    known, finding = further_of(Workload.named("gpt2"), strategy), finding_of(Workload.named("gpt2"), strategy)
    assert (known is not None) == (published == "")
    if published:
        assert finding is not None and finding.said.startswith(f"The authors of {published} report")
        assert "arXiv" in finding.source
    elif published is None:
        assert finding is None
