"""Data that fits each network of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.cli import main
from paceline.edge import slim_data
from paceline.edge.slim_data import RANDOM, check_fits, declared_input, default_data, example_inputs
from paceline.errors import UserError
from paceline.models import REGISTRY, InputSpec
from paceline.slimming.structures.tracing import structures_of
from paceline.training.runs.data import load as load_data

DIGITS = {
    "lenet5": "digits",
    "hdc": "digits",
    "conv-m-small": "digits",
    "cifar10-terngrad": "digits:3x24x24",
    "resnet-18-cifar": "digits:3x32x32",
}
"""Networks that the digits fit, by hand: one to four channels, sides of 8 to 64 pixels, scores of classes."""


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return REGISTRY[name].function().eval()


def test_default_data_of_the_catalogue_runs_through_the_network_or_the_refusal_names_what_fits() -> None:
    for name, entry in REGISTRY.items():
        if name in DIGITS:
            data = load_data(default_data(name))
            assert data.name == DIGITS[name] and tuple(data.train_x.shape[1:]) == entry.input.shape
            assert len(data.train_y) == len(data.train_x) == 1438 and data.train_x[:9].amax() == 1
            assert on_meta(name)(data.train_x[:2].to("meta")).shape[0] == 2
            continue
        with pytest.raises(UserError) as error:
            default_data(name)
        shape = "x".join(map(str, entry.input.shape))
        assert f"{error.value.message}; {error.value.fix}".count("own loop" if entry.loss == "mean" else f"shape {shape}") >= 1
        (sample,) = example_inputs(name, nn.Identity(), RANDOM, 0) if entry.input.shape[0] < 1e4 else (entry.input.example(1),)
        assert tuple(sample.shape) == (1, *entry.input.shape) and sample.is_floating_point() == (not entry.input.tokens)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [name for name, entry in REGISTRY.items() if len(entry.input.shape) == 3 and entry.loss != "mean"]
)
def test_every_classifier_of_images_is_traced_with_random_inputs(name: str) -> None:
    (sample,) = example_inputs(name, nn.Identity(), RANDOM, 0)
    assert structures_of(on_meta(name), (sample.to("meta"),)).every


def test_data_of_another_shape_is_refused_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "samples of digits are 1x28x28, and resnet-18-cifar takes 3x32x32; give `data` digits:3x32x32 or module:function"
    with pytest.raises(UserError, match=says):
        check_fits("resnet-18-cifar", nn.Conv2d(3, 4, 3), load_data("digits"))
    check_fits("lenet5", nn.Linear(7, 7), load_data("digits"))  # the shapes are equal: the error is the network's, named later
    batch = torch.zeros(2, 5, dtype=torch.int64)
    monkeypatch.setattr(
        slim_data, "call_factory", lambda name: (nn.Identity(), batch + 6) if name == "a:b" else nn.Linear(3, 3)
    )
    found = declared_input("a:b")
    assert found is not None and found.spec == InputSpec((5,), 7) and found.text == "tokens below 7 of shape 5"
    with pytest.raises(UserError, match="no data at hand fits a:b, which takes tokens below 7 of shape 5"):
        default_data("a:b")
    with pytest.raises(UserError, match="the input of c:d is unknown; give `data`, or let the function return"):
        example_inputs("c:d", nn.Linear(3, 3), RANDOM, 0)
    with pytest.raises(UserError, match="c:d fails for a sample of digits, 1x28x28: "):
        check_fits("c:d", nn.Linear(3, 3), load_data("digits"))


def test_a_prediction_takes_an_input_of_a_stated_shape() -> None:
    (image,) = example_inputs("c:d", nn.Conv2d(3, 4, 3), "random:3x9x9", 0)
    assert image.shape == (1, 3, 9, 9) and image.is_floating_point()
    tokens = example_inputs("c:d", nn.Embedding(5, 4), "random:input=tokens:7", 0)[0]
    assert tokens.shape == (1, 7) and not tokens.is_floating_point()
    refused = {"4x9x9": "fails for an input of 4x9x9: ", "wide": "input 'wide'", "x=3x9x9": "inputs of Conv2d: "}
    for text, why in refused.items():
        with pytest.raises(UserError, match=why):
            example_inputs("c:d", nn.Conv2d(3, 4, 3), f"random:{text}", 0)


@pytest.mark.parametrize(
    ("command", "words"), [("--input 3x9", "add --predict"), ("--input 3x9 --predict --data digits", "give one of them")]
)
def test_an_input_is_of_a_prediction_without_data(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slim", "lenet5", *command.split()]) == 2
    assert words in capsys.readouterr().err


def test_random_inputs_are_equal_for_a_seed_and_leave_the_generator() -> None:
    before = torch.get_rng_state()
    one, same, other = (example_inputs("lenet5", nn.Identity(), RANDOM, seed)[0] for seed in (0, 0, 1))
    assert isinstance(one, Tensor) and one.equal(same) and not one.equal(other) and before.equal(torch.get_rng_state())


@pytest.mark.parametrize("shape", ["3x32", "5x32x32", "3x7x32", "3x32x65", "rgb"])
def test_shapes_that_the_digits_lack(shape: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["slim", "resnet-18-cifar", "--data", f"digits:{shape}", "--out", str(tmp_path / "out")]) == 2
    assert f"data digits:{shape}; write it as digits:3x32x32, with 1 to 4 equal channels" in capsys.readouterr().err


def test_enlarged_digits_are_the_same_digits() -> None:
    plain, coloured = load_data("digits"), load_data("digits:3x32x32")
    assert plain.train_y.equal(coloured.train_y)
    small, large = plain.train_x[:, 0, 2:26:3, 2:26:3], coloured.train_x[:, 0, 4:28:3, 4:28:3]
    assert small.equal(large) and coloured.train_x[:, 0].equal(coloured.train_x[:, 2])
