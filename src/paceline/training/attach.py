"""``attach``: a compression on a stock DistributedDataParallel model, as its communication hook."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy import BUCKET_BYTES, FIRST_BUCKET_BYTES, Strategy
from paceline.training.auto import Auto, ways_to_try
from paceline.training.consistency import agree
from paceline.training.hooks.ddp import Hook, paceline_hook
from paceline.training.hooks.powersgd import PowerSGD
from paceline.training.tensor_layout import trained
from paceline.training.ways import Way, choose

_log = logging.getLogger("paceline")

CLIP = 2.5  # standard deviations; the TernGrad paper's value for every network, data set and optimizer
CANDIDATES = ("bf16", "int8", "inceptionn-scaled", "terngrad")
"""What ``auto`` tries beside dense: those within 0.5 points of dense in the project's own accuracy study."""


def attach(
    model: DistributedDataParallel,
    compression: str = "terngrad",
    *,
    exchange: str = "",
    seed: int = 0,
    clip: float | None = CLIP,
    min_elements: int | None = None,
    dense: Sequence[str] = (),
    ranks_per_node: int | None = None,
    compress_pull: bool = True,
    check_every: int = 100,
    timeout_s: float = 1800.0,
    grad_scaler: Any = None,
    candidates: Sequence[str] = CANDIDATES,
    noise_scale: bool = False,
    **options: float,
) -> Hook | PowerSGD:
    """Compress the gradients of a stock DDP model from its next backward pass on. Nothing else in the script changes.

    A group of gradients with a NaN, an infinity or a magnitude above 2^100 on any rank goes dense and leaves the residuals as
    they are, and so do the later groups of that step; earlier ones have left by then. Codecs compute in fp32.

    Args:
        compression: ``dense``, ``bf16``, ``terngrad``, ``inceptionn``, ``inceptionn-scaled``, ``int8``, ``int4``, ``sign``,
            ``topk``, ``powersgd``; ``auto`` times some steps and takes the fastest of dense and ``candidates``, over a named
            exchange (``int8:ring``) or over their default one, a ring and between nodes; what it takes stays only if steps
            were faster with it. That needs 9 steps, and 9 more for each of at most two candidates.
        exchange: ``allreduce``, ``allgather``, ``ring``, ``sharded``, ``parameter_server`` or ``hierarchical``; empty takes the
            compression's default.
        seed: of the stochastic rounding; the same on every rank.
        clip: for terngrad: clip each tensor at this many standard deviations; None does not clip.
        min_elements: smaller tensors stay dense (default 1024); not of ``dense``, ``bf16`` and ``powersgd``.
        dense: patterns of further tensor names to keep dense, such as ``*.embedding.*``; not of those three either.
        ranks_per_node: for hierarchical; default what torchrun set (``LOCAL_WORLD_SIZE``).
        compress_pull: False sends the sums of ``sharded``, ``hierarchical`` and ``parameter_server`` back as fp32.
        check_every: compare a checksum of the weights over the ranks every so many steps; 0 never does.
        timeout_s: how long an exchange waits for a slow rank or a cut link before it fails.
        grad_scaler: a ``torch.amp.GradScaler``: residuals follow its factor.
        noise_scale: measure the gradient noise scale: one pass over the gradients more before and after the exchange, and one
            scalar that no step waits for; ``hook.noise.scale.batch(samples_of_a_rank)`` is it in samples. For ``dense`` and
            ``bf16``: another compression's error is in the mean, counts as signal, and makes the scale too small or unknown.
        options: of the compression: ``bound``, ``block``, ``density``, ``momentum``, ``rank``.

    Returns:
        The hook: ``print`` it to see what stays dense; keep its ``state_dict()`` of every rank in your checkpoints.

    Raises:
        UserError: an unknown name or option, an illegal value, an exchange that cannot carry the compression, ranks that were
            given different settings or models, a model that is not wrapped in DDP, has a hook already, or has sparse gradients
            or complex parameters.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"attach takes a DistributedDataParallel model, got {type(model).__name__}",
            "wrap it first: model = DistributedDataParallel(model)",
        )
    illegal = _illegal(dense, seed, clip, min_elements, ranks_per_node, check_every, timeout_s)
    workers = dist.get_world_size(model.process_group)
    per_node = ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", workers))
    # As it was given, and before anything else: what one rank alone refuses would keep the others waiting.
    given = {
        "compression": compression,
        "exchange": exchange,
        "options": options,
        "seed": seed,
        "clip": clip,
        "min_elements": min_elements,
        "dense": tuple(dense),
        "check_every": check_every,
        "candidates": tuple(candidates),
        "compress_pull": compress_pull,
        "noise_scale": noise_scale,
        "ranks per node": per_node if "hierarchical" in exchange or compression == "auto" else None,
        "grad_scaler": grad_scaler is not None,
        "what is illegal": illegal and str(illegal),
    }
    agree(model.process_group, given, list(trained(model.module).values()))
    if illegal is not None:
        raise illegal
    if getattr(model, "_comm_hooks", None):
        raise UserError("this model has a communication hook already", "attach once, right after wrapping it")
    sparse = [name for name, module in model.module.named_modules() if getattr(module, "sparse", False)]
    if sparse:
        raise UserError(f"{', '.join(sparse)}: sparse gradients cannot be exchanged here", "build the layer with sparse=False")
    complex_ = [name for name, p in model.module.named_parameters() if p.requires_grad and p.is_complex()]
    if complex_:
        raise UserError(f"{', '.join(complex_)}: complex gradients cannot be exchanged here", "train real and imaginary parts")
    rule: dict[str, Any] = {"names": tuple(dense)} | ({} if min_elements is None else {"min_elements": min_elements})

    def way(name: str, exchange: str = "", **options: float) -> Way:
        return choose(name, exchange, options, clip if name == "terngrad" else None, per_node, rule, compress_pull)

    auto = None
    if compression == "auto":
        if options or exchange:
            raise UserError("auto chooses exchange and options itself", "leave them out, or name a compression")
        ways = ways_to_try(candidates, way, workers, per_node)
        chosen, auto = ways[0], Auto(ways)
    else:
        chosen = way(compression, exchange, **options)
        if clip not in (None, CLIP) and compression != "terngrad":
            raise UserError(f"{compression} does not clip", "leave clip out: it is TernGrad's")
        if chosen.compression.rule is None and (dense or min_elements is not None):
            raise UserError(f"{compression} treats all tensors alike", "leave dense and min_elements out")
    hook: Hook | PowerSGD
    if chosen.compression.low_rank:
        if noise_scale:
            raise UserError("powersgd hands over no gradients to measure", "measure the noise scale with another compression")
        hook = PowerSGD(model, chosen, seed=seed, check_every=check_every, timeout_s=timeout_s, scaler=grad_scaler)
    else:
        hook = Hook(
            model,
            chosen,
            seed=seed,
            check_every=check_every,
            timeout_s=timeout_s,
            scaler=grad_scaler,
            auto=auto,
            noise_scale=noise_scale,
        )
    if chosen.compression.rule is not None and len(hook.dense) == len(hook.tensors):
        _log.warning("%s compresses nothing here; %s", compression, chosen.compression.rule)
    model.register_comm_hook(hook, paceline_hook)
    return hook


def _illegal(
    dense: Sequence[str],
    seed: int,
    clip: float | None,
    min_elements: int | None,
    ranks_per_node: int | None,
    check_every: int,
    timeout_s: float,
) -> UserError | None:
    """What is wrong with the first setting that is, and what is legal."""

    def whole(value: object, least: float) -> bool:
        return isinstance(value, Integral) and int(value) >= least

    def number(value: object, least: float, most: float) -> bool:
        return isinstance(value, Real) and least <= float(value) <= most  # never of NaN

    checks = (
        ("dense", dense, not isinstance(dense, str), "give a list of patterns"),
        ("seed", seed, whole(seed, -math.inf), "give a whole number"),
        ("clip", clip, clip is None or number(clip, 1e-3, 1e6), "give standard deviations, 1e-3 to 1e6, or None"),
        ("min_elements", min_elements, min_elements is None or whole(min_elements, 0), "give a whole number from 0 on"),
        ("ranks_per_node", ranks_per_node, ranks_per_node is None or whole(ranks_per_node, 1), "give a whole number from 1 on"),
        ("check_every", check_every, whole(check_every, 0), "give a whole number of steps; 0 never checks"),
        ("timeout_s", timeout_s, number(timeout_s, 1e-3, 1e9), "give seconds, 1e-3 to 1e9"),
    )
    return next((UserError(f"{name}={value!r}", legal) for name, value, fine, legal in checks if not fine), None)


def wrap(model: nn.Module, strategy: Strategy) -> DistributedDataParallel:
    """A stock DDP model with the strategy's buckets."""
    first, rest = strategy.first_bucket_bytes, strategy.bucket_bytes
    if (first, rest) == (FIRST_BUCKET_BYTES, BUCKET_BYTES):
        return DistributedDataParallel(model)
    if first != rest:
        raise UserError(f"buckets of {first} and then {rest} bytes", "DDP takes its own two sizes or one size for all buckets")
    return DistributedDataParallel(model, bucket_cap_mb=rest / 2**20)
