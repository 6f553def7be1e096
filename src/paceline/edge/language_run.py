"""Slim a decoder of Hugging Face to a budget of its token, prompt or file, next to fewer bits."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.edge.language_bench import Contender, LanguageBench, example, file_bytes
from paceline.edge.language_files import keep_files, opens_note, save_model
from paceline.edge.language_forms import MARGIN, cheapest_form
from paceline.edge.language_settings import BATCH, LanguageRun, Say
from paceline.edge.slim_notes import missed_note
from paceline.errors import UserError
from paceline.language_record import LESS, SMALLER, TRAINED_WHOLE, WHOLE, LanguageRecord
from paceline.record import environment
from paceline.slimming.language.candidates import Candidates, SmallDecoder
from paceline.slimming.language.checkpoint import Checkpoint, TextParts, load_checkpoint, read_text
from paceline.slimming.language.distillation import TextTraining, train_language_model
from paceline.slimming.language.model_folder import with_true_config
from paceline.slimming.language.perplexity import perplexity
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import FP32, WeightForm
from paceline.slimming.slim import Slim
from paceline.slimming.structures.experts import with_experts
from paceline.slimming.structures.fewer_layers import layers_of, within_layers
from paceline.slimming.structures.shrink import load
from paceline.slimming.structures.structures import Structures

TRIALS, TRIAL_SHARE = 3, 0.05
"""Candidates that train for a share of the steps before one is chosen: the best ones before any training."""
ROUNDS, CLOSE = 3, 0.95
"""Most measurements on the way to the budget, and the share of it that is near enough. The next aims at ``MARGIN`` of it."""
SIZE_ROUNDS = 6
"""As ``ROUNDS``, for a size: a file needs no clock."""


class LanguageTask(Slim):
    """A decoder whose tables are corrected by its measured smaller models, not by a further one. Whole experts may go too.

    Single layers are timed with their weights in the cache, and a dropped layer takes its other operations along. So
    tables alone may be far from the time of a token.
    """

    def traced(self, inputs: tuple[Any, ...]) -> Structures:
        """Return the structures inside the layers, whole experts too."""
        every = with_experts(super().traced(inputs), self.subject, inputs)
        return within_layers(every, layers_of(self.subject))

    def _corrected(self, times: LayerTimes) -> LayerTimes:
        return times


@dataclass
class _Small:
    """The chosen candidate, its model and its file; ``cost``: measured, in the budget's unit."""

    candidate: SmallDecoder
    model: nn.Module
    file: Path
    cost: float


def slim_language(run: LanguageRun, say: Say = lambda words: None) -> LanguageRecord:
    """Slim a language model.

    Returns:
        The record, also written as ``slim.json`` next to ``plan.json``, ``weights.pt``, the runtime's file and the files in
        other forms of the weights.

    Raises:
        UserError: another folder or text; a decoder that cannot be traced or exported; a budget that cannot be met; a runtime
            that is not here.
    """
    run.runtime  # noqa: B018
    checkpoint = load_checkpoint(run.model, run.seed)
    limit = getattr(checkpoint.model.config, "max_position_embeddings", None)
    if limit is not None and max(run.context + 1, run.prompt) > limit:
        raise UserError(f"{max(run.context + 1, run.prompt)} tokens for {checkpoint.name}, which takes {limit}", "give fewer")
    parts = TextParts.of(checkpoint.tokens(read_text(run.text)), run.context)
    out = Path(run.out)
    try:
        if run.writes:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}", "give another --out") from error
    with tempfile.TemporaryDirectory(dir=out if run.writes else None, prefix=".draft-") as directory:
        return _slimmed(run, checkpoint, parts, Path(directory), say)


def _slimmed(run: LanguageRun, checkpoint: Checkpoint, parts: TextParts, drafts: Path, say: Say) -> LanguageRecord:
    model, start = checkpoint.model, time.process_time()
    say("exporting and measuring the whole model")
    bench = LanguageBench.of(run, checkpoint, drafts)
    size_goal = 0.0 if run.budget.phase else run.budget.of(float(file_bytes(bench.whole)))  # refused before anything is timed
    slim = _task(bench)
    goal = slim.goal if run.budget.phase else size_goal
    forecasts = bench.fewer_bits(parts, say)
    say("measuring the layers")
    beside = 0.0 if run.budget.phase else file_bytes(bench.whole) - slim.cost(())  # bytes of a file beyond its weights
    search = Candidates(slim, parts.train, parts.tune, run.context)
    say("choosing layers, heads and rows")
    chosen = _tried(run, search.every(goal - beside, beside), model, parts, say)
    small = _measured(bench, search, chosen, goal, goal - beside, drafts / "smaller", FP32, say)
    tokens = _train(run, small.model, model, parts, say)
    if tokens:
        bench.export(small.model, small.file)
    forms = (FP32, *run.forms)
    contenders = {WHOLE: Contender(model, bench.whole, forms), SMALLER: Contender(small.model, small.file, forms)}
    notes: list[str] = []
    if (share := cheapest_form(run.budget, forecasts, file_bytes(bench.whole))) is not None:
        form, ratio = share
        say(f"choosing what must go if the weights are in {form}")
        aim = goal / ratio - beside
        eased = _tried(run, search.every(aim, beside), model, parts, say)
        less = _measured(bench, search, eased, goal, aim, drafts / "eased", form, say)
        if less.cost > goal:
            notes.append(f"No model with less removed was found that meets the budget in {form}.")
        else:
            if _train(run, less.model, model, parts, say):
                bench.export(less.model, less.file)
            contenders[LESS] = Contender(less.model, less.file, (form,))
            less.candidate.plan.save(drafts / "less-removed.plan.json")
            torch.save(less.model.state_dict(), drafts / "less-removed.weights.pt")
    if tokens and not checkpoint.random:  # in place and last: it is the teacher before, and a copy may not fit
        say("training the whole model for as many steps, to compare with")
        _train(run, model, None, parts, say)
        trained = bench.export(model, drafts / f"trained-whole{bench.whole.suffix}")
        contenders[TRAINED_WHOLE] = Contender(model, trained, (FP32,))
    say("measuring all in turns")
    rows, files, failed = bench.rows(contenders, parts, goal)
    notes += failed
    missed = not any(each.name == SMALLER and each.weights == FP32.name and each.meets for each in rows)
    if missed:
        notes.append(missed_note(run.budget))
    if checkpoint.random:
        notes.append("The folder has no weights: they are random. Times and sizes are true, perplexities say nothing.")
    if checkpoint.tokenizer is None:
        notes.append("The folder has no tokenizer: the bytes of the text are the tokens.")
    opens = save_model(run, with_true_config(small.model, model, small.candidate.plan), drafts)
    notes += [opens_note(run, slim.unstated, opens)]
    small.candidate.plan.save(drafts / "plan.json")
    torch.save(small.model.state_dict(), drafts / "weights.pt")
    small.file.replace(drafts / f"model{run.runtime.target.suffix}")
    record = LanguageRecord(
        model=checkpoint.name,
        budget=str(run.budget),
        goal=goal,
        context=run.context,
        prompt=run.prompt,
        threads=run.threads,
        target=run.target,
        rows=tuple(rows),
        layers=small.candidate.layers,
        whole_layers=len(search.influences),
        widths=_widths(search, small.candidate),
        importance=small.candidate.importance,
        before=small.candidate.perplexity,
        predicted=small.candidate.cost,
        trained={
            **{"tokens": tokens, "distill": run.distill, "epochs": run.epochs, "lr": run.lr, "seed": run.seed},
            "cpu_s": time.process_time() - start,
        },
        random=checkpoint.random,
        opens=opens,
        notes=tuple(notes),
        environment=environment(
            dict.fromkeys(("numpy", "torch", "transformers", "onnx", "onnxruntime", run.runtime.target.package))
        ),
        files={},
    )
    return keep_files(run, record, drafts, files) if run.writes else record


def _task(bench: LanguageBench) -> LanguageTask:
    """Return the decoder on its way to the budget, with the whole model's measured latency."""
    run, phase = bench.run, bench.run.budget.phase
    latency: Latency = getattr(bench.latencies({WHOLE: bench.whole})[WHOLE], phase or "decode")
    inputs = None if phase else (torch.zeros(1, 2, dtype=torch.long),)
    given: dict[str, Any] = {"method": "ssl", "widths": run.widths, "target": run.target, **run.timing}
    return LanguageTask(bench.checkpoint.model, inputs, budget=run.budget, table={"whole": asdict(latency)}, **given)


def _train(run: LanguageRun, model: nn.Module, teacher: nn.Module | None, parts: TextParts, say: Say) -> int:
    """Train a model in place, and return the tokens that it saw."""
    steps = run.steps(parts)
    if not steps:
        return 0
    if teacher is not None:
        say(f"training the smaller model for {steps} steps")
    share = run.distill if teacher is not None else 0.0
    schedule = TextTraining(steps=steps, batch=BATCH, window=run.context, lr=run.lr, share=share, seed=run.seed)
    train_language_model(model, parts.train, schedule, teacher)
    return steps * BATCH * run.context


def _tried(run: LanguageRun, every: list[SmallDecoder], model: nn.Module, parts: TextParts, say: Say) -> SmallDecoder:
    """Return the candidate with the best perplexity after a short training; without one, before it."""
    steps = round(TRIAL_SHARE * run.steps(parts))
    distinct: dict[int, SmallDecoder] = {}
    for each in every:
        distinct.setdefault(len(each.layers), each)
    first = list(distinct.values())[:TRIALS]
    if steps < 1 or len(first) < 2:
        return every[0]
    say(f"trying {len(first)} candidates for {steps} steps each")
    schedule = TextTraining(steps=steps, batch=BATCH, window=run.context, lr=run.lr, share=run.distill, seed=run.seed)
    found = []
    for each in first:
        small = load(each.plan, model)
        train_language_model(small, parts.train, schedule, model)
        found.append((perplexity(small, parts.tune, run.context), each))
    return min(found, key=lambda pair: pair[0])[1]


def _measured(
    bench: LanguageBench,
    search: Candidates,
    chosen: SmallDecoder,
    goal: float,
    aim: float,
    draft: Path,
    form: WeightForm,
    say: Say,
) -> _Small:
    """Measure the candidate in a form of its weights, and search again at a nearer aim until it meets the budget closely."""
    best: _Small | None = None
    points: list[tuple[float, float]] = []
    rounds = ROUNDS if bench.run.budget.phase else SIZE_ROUNDS
    for number in range(rounds):
        say(f"measuring a smaller model, {number + 1} of at most {rounds}")
        model = load(chosen.plan, bench.checkpoint.model).eval()
        file = bench.export(model, draft.with_name(f"{draft.name}-{number}{bench.whole.suffix}"))
        timed = file if form == FP32 else quantised(file, file.with_suffix(f".{form.file_name}.onnx"), [example(file)], form)
        found = _Small(chosen, model, file, bench.cost(timed, search.slim.whole.median_s))
        meets, best_meets = found.cost <= goal, best is not None and best.cost <= goal
        if (
            best is None
            or (meets and (not best_meets or found.cost > best.cost))
            or (not best_meets and found.cost < best.cost)
        ):
            best = found
        if CLOSE * goal <= found.cost <= goal:
            break
        points.append((aim, found.cost))
        if bench.run.budget.phase and form == FP32:
            search.slim.correct(search.gone(chosen), found.cost / search.slim.whole.median_s)
            aim = MARGIN * goal
        else:
            aim = next_aim(points, MARGIN * goal)
        if (next_one := _nearer(search, chosen, aim)) is None:
            break
        chosen = next_one
    assert best is not None
    return best


def next_aim(points: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the next aim from pairs of an aim and its measured cost: by the line through the last two that differ.

    With one pair, or a line that does not rise, the aim changes as the cost must. A file has a part that no aim changes, such
    as an embedding that stays in fp32, so that this alone comes too slowly to its budget.
    """
    (aim, cost), proportional = points[-1], points[-1][0] * wanted / points[-1][1]
    before = next((each for each in reversed(points[:-1]) if each[0] != aim), None)
    if before is None or (rise := (cost - before[1]) / (aim - before[0])) <= 0:
        return proportional
    found = aim + (wanted - cost) / rise
    return found if 0.5 * proportional < found < 2 * proportional else proportional


def _nearer(search: Candidates, chosen: SmallDecoder, aim: float) -> SmallDecoder | None:
    """Return another candidate for an aim: with the same layers if possible, else the best one; None if there is none."""
    gone = len(search.influences) - len(chosen.layers)
    try:
        alike = search.one(chosen.importance, gone, aim)
        found = [alike] if alike is not None and alike.plan != chosen.plan else search.every(aim)
    except UserError:
        return None
    return next((each for each in found if each.plan != chosen.plan), None)


def _widths(search: Candidates, chosen: SmallDecoder) -> dict[str, tuple[int, int]]:
    """Return the structures of each layer that stays, before and after."""
    inside = {each.number for each in search.structures.every if each.number in chosen.removed}
    starts = tuple(f"{search.path}.{number}." for number in chosen.layers)
    return {
        layer.removesuffix(".weight"): (len(every), sum(each.number not in inside for each in every))
        for layer, every in search.structures.layers().items()
        if layer.startswith(starts)
    }
