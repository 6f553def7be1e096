"""What INCEPTIONN and its scaled variant send, and what they lose, bound by bound, as rows of a CSV file.

    python benchmarks/inceptionn_ratio.py --out RESULTS/inceptionn_ratio.csv

RESULTS is benchmarks/results. Gradients of a small convolutional network on scikit-learn's digits (SGD with momentum 0.9, batch
64) after some steps, and three distributions. ``lost`` is the share of the gradient's energy that does not arrive in one
exchange, without error feedback; the shares are those of the paper's table III, of ``inceptionn`` only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rows import append

from paceline.codecs import get
from paceline.codecs.inceptionn import tag_shares

COLUMNS = ("gradient", "rms", "codec", "bound", "ratio", "lost", "bits2", "bits10", "bits18", "bits34")
KS = {"inceptionn": (6, 8, 10), "inceptionn-scaled": (2, 3, 4, 5, 6, 7, 8, 10)}


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 50, 300])
    parser.add_argument("--values", type=int, default=1 << 19, help="of each distribution")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for label, x in {**network(options.steps), **distributions(options.values)}.items():
        energy = float(np.sum(np.square(x, dtype=np.float64)))
        for name, ks in KS.items():
            for k in ks:
                codec = get(name, bound=2.0**-k)
                payload = codec.encode(x)
                lost = float(np.sum(np.square(x - codec.decode(payload), dtype=np.float64))) / energy
                shares = tag_shares(x, 2.0**-k) if name == "inceptionn" else ("",) * 4
                figures = (f"{np.sqrt(energy / x.size):.3g}", name, f"2^-{k}", f"{x.nbytes / payload.size:.2f}", f"{lost:.2e}")
                told = (f"{s:.4f}" if isinstance(s, float) else s for s in shares)
                append(options.out, COLUMNS, dict(zip(COLUMNS, (label, *figures, *told), strict=True)))


def network(steps: list[int]) -> dict[str, np.ndarray]:
    """All gradients of the network after so many steps, one vector each."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = {}
    for step in range(max(steps) + 1):
        batch = torch.randint(0, len(images), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), targets[batch]).backward()
        if step in steps:
            parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            found[f"digits CNN, step {step}"] = torch.cat(parts).numpy().copy()
        optimizer.step()
    return found


def distributions(count: int) -> dict[str, np.ndarray]:
    """Light to heavy tails, of a gradient's size."""
    rng = np.random.default_rng(0)
    drawn = {"normal": rng.standard_normal(count), "Laplace": rng.laplace(size=count), "Student t, 3": rng.standard_t(3, count)}
    return {label: (0.01 * x).astype(np.float32) for label, x in drawn.items()}


if __name__ == "__main__":
    main()
