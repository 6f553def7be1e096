"""Learning rates: published rows, scaling rules, the shape of warm-up and decay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.strategy.recipe import Recipe, published, scaled, scaled_recipe

IMAGENET = 1_281_167


def test_a_warm_up_may_begin_ahead() -> None:
    """MLPerf's BERT row at 8,192 counts its 287 steps from step -76: a quarter of the peak at first, the peak at step 211."""
    recipe = published("bert-large-mlm", 8192, 4.19e6)
    assert (recipe.total_steps, recipe.warmup_steps, recipe.steps_ahead) == (512, 211, 76) and "cut" not in recipe.source
    assert [recipe.rate(step) for step in (0, 100, 210, 211)] == pytest.approx([0.00288 * x / 287 for x in (77, 177, 287, 287)])
    assert recipe.rate(212) < 0.00288 and "after 211 of 512 steps from 27% of it" in str(recipe)
    assert Recipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(UserError, match="-1 steps of the warm-up done before"):
        replace(recipe, steps_ahead=-1)


@pytest.mark.parametrize("batch", [6000, 8192, 11_000])
def test_the_steps_of_a_warm_up_stay_at_another_batch_and_so_do_those_ahead(batch: int) -> None:
    recipe = published("bert-large-mlm", batch, 512 * batch)
    assert (recipe.warmup_steps, recipe.steps_ahead) == (211, 76)


@pytest.mark.parametrize(
    ("name", "optimizer", "batch", "largest"),
    [("resnet-50", "momentum", 6529, "3,264"), ("resnet-50", "lars", 131_073, "65,536"), ("bert-large", "", 65_537, "32,768")],
)
def test_rates_are_not_scaled_far_beyond_what_was_seen(name: str, optimizer: str, batch: int, largest: str) -> None:
    assert published(name, batch - 1, 1e9, optimizer=optimizer).lr > 0
    with pytest.raises(UserError, match=f"{batch:,} is far beyond those of {name} with .*, up to {largest}; give `lr`"):
        published(name, batch, 1e9, optimizer=optimizer)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"base_batch": 0}, "batches of 0 and 8192"),
        ({"batch": 0}, "batches of 256 and 0"),
        ({"samples": -5.0}, "run of -5 samples"),
        ({"samples": math.inf}, "run of inf samples"),
        ({"samples": math.nan}, "run of nan"),
        ({"base_lr": -0.1}, "learning rate -0.1"),
        ({"base_warmup_samples": -1.0}, "-1 of them warm-up"),
    ],
)
def test_a_recipe_that_cannot_be_scaled(given: dict[str, float], said: str) -> None:
    whole = {"base_lr": 0.1, "base_batch": 256, "batch": 8192, "samples": 1e6}
    with pytest.raises(UserError, match=said):
        scaled_recipe("momentum", **{**whole, **given})  # type: ignore[arg-type]


def test_published_rows_come_back_as_they_are() -> None:
    """MLPerf's reference point at 32,768: LARS, rate 21.2, 16 epochs of warm-up; 56 epochs are 2,189 steps."""
    recipe = published("resnet-50", 32_768, 56 * IMAGENET)
    assert (recipe.optimizer, recipe.lr, recipe.total_steps) == ("lars", 21.2, 2190)
    assert recipe.warmup_steps == round(16 * IMAGENET / 32_768)
    assert recipe.options == {"variant": "mlperf", "momentum": 0.94, "weight_decay": 2.5e-5, "trust_coefficient": 0.001}
    assert "scaling" not in recipe.source


def test_lamb_s_untuned_table_is_its_own_two_rules() -> None:
    """You et al. 2020: the rate grows with the square root of the batch, the warm-up in proportion to it."""
    rows = [published("bert-large", 512 << k, 512e6) for k in range(7)]
    first = rows[0]
    for k, row in enumerate(rows):
        assert row.lr == pytest.approx(scaled(first.lr, 512, 512 << k, "sqrt"), rel=1e-5)
        assert row.warmup_steps == pytest.approx(first.warmup_steps, abs=1)  # the steps stay, their samples grow
        assert row.total_steps == 1_000_000 >> k
    assert rows[-1].lr == 0.005 and rows[-1].warmup_steps * 5 == pytest.approx(rows[-1].total_steps, abs=5)


def test_lamb_s_untuned_table_of_resnet_50() -> None:
    """You et al. 2020: 90 epochs, rate 4 / (2^k * 100) and warm-up of 20 / 2^2k epochs, k from 3 at 512 to 0 at 32,768."""
    for step in range(7):
        k, batch = 3 - step / 2, 512 << step
        row = published("resnet-50", batch, 90 * IMAGENET, optimizer="lamb")
        assert row.lr == pytest.approx(4 / (2**k * 100), rel=1e-5) and row.source.endswith("90 epochs)")
        assert row.warmup_steps == pytest.approx(20 / 4**k * IMAGENET / batch, abs=1)


def test_a_batch_between_rows_is_scaled_from_the_nearer_one_and_says_so() -> None:
    near = published("resnet-50", 36_000, 56 * IMAGENET)
    assert near.lr == pytest.approx(21.2 * 36_000 / 32_768)
    assert "linear scaling from its batch 32768" in near.source


def test_scaling_rules() -> None:
    assert scaled(0.1, 256, 8192, "linear") == pytest.approx(3.2)  # Goyal et al. 2017
    assert scaled(0.1, 256, 1024, "sqrt") == pytest.approx(0.2)
    lamb = scaled_recipe("lamb", 1e-3, 128, 2048, 1e6, base_warmup_samples=1e4)
    sgd = scaled_recipe("momentum", 0.1, 128, 2048, 1e6)
    assert lamb.lr == pytest.approx(4e-3) and sgd.lr == pytest.approx(1.6)
    assert lamb.warmup_steps == round(1e4 / 128) and sgd.warmup_steps == 0
    short = scaled_recipe("lamb", 1e-3, 128, 2048, 1e5, base_warmup_samples=1e4)
    assert short.warmup_steps == short.total_steps // 2 and "its warm-up of 78 steps cut to half of the run" in str(short)


@given(
    lr=st.floats(1e-6, 100),
    total=st.integers(1, 5000),
    share=st.floats(0, 1),
    power=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    end=st.floats(0, 1),
)
def test_rates_rise_to_the_peak_and_fall_to_the_end(lr: float, total: int, share: float, power: float, end: float) -> None:
    warmup = int(total * share)
    recipe = Recipe(optimizer="lars", lr=lr, total_steps=total, warmup_steps=warmup, power=power, end_lr=end * lr)
    rates = [recipe.rate(step) for step in range(total + 2)]
    assert all(0 < rate <= lr * (1 + 1e-12) for rate in rates[:total])
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    if warmup:
        assert rates[warmup - 1] == pytest.approx(lr)
    assert rates[total] == pytest.approx(end * lr if power else lr)
    assert Recipe.from_json(recipe.to_json()).rate(total // 2) == recipe.rate(total // 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0}, "learning rate 0"),
        ({"lr": math.nan}, "learning rate nan"),
        ({"warmup_steps": 11}, "11 of 10 steps"),
        ({"total_steps": 0}, "of 0 steps"),
        ({"end_lr": 2}, "ends at 2"),
        ({"power": -1}, "power -1"),
        ({"total_steps": 10.5}, "whole numbers of steps"),
        ({"warmup_steps": 0.5}, "whole numbers of steps"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recipe(**{"optimizer": "lars", "lr": 1.0, "total_steps": 10, **change})


def test_rows_are_of_the_target_and_the_optimizer_that_is_asked_for() -> None:
    assert published("bert-large", 4096, 3e6, target="mlperf").lr == 0.0024
    sgd = published("resnet-50", 3264, 41 * IMAGENET, optimizer="momentum")
    assert sgd.lr == 6.0 and sgd.warmup_steps == round(5 * IMAGENET / 3264)
    with pytest.raises(UserError, match="optimizer of a published recipe of resnet-50 'adam'"):
        published("resnet-50", 3264, 41 * IMAGENET, optimizer="adam")
    with pytest.raises(UserError, match="too few for the published recipe"):
        published("resnet-50", 3264, 1e6)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean resnet-50"):
        published("resnet50", 256, 1e6)
    with pytest.raises(UserError, match=facts("resnet-50", "'mlpref'", "did you mean mlperf")):
        published("resnet-50", 256, 1e8, target="mlpref")
    with pytest.raises(UserError, match="unknown optimizer 'larz'; nearest: lars"):
        scaled_recipe("larz", 0.1, 256, 512, 1e6)
    with pytest.raises(UserError, match="scaling rule"):
        scaled(0.1, 256, 512, "cubic")  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "samples"), [(0, 1e8), (math.nan, 1e8), (256, math.inf), (256, math.nan), (256, 0)])
def test_a_run_that_cannot_be_has_no_recipe(batch: float, samples: float) -> None:
    with pytest.raises(UserError, match=facts("batch", "1", "finite")):
        published("resnet-50", batch, samples)  # type: ignore[arg-type]


def test_options_are_what_the_optimizer_takes() -> None:
    row = published("bert-large", 8192, 8.4e6, target="mlperf")
    assert row.arguments == {"betas": (0.88, 0.88), "weight_decay": 0.0167}
    assert "beta2 0.88, weight_decay 0.0167" in str(row)
    assert Recipe(optimizer="sgd", lr=0.1, total_steps=3).arguments == {}
