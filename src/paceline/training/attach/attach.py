"""``attach``: a gradient exchange on a stock DistributedDataParallel model, as its communication hook."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, overload

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError, unknown
from paceline.strategy import (
    BUCKET_BYTES,
    CLIP,
    COMPRESSIONS,
    FIRST_BUCKET_BYTES,
    ONE_WAY,
    DenseRule,
    GradientExchange,
    Strategy,
)
from paceline.strategy.codec_place import check_runs
from paceline.training.attach.attach_sharded import attach_sharded, hook_settings
from paceline.training.attach.attachable import check_model, ddp_of, refuse_sparse_gradients
from paceline.training.attach.auto import exchanges_to_try
from paceline.training.attach.consistency import agree
from paceline.training.attach.hooks.ddp import Hook, paceline_hook
from paceline.training.attach.hooks.momentum import MomentumHook
from paceline.training.attach.hooks.powersgd import PowerSGD
from paceline.training.attach.hooks.sharded import ShardedHook
from paceline.training.attach.reducer import exchanged
from paceline.training.attach.shards.fsdp_units import is_sharded
from paceline.training.attach.tensor_layout import TensorSpec

_log = logging.getLogger("paceline")

CANDIDATES = ("bf16", "int8", "inceptionn-scaled", "terngrad")
"""What ``auto`` tries beside dense: compressions within 0.5 points of dense in the project's own accuracy study."""
_USUAL: Mapping[str, Any] = {"residual_bits": 32, "residuals_at": "", "dense_bits": 32}
"""Choices about residuals and uncompressed numbers, and what they usually are."""
TIMEOUT_S = 300.0
"""A step waits for its slowest rank, and a data loader's pause or a checkpoint of one rank can take minutes. A lost process is
noticed at once. This time is for a silent process and a cut link; with gloo PyTorch would wait 1800 s for them."""


@overload
def attach(
    model: DistributedDataParallel, compression: str | GradientExchange = "terngrad", **keywords: Any
) -> Hook | PowerSGD: ...


@overload
def attach(
    model: nn.Module, compression: str | GradientExchange = "terngrad", **keywords: Any
) -> Hook | PowerSGD | ShardedHook: ...


def attach(
    model: nn.Module,
    compression: str | GradientExchange = "terngrad",
    *,
    exchange: str = "",
    seed: int = 0,
    clip: float | None = CLIP,
    min_elements: int | None = None,
    dense: Sequence[str] = (),
    ranks_per_node: int | None = None,
    compress_pull: bool = True,
    codec_at: str = "",
    residual_bits: int = 32,
    residuals_at: str = "",
    dense_bits: int = 32,
    check_every: int = 100,
    timeout_s: float = TIMEOUT_S,
    grad_scaler: Any = None,
    candidates: Sequence[str] = CANDIDATES,
    noise_scale: bool = False,
    gather_bits: int = 0,
    **options: float,
) -> Hook | PowerSGD | ShardedHook:
    """Compress the gradients of a DDP or FSDP2 model from its next backward pass on. Nothing else in the script changes.

    A model that ``fully_shard`` has sharded exchanges each unit with its owners: ``sharded`` and ``ring`` are reduce-scatters
    over all ranks, ``hierarchical`` is dense inside a node. On a mesh of two dimensions (HSDP) FSDP2's own reduce-scatter
    runs inside a group of shards, and the exchange between the replicas. ``auto`` and ``powersgd`` need DDP.

    A step in which a gradient of any rank is NaN, infinite or above 2^100 (powersgd: 2^40) goes dense and leaves the residuals
    unchanged. If a group of gradients has been sent compressed before, every mean of the step becomes NaN, on every rank: a
    ``GradScaler``, ``LARS`` and ``LAMB`` then skip the whole step. That holds for the units of a sharded model too, over all
    ranks of its mesh. Codecs compute in fp32.
    Parameters that the script told DDP to ignore or to average apart are left alone.

    Args:
        model: in ``DistributedDataParallel``, compiled or not.
        compression: ``dense``, ``bf16``, ``terngrad``, ``inceptionn``, ``inceptionn-scaled``, ``int8``, ``int4``, ``sign``,
            ``topk``, ``powersgd``; ``auto`` times some steps and takes the fastest of dense and ``candidates``, over a named
            exchange (``int8:ring``) or over their default one, a ring and between nodes. It keeps a compression only if
            measured steps were faster with it. That needs 9 steps, and 9 more for each of at most two candidates. Or a
            ``GradientExchange``, which replaces ``exchange``, ``clip``, ``min_elements``, ``dense``, ``ranks_per_node``,
            ``compress_pull``, ``codec_at``, ``residual_bits``, ``residuals_at``, ``dense_bits`` and ``options``.
        exchange: ``allreduce``, ``allgather``, ``ring``, ``sharded``, ``parameter_server`` or ``hierarchical``; empty takes the
            compression's default.
        seed: of the stochastic rounding; the same on every rank.
        clip: for terngrad: clip each tensor at this many standard deviations; None does not clip.
        min_elements: smaller tensors stay dense (default 1024); not for ``dense``, ``bf16`` and ``powersgd``.
        dense: patterns of further tensor names to keep dense, such as ``*.embedding.*``; not for those three either.
        ranks_per_node: for hierarchical; default what torchrun set (``LOCAL_WORLD_SIZE``).
        compress_pull: False sends the sums of ``sharded``, ``hierarchical`` and ``parameter_server`` back as fp32.
        codec_at: where the codec works: ``host``, ``gpu``, or ``nic`` for a network card that compresses what it sends, as
            those of a lab do (``paceline lab up --nic``). Empty is where the gradients are.
        residual_bits: of each number that error feedback keeps (inceptionn-scaled, sign, topk, powersgd): 32, or 16 for
            bfloat16 by stochastic rounding.
        residuals_at: ``host`` keeps those numbers in the host's memory, and copies them for the exchange. Empty: on the device.
        dense_bits: of what the codec does not encode, such as tensors that stay dense, PowerSGD's factors, sums that return
            uncompressed and sums inside a node: 32, or 16 for bfloat16.
        check_every: compare a checksum of weights and buffers over the ranks every so many steps; 0 never does. Buffers that
            DDP broadcasts must be equal after that; those that it does not are reported once if they differ. FSDP2 broadcasts
            none, and of its weights those that HSDP's replicas hold twice are compared.
        timeout_s: how long an exchange, on CPUs FSDP2's gather of weights too, waits for a slow rank or a cut link before it
            fails. About ten seconds later every remaining rank raises LostRank.
        grad_scaler: a ``torch.amp.GradScaler``: residuals follow its factor.
        candidates: compressions that ``auto`` tries.
        noise_scale: measure the gradient noise scale. It costs one more pass over the gradients before and after the exchange,
            and one scalar that no step waits for. ``hook.noise.scale.batch(samples_of_a_rank)`` gives it in samples. Only for
            ``dense`` and ``bf16``: the error of another compression counts as signal and makes the scale too small.
        gather_bits: of an FSDP2 model: gather weights in 16 (bfloat16) or 8 bits (int8 with a scale a block); 0 gathers them as
            they are, and so does 32 with fp32 or 16 with 16 bits.
        options: of the compression: ``bound``, ``block``, ``density``, ``momentum``, ``warmup_steps`` (topk: from 25 % down to
            ``density`` exponentially), ``rank``, ``start_iter`` (powersgd: dense before this step; PyTorch advises a tenth of
            all), ``min_rate`` (powersgd: a matrix whose factors are not so many times smaller stays dense).

    Returns:
        The hook: ``print`` it to see what stays dense; keep its ``state_dict()`` of every rank in your checkpoints.

    Raises:
        UserError: an unknown name or option, an illegal value, an exchange that cannot carry the compression, ranks that were
            given different settings or models, a model that is neither in DDP nor sharded, is a part of a sharded one, has
            a hook or DDP's ``mixed_precision`` already, has parameters that were frozen or unfrozen since DDP wrapped it, or
            has sparse gradients or complex parameters. A sparse gradient of a function shows in the first ``backward()``, which
            then raises it, as one of an FSDP2 model does where a tensor is trained that was frozen here.

    ``backward()`` later raises ``paceline.LostRank``, ``paceline.ReplicasDiverged`` or ``paceline.PayloadError``.
    """
    given = {
        "compression": compression,
        "exchange": exchange,
        "options": options,
        "seed": seed,
        "clip": clip,
        "min_elements": min_elements,
        "dense": dense,
        "ranks_per_node": ranks_per_node,
        "compress_pull": compress_pull,
        "codec_at": codec_at,
        "residual_bits": residual_bits,
        "residuals_at": residuals_at,
        "dense_bits": dense_bits,
        "check_every": check_every,
        "timeout_s": timeout_s,
        "grad_scaler": grad_scaler,
        "candidates": candidates,
        "noise_scale": noise_scale,
        "gather_bits": gather_bits,
    }
    if is_sharded(model):
        return attach_sharded(model, given, partial(sharded_exchange, given))
    model = ddp_of(model)
    if gather_bits:
        raise UserError("DistributedDataParallel gathers no weights", "leave gather_bits out: it is of FSDP2")
    request, tensors = _on_every_rank(model, given)
    settings, first = hook_settings(given), request.exchanges[0]
    hook: Hook | PowerSGD
    if first.description.low_rank:
        hook = PowerSGD(model, first, tensors, **settings)
    else:
        to_try = request.exchanges if request.auto else ()
        hook = Hook(model, first, tensors, **settings, candidates=to_try, noise_scale=noise_scale)
    if first.dense_rule is not None and len(hook.dense) == len(hook.tensors):
        _log.warning("%s compresses nothing here; %s", first.compression, first.dense_rule)
    refuse_sparse_gradients(model, tensors)
    model.register_comm_hook(hook, paceline_hook)
    return hook


def sharded_exchange(given: Mapping[str, Any], owners: int) -> GradientExchange:
    """The exchange that the keywords describe for a sharded model."""
    _check_types(given)
    name = given["compression"]
    if name == "auto" or tuple(given["candidates"]) != CANDIDATES:
        raise UserError("auto measures the steps of DistributedDataParallel only", "name a compression")
    return _one(given, owners)


def attach_momentum(
    model: DistributedDataParallel, *, block: int, seed: int, check_every: int, timeout_s: float
) -> tuple[MomentumHook, Mapping[int, TensorSpec]]:
    """The hook of ``OneBitAdam`` and ``OneBitLamb``, and the tensors that it exchanges; errors as ``attach``."""
    if is_sharded(model):
        raise UserError(
            "1-bit optimizers exchange whole momenta, and fully_shard (FSDP2) has divided this model",
            "wrap it in DistributedDataParallel, or attach another compression",
        )
    model = ddp_of(model, or_sharded=False)
    given: dict[str, Any] = {
        "compression": GradientExchange("sign", "sharded", options={"block": block}),
        **{
            "exchange": "",
            "options": {},
            "seed": seed,
            "clip": CLIP,
            "min_elements": None,
            "dense": (),
            "ranks_per_node": None,
        },
        **_USUAL,
        **{"compress_pull": True, "codec_at": "", "check_every": check_every, "timeout_s": timeout_s, "grad_scaler": None},
        **{"candidates": CANDIDATES, "noise_scale": False},
    }
    request, tensors = _on_every_rank(model, given)
    hook = MomentumHook(model, request.exchanges[0], tensors, seed=seed, check_every=check_every, timeout_s=timeout_s)
    model.register_comm_hook(hook, paceline_hook)
    return hook, tensors


@dataclass(frozen=True)
class _Request:
    """The exchange of the caller. For ``auto``, the exchanges to try; the first runs until ``auto`` has decided."""

    exchanges: Sequence[GradientExchange]
    auto: bool = False


def _on_every_rank(model: DistributedDataParallel, given: Mapping[str, Any]) -> tuple[_Request, Mapping[int, TensorSpec]]:
    """The request and the tensors to exchange, after all ranks have compared theirs.

    Raises:
        UserError: on every rank alike. If one rank refused alone, the others would wait for it.
    """
    illegal: UserError | None = None
    request, tensors = _Request(()), dict[int, TensorSpec]()
    try:
        _check_types(given)
        request = _request(given, dist.get_world_size(model.process_group))
        check_model(model)
        device = next(model.parameters()).device.type
        for wanted in request.exchanges:
            check_runs(wanted, device)
        tensors = exchanged(model)
    except UserError as error:
        illegal = error
    shown = {name: value for name, value in given.items() if name not in ("grad_scaler", "ranks_per_node")}
    shown["grad_scaler"] = given["grad_scaler"] is not None
    if isinstance(given["compression"], GradientExchange):
        shown["compression"] = given["compression"].compression
    every = [exchange.to_json() for exchange in request.exchanges]  # with the ranks of a node that torchrun has set
    shown["gradient exchange"] = every[0] if len(every) == 1 else every
    shown["what is illegal"] = illegal and str(illegal)
    agree(model.process_group, shown, list(tensors.values()))
    if illegal is not None:
        raise illegal
    return request, tensors


def _request(given: Mapping[str, Any], workers: int) -> _Request:
    """The request of the keywords. Raises UserError for keywords that do not go together."""
    compression, candidates = given["compression"], given["candidates"]
    name = compression.compression if isinstance(compression, GradientExchange) else compression
    if name != "auto" and tuple(candidates) != CANDIDATES:
        raise UserError(f"{name} has no candidates", "leave candidates out: only auto takes them")
    if name == "powersgd" and given["noise_scale"]:
        raise UserError("powersgd gives no gradients to measure", "measure the noise scale with another compression")
    if name == "auto":
        return _Request(_candidates(given, workers), auto=True)
    return _Request((_one(given, workers),))


def _one(given: Mapping[str, Any], workers: int) -> GradientExchange:
    """The exchange that the caller gave or that the keywords describe, with the ranks of a node here."""
    value, per_node = given["compression"], given["ranks_per_node"]
    if isinstance(value, GradientExchange):
        defaults = {
            "exchange": "",
            "clip": CLIP,
            "min_elements": None,
            "ranks_per_node": None,
            "compress_pull": True,
            "codec_at": "",
            **_USUAL,
        }
        twice = [name for name, default in defaults.items() if given[name] != default]
        twice += [*(["dense"] if len(given["dense"]) else []), *given["options"]]
        if twice:
            verb = "belongs" if len(twice) == 1 else "belong"
            raise UserError(f"{', '.join(twice)} {verb} to the GradientExchange", "set it there, not in attach")
        per_node = value.ranks_per_node if value.ranks_per_node > 1 else None
        result = GradientExchange.from_json(_plain(value.to_json()))
    else:
        if value not in COMPRESSIONS:
            raise unknown("compression", value, [*COMPRESSIONS, "auto"])
        result = GradientExchange(
            value,
            given["exchange"],
            _plain(given["options"]),
            _plain(given["clip"]),
            _rule(value, given),
            given["compress_pull"],
            codec_at=given["codec_at"],
            ranks_per_node=1 if per_node is None else int(per_node),
            **{name: _plain(given[name]) for name in _USUAL},
        )
    if result.exchange == "hierarchical":
        return replace(result, ranks_per_node=_ranks_per_node(per_node, workers))
    return result


def _candidates(given: Mapping[str, Any], workers: int) -> list[GradientExchange]:
    """The exchanges that ``auto`` tries, each with the keywords that it takes."""
    if given["options"] or given["exchange"] or given["codec_at"]:
        raise UserError("auto chooses exchange, place and options itself", "leave them out, or name a compression")
    narrower = [name for name, usual in _USUAL.items() if given[name] != usual]
    if narrower:
        raise UserError(f"auto compares exchanges as they usually are, without {narrower[0]}", "name a compression")
    per_node = _ranks_per_node(given["ranks_per_node"], workers)

    def make(name: str, exchange: str) -> GradientExchange:
        rule = _rule(name, given) if COMPRESSIONS[name].rule is not None else None
        result = GradientExchange(name, exchange, clip=_plain(given["clip"]) if name == "terngrad" else None, dense_rule=rule)
        if result.exchange == "hierarchical":
            result = replace(result, ranks_per_node=per_node)
        pulls = given["compress_pull"] or result.exchange not in ONE_WAY
        return result if pulls else replace(result, compress_pull=False)

    return exchanges_to_try(given["candidates"], make, workers, per_node)


def _rule(compression: str, given: Mapping[str, Any]) -> DenseRule | None:
    """The compression's rule for dense tensors with the caller's values; None where the caller gave none."""
    if given["min_elements"] is None and not len(given["dense"]):
        return None
    rule = COMPRESSIONS[compression].rule or DenseRule()  # GradientExchange refuses a rule for one that has none
    least = rule.min_elements if given["min_elements"] is None else int(given["min_elements"])
    return replace(rule, min_elements=least, names=tuple(given["dense"]))


def _ranks_per_node(given: int | None, workers: int) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", workers)) if given is None else int(given)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's: a state that holds them cannot be loaded by default."""
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _check_types(given: Mapping[str, Any]) -> None:
    """Raises UserError for the first value that is of a wrong type or out of range, naming what is legal."""

    def whole(least: float, value: object) -> bool:
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least

    def number(least: float, most: float, value: object) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and least <= float(value) <= most  # never of NaN

    def names(value: object) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)

    legal: dict[str, tuple[Callable[[Any], bool], str]] = {
        "compression": (lambda v: isinstance(v, str | GradientExchange), "give a name or a GradientExchange"),
        "exchange": (lambda v: isinstance(v, str), "give a name"),
        "dense": (names, "give a list of patterns"),
        "seed": (lambda v: whole(-math.inf, v), "give a whole number"),
        "clip": (lambda v: v is None or number(1e-3, 1e6, v), "give standard deviations, 1e-3 to 1e6, or None"),
        "min_elements": (lambda v: v is None or whole(0, v), "give a whole number from 0 on"),
        "ranks_per_node": (lambda v: v is None or whole(1, v), "give a whole number from 1 on"),
        "compress_pull": (lambda v: isinstance(v, bool), "give True or False"),
        "codec_at": (lambda v: isinstance(v, str), "give a name"),
        "residuals_at": (lambda v: isinstance(v, str), "give a name"),
        "check_every": (lambda v: whole(0, v), "give a whole number of steps; 0 never checks"),
        "timeout_s": (lambda v: number(1e-3, 1e9, v), "give seconds, 1e-3 to 1e9"),
        "grad_scaler": (lambda v: v is None or callable(getattr(v, "get_scale", None)), "give a torch.amp.GradScaler"),
        "candidates": (names, "give a list of names"),
        "noise_scale": (lambda v: isinstance(v, bool), "give True or False"),
    }
    for name, (is_legal, says) in legal.items():
        if not is_legal(given[name]):
            raise UserError(f"{name}={given[name]!r}", says)


def wrap(model: nn.Module, strategy: Strategy) -> DistributedDataParallel:
    """A stock DDP model with the strategy's buckets."""
    first, rest = strategy.first_bucket_bytes, strategy.bucket_bytes
    if (first, rest) == (FIRST_BUCKET_BYTES, BUCKET_BYTES):
        return DistributedDataParallel(model)
    if first != rest:
        raise UserError(f"buckets of {first} and then {rest} bytes", "DDP takes its own two sizes or one size for all buckets")
    return DistributedDataParallel(model, bucket_cap_mb=rest / 2**20)
