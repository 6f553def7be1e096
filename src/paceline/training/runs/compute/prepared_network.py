"""Network of a run, prepared to compute as its choices state."""

from __future__ import annotations

import torch
from torch import nn

from paceline.errors import UserError
from paceline.strategy import Parallelism
from paceline.strategy.recompute import Recompute
from paceline.training.runs.compute.arithmetic import check_precision
from paceline.training.runs.compute.compilation import check_compiler, compile_network
from paceline.training.runs.compute.recomputation import recompute_blocks
from paceline.training.runs.training_run import TrainingRun


def prepared(run: TrainingRun, network: nn.Module, *, recomputes: bool = True) -> nn.Module:
    """Store the weights of a network as the run states, let its blocks recompute, and compile them. Changes it in place.

    Args:
        recomputes: False leaves recomputation out, for measurements of the passes alone.

    Raises:
        UserError: the network has nothing to recompute.
    """
    strategy = run.strategy
    if strategy.weight_update.narrow:
        network = network.to(torch.bfloat16)
    if recomputes:
        recompute_blocks(network, _recomputation(strategy.parallelism))
    if run.compile:
        compile_network(network)
    return network


def import_tools(run: TrainingRun) -> None:
    """Import what checkpoints and the compiler import at their first call."""
    if run.compile or run.strategy.parallelism.recompute:
        pass


def check_computes(run: TrainingRun, network: nn.Module, kind: str) -> None:
    """Raise UserError if a kind of device, ``cpu`` or ``cuda``, or the network lacks a stated choice. Changes the network."""
    check_precision(run.strategy, network, kind)
    if run.compile:
        check_compiler(kind)
        if run.slimming:
            raise UserError("slimming while it trains changes the network that is compiled", "leave compile out")
    recompute_blocks(network, _recomputation(run.strategy.parallelism))


def _recomputation(mesh: Parallelism) -> Recompute:
    return mesh.recompute.in_layers(mesh.recompute_layers)
