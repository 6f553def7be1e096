"""Verbs with names instead of values: a strategy by its choices, and one predictor behind all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from paceline import planning
from paceline.errors import UserError, check_count, unknown
from paceline.hardware import Cluster
from paceline.hardware.precision import precision_on
from paceline.hardware.prices import Price, listing_of_cluster, of_devices
from paceline.planning import (
    Asked,
    Change,
    Explained,
    Goal,
    Plan,
    Space,
    TrainingTarget,
    WhatIf,
    parse_change,
    parse_goal,
)
from paceline.planning.compare.changes import BatchScaling
from paceline.planning.search.deadline import seconds_until
from paceline.planning.search.lighter_jobs import AdjustableJob
from paceline.planning.search.space import OTHERS, UNEVEN, smaller
from paceline.prediction import Prediction, Predictor, StepPredictor
from paceline.strategy import Strategy
from paceline.strategy.strategy import CHOICES
from paceline.strategy.usual_precision import usual_choices, usual_precision
from paceline.workload import LoRA, Workload
from paceline.workload.builders.adapters.lora import parse_lora

if TYPE_CHECKING:
    from paceline.planning.diagnose.diagnosis import Diagnosis

LARGEST_BATCH = 1024
"""Samples a device at most, where no batch is given."""


def predict(
    workload: Workload | str,
    cluster: Cluster | str,
    strategy: Strategy | None = None,
    *,
    network: str | None = None,
    seq_len: int | None = None,
    lora: LoRA | str = "",
    predictor: StepPredictor | None = None,
    **choices: Any,
) -> Prediction:
    """Predict one training step: ``paceline.predict("llama-3-8b", "2x8 A100", network="100Gb/s", precision="bf16")``.

    Args:
        workload: a ``Workload`` or a name (``paceline workload list``).
        cluster: a ``Cluster`` or a name: ``2x8 A100`` is two nodes of eight.
        strategy: every choice about the run; by default data parallel on every device, with ``choices``.
        network: between nodes, for a cluster by name: ``100Gb/s``, ``InfiniBand HDR``.
        seq_len: tokens of a sample, for a transformer by name.
        lora: adapters, while all other weights are frozen: ``r=16``, or ``r=16,targets=q_proj+v_proj``.
        predictor: predictor to use; by default ordinary software with the package's constants.
        choices: choices of the strategy by name, as ``Strategy.of`` takes them. Without ``global_batch_size`` it is the largest
            power of two a device that fits its memory, up to 1,024; if no ``precision`` is given, the usual one for such
            networks on the device (``strategy.usual_precision``).

    Raises:
        UserError: an unknown name, a value of another type, choices that do not go together.
    """
    inputs = _prediction_inputs(workload, cluster, strategy, network, (seq_len, lora), predictor, choices)
    return _predictor(predictor).step(*inputs)


def explain(
    workload: Workload | str,
    cluster: Cluster | str,
    strategy: Strategy | None = None,
    *,
    network: str | None = None,
    seq_len: int | None = None,
    lora: LoRA | str = "",
    run: str | Path = "",
    predictor: StepPredictor | None = None,
    **choices: Any,
) -> Explained:
    """Find the bottleneck of a training step, and the next one. Arguments and errors as ``predict``.

    Args:
        run: a run directory whose measured step is compared with the predicted one.
    """
    inputs = _prediction_inputs(workload, cluster, strategy, network, (seq_len, lora), predictor, choices)
    return planning.explain(*inputs, str(run), predictor=_predictor(predictor))


def diagnose(
    workload: Workload | str,
    cluster: Cluster | str,
    strategy: Strategy | None = None,
    *,
    measured: str,
    also: str | Sequence[str] = (),
    network: str | None = None,
    seq_len: int | None = None,
    lora: LoRA | str = "",
    predictor: StepPredictor | None = None,
    **choices: Any,
) -> Diagnosis:
    """Find why a run is slower or faster than predicted: ``paceline.diagnose("gpt2", "8 A100", measured="0.58 s/step", ...)``.

    Args:
        measured: the run's speed: ``9,800 tokens/s``, ``2,100 tokens/s per GPU``, ``12 it/s``, ``38 % MFU``.
        also: further measurements with changed options: ``nodes=1, global-batch=8: 0.31 s``. The others are as for ``predict``.

    Raises:
        UserError: as ``predict``; text that is no speed, or an impossible change.
    """
    from paceline.planning.diagnose.diagnose import diagnose, parse_also  # its causes are data that other verbs do not read
    from paceline.planning.diagnose.measured import EXAMPLES, parse_speed
    from paceline.planning.diagnose.question import RunQuestion

    if not isinstance(measured, str):
        raise UserError(f"measured={measured!r}", f"write it as {EXAMPLES}")
    inputs = _prediction_inputs(workload, cluster, strategy, network, (seq_len, lora), predictor, choices)
    further = [parse_also(text) for text in ([also] if isinstance(also, str) else also)]
    return diagnose(RunQuestion(*inputs, _predictor(predictor), frozenset(choices)), parse_speed(measured), further)


def whatif(
    workload: Workload | str,
    cluster: Cluster | str,
    strategy: Strategy | None = None,
    changes: str | Change | Sequence[str | Change] = (),
    *,
    network: str | None = None,
    seq_len: int | None = None,
    lora: LoRA | str = "",
    scaling: BatchScaling = "strong",
    prices: Mapping[str, float] | None = None,
    upgrade_price: str = "",
    predictor: StepPredictor | None = None,
    **choices: Any,
) -> WhatIf:
    """Compare changes of a run, in time and in money: ``paceline.whatif("resnet-50", "2x8 V100", changes="nodes+1", ...)``.

    Args:
        changes: such as ``nodes+1`` or ``network=100Gb/s``, one or several; the others as ``predict`` takes them.
        scaling: with other numbers of devices, whether the global batch stays (``strong``) or grows with them (``weak``).
        prices: dollars a device and hour by device, or for all under the empty name; else the listings.
        upgrade_price: that of a network's change: ``$2/h``, ``$0.10/device-hour``, ``$50,000 over 3 years``; else unknown.
    """
    if scaling not in get_args(BatchScaling):
        raise unknown("scaling", str(scaling), get_args(BatchScaling))
    parsed = [_change(change) for change in (changes if isinstance(changes, list | tuple) else [changes])]
    inputs = _prediction_inputs(workload, cluster, strategy, network, (seq_len, lora), predictor, choices)
    return planning.whatif(
        *inputs,
        parsed,
        scaling=scaling,
        prices=prices,
        upgrade_price=upgrade_price,
        predictor=_predictor(predictor),
        precision_given=strategy is not None or "precision" in choices,
    )


def ask(
    workload: Workload | str,
    cluster: Cluster | str | None = None,
    target: TrainingTarget | None = None,
    *,
    network: str | None = None,
    seq_len: int | None = None,
    lora: LoRA | str = "",
    by: str | float | None = None,
    budget: float | None = None,
    prices: Mapping[str, float] | None = None,
    predictor: StepPredictor | None = None,
    micro_batch_size: int = 0,
    **choices: Any,
) -> Asked:
    """Ask whether a run fits, how fast it is, what it costs: ``paceline.ask("gpt2-xl", "2x8 A100, 100Gb/s")``.

    Args:
        cluster: None selects the cheapest listed rental.
        target: amount of training; by default a million samples.
        by: seconds, or when it must be done: ``3d``, ``friday``, ``2026-12-01``.
        budget: dollars.
        micro_batch_size: samples of a device in a micro step; 0: any.
        choices: choices of every strategy, such as ``global_batch_size=64, precision="fp8", recompute="full"``.

    Raises:
        UserError: as ``predict``; or nothing tried holds the network.
    """
    seconds = seconds_until(by, datetime.now().astimezone()) if isinstance(by, str) else by
    machines = None if cluster is None else _cluster(cluster, network)
    own: dict[str, float | Price] = dict(of_devices(prices, {machines.device.name} if machines else ()) or {})
    if machines and isinstance(cluster, str) and (listing := listing_of_cluster(cluster)):
        own = {machines.device.name: listing, **own}
    table = _workload(workload, seq_len, lora, target)
    return planning.ask(
        table,
        machines,
        target,
        by_s=seconds,
        budget_usd=budget,
        prices=own,
        predictor=_predictor(predictor),
        job=_job(workload, table, lora, seq_len),
        choices=choices,
        micro_batch_sizes=(micro_batch_size,) if micro_batch_size else (),
    )


def plan(
    workload: Workload | str,
    cluster: Cluster | str | Space,
    goal: Goal | str = "fastest",
    target: TrainingTarget | None = None,
    *,
    network: str | None = None,
    seq_len: int | None = None,
    lora: LoRA | str = "",
    prices: Mapping[str, float] | None = None,
    predictor: StepPredictor | None = None,
    **space: Any,
) -> Plan:
    """Find the best configuration for a goal: ``paceline.plan("resnet-50", "8x8 A100", "deadline=6h", network="100Gb/s")``.

    Args:
        cluster: the largest cluster, of which every smaller number of devices and nodes is tried too, or a ``Space``.
        goal: ``fastest``, ``cheapest``, ``deadline=6h`` or ``budget=500`` (dollars).
        target: amount of training; by default a million samples. Its sequences' length is that of a ``workload`` by name.
        space: values to try, as ``Space`` takes them: ``precisions=("bf16",)``, ``compressions=("dense", "terngrad")``.

    Raises:
        UserError: as ``predict``; nothing legal, nothing that fits, or nothing that meets the goal.
    """
    if not isinstance(goal, Goal):
        if not isinstance(goal, str):
            raise UserError(f"goal {goal!r}", "write it as fastest, cheapest, deadline=6h or budget=500")
        goal = parse_goal(goal)
    further = {name: space.pop(name) for name in OTHERS if name in space}
    if further:
        space["others"] = {name: value if isinstance(value, tuple) else (value,) for name, value in further.items()}
    if isinstance(cluster, Space):
        tried = replace(cluster, **space) if space else cluster
    else:
        known = {name for name in Space.__dataclass_fields__ if name != "clusters"}
        for name in space:
            if name not in known:
                raise unknown("choice of a space", name, sorted({*known, *OTHERS}))
        largest = _cluster(cluster, network)
        if not largest.even:
            raise UserError(f"a plan on nodes of {largest.node_text} devices", UNEVEN)
        tried = Space(clusters=smaller(largest), **space)
    if target is not None and not isinstance(target, TrainingTarget):
        raise UserError(f"target {target!r}", "give a paceline.planning.TrainingTarget, such as TrainingTarget(total=1e8)")
    return planning.plan(
        _workload(workload, seq_len, lora, target), tried, goal, target, prices=prices, predictor=_predictor(predictor)
    )


def _prediction_inputs(
    workload: Workload | str,
    cluster: Cluster | str,
    strategy: Strategy | None,
    network: str | None,
    length_and_lora: tuple[int | None, LoRA | str],
    predictor: StepPredictor | None,
    choices: Mapping[str, Any],
) -> tuple[Workload, Cluster, Strategy]:
    if own := next((item.name for item in fields(Predictor) if item.name in choices and item.name not in CHOICES), ""):
        fix = f"pass predictor=paceline.Predictor({own}={choices[own]!r})"
        raise UserError(f"{own} is an option of the predictor, not of the strategy", fix)
    table, machines = _workload(workload, *length_and_lora), _cluster(cluster, network)
    if strategy is not None:
        if not isinstance(strategy, Strategy):
            raise UserError(f"strategy {strategy!r}", "give a paceline.Strategy, or its choices by name")
        return table, machines, strategy.changed(**choices) if choices else strategy
    return table, machines, strategy_of(table, machines, choices, _predictor(predictor))


def strategy_of(workload: Workload, cluster: Cluster, choices: Mapping[str, Any], predictor: StepPredictor) -> Strategy:
    """Return the strategy on all devices with ``choices`` by name; other arguments as for ``predict``. Raises UserError."""
    usual = {} if "precision" in choices else {"precision": usual_precision(workload, cluster.device).name}
    whole = {**({} if "data" in choices else {"world_size": cluster.world_size}), **usual, **choices}
    if isinstance(whole["precision"], str):
        whole["precision"] = precision_on(whole["precision"], cluster.device.precisions)
    batch = {"global_batch_size": whole.pop("global_batch_size")} if "global_batch_size" in whole else {}
    whole = Strategy.completed(whole, usual_choices(workload, choices, predictor.uncorrected.typical.framework)) | batch
    if "global_batch_size" not in whole:
        whole["global_batch_size"] = largest_batch(workload, cluster, whole, predictor)
    return Strategy.of(**whole)


def largest_batch(workload: Workload, cluster: Cluster, choices: Mapping[str, Any], predictor: StepPredictor) -> int:
    """Return the default batch: the largest power of two a device that fits its memory, up to ``LARGEST_BATCH``, times the
    devices and micro batches; one sample a device if that is too much.

    Args:
        choices: choices of the strategy by name, without a batch.

    Raises:
        UserError: choices that ``Strategy.of`` refuses.
    """
    times = choices.get("grad_accum_steps", choices.get("micro_batches", 1))
    unit = cluster.world_size * check_count(times, "micro steps")
    sizes = [unit << n for n in range(LARGEST_BATCH.bit_length())]
    strategies = [Strategy.of(**choices, global_batch_size=size) for size in sizes]
    fits = predictor.many(workload, [(cluster, strategy) for strategy in strategies]).fits
    return max((size for size, fit in zip(sizes, fits, strict=True) if fit), default=unit)


def _change(given: Any) -> Change:
    if isinstance(given, Change):
        return given
    if not isinstance(given, str):
        raise UserError(f"change {given!r}", "write it as nodes+1 or network=100Gb/s")
    return parse_change(given)


def _workload(given: Workload | str, seq_len: int | None, lora: LoRA | str, target: TrainingTarget | None = None) -> Workload:
    """Return a workload by name, with the target's sequence length unless another one is given."""
    if isinstance(given, Workload):
        if seq_len is not None:
            raise UserError(f"seq_len {seq_len} for a workload that is made already", "name the workload, or leave it out")
        return given.with_lora(lora) if lora else given
    if seq_len is None and target is not None:
        seq_len = target.computed_tokens
    return Workload.named(given, seq_len, lora=lora)


def _job(given: Workload | str, table: Workload, lora: LoRA | str, seq_len: int | None) -> AdjustableJob:
    """Return the job as it may become lighter. A workload that is made already keeps its length."""
    adapters = parse_lora(lora) if isinstance(lora, str) and lora else lora or None
    assert not isinstance(adapters, str)
    if isinstance(given, Workload):
        return AdjustableJob(lambda text, _: given.with_lora(text) if text else given, adapters)
    return AdjustableJob(lambda text, tokens: Workload.named(given, tokens or seq_len, lora=text), adapters, table.tokens)


def _cluster(given: Cluster | str, network: str | None) -> Cluster:
    if isinstance(given, Cluster):
        if network is not None:
            raise UserError(f"network {network!r} for a cluster that is made already", "use cluster.changed(network=...)")
        return given
    return Cluster.named(given, network)


def _predictor(given: StepPredictor | None) -> StepPredictor:
    if given is None:
        return Predictor()
    if not isinstance(given, StepPredictor):
        raise UserError(f"predictor {given!r}", "give a paceline.Predictor")
    return given
