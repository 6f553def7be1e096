"""Keywords of ``attach`` and its relatives, typed for editors and type checkers. A test compares them with the declarations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from paceline.strategy import DenseRule


class RankKeywords(TypedDict, total=False):
    """Fields of ``AttachOptions`` that every attached exchange takes."""

    seed: int
    check_every: int
    timeout_s: float


class ExchangeKeywords(TypedDict, total=False):
    """Choices of the exchange, and options of compressions."""

    exchange: str
    clip: float | None
    dense_rule: DenseRule | None
    compress_pull: bool
    servers: int
    ranks_per_node: int | None
    codec_at: str
    residual_bits: int
    residuals_at: str
    dense_bits: int
    min_elements: int | None
    dense: Sequence[str]

    bound: float
    ratio: int
    block: int
    density: float
    value_bits: int
    chunk: int
    momentum: int
    warmup_steps: int
    rank: int
    start_iter: int
    min_rate: int


class LocalKeywords(RankKeywords, ExchangeKeywords, total=False):
    """Keywords of ``attach_local``: fields of ``LocalSteps``, and those of every exchange and compression."""

    sync_every: int
    fragments: int
    sync_delay: int
    mixing: float | None
    outer_lr: float
    outer_momentum: float
    round_deadline_s: float | None
    max_age: int
    residual_decay: float
    worker_devices: int


class AttachKeywords(RankKeywords, ExchangeKeywords, total=False):
    """Keywords of ``attach``: fields of ``AttachOptions``, choices of the exchange, and options of compressions."""

    grad_scaler: Any
    candidates: Sequence[str]
    noise_scale: bool
    gather_bits: int
    gather_format: str
