"""What INCEPTIONN and its scaled variant send and lose, bound by bound, as rows of a CSV file.

    python benchmarks/inceptionn_ratio.py --out RESULTS/inceptionn_ratio.csv

RESULTS is benchmarks/results. The gradients are those of real networks on real data (momentum SGD, batch 64) after some epochs,
and of three distributions. The paper's table III stands beside them. ``lost`` is the share of the gradient's energy that does
not arrive in one exchange, without error feedback. The shares are those of the paper's table III, of ``inceptionn`` only.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import numpy as np
from rows import append

from paceline.codecs import decode, encode, get
from paceline.codecs.reference.inceptionn import tag_shares

PUBLISHED = Path(__file__).parents[1] / "validation" / "inceptionn" / "published.toml"
COLUMNS = ("gradient", "rms", "codec", "bound", "ratio", "lost", "bits2", "bits10", "bits18", "bits34")
KS = {"inceptionn": (6, 8, 10), "inceptionn-scaled": (2, 3, 4, 5, 6, 7, 8, 10)}


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="lenet5")
    parser.add_argument("--data", default="digits", help="digits, fashion-mnist:DIR, cifar10:DIR")
    parser.add_argument("--epochs", type=int, nargs="+", default=[0, 1, 3, 5])
    parser.add_argument("--samples", type=int, default=20_000, help="of the training set, at most")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--distributions", action="store_true", help="the three distributions too")
    parser.add_argument("--values", type=int, default=1 << 19, help="of each distribution")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    vectors = network(options.network, options.data, options.epochs, options.samples, options.lr)
    if options.distributions:
        vectors |= distributions(options.values)
    for label, x in vectors.items():
        energy = float(np.sum(np.square(x, dtype=np.float64)))
        for name, ks in KS.items():
            for k in ks:
                codec = get(name, bound=2.0**-k)
                payload = encode(codec, x)
                lost = float(np.sum(np.square(x - decode(payload), dtype=np.float64))) / energy
                shares = tag_shares(x, 2.0**-k) if name == "inceptionn" else ("",) * 4
                figures = (f"{np.sqrt(energy / x.size):.3g}", name, f"2^-{k}", f"{x.nbytes / payload.size:.2f}", f"{lost:.2e}")
                told = (f"{s:.4f}" if isinstance(s, float) else s for s in shares)
                append(options.out, COLUMNS, dict(zip(COLUMNS, (label, *figures, *told), strict=True)))
                print(f"  {label:32} {name:17} 2^-{k:<3} ratio {figures[3]:>6}x  energy lost {lost:.2%}", flush=True)
    nets = tomllib.loads(PUBLISHED.read_text())["nets"].values()
    published = ", ".join(f"{n['title']} {n['ratio']}x" for n in nets)
    print(f"  Table III at 2^-10: {published}")


def network(name: str, spec: str, epochs: list[int], samples: int, lr: float) -> dict[str, np.ndarray]:
    """All gradients of a network's mini-batch after so many epochs of momentum SGD, one vector each."""
    import torch
    from torch import nn

    from paceline import models
    from paceline.training.runs.data import load

    torch.manual_seed(0)
    data = load(spec)
    x, y = data.train_x[:samples], data.train_y[:samples]
    model = models.build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    vectors: dict[str, np.ndarray] = {}
    for epoch in range(max(epochs) + 1):
        for number, batch in enumerate(torch.randperm(len(y)).split(64)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            if number == 0 and epoch in epochs:
                parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
                vectors[f"{name} on {data.name}, epoch {epoch}"] = torch.cat(parts).numpy().copy()
            if epoch == max(epochs):
                return vectors
            optimizer.step()
    return vectors


def distributions(count: int) -> dict[str, np.ndarray]:
    """Light to heavy tails, of a gradient's size."""
    rng = np.random.default_rng(0)
    drawn = {"normal": rng.standard_normal(count), "Laplace": rng.laplace(size=count), "Student t, 3": rng.standard_t(3, count)}
    return {label: (0.01 * x).astype(np.float32) for label, x in drawn.items()}


if __name__ == "__main__":
    main()
