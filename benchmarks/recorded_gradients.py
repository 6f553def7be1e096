"""Gradients of the lab's networks, recorded in training: what ``paced.py`` hands over instead of values that are made up.

    python benchmarks/recorded_gradients.py --networks alexnet googlenet vgg-a resnet-50 vgg-16 --data cifar10:DIR --out FOLDER
    python benchmarks/recorded_gradients.py --networks hdc --data mnist:DIR --out FOLDER

FOLDER lies outside of the project; scripts of the lab take it as ``--gradients FOLDER``. Each network itself is trained, in
fp32: so many steps of momentum SGD (0.9, rate 0.01 for 256 samples, in proportion for fewer: Goyal et al. 2017,
arXiv:1706.02677) from He's initial weights (He et al. 2015, arXiv:1502.01852), the last layer's of deviation 0.01 (Krizhevsky
et al. 2012), on images that are scaled to its input. Then every worker computes the gradient of samples of its own, at the
same weights. So they are gradients of the first steps of a training, not of all of it. A training that does not learn is not
kept. A tensor of more than 2^20 values keeps whole rows that lie evenly apart, 2^20 values together; the lab repeats them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.codecs import encode, get
from paceline.record import environment

MOST = 1 << 20
"""Values that are kept of a tensor."""
LEAST = 1024
"""Smaller tensors stay dense, by the rule of every compression."""
NAMES = {
    "cifar10": "CIFAR-10 (JPEG copy)",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "digits": "scikit-learn's digits",
}


class Recording:
    """What was recorded of one network.

    Args:
        folder: of the network, as ``record`` wrote it.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "about.json").exists():
            raise SystemExit(f"no recorded gradients in {folder}: python benchmarks/recorded_gradients.py writes them")
        self.folder = folder
        self.about: dict[str, Any] = json.loads((folder / "about.json").read_text())

    @property
    def said(self) -> str:
        """Which gradients these are, for headings and rows."""
        how = f"{self.about['steps']} steps of SGD on {self.about['data']}, batch {self.about['batch']}"
        return f"recorded in training, each network's own after {how}"

    def of(self, rank: int) -> list[Tensor]:
        """The kept values of every parameter, 1-D fp32, in model order."""
        if rank >= self.about["ranks"]:
            raise SystemExit(f"{self.folder} holds gradients of {self.about['ranks']} workers: --ranks {rank + 1} records more")
        with np.load(self.folder / f"rank{rank}.npz") as file:
            return [torch.from_numpy(file[str(i)]) for i in range(len(self.about["shapes"]))]

    def ratio(self, codec: str, bound: float) -> float:
        """Bytes of fp32 over those of the codec's messages, of what is compressed: all but small tensors and the last layer."""
        dense = coded = 0.0
        for shape, values in list(zip(self.about["shapes"], self.of(0), strict=True))[:-2]:
            count = int(np.prod(shape))
            if count >= LEAST:
                dense += 4 * count
                coded += encode(get(codec, bound=bound), values.numpy()).size * count / len(values)
        return dense / coded


def kept(gradient: Tensor) -> Tensor:
    """The values of a tensor, or whole rows of it that lie evenly apart: a row is one output's."""
    rows = gradient.detach().reshape(len(gradient), -1)
    if rows.numel() > MOST:
        count = max(1, MOST // rows.shape[1])
        rows = rows[torch.linspace(0, len(rows) - 1, count).round().long()]
    return rows.flatten()


def images(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images (n, channels, height, width) as a network's input (n, *shape): scaled, one channel repeated."""
    x = functional.interpolate(x, shape[1:], mode="bilinear", align_corners=False) if x.shape[2:] != shape[1:] else x
    return x.expand(-1, shape[0], -1, -1) if x.shape[1] != shape[0] else x


def record(name: str, data: Any, folder: Path, ranks: int, steps: int, batch: int) -> None:
    """Train, then write every worker's gradient at the last weights."""
    from paceline import models  # not where a recording is read, by every rank of the lab

    torch.manual_seed(0)
    network = models.build(name)
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    nn.init.normal_(last.weight, std=0.01)
    shape, order = models.model(name).input.shape, torch.randperm(len(data.train_y))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01 * batch / 256, momentum=0.9)
    losses = []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(steps + ranks):
        chosen = order[[k % len(order) for k in range(number * batch, (number + 1) * batch)]]
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(images(data.train_x[chosen], shape)), data.train_y[chosen])
        loss.backward()
        losses.append(float(loss.detach()))
        print(f"  {name} {'step' if number < steps else 'worker'} {number}: loss {losses[-1]:.4f}", flush=True)
        if number < steps:
            optimizer.step()
            continue
        gradients = [kept(p.grad).numpy() for p in network.parameters() if p.grad is not None]
        np.savez(folder / f"rank{number - steps}.npz", **{str(i): g for i, g in enumerate(gradients)})
    if not fmean(losses[steps:]) < losses[0]:
        raise SystemExit(
            f"{name} does not learn: its loss went from {losses[0]:.4g} to {fmean(losses[steps:]):.4g}; give more --steps"
        )
    about = {
        "network": name,
        "data": NAMES.get(data.name, data.name),
        "ranks": ranks,
        "steps": steps,
        "batch": batch,
        "losses": losses,
        "shapes": [list(p.shape) for p in network.parameters()],
        **environment(),
    }
    (folder / "about.json").write_text(json.dumps(about))


def main() -> None:
    """Record and say what the published codec would send of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", required=True)
    parser.add_argument("--data", default="digits", help="digits, mnist:DIR, cifar10:DIR")
    parser.add_argument("--ranks", type=int, default=8, help="workers, each with samples of its own")
    parser.add_argument("--steps", type=int, default=40, help="of training before")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from paceline.training.runs.data import load

    data = load(options.data)
    for name in options.networks:
        record(name, data, options.out / name, options.ranks, options.steps, options.batch)
        ratio = Recording(options.out / name).ratio("inceptionn", 2.0**-10)
        print(f"{name}: inceptionn at 2^-10 sends 1/{ratio:.1f} of what it compresses", flush=True)


if __name__ == "__main__":
    main()
