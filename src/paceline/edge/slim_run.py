"""Slim a network to a budget: train it if needed, follow the path, remove, fine-tune, export, measure."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.edge.candidates import exported, form_files, judged, kept_with, measured_candidates
from paceline.edge.evaluation import held_out
from paceline.edge.kept_budget import limit, shrunk
from paceline.edge.slim_data import check_fits
from paceline.edge.slim_notes import int8_notes, replacement_notes, whole_notes, widths
from paceline.edge.weights_forecast import WeightsForecast, weights_forecasts
from paceline.errors import Interrupted, NotMet, UserError, unknown
from paceline.record import environment
from paceline.rundir import RunDir, write_whole
from paceline.slim_record import BOTH, CurvePoint, LayerLatency, SlimMeasurement, SlimRecord, Training, unmeasured_note
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_profile import layer_latencies, profile
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.methods import LATENCIES, METHODS, Replace, target_for
from paceline.slimming.methods.path_training import settings
from paceline.slimming.methods.weight_forms import FP32, INT8, WeightForm, distinct
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import module_bytes
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.data import Dataset
from paceline.training.runs.data import load as load_data
from paceline.training.runs.starting_model import build_model, load_weights
from paceline.training.runs.train import train_run
from paceline.training.runs.training_run import TrainingRun
from paceline.units import format_bytes, format_seconds

PATH_SHARE, TUNE_SHARE = 0.5, 0.5
"""Epochs as shares of the whole network's training (Wen et al. 2016 use a half and a third)."""
PATH_RATE, TUNE_RATE = 0.2, 0.2
"""Learning rates relative to the whole network's."""
DISTILL = 0.5
SPEEDUPS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Speed-ups at which the path stops on its way to a loss of accuracy."""
TEACHER_SAMPLES = 1024
"""Approximate number of training samples that decide whether the whole network can teach."""
NO_TEACHER = "The whole network is worse than the slimmed one on training samples, so it does not teach: train it longer."
NOTICED = 0.02
"""Smallest change of the machine's speed that is reported."""
LARGE_LOSS = 2.0
"""Loss in percentage points of accuracy above which a next step is suggested."""
SETTINGS, RECORD = "settings.json", "slim.json"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SlimRun:
    """Settings of slimming: network, budget and training.

    Attributes:
        training: training settings of the whole network; ``out`` is the common directory, ``start`` the trained weights.
        path_epochs: on the way to the budget; 0: half of the training's. ``tune_epochs``: epochs of the slimmed network; 0:
            half, or all of the training's if it starts untrained.
        distill: weight of the whole network's outputs in fine-tuning.
        weights: forms of weights in which the whole, the slimmed and a less slimmed network are measured too, on ONNX Runtime.
    """

    training: TrainingRun
    budget: Budget
    method: str = "auto"
    target: str = "onnxruntime"
    threads: int = 1
    path_epochs: int = 0
    tune_epochs: int = 0
    distill: float = DISTILL
    weights: tuple[WeightForm, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if self.budget.phase:
            what = f"{self.budget} for {self.training.model}, which is no folder of a language model"
            raise UserError(what, "give latency or speedup, or a folder in Hugging Face's format with --text")
        if isinstance(METHODS[self.method], Replace) and self.budget.kind not in LATENCIES:
            raise UserError(f"{self.method} cannot aim at {self.budget}", "give latency=5ms or speedup=2x")
        target_for(self.target, self.method, self.budget).check_installed()
        if self.weights and self.target != "onnxruntime":
            what = f"weights in {self.weights[0]} for {self.target}"
            raise UserError(what, "files in int8 and int4 are ONNX Runtime's: leave out one of the two")
        distinct(self.weights)
        if self.path_epochs and not METHODS[self.method].has_path:
            what = f"`path_epochs` for {self.method}, which has no path to the budget"
            raise UserError(what, "leave it out; `tune_epochs` is for the new network")
        for name in ("path_epochs", "tune_epochs"):
            if getattr(self, name) < 0:
                raise UserError(f"{getattr(self, name)} epochs", f"give `{name}` from 0 up")
        if not 0 <= self.distill <= 1:
            raise UserError(f"a share of {self.distill:g} of the teacher", "give `distill` from 0 to 1")
        if not 1 <= self.threads <= 1024:
            raise UserError(f"{self.threads} threads", "give a whole number from 1 up")

    @property
    def out(self) -> Path:
        """Directory of all files."""
        return Path(self.training.out)

    @property
    def epochs_on_path(self) -> int:
        """Budgets of the run."""
        return self.path_epochs or max(1, round(self.training.epochs * PATH_SHARE))

    @property
    def epochs_of_tuning(self) -> int:
        """Epochs of each slimmed network."""
        share = TUNE_SHARE if METHODS[self.method].has_path else 1.0
        return self.tune_epochs or max(1, round(self.training.epochs * share))

    def trained(self, budgets: int, taught: bool = True) -> Training:
        """Return how a network was trained after some budgets of its path, with or without the whole network as teacher."""
        given, strategy = self.training, self.training.strategy
        epochs = {} if given.start else {"whole network": given.epochs}
        epochs |= {"path": budgets * self.epochs_on_path} if METHODS[self.method].has_path else {}
        return Training(
            epochs=epochs | {"slimmed network": self.epochs_of_tuning},
            optimizer=strategy.optimizer,
            lr=given.learning_rate,
            batch=strategy.global_batch_size,
            workers=strategy.world_size,
            compression=strategy.gradient_exchange.compression.name,
            distill=self.distill if taught else 0.0,
            seed=given.seed,
        )

    def stage(self, name: str, epochs: int, rate: float, **changed: Any) -> TrainingRun:
        """Return a stage of the training in its own directory; the last stage's rate falls to 0."""
        lr = self.training.learning_rate * rate
        return replace(
            self.training, out=str(self.out / name), lr=lr, epochs=epochs, warmup=0.0, scale_from=0, scaling=None, **changed
        )

    def path(self, suffix: str, start: str, budget: Budget) -> TrainingRun:
        """Return the stage on the way to the budget."""
        return self.stage(
            f"path{suffix}",
            self.epochs_on_path,
            PATH_RATE,
            decay=0.0,
            start=start,
            slimming=settings(self.method, budget, self.out / "table.json", self.threads, self.target),
        )

    def tuning(self, suffix: str, start: str, plan: Path, teacher: str) -> TrainingRun:
        """Return the stage of the slimmed network. A new network trains for as many epochs, at the same learning rate, as the
        whole one."""
        taught: dict[str, Any] = {"plan": str(plan), "teacher": teacher if self.distill else "", "distill": self.distill}
        name, given = f"tuned{suffix}", self.training
        epochs = self.epochs_of_tuning
        if METHODS[self.method].has_path:
            return self.stage(name, epochs, TUNE_RATE, decay=1.0, start=start, **taught)
        warmup, decay = min(given.warmup, epochs), given.decay or 1.0
        return replace(given, out=str(self.out / name), start="", epochs=epochs, warmup=warmup, decay=decay, **taught)


def slim_network(run: SlimRun, say: Say = lambda words: None) -> SlimRecord:
    """Slim a network. Completed stages of an interrupted run are not repeated.

    Returns:
        The record, also written as ``slim.json`` next to ``plan.json``, ``weights.pt`` and ``model.onnx`` (``model.pte`` or
        ``model.tflite`` for another target). With ``weights`` there are ``model.int4.onnx``, ``whole.int4.onnx`` and, if a less
        slimmed network meets the budget with fewer bits, ``both.int4.onnx`` too.

    Raises:
        UserError: as ``train``; a network that cannot be traced or exported; a budget that cannot be met.
    """
    data = load_data(run.training.data)
    untrained = build_model(run.training.model, run.training.seed).eval()
    if run.training.start:
        load_weights(untrained, run.training.start, run.training.model)
    identity = _same_settings(run)
    _gives_scores(untrained, run, data)
    slim, forecasts = _measured(run, untrained, data, say)
    slim.check()  # latency does not depend on the weights: an impossible budget is refused before any training
    write_whole(run.out / SETTINGS, identity)
    weights = _whole_weights(run, say)
    whole = _network(run, weights)
    before = held_out(whole, data)
    asked = [each for each in forecasts if each.form in run.weights and each.meets(run.budget)]
    for forecast in judged(asked, slim, whole, before[0], data):
        say(forecast.text(run.budget))
    points: list[_Point] = []
    for budget in _budgets(run.budget):
        start = points[-1].path if points else weights
        if points and not _reachable(slim.to(budget)):
            break
        points.append(_point(run, slim.to(budget), start, weights, len(points), data, say))
        if run.budget.kind == "accuracy" and _lost(before, points[-1]) > run.budget.value:
            break
    eased = dict(_eased_points(run, slim, weights, forecasts, data, say))
    return _finish(run, slim, weights, before, points, data, say, eased)


def _eased_points(
    run: SlimRun, slim: Slim, weights: str, forecasts: Sequence[WeightsForecast], data: Dataset, say: Say
) -> Iterator[tuple[WeightForm, _Point]]:
    """Slim less, for each requested form that meets the budget only together with a smaller network."""
    is_size = run.budget.kind == "size"
    for forecast in forecasts if METHODS[run.method].has_path else ():
        budget = forecast.eased(run.budget, module_bytes(slim.model) if is_size else slim.whole.median_s)
        if budget is None or forecast.form not in run.weights:
            continue
        goal = run.budget.value if is_size else slim.to(run.budget).goal / slim.whole.median_s
        eased = slim.to(budget)
        if _reachable(eased):
            yield forecast.form, _point(run, eased, weights, weights, 0, data, say, forecast.form, goal)


def _gives_scores(model: nn.Module, run: SlimRun, data: Dataset) -> None:
    """Check that the outputs of a network are scores, before it is measured or trained. Raises UserError for other outputs."""
    try:
        with torch.no_grad():
            output: object = model(data.train_x[:1])
    except Exception:
        check_fits(run.training.model, model, data)
        return  # tracing names the operation and its line
    if not isinstance(output, torch.Tensor):
        what = f"{run.training.model} gives a {type(output).__name__} for a sample of {data.name}"
        raise UserError(what, "give a network that gives one tensor, the scores of the classes")


@dataclass(frozen=True)
class _Point:
    """A slimmed network: start weights of the next path, its plan, its weights after tuning."""

    budget: Budget
    path: str
    plan: SlimPlan
    model: nn.Module
    accuracy: float
    loss: float
    predicted_s: float
    kept: Mapping[str, str]
    notes: tuple[str, ...]


def first_budget(run: SlimRun) -> Budget:
    """Return the budget, or for a loss of accuracy the first speed-up."""
    return next(_budgets(run.budget))


def _budgets(budget: Budget) -> Iterator[Budget]:
    """Yield slimmed networks: one at the budget or, for a loss of accuracy, one per speed-up until the loss is too large."""
    if budget.kind == "accuracy":
        yield from (Budget("speedup", factor) for factor in SPEEDUPS)
    else:
        yield budget


def _network(run: SlimRun, weights: str) -> nn.Module:
    """Return the whole network with these weights, in eval mode."""
    whole = build_model(run.training.model, run.training.seed)
    load_weights(whole, weights, run.training.model)
    return whole.eval()


def _reachable(slim: Slim) -> bool:
    try:
        slim.check()
    except UserError:
        return False
    return True


def _lost(before: tuple[float, float], point: _Point) -> float:
    """Return the loss of accuracy in percentage points."""
    return 100 * (before[0] - point.accuracy)


def _whole_weights(run: SlimRun, say: Say) -> str:
    """Return the file of the whole network's weights. Train the network if there is none."""
    if run.training.start:
        return run.training.start
    whole = replace(run.training, out=str(run.out / "whole"))
    _stage(whole, say, "training the whole network")
    return whole.out


def _same_settings(run: SlimRun) -> str:
    """Return the settings stored in the directory, as JSON. Raises UserError if they differ, with each difference."""
    names = ("method", "target", "threads", "path_epochs", "tune_epochs", "distill")
    given = {
        **run.training.identity,
        "epochs": run.training.epochs,
        "start": run.training.start,
        "budget": str(run.budget),
        **{name: getattr(run, name) for name in names},
    }
    now = {name: str(value) for name, value in given.items() if name not in ("slimming", "plan", "teacher")}
    file = run.out / SETTINGS
    before: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else now
    changed = [f"{name} was {before[name]}, is {value}" for name, value in now.items() if before.get(name, value) != value]
    if changed:
        raise UserError(f"{run.out} holds a run with other settings: {'; '.join(changed)}", "give another --out, or delete it")
    return json.dumps(now, indent=1)


def _stage(run: TrainingRun, say: Say, words: str) -> None:
    """Train a stage or its remainder. Raises UserError for a stage of other settings in its directory.

    Args:
        words: message if training remains.
    """
    directory = Path(run.out)
    if (directory / checkpoint.FILE).is_file():
        state = checkpoint.load(directory)
        if state["epoch"] >= run.epochs and RunDir(directory).record_path.exists():
            buckets = state["run"].strategy.first_bucket_bytes  # a run on CPUs chooses its own
            strategy = replace(run.strategy, first_bucket_bytes=buckets)
            checkpoint.check_same_settings(replace(run, strategy=strategy), state)
            return
        if state["epoch"] < run.epochs:
            run = replace(run, resume=run.out)
    say(words)
    try:
        train_run(run)
    except Interrupted as stop:
        raise Interrupted(stop.number, "the same command continues from the last epoch") from None


def _measured(run: SlimRun, whole: nn.Module, data: Dataset, say: Say) -> tuple[Slim, tuple[WeightsForecast, ...]]:
    """Return the network with the table of its layers, which a resumed run reads again, and its forecasts in other forms."""
    file = run.out / "table.json"
    inputs = (data.train_x[:1],)
    budget = first_budget(run)
    of = {"method": run.method, "target": run.target, "threads": run.threads}
    of |= {"budget": str(run.budget)} if isinstance(METHODS[run.method], Replace) else {}
    table: Mapping[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    if table is not None and table.get("of") != of:
        table = None
    slim = Slim(whole, inputs, budget=budget, method=run.method, threads=run.threads, table=table, target=run.target)
    slim.structures  # noqa: B018 (a network that cannot be traced is refused before anything is measured)
    forecasts = weights_forecasts(slim, run.weights) if table is None or run.weights else ()
    for forecast in sorted(forecasts, key=lambda each: not each.meets(run.budget)):
        say(forecast.text(run.budget))
    if table is None:
        say("measuring the layers")
        write_whole(file, json.dumps({"of": of, **slim.table}))
    return slim, forecasts


def _point(
    run: SlimRun,
    slim: Slim,
    start: str,
    weights: str,
    number: int,
    data: Dataset,
    say: Say,
    form: WeightForm = FP32,
    goal: float | None = None,
) -> _Point:
    """Slim to one budget: follow the path if the method has one, shrink, train the rest.

    Args:
        form, goal: as of ``shrunk``, if the network meets the run's budget in that form.
    """
    slim.check()
    budget = slim.budget
    suffix = f"-{number + 1}" if number else ""
    suffix = suffix if form == FP32 else f"-{form.file_name}"
    has_path = METHODS[run.method].has_path
    if has_path:
        path = run.path(suffix, start, slim.budget)
        _stage(path, say, f"on the path to {slim.budget}")
        start = path.out
    load_weights(slim.model, start, run.training.model)
    slim, small, measured = shrunk(slim, form, goal)
    if slim.plan is None:
        raise AssertionError("shrink makes a plan")
    file = run.out / (f"plan-{number + 1}.json" if form == FP32 else f"plan{suffix}.json")
    slim.plan.save(file)
    notes = (*slim.notes, *measured, *METHODS[run.method].changes(_network(run, weights), slim.model))
    if has_path and run.distill and _on_training(small, data) > _on_training(_network(run, weights), data):
        run, notes = replace(run, distill=0.0), (*notes, NO_TEACHER)
    tune = run.tuning(suffix, start, file, weights)
    _stage(tune, say, "fine-tuning the slimmed network" if has_path else f"training the new network for {budget}")
    load_weights(small, tune.out, f"the slimmed {run.training.model}")
    return _Point(budget, start, slim.plan, small, *held_out(small, data), _predicted(slim), slim.kept, notes)


def _on_training(model: nn.Module, data: Dataset) -> float:
    """Return the accuracy on some training samples, which may be used for decisions."""
    every = max(1, len(data.train_x) // TEACHER_SAMPLES)
    return held_out(model, replace(data, test_x=data.train_x[::every], test_y=data.train_y[::every]))[0]


def _predicted(slim: Slim) -> float:
    """Return the predicted seconds of the slimmed network; 0 without a table."""
    if slim.predicted_s is None and slim.plan is not None and "layers" in slim.table:
        return slim.times.seconds(METHODS[slim.method].removed(slim.plan, slim.structures))
    return slim.predicted_s or 0.0


def _finish(
    run: SlimRun,
    slim: Slim,
    weights: str,
    before: tuple[float, float],
    points: list[_Point],
    data: Dataset,
    say: Say,
    eased: Mapping[WeightForm, _Point] | None = None,
) -> SlimRecord:
    """Export, measure, write. Files are moved to their places at the end, so a failure leaves none."""
    chosen = _chosen(run, before, points)
    whole = _network(run, weights)
    say("exporting and measuring")
    with tempfile.TemporaryDirectory(dir=run.out, prefix=".draft-") as directory:
        record = _written(run, slim, whole, chosen, before, points, data, Path(directory), eased or {})
        (run.out / RECORD).unlink(missing_ok=True)  # if it exists, it lists the files
        for draft in Path(directory).iterdir():
            draft.replace(run.out / draft.name)
    write_whole(run.out / RECORD, json.dumps(record.to_json(), indent=1))
    return record


def _written(
    run: SlimRun,
    slim: Slim,
    whole: nn.Module,
    chosen: _Point,
    before: tuple[float, float],
    points: list[_Point],
    data: Dataset,
    drafts: Path,
    eased: Mapping[WeightForm, _Point],
) -> SlimRecord:
    """Export and measure in a directory. The record names the final paths of the files."""
    models = {"whole": whole, **{f"slimmed {number}": point.model for number, point in enumerate(points)}}
    suffix = slim.target.suffix
    files = {name: slim.target.export(model, slim.inputs, drafts / f"{name}{suffix}") for name, model in models.items()}
    name = f"slimmed {points.index(chosen)}"
    plain = {"whole": (files["whole"], whole), "model": (files[name], chosen.model)}
    wider = {form: (exported(slim, point.model, form, drafts), point.model) for form, point in eased.items()}
    formed, why_not = form_files(run.weights, plain, wider, data, drafts)
    timed = _timed(slim, models, files, drafts)
    timed = {**timed, **{each.name: each.file for each in formed}}
    times = slim.target.timer.latencies({each: (file, slim.inputs) for each, file in timed.items()}, run.threads)
    for file in timed.values() if slim.target.timer is not slim.target else ():
        file.unlink()
    now = times["whole"].median_s / slim.whole.median_s  # the machine's load may have changed since the measurement
    removed = METHODS[run.method].removed(chosen.plan, slim.structures)
    layers = _layers(slim, chosen.plan, removed, now, *((files[each], times[each]) for each in ("whole", name)))
    small = files[name].replace(drafts / f"model{suffix}")
    for other, file in files.items():
        if other not in ("whole", name):
            file.unlink()
    chosen.plan.save(drafts / "plan.json")
    torch.save(chosen.model.state_dict(), drafts / "weights.pt")
    slimmed = _as_measured(times[name], chosen.model, small, (chosen.accuracy, chosen.loss))
    graph = files["whole"].stat().st_size - module_bytes(whole)
    smaller = small, slimmed, module_bytes(chosen.model) + graph
    candidates = list(measured_candidates(formed, smaller, times, run.budget, now, data)) if run.weights else []
    in_int8 = next((each.measured for each in candidates if (each.way, each.weights) == (BOTH, INT8.name)), None)
    made = [each.file for each in formed]
    for form, (file, _) in wider.items():
        file.unlink()
        made += kept_with(eased[form].plan, eased[form].model, form, drafts)
    written = [drafts / "plan.json", drafts / "weights.pt", small, *made]
    return SlimRecord(
        model=run.training.model,
        data=run.training.data,
        method=run.method,
        target=run.target,
        budget=str(run.budget),
        threads=run.threads,
        training=run.trained(points.index(chosen) + 1, NO_TEACHER not in chosen.notes),
        held_out=data.test_y.numel(),
        whole=_as_measured(times["whole"], whole, files["whole"], before),
        slimmed=slimmed,
        predicted_s=chosen.predicted_s * now,
        widths=tuple(widths(slim, removed)),
        layers=layers,
        kept=dict(chosen.kept),
        notes=(
            *chosen.notes,
            *_missed(run, now, times["whole"], times[name], small),
            *_lost_much(run, before, chosen),
            *_rescaled(now, run.budget),
            *replacement_notes(chosen.plan),
            *notes_on(slim),
            *why_not,
            *int8_notes(slimmed, in_int8),
            *whole_notes(run.budget, formed, candidates, times["whole"].median_s, now),
        ),
        environment=environment(("numpy", "torch", "onnx", slim.target.package)),
        files={file.name: str(run.out / file.name) for file in written},
        sizes={file.name: file.stat().st_size for file in written},
        quantised=in_int8,
        clock=now,
        candidates=tuple(candidates),
        curve=(
            CurvePoint("whole", times["whole"].median_s, times["whole"].median_s, before[0]),
            *(
                CurvePoint(str(point.budget), times[f"slimmed {number}"].median_s, point.predicted_s * now, point.accuracy)
                for number, point in enumerate(points)
            ),
        ),
    )


def _timed(slim: Slim, models: Mapping[str, nn.Module], files: Mapping[str, Path], drafts: Path) -> dict[str, Path]:
    """Return the files to time: those of the target, or of the runtime that measures for it."""
    timer = slim.target.timer
    if timer is slim.target:
        return dict(files)
    return {name: timer.export(model, slim.inputs, drafts / f"{name} timed{timer.suffix}") for name, model in models.items()}


def _lost_much(run: SlimRun, before: tuple[float, float], point: _Point) -> Iterator[str]:
    """Note a large loss, with a suggestion."""
    lost = _lost(before, point)
    if lost > LARGE_LOSS and run.budget.kind != "accuracy":
        longer = "--path-epochs and --tune-epochs" if METHODS[run.method].has_path else "--tune-epochs"
        yield f"The slimmed network loses {lost:.1f} points of accuracy: give more {longer}, or a larger budget."


def _rescaled(now: float, budget: Budget) -> Iterator[str]:
    """Note that the load of the machine changed since the predictions were made."""
    if abs(now - 1) > NOTICED:
        what = f"predictions and {budget}" if budget.kind == "latency" else "predictions"
        yield f"The whole network takes {now:.2f} times what it took before training; {what} are multiplied by that."


def missed_budget(budget: Budget, record: SlimRecord) -> bool:
    """Return whether the measured latency exceeds the budget, and that of every other form of weights too."""
    if record.meeting:
        return False
    limit_s = limit(budget, record.whole.latency_s, record.clock)
    return limit_s is not None and record.slimmed is not None and record.slimmed.latency_s > limit_s


def _missed(run: SlimRun, now: float, whole: Latency, slimmed: Latency, file: Path) -> Iterator[str]:
    """Note that the measured network exceeds the budget."""
    kind = run.budget.kind
    if kind == "size" and file.stat().st_size > run.budget.value:
        size, weights = format_bytes(file.stat().st_size), format_bytes(run.budget.value)
        yield f"The file has {size}: it holds weights of {weights} and the graph."
    limit_s = limit(run.budget, whole.median_s, now)
    if limit_s is not None and slimmed.median_s > limit_s:
        yield f"The budget is missed: {format_seconds(slimmed.median_s)} measured, {format_seconds(limit_s)} asked for."


def notes_on(slim: Slim) -> Iterator[str]:
    """Return notes on the reference of the widths, and on the basis of the predictions for a runtime."""
    if slim.subject is not slim.model:
        yield f"Widths are relative to a new network ({slim.method}) with about as many multiply-adds as the whole one."
    if not slim.target.measured:
        yield unmeasured_note(slim.target.name)
    elif slim.target.name != "onnxruntime":
        yield f"Layers were timed alone on ONNX Runtime; their sum is scaled to the whole network on {slim.target.title}."


def _chosen(run: SlimRun, before: tuple[float, float], points: list[_Point]) -> _Point:
    """Return the last point that meets the budget. Raises NotMet if every point loses more."""
    if run.budget.kind != "accuracy":
        return points[-1]
    good = [point for point in points if _lost(before, point) <= run.budget.value]
    if not good:
        what = f"{run.budget} cannot be met: at {points[0].budget} the network loses {_lost(before, points[0]):.2g} points"
        epochs = "--path-epochs and --tune-epochs" if METHODS[run.method].has_path else "--tune-epochs"
        raise NotMet(what, f"give a larger loss, or more {epochs}")
    return good[-1]


def _as_measured(time: Latency, model: nn.Module, file: Path, quality: tuple[float, float]) -> SlimMeasurement:
    parameters = sum(each.numel() for each in model.parameters())
    return SlimMeasurement(time.median_s, time.low_s, time.high_s, parameters, file.stat().st_size, *quality)


def _layers(
    slim: Slim, plan: SlimPlan, removed: set[int], now: float, whole: tuple[Path, Latency], small: tuple[Path, Latency]
) -> tuple[LayerLatency, ...]:
    """Return the latency by layer of two ONNX files, with the method's predicted layers if it has any; empty for other files.

    Args:
        now: latency of the whole network relative to when the table was made.
    """
    if slim.target.name != "onnxruntime":
        return ()
    before, after = (profile(file, slim.inputs, slim.threads).by_layer(time.median_s) for file, time in (whole, small))
    predicted = slim.times.by_layer(removed) if "layers" in slim.table else {}
    predicted = {name: now * each for name, each in predicted.items()}
    return layer_latencies(before, after, predicted, plan.replacements)
