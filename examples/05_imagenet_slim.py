r"""A trained ImageNet network made small for the edge: the path to the budget, removal, fine-tuning, export.

torchrun --nproc-per-node 8 examples/05_imagenet_slim.py IMAGENET --network resnet-18 --weights resnet18.pt \
    --method ssl --budget speedup=3x --out runs/imagenet-slim

IMAGENET holds train/<class>/*.JPEG and val/<class>/*.JPEG; --weights is a state_dict, or the last.pt of 04_imagenet_mlperf.py.
Epochs and rates follow Wen et al., NIPS 2016, as their README (branch scnn of wenwei202/caffe) has them: half of the original
epochs on the way to the budget and a third in fine-tuning, from a tenth of the original rate, which falls to a tenth again
after 70 % of each. The methods are those of `paceline slim`. Latencies are of this machine: run it where its processor is like
the one at the edge, or train elsewhere and measure there. --dry-run does two steps of each part.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from imagenet_pictures import Pictures, accuracy, batches, both_parts
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, DistributedSampler, Subset

import paceline
from paceline.errors import UserError
from paceline.models import build
from paceline.training.runs.loop import distillation_loss
from paceline.training.runs.starting_model import load_weights
from paceline.units import format_seconds

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of pictures, what the network makes of them, and labels."""


@dataclass(frozen=True)
class Original:
    """How a network was trained: epochs, the rate for a batch of 256, weight decay."""

    epochs: int
    rate: float
    decay: float


ORIGINALS = {"alexnet": Original(90, 0.01, 5e-4), "vgg-16": Original(74, 0.01, 5e-4)}
RESNETS = Original(90, 0.1, 1e-4)
"""He et al. 2016, and what other networks get."""
PATH, TUNE, LOWER = 1 / 2, 1 / 3, 0.1
"""Shares of the original epochs, and of the original rate."""


def main(arguments: list[str] | None = None) -> None:
    """Slim, and write the plan, the weights and the exported network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagenet", type=Path)
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--method", default="ssl")
    parser.add_argument("--budget", default="speedup=2x")
    parser.add_argument("--target", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="pictures of a rank; the rate follows the batch of all ranks")
    parser.add_argument("--path-epochs", type=int, help="default: half of the original's")
    parser.add_argument("--tune-epochs", type=int, help="default: a third of the original's")
    parser.add_argument("--distill", type=float, default=0.5, help="share of the whole network's word in fine-tuning")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--loaders", type=int, default=8, help="processes that read pictures, for each rank")
    parser.add_argument("--out", type=Path, default=Path("runs/imagenet-slim"))
    parser.add_argument("--dry-run", action="store_true", help="two steps of each part and a short test")
    options = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        slim(options, torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        dist.destroy_process_group()


@dataclass
class Training:
    """What both parts have in common."""

    options: argparse.Namespace
    device: torch.device
    original: Original
    training: Pictures
    test: Pictures

    def epochs(self, part: str) -> int:
        """Of "path" or "tune"."""
        given: int | None = getattr(self.options, f"{part}_epochs")
        return given or math.ceil(self.original.epochs * (PATH if part == "path" else TUNE))

    @property
    def steps(self) -> int:
        """Of an epoch."""
        every = len(self.training) // (dist.get_world_size() * self.options.batch)
        return min(2, every) if self.options.dry_run else every

    def optimizer(self, model: nn.Module) -> Optimizer:
        """At the first rate."""
        rate = self.original.rate * LOWER * self.options.batch * dist.get_world_size() / 256
        return torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=self.original.decay)

    def run(
        self, part: str, model: nn.Module, optimizer: Optimizer, loss_of: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        """Train ``model`` on all ranks; ``loss_of`` takes pictures, what the model makes of them, and labels."""
        epochs = 1 if self.options.dry_run else self.epochs(part)
        order: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(self.training, drop_last=True)
        loader = DataLoader(self.training, self.options.batch, sampler=order, drop_last=True, num_workers=self.options.loaders)
        schedule = MultiStepLR(optimizer, [math.ceil(0.7 * epochs * self.steps)])
        trained = DistributedDataParallel(model, device_ids=[self.device.index] if self.device.type == "cuda" else None)
        for epoch in range(epochs):
            model.train()
            order.set_epoch(epoch)
            data = batches(loader, self.device)
            for _ in range(self.steps):
                x, y = next(data)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                    loss = loss_of(x, trained(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            say(f"{part}: epoch {epoch + 1}/{epochs}  loss {loss.item():.3f}  top-1 {self.accuracy(model):.2%}")

    def accuracy(self, model: nn.Module) -> float:
        """Top-1 over the test."""
        rank, ranks, batch = dist.get_rank(), dist.get_world_size(), self.options.batch
        count = min(len(self.test), ranks * batch) if self.options.dry_run else len(self.test)
        part = Subset(self.test, range(rank, count, ranks))
        return accuracy(model, DataLoader(part, batch, num_workers=self.options.loaders), self.device)


def slim(options: argparse.Namespace, device: torch.device) -> None:
    """Every rank's part. Raises UserError as ``paceline.slim``, and for a folder or weights that do not fit."""
    training, test = both_parts(options.imagenet, options.image_size)
    made = Training(options, device, ORIGINALS.get(options.network, RESNETS), training, test)
    if not made.steps:
        raise UserError(f"{len(training)} pictures, {options.batch} for each rank", "give a smaller --batch")
    whole = build(options.network)
    load_weights(whole, options.weights, options.network)
    whole.to(device)
    teacher = copy.deepcopy(whole).eval()
    say(f"{options.network}: top-1 {made.accuracy(whole):.2%}")

    inputs = (torch.zeros(1, 3, options.image_size, options.image_size),)
    given = {"method": options.method, "budget": options.budget, "target": options.target, "threads": options.threads}
    path = paceline.slim(whole, inputs, **given)
    path.check()
    optimizer = path.wrap(made.optimizer(whole), (1 if options.dry_run else made.epochs("path")) * made.steps)
    made.run("path", whole, optimizer, lambda x, output, y: functional.cross_entropy(output, y))
    small = path.shrink()

    def taught(x: Tensor, output: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        own = functional.cross_entropy(output, y)
        return (1 - options.distill) * own + options.distill * distillation_loss(output, wanted)

    made.run("tune", small, made.optimizer(small), taught)
    if dist.get_rank() == 0 and path.plan is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        small, teacher = small.cpu().eval(), teacher.cpu()
        path.plan.save(options.out / "plan.json")
        torch.save(small.state_dict(), options.out / "weights.pt")
        exported = path.target.export(small, inputs, options.out / f"model{path.target.suffix}")
        times = path.latency({"whole": teacher, "small": small})
        before, after = times["whole"].median_s, times["small"].median_s
        say(f"{format_seconds(before)} before, {format_seconds(after)} now, {before / after:.2f}x: {exported}")
    dist.barrier()


def say(words: str) -> None:
    """Rank 0 prints."""
    if dist.get_rank() == 0:
        print(words, flush=True)


if __name__ == "__main__":
    main()
