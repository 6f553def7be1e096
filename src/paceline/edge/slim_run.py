"""Slim a network to a budget: train it if needed, follow the path, remove, fine-tune, export, measure."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.edge.evaluation import held_out, held_out_on_file
from paceline.edge.int8_forecast import WHOLE_INT8_FILE, int8_forecast, whole_int8_note
from paceline.edge.kept_budget import limit, shrunk
from paceline.edge.slim_data import check_fits
from paceline.errors import Interrupted, NotMet, UserError, unknown
from paceline.record import environment
from paceline.rundir import RunDir, write_whole
from paceline.slim_record import CurvePoint, LayerLatency, SlimMeasurement, SlimRecord, Training, Width, unmeasured_note
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_profile import layer_latencies, profile
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.methods import LATENCIES, METHODS, Replace, target_for
from paceline.slimming.methods.path_training import settings
from paceline.slimming.methods.quantise import to_int8
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
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
CALIBRATION = 128
"""Number of samples for the scales of int8."""
TEACHER_SAMPLES = 1024
"""Approximate number of training samples that decide whether the whole network can teach."""
NO_TEACHER = "The whole network is worse than the slimmed one on training samples, so it does not teach: train it longer."
NOTICED = 0.02
"""Smallest change of the machine's speed that is reported."""
LARGE_LOSS = 2.0
"""Loss in percentage points of accuracy above which a next step is suggested."""
INT8, INT8_FILE = "int8", "model.int8.onnx"
WHOLE_INT8 = "whole in int8"
SETTINGS, RECORD = "settings.json", "slim.json"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class SlimRun:
    """Settings of slimming: network, budget and training.

    Attributes:
        training: training settings of the whole network; ``out`` is the common directory, ``start`` the trained weights.
        path_epochs: on the way to the budget; 0: half of the training's. ``tune_epochs``: epochs of the slimmed network; 0: a
            third, or all of the training's if it starts untrained.
        distill: weight of the whole network's outputs in fine-tuning.
        int8: also quantise the slimmed and the whole network, on ONNX Runtime.
    """

    training: TrainingRun
    budget: Budget
    method: str = "auto"
    target: str = "onnxruntime"
    threads: int = 1
    path_epochs: int = 0
    tune_epochs: int = 0
    distill: float = DISTILL
    int8: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if self.budget.phase:
            what = f"{self.budget} for {self.training.model}, which is no folder of a language model"
            raise UserError(what, "give latency or speedup, or a folder in Hugging Face's format with --text")
        if isinstance(METHODS[self.method], Replace) and self.budget.kind not in LATENCIES:
            raise UserError(f"{self.method} cannot aim at {self.budget}", "give latency=5ms or speedup=2x")
        target_for(self.target, self.method, self.budget).check_installed()
        if self.int8 and self.target != "onnxruntime":
            raise UserError(f"`int8` for {self.target}", "int8 files are ONNX Runtime's: leave out one of the two")
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
        ``model.tflite`` for another target). With ``int8`` there are ``model.int8.onnx`` and ``whole.int8.onnx`` too.

    Raises:
        UserError: as ``train``; a network that cannot be traced or exported; a budget that cannot be met.
    """
    data = load_data(run.training.data)
    untrained = build_model(run.training.model, run.training.seed).eval()
    if run.training.start:
        load_weights(untrained, run.training.start, run.training.model)
    identity = _same_settings(run)
    _gives_scores(untrained, run, data)
    slim = _measured(run, untrained, data, say)
    slim.check()  # latency does not depend on the weights: an impossible budget is refused before any training
    write_whole(run.out / SETTINGS, identity)
    weights = _whole_weights(run, say)
    whole = _network(run, weights)
    before = held_out(whole, data)
    points: list[_Point] = []
    for budget in _budgets(run.budget):
        start = points[-1].path if points else weights
        if points and not _reachable(slim.to(budget)):
            break
        points.append(_point(run, slim.to(budget), start, weights, len(points), data, say))
        if run.budget.kind == "accuracy" and _lost(before, points[-1]) > run.budget.value:
            break
    return _finish(run, slim, weights, before, points, data, say)


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


def _measured(run: SlimRun, whole: nn.Module, data: Dataset, say: Say) -> Slim:
    """Return the network with the table of its layers, which a resumed run reads again."""
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
    if table is None:
        if forecast := int8_forecast(slim):
            say(forecast.text(run.budget))
        say("measuring the layers")
        write_whole(file, json.dumps({"of": of, **slim.table}))
    return slim


def _point(run: SlimRun, slim: Slim, start: str, weights: str, number: int, data: Dataset, say: Say) -> _Point:
    """Slim to one budget: follow the path if the method has one, shrink, train the rest."""
    slim.check()
    budget = slim.budget
    suffix = f"-{number + 1}" if number else ""
    has_path = METHODS[run.method].has_path
    if has_path:
        path = run.path(suffix, start, slim.budget)
        _stage(path, say, f"on the path to {slim.budget}")
        start = path.out
    load_weights(slim.model, start, run.training.model)
    slim, small, measured = shrunk(slim)
    if slim.plan is None:
        raise AssertionError("shrink makes a plan")
    file = run.out / f"plan-{number + 1}.json"
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
    run: SlimRun, slim: Slim, weights: str, before: tuple[float, float], points: list[_Point], data: Dataset, say: Say
) -> SlimRecord:
    """Export, measure, write. Files are moved to their places at the end, so a failure leaves none."""
    chosen = _chosen(run, before, points)
    whole = _network(run, weights)
    say("exporting and measuring")
    with tempfile.TemporaryDirectory(dir=run.out, prefix=".draft-") as directory:
        record = _written(run, slim, whole, chosen, before, points, data, Path(directory))
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
) -> SlimRecord:
    """Export and measure in a directory. The record names the final paths of the files."""
    models = {"whole": whole, **{f"slimmed {number}": point.model for number, point in enumerate(points)}}
    suffix = slim.target.suffix
    files = {name: slim.target.export(model, slim.inputs, drafts / f"{name}{suffix}") for name, model in models.items()}
    name = f"slimmed {points.index(chosen)}"
    quantised, why_not = _quantised(run, files[name], data, drafts / INT8_FILE)
    timed = _timed(slim, models, files, drafts)
    if quantised is not None:
        timed = {**timed, INT8: quantised}
    whole_int8, _ = _quantised(run, files["whole"], data, drafts / WHOLE_INT8_FILE)
    if whole_int8 is not None:
        timed = {**timed, WHOLE_INT8: whole_int8}
    times = slim.target.timer.latencies({each: (file, slim.inputs) for each, file in timed.items()}, run.threads)
    for file in timed.values() if slim.target.timer is not slim.target else ():
        file.unlink()
    now = times["whole"].median_s / slim.whole.median_s  # the machine's load may have changed since the measurement
    removed = METHODS[run.method].removed(chosen.plan, slim.structures)
    layers = _layers(slim, chosen.plan, removed, now, *((files[each], times[each]) for each in ("whole", name)))
    exported = files[name].replace(drafts / f"model{suffix}")
    for other, file in files.items():
        if other not in ("whole", name):
            file.unlink()
    chosen.plan.save(drafts / "plan.json")
    torch.save(chosen.model.state_dict(), drafts / "weights.pt")
    slimmed = _as_measured(times[name], chosen.model, exported, (chosen.accuracy, chosen.loss))
    in_int8 = None
    if quantised is not None:
        in_int8 = _as_measured(times[INT8], chosen.model, quantised, held_out_on_file(quantised, data))
    alone: tuple[str, ...] = ()
    if whole_int8 is not None:
        quality = held_out_on_file(whole_int8, data)
        alone = (whole_int8_note(run.budget, times["whole"].median_s, now, times[WHOLE_INT8].median_s, quality[0]),)
    made = [each for each in (quantised, whole_int8) if each is not None]
    written = [drafts / "plan.json", drafts / "weights.pt", exported, *made]
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
            *_missed(run, now, times["whole"], times[name], exported),
            *_lost_much(run, before, chosen),
            *_rescaled(now, run.budget),
            *replacement_notes(chosen.plan),
            *notes_on(slim),
            *why_not,
            *int8_notes(slimmed, in_int8),
            *alone,
        ),
        environment=environment(("numpy", "torch", "onnx", slim.target.package)),
        files={file.name: str(run.out / file.name) for file in written},
        sizes={file.name: file.stat().st_size for file in written},
        quantised=in_int8,
        clock=now,
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


def _quantised(run: SlimRun, file: Path, data: Dataset, place: Path) -> tuple[Path | None, list[str]]:
    """Return the int8 file if requested, or the reason why it failed, which does not stop the run."""
    if not run.int8:
        return None, []
    every = max(1, len(data.train_x) // CALIBRATION)
    samples = [(data.train_x[number : number + 1],) for number in range(0, len(data.train_x), every)][:CALIBRATION]
    try:
        return to_int8(file, place, samples), []
    except UserError as error:
        return None, [f"There is no int8 file: {error.message}."]


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
    """Return whether the measured latency exceeds the budget."""
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


def int8_notes(slimmed: SlimMeasurement, quantised: SlimMeasurement | None) -> Iterator[str]:
    """Return notes if int8 is worse than fp32."""
    if quantised is None:
        return
    if quantised.latency_s >= slimmed.latency_s:
        times = f"{format_seconds(quantised.latency_s)}, {format_seconds(slimmed.latency_s)} in fp32"
        yield f"int8 is not faster here: {times}."
    if quantised.accuracy is not None and slimmed.accuracy is not None and quantised.accuracy < slimmed.accuracy:
        yield f"int8 loses {100 * (slimmed.accuracy - quantised.accuracy):.2f} points of accuracy."


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


def widths(slim: Slim, removed: set[int]) -> Iterator[Width]:
    """Return the widths of every layer that may be narrower, and the rows or columns of every smaller kernel.

    Args:
        removed: numbers of the removed structures.
    """
    for layer, every in slim.structures.layers().items():
        part = next((part for part in every[0].slices if part.parameter == layer), every[0].slices[0])
        whole, each_of = len(slim.structures.units[part.parameter][part.dim]), len(part.indices)
        gone = sum(each.number in removed for each in every)
        if not every[0].nested:
            yield Width(layer.removesuffix(".weight"), whole // each_of, whole // each_of - gone)
        elif gone:
            yield Width(layer, whole, whole - each_of * gone)


def replacement_notes(plan: SlimPlan) -> Iterator[str]:
    """Return a sentence for each replaced module."""
    for path, given in plan.replacements.items():
        if names := given.get("branches"):
            yield f"Branches that are gone, of which a constant is left: {', '.join(names)}."
            continue
        numbers = ", ".join(f"{name} {value}" for name, value in given.items() if name != "kind")
        yield f"{path or 'The network'} is {str(given['kind']).replace('_', ' ')} now: {numbers}."
