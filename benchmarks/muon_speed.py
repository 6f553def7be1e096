"""Seconds of a step of Muon on one CPU process, ours and other implementations, as rows of a CSV file.

    python benchmarks/muon_speed.py --out RESULTS/muon_speed.csv

RESULTS is benchmarks/results. Contenders take turns on the same weights and gradients, and each row has the processor's seconds
of a step, so that neighbours on the machine count little. `torch.optim.Muon` takes the matrices one after the other, with
torch.optim.AdamW for the rest. pytorch_optimizer and dion are measured if they can be imported. dion
(github.com/microsoft/dion, commit 0c20549, in no registry) is measured by the compiled functions of its step, called as its
step calls them in one process, `dion`, and with a stack of matrices of one shape, `dion stacked`, as its later versions do.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import append
from torch import Tensor, nn

import paceline

COLUMNS = (
    "network",
    "matrices",
    "parameters",
    "flops",
    "threads",
    "contender",
    "repetitions",
    "cpu_ms",
    "p10_ms",
    "p90_ms",
    "ratio",
)
NETWORKS: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {
    "gpt2, 2 blocks": (2, {"qkv": (2304, 768), "proj": (768, 768), "up": (3072, 768), "down": (768, 3072)}),
    "llama-like, 2 blocks": (
        2,
        {
            "q": (768, 768),
            "k": (256, 768),
            "v": (256, 768),
            "o": (768, 768),
            "gate": (2048, 768),
            "up": (2048, 768),
            "down": (768, 2048),
        },
    ),
}
"""Shapes of the matrices of a block; each has two vectors too, and an embedding of 2,048 rows stands for the rest."""
RATE, DECAY, EPS = 1e-3, 0.1, 1e-8
Step = Callable[[], object]


def parameters(network: str) -> list[tuple[str, nn.Parameter]]:
    """Named weights with gradients."""
    torch.manual_seed(0)
    blocks, shapes = NETWORKS[network]
    width = min(shape[1] for shape in shapes.values())
    named = [("embed.weight", nn.Parameter(0.02 * torch.randn(2048, width)))]
    for block in range(blocks):
        named += [(f"h.{block}.{name}.weight", nn.Parameter(0.02 * torch.randn(shape))) for name, shape in shapes.items()]
        named += [(f"h.{block}.norm{i}.weight", nn.Parameter(torch.ones(width))) for i in range(2)]
    for _, parameter in named:
        parameter.grad = torch.randn_like(parameter)
    return named


def of_torch(matrices: list[nn.Parameter], rest: list[nn.Parameter]) -> Step:
    """Torch's two optimizers."""
    both = (
        torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=RATE, weight_decay=DECAY),
    )
    return lambda: [optimizer.step() for optimizer in both]


def of_pytorch_optimizer(matrices: list[nn.Parameter], rest: list[nn.Parameter]) -> Step:
    """The class of pytorch_optimizer, with its default options."""
    groups = [{"params": matrices, "use_muon": True}, {"params": rest, "use_muon": False}]
    kind = importlib.import_module("pytorch_optimizer").Muon
    return kind(groups, lr=RATE, weight_decay=DECAY, use_adjusted_lr=True).step  # type: ignore[no-any-return]


def of_dion(matrices: list[nn.Parameter], rest: list[nn.Parameter], stacked: bool) -> Step:
    """The functions of dion in the order of its step in one process."""
    muon, scalar = importlib.import_module("dion.muon"), importlib.import_module("dion.scalar_opts")
    momenta, state = [torch.zeros_like(p) for p in matrices], [[torch.zeros_like(p) for p in rest] for _ in range(2)]
    lr, mu, decay, eps, done = torch.tensor(RATE), torch.tensor(0.95), torch.tensor(DECAY), torch.tensor(EPS), torch.tensor(0)
    groups: dict[Any, list[int]] = {}
    for i, p in enumerate(matrices):
        groups.setdefault(p.shape if stacked else i, []).append(i)

    @torch.no_grad()
    def step() -> None:
        done.add_(1)
        for members in groups.values():
            own = [matrices[i] for i in members]
            updates = muon.muon_update_pre_orthogonalize([p.grad for p in own], [momenta[i] for i in members], mu, True)
            if stacked:
                updates = list(muon.zeropower_via_newtonschulz5(torch.stack(updates), epsilon=eps).unbind())
            else:
                updates = [muon.zeropower_via_newtonschulz5(updates[0], epsilon=eps)]
            rate = muon.adjust_lr_rms_norm(lr, own[0].shape, flatten=False)
            muon.muon_update_post_orthogonalize(own, updates, lr, rate, decay)
        beta1, beta2 = torch.tensor(0.9), torch.tensor(0.95)
        scalar.adamw_update_foreach(rest, [p.grad for p in rest], *state, lr, beta1, beta2, decay, done, eps)

    return step


def contenders(named: list[tuple[str, nn.Parameter]]) -> tuple[dict[str, Step], paceline.Muon]:
    """A step of each implementation that is at hand, ours first."""
    ours = paceline.Muon(named, lr=RATE, weight_decay=DECAY)
    wide = paceline.Muon(named, lr=RATE, weight_decay=DECAY, precision="fp32")
    matrices = [p for name, p in named if name in ours.division.matrices]
    rest = [p for name, p in named if name in ours.division.rest]
    steps: dict[str, Step] = {"paceline": ours.step, "paceline fp32": wide.step, "torch.optim.Muon": of_torch(matrices, rest)}
    others: dict[str, Callable[[], Step]] = {
        "pytorch_optimizer": lambda: of_pytorch_optimizer(matrices, rest),
        "dion": lambda: of_dion(matrices, rest, stacked=False),
        "dion stacked": lambda: of_dion(matrices, rest, stacked=True),
    }
    for name, make in others.items():
        try:
            steps[name] = make()
        except ModuleNotFoundError as error:
            print(f"{name}: {error.name} is not installed")
    return steps, ours


def measure(network: str, repetitions: int, out: Path) -> None:
    """Measure all contenders in turn, and add a row for each."""
    named = parameters(network)
    weights = [p.detach().clone() for _, p in named]
    steps, ours = contenders(named)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repetitions + 1):  # the first one warms up
        for name, step in steps.items():
            _set(named, weights)
            start = time.process_time()
            step()
            if turn:
                seconds[name].append(time.process_time() - start)
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        low, *_, high = statistics.quantiles(times, n=10) if len(times) > 1 else [times[0]] * 2
        row = {
            "network": network,
            "matrices": len(ours.division.matrices),
            "parameters": sum(p.numel() for _, p in named),
            "flops": ours.orthogonalization_flops,
            "threads": torch.get_num_threads(),
            "contender": name,
            "repetitions": repetitions,
            "cpu_ms": f"{1e3 * middle[name]:.1f}",
            "p10_ms": f"{1e3 * low:.1f}",
            "p90_ms": f"{1e3 * high:.1f}",
            "ratio": f"{middle[name] / middle['paceline']:.3f}",
        }
        append(out, COLUMNS, row)
        print(f"{network:22} {name:18} {row['cpu_ms']:>8} ms  {row['ratio']} times paceline's")


@torch.no_grad()
def _set(named: list[tuple[str, nn.Parameter]], weights: list[Tensor]) -> None:
    for (_, parameter), weight in zip(named, weights, strict=True):
        parameter.copy_(weight)


def main(arguments: list[str] | None = None) -> None:
    """Measure the networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for network in options.network:
        measure(network, options.repetitions, options.out)


if __name__ == "__main__":
    main()
