"""Trainer of a run: the model wrapped or sharded, its exchange attached, and an optimizer of this rank's weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from paceline.slimming.methods import path_training as on_path
from paceline.strategy.recipe import Recipe
from paceline.strategy.updates.batch_growth import StepPlan
from paceline.training.attach.attach import attach, wrap
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.attach.hooks.powersgd import PowerSGD
from paceline.training.attach.noise_scale import MEASURABLE
from paceline.training.runs.compute.arithmetic import Arithmetic
from paceline.training.runs.data import Dataset
from paceline.training.runs.local_loop import AnyInner, LocalTrainer, ShardedLocalTrainer, attached
from paceline.training.runs.loop import Trainer, make_optimizer, options_of
from paceline.training.runs.sharded_loop import ShardedTrainer, sharded
from paceline.training.runs.shared_update import SharedUpdate, SharedUpdateTrainer
from paceline.training.runs.starting_model import teacher_of
from paceline.training.runs.training_run import TrainingRun

_TRANSFERS = 50  # of the trust ratios to the host, in a run


def make_trainer(run: TrainingRun, module: nn.Module, data: Dataset, device: torch.device) -> tuple[Trainer, Recipe]:
    """Return the trainer of a run on this rank, and the recipe of its rates. Every rank must call this.

    Args:
        module: the network on ``device``, which is wrapped or sharded in place.

    Raises:
        UserError: as ``attach``.
    """
    strategy = run.strategy
    shares, x = strategy.parallelism.sharding, strategy.gradient_exchange
    arithmetic = Arithmetic(strategy, device)
    hook: Hook | PowerSGD
    inner: AnyInner = None
    if strategy.sync_every > 1:
        model, hook, inner = attached(module, run)
    elif shares.weights:
        model, hook = sharded(module, run)
    else:
        model = wrap(module, strategy)
        options = replace(run.attach_options, grad_scaler=arithmetic.scaler)
        hook = attach(model, x, options, noise_scale=x.compression.name in MEASURABLE)
    update = SharedUpdate.of(model, hook, run) if shares.optimizer and not shares.weights else None
    trained = module.named_parameters() if update is None else update.parts.items()
    recipe = run.recipe(len(data.train_y) // strategy.global_batch_size)
    every = min(1000, max(1, recipe.total_steps // _TRANSFERS))
    alone = strategy.sync_every > 1 or shares.optimizer  # replicas that share no work, or share it by their shards
    ranks = None if alone else model.process_group
    optimizer = make_optimizer(strategy.optimizer, trained, recipe.lr, every, run.optimizer_options, ranks)
    recipe = replace(recipe, options=options_of(optimizer))
    if run.slimming:
        optimizer = on_path.wrapped(optimizer, module, data.train_x[:2], run.slimming, recipe.total_steps)
    given = model, hook, optimizer, data, strategy, run.seed, device
    trainer: Trainer
    if strategy.sync_every > 1:
        trainer = ShardedLocalTrainer(*given) if shares.weights else LocalTrainer(*given)
        trainer.last_epoch = run.epochs - 1
        trainer.exchange_within(inner)
    elif shares.weights:
        trainer = ShardedTrainer(*given)
    elif update is not None:
        update.follow(optimizer)
        trainer = SharedUpdateTrainer(*given)
        trainer.update = update
    else:
        trainer = Trainer(*given)
    if (teacher := teacher_of(run)) is not None:
        trainer.teacher, trainer.distill = teacher.to(device), run.distill
    trainer.arithmetic, trainer.compiled = arithmetic, run.compile
    trainer.plan = StepPlan(len(data.train_y), strategy.global_batch_size, run.growth)
    trainer.settle_buckets()
    return trainer, recipe
