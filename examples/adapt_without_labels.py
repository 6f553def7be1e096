"""A network that learned one kind of images reads another, of which no label is known.

    python examples/adapt_without_labels.py

The source is scikit-learn's digits, with labels; the target is other digits of the same set, wider and darker.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from paceline.models.compact import narrow
from paceline.slimming.methods.domain_adaptation import DomainAdaptation, Recipe, Strengths, adapt, normalised_for, predictions
from paceline.training.runs import data


def main() -> None:
    """Train on the source alone, then for the target too."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = data.load("digits")
    half = len(digits.train_x) // 2
    source = digits.train_x[:half], digits.train_y[:half]
    images, classes = digits.train_x[half:], digits.train_y[half:]
    target = 0.5 * nn.functional.interpolate(images, size=(28, 36))[:, :, :, 4:-4]

    def right(model: nn.Module, images: Tensor) -> str:
        return f"{(predictions(model, images) == classes).float().mean().item():.1%}"

    recipe = Recipe(steps=150, batch=32, rate=0.1)
    alone = DomainAdaptation(narrow(0.5), source, target, replace(recipe, strengths=Strengths(0, 0, 0, 0)))
    alone.run()
    print(f"trained on the source: {right(alone.model, images)} of its kind, {right(alone.model, target)} of the target")
    print(f"with the target's statistics: {right(normalised_for(alone.model, target), target)} of the target")
    print(f"adapted: {right(adapt(narrow(0.5), source, target, recipe), target)} of the target")


if __name__ == "__main__":
    main()
