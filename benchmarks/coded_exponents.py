"""Bits of bfloat16 with coded exponents (``bf16-coded``), by kind of layer, of gradients and of weights, as rows of a CSV file.

    python benchmarks/coded_exponents.py --out benchmarks/results/coded_exponents.csv

The networks are trained by this script: a GPT-2 of four layers of 256 on the bytes of this project's pages (AdamW, rate 3e-4,
batch 8 of 128 bytes), and LeNet-5 on scikit-learn's digits (momentum SGD, batch 64). A row has all tensors of a kind after so
many steps: bits of a value, the ratio to bfloat16, and the entropy of a tensor's exponents with the 8 other bits.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import append
from torch import nn
from torch.nn import functional

from paceline import models
from paceline.codecs import encode, get
from paceline.training.runs.data import load

COLUMNS = ("network", "steps", "of", "kind", "values", "bits", "ratio", "entropy")
STEPS = (0, 50)
LEAST = 1024
"""Smaller tensors are left out: their headers count too much."""


def gpt2() -> tuple[nn.Module, Callable[[Any], Any], Any]:
    """A small GPT-2, its loss by step, and its optimizer."""
    import transformers

    sizes = {"vocab_size": 256, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4}
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config)
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()

    def loss(step: int) -> Any:
        starts = torch.randint(len(text) - 128, (8,), generator=torch.Generator().manual_seed(step))
        tokens = torch.stack([text[start : start + 128] for start in starts])
        return model(input_ids=tokens, labels=tokens).loss

    return model, loss, torch.optim.AdamW(model.parameters(), lr=3e-4)


def lenet5() -> tuple[nn.Module, Callable[[Any], Any], Any]:
    """LeNet-5, its loss by step, and its optimizer."""
    data, model = load("digits"), models.build("lenet5")

    def loss(step: int) -> Any:
        batch = torch.randperm(len(data.train_y), generator=torch.Generator().manual_seed(step))[:64]
        return functional.cross_entropy(model(data.train_x[batch]), data.train_y[batch])

    return model, loss, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Callable[[Any], Any], Any]]] = {"gpt2": gpt2, "lenet5": lenet5}


def kind(name: str, module: nn.Module) -> str:
    """Return the kind of layer of a parameter."""
    if isinstance(module, nn.Embedding):
        return "embedding"
    if isinstance(module, nn.Conv2d):
        return "convolution"
    return "attention" if ".attn." in name else "norm" if "ln_" in name else "linear"


def tensors(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the kind and the parameter of every large tensor."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if parameter.numel() >= LEAST:
            yield kind(name, owners[name.rpartition(".")[0]]), parameter


def entropy(x: np.ndarray) -> float:
    """Return the bits of a value whose exponents are coded at their entropy in the whole tensor."""
    counts = np.bincount(np.frombuffer(encode(get("bf16"), x)[32:].tobytes(), "<u2") >> 7 & 0xFF)
    shares = counts[counts > 0] / x.size
    return 8 - float(np.sum(shares * np.log2(shares)))


def main() -> None:
    """Train, measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for build in (NETWORKS[name] for name in options.networks):
        torch.manual_seed(0)
        model, loss, optimizer = build()
        for step in range(max(STEPS) + 1):
            optimizer.zero_grad()
            loss(step).backward()
            if step in STEPS:
                found: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
                for name, parameter in tensors(model):
                    found["gradients", name].append(parameter.grad.reshape(-1).numpy().copy())  # type: ignore[union-attr]
                    found["weights", name].append(parameter.detach().reshape(-1).numpy().copy())
                for (of, name), parts in found.items():
                    count = sum(part.size for part in parts)
                    bits = 8 * sum(encode(get("bf16-coded"), part).size for part in parts) / count
                    least = sum(entropy(part) * part.size for part in parts) / count
                    row: dict[str, Any] = {"network": build.__name__, "steps": step, "of": of, "kind": name, "values": count}
                    append(
                        options.out,
                        COLUMNS,
                        row | {"bits": f"{bits:.2f}", "ratio": f"{16 / bits:.3f}", "entropy": f"{least:.2f}"},
                    )
            optimizer.step()


if __name__ == "__main__":
    main()
