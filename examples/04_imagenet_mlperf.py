r"""ResNet-50 on ImageNet with a large batch: the published row of MLPerf's reference nearest to the batch, with LARS.

torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
    examples/04_imagenet_mlperf.py IMAGENET --global-batch 8192 --out runs/imagenet

IMAGENET holds train/<class>/*.JPEG and val/<class>/*.JPEG. --dry-run does two steps and a short test, to see that everything is
there; a few pictures do for it. MLPerf's target is 75.9 % top-1. Nesterov SGD, tuned as carefully, reaches the same (Nado et
al. 2021), and below a batch of about 4,000 MLPerf's own submissions used SGD: try both.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from imagenet_pictures import accuracy, batches, both_parts
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

import paceline
from paceline.errors import UserError
from paceline.models import build
from paceline.strategy.recipe import Recipe, published
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.noise_scale import MEASURABLE
from paceline.training.runs.schedules import scheduler

PICTURES = 1_281_167


def epochs_for(batch: int) -> int:
    """MLPerf's reference points (v4.0) reach 75.9 % after about 33.9 (1 + batch / 45,000) epochs; three for their spread."""
    return math.ceil(33.9 * (1 + batch / 45_000)) + 3


def main(arguments: list[str] | None = None) -> None:
    """Train, test after every epoch, keep the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagenet", type=Path)
    parser.add_argument("--global-batch", type=int, default=8192)
    parser.add_argument("--micro-batch", type=int, default=128, help="pictures in memory at once; the rest is accumulated")
    parser.add_argument("--epochs", type=int, help="default: what MLPerf's runs took at this batch")
    parser.add_argument("--compression", default="dense")
    parser.add_argument("--network", default="resnet-50", help="another one gets ResNet-50's rates")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--loaders", type=int, default=8, help="processes that read pictures, for each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/imagenet"))
    parser.add_argument("--resume", action="store_true", help="go on from --out; a compression's residuals begin at zero again")
    parser.add_argument("--dry-run", action="store_true", help="two steps and a short test")
    options = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        train(options, torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Every rank's part of the run. Raises UserError for a folder or a batch that does not fit."""
    rank, workers, micro = dist.get_rank(), dist.get_world_size(), options.micro_batch
    training, test = both_parts(options.imagenet, options.image_size)
    accumulated, rest = divmod(options.global_batch, workers * micro)
    if rest or not accumulated:
        given = f"a batch of {options.global_batch} on {workers} ranks with {micro} at once"
        raise UserError(given, f"give a multiple of {workers * micro}")
    steps = len(training) // options.global_batch
    if not steps:
        raise UserError(f"a batch of {options.global_batch}, {len(training)} pictures", "give a smaller --global-batch")
    epochs = options.epochs or epochs_for(options.global_batch)
    an_epoch = PICTURES if options.dry_run else steps * options.global_batch  # a dry run may be of a few pictures
    recipe = published("resnet-50", options.global_batch, epochs * an_epoch)
    if rank == 0:
        print(f"{recipe}\n{epochs} epochs of {steps} steps: {workers} ranks, {accumulated} x {micro} pictures each", flush=True)

    torch.manual_seed(options.seed)
    network = build(options.network).to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)
    hook = paceline.attach(model, options.compression, noise_scale=options.compression in MEASURABLE)
    optimizer = paceline.LARS(model.module.named_parameters(), recipe.lr, **recipe.arguments)
    schedule = scheduler(optimizer, recipe)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    checkpoint, first = options.out / "last.pt", 0
    if options.resume:
        if not checkpoint.is_file():
            raise UserError(f"no {checkpoint}", "leave --resume out to begin")
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        if saved.get("recipe", recipe.to_json()) != recipe.to_json() and not options.dry_run:
            before = Recipe.from_json(saved["recipe"])
            raise UserError(f"{checkpoint} is of another recipe: {before}", "resume with its batch and epochs")
        for name, part in (("model", model.module), ("optimizer", optimizer), ("schedule", schedule)):
            part.load_state_dict(saved[name])
        first = saved["epoch"]

    torch.manual_seed(options.seed + 1 + rank)  # crops of its own for each rank
    order: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(training, seed=options.seed, drop_last=True)
    shared = {"num_workers": options.loaders, "pin_memory": device.type == "cuda"}
    loader = DataLoader(training, micro, sampler=order, drop_last=True, **shared)
    tested = min(len(test), workers * micro) if options.dry_run else len(test)
    tester = DataLoader(Subset(test, range(rank, tested, workers)), micro, **shared)
    for epoch in range(first, epochs):
        model.train()
        order.set_epoch(epoch)
        began, data = time.perf_counter(), batches(loader, device)
        count = min(2, steps) if options.dry_run else steps
        for _ in range(count):
            for i in range(accumulated):
                x, y = next(data)
                with model.no_sync() if i + 1 < accumulated else nullcontext():
                    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                        loss = loss_of(model(x), y)
                    (loss / accumulated).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        seconds = time.perf_counter() - began
        top1 = accuracy(model.module, tester, device)
        if rank == 0:
            scale = hook.noise.scale if isinstance(hook, Hook) and hook.noise else None  # none on one rank
            noise = scale.batch(accumulated * micro) if scale else None
            print(
                f"epoch {epoch + 1}/{epochs}  loss {loss.item():.3f}  top-1 {top1:.2%}  rate {schedule.get_last_lr()[0]:.3g}  "
                f"{count * options.global_batch / seconds:.0f} pictures/s  skipped steps {optimizer.skipped_steps}  "
                f"noise scale {f'{noise:.0f} pictures' if noise else 'unknown'}",
                flush=True,
            )
        if options.dry_run:
            return
        if rank == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            kept = {"model": model.module, "optimizer": optimizer, "schedule": schedule}
            fresh = checkpoint.with_suffix(".new")
            more = {"epoch": epoch + 1, "recipe": recipe.to_json()}
            torch.save({name: part.state_dict() for name, part in kept.items()} | more, fresh)
            fresh.replace(checkpoint)


if __name__ == "__main__":
    main()
