"""Slim a decoder of Hugging Face to a budget of its token, prompt or file, next to fewer bits."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.edge.slim_notes import missed_note
from paceline.errors import UserError, unknown
from paceline.language_record import WIDTHS, LanguageMeasurement, LanguageRecord
from paceline.record import environment
from paceline.rundir import write_whole
from paceline.slimming.export.cached_decoder import decoder_to_onnx
from paceline.slimming.language.candidates import Candidates, SmallDecoder
from paceline.slimming.language.checkpoint import Checkpoint, TextParts, load_checkpoint, read_text
from paceline.slimming.language.distillation import TextTraining, train_language_model
from paceline.slimming.language.model_folder import opens_in_transformers, with_true_config
from paceline.slimming.language.perplexity import perplexity
from paceline.slimming.language.stated_config import quiet
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.latency.token_times import CONTEXT, PROMPT, TokenLatency, TokenRunner, token_latencies
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import FP32, INT4, INT8, INT8_BLOCKS, WeightForm
from paceline.slimming.slim import Slim
from paceline.slimming.structures.experts import with_experts
from paceline.slimming.structures.fewer_layers import layers_of, within_layers
from paceline.slimming.structures.shrink import load
from paceline.slimming.structures.structures import Structures

EPOCHS, LR, BATCH, DISTILL = 1, 5e-4, 8, 0.5
"""Defaults of the training of the smaller model: passes over the text, peak rate of AdamW, windows of a step, and the share of
the whole model's distribution in the loss."""
TRIALS, TRIAL_SHARE = 3, 0.05
"""Candidates that train for a share of the steps before one is chosen: the best ones before any training."""
ROUNDS, CLOSE, MARGIN = 3, 0.95, 0.985
"""Most measurements on the way to the budget, share of it that is near enough, and the part of it that the next one aims at."""
SESSIONS = 3
"""Sessions whose median ratio counts. A smaller decoder met its budget in one session and missed it by 5 % in the next, on two
cores with other work."""
HELD_OUT = 128
"""Most windows of the held-out text that perplexities are of, the same for all files."""
WHOLE, SMALLER, LESS = "whole", "smaller", "less removed"
"""Models that are measured. From the last one goes only what a form of its weights leaves of the budget."""
STEMS = {WHOLE: "whole", SMALLER: "model", LESS: "less-removed"}
"""Names of their files."""
FOLDER, TOKENIZER = "model", "tokenizer"
"""Folder of the smaller model in Hugging Face's format, and how the names of tokenizers' files begin."""
FORMS = (INT8, INT8_BLOCKS, INT4)
"""Forms of the weights that are measured next to fp32."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LanguageRun:
    """Settings of slimming a language model.

    Attributes:
        model: folder of a checkpoint. ``text``: a text file. ``out``: directory of the results.
        budget: of a phase, or a size; a plain latency or speed-up is of ``decode``.
        context: tokens in the cache when one is decoded, and of a window of the text. ``prompt``: tokens of the prefill.
        epochs: passes of the smaller model over the text; 0: none, only measure.
        distill: share of the whole model's distribution in the loss. ``lr``: peak rate.
        weights: forms of the weights next to fp32. ``writes``: whether ``out`` gets the results.
        widths: as of ``Slim``.
    """

    model: str
    text: str
    budget: Budget
    out: str
    context: int = CONTEXT
    prompt: int = PROMPT
    threads: int = 1
    epochs: float = EPOCHS
    distill: float = DISTILL
    lr: float = LR
    seed: int = 0
    weights: tuple[WeightForm, ...] = FORMS
    writes: bool = True
    widths: str = ""

    def __post_init__(self) -> None:
        if self.budget.kind == "accuracy":
            raise UserError(f"{self.budget} for a language model", "give decode=2x, prefill=2x or size=20MB")
        if self.budget.kind != "size" and not self.budget.phase:
            object.__setattr__(self, "budget", replace(self.budget, phase="decode"))
        for name in ("context", "prompt", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{getattr(self, name)} for `{name}`", "give a whole number from 1 up")
        if self.context < 2:
            raise UserError("a context of 1 token", "give at least 2: the text is read in windows of it")
        if self.writes and Path(self.model).resolve().is_relative_to((Path(self.out) / FOLDER).resolve()):
            raise UserError(f"{self.model} would be replaced by the smaller model", f"give another --out than {self.out}")
        if not 0 <= self.epochs < float("inf"):
            raise UserError(f"{self.epochs} epochs", "give `tune_epochs` from 0 up, such as 0.25")
        if not 0 <= self.distill <= 1:
            raise UserError(f"a share of {self.distill:g} of the teacher", "give `distill` from 0 to 1")
        if self.widths and self.widths not in WIDTHS:
            raise unknown("widths", self.widths, WIDTHS)
        if not 0 < self.lr < float("inf"):
            raise UserError(f"learning rate {self.lr}", "give a positive number")


class LanguageTask(Slim):
    """A decoder whose tables are checked by the measured smaller model, not by a further one. Whole experts may go too."""

    def traced(self, inputs: tuple[Any, ...]) -> Structures:
        """Return the structures inside the layers, whole experts too."""
        inside = within_layers(super().traced(inputs), layers_of(self.subject))
        return with_experts(inside, self.subject, inputs)

    def _corrected(self, times: LayerTimes) -> LayerTimes:
        return times


@dataclass
class _Small:
    """The chosen candidate, its model and its file; ``cost``: measured, in the budget's unit."""

    candidate: SmallDecoder
    model: nn.Module
    file: Path
    cost: float


@dataclass(frozen=True)
class _Contender:
    """A model with its fp32 file, and the forms of the weights that are measured."""

    model: nn.Module
    file: Path
    forms: tuple[WeightForm, ...]


def slim_language(run: LanguageRun, say: Say = lambda words: None) -> LanguageRecord:
    """Slim a language model.

    Returns:
        The record, also written as ``slim.json`` next to ``plan.json``, ``weights.pt``, ``model.onnx`` and the files in other
        forms of the weights.

    Raises:
        UserError: another folder or text; a decoder that cannot be traced or exported; a budget that cannot be met.
    """
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
    whole = decoder_to_onnx(model, drafts / "whole.onnx")
    taken = token_latencies({WHOLE: whole}, checkpoint.vocabulary, **_timing(run))[WHOLE]
    slim = _task(run, model, whole, taken)
    goal = slim.goal if run.budget.phase else _size_goal(run.budget, whole)
    say("measuring the layers")
    beside = 0.0 if run.budget.phase else _graph_bytes(slim, whole)
    structures_goal = goal - beside
    search = Candidates(slim, parts.train, parts.tune, run.context)
    say("choosing layers, heads and rows")
    chosen = _tried(run, search.every(structures_goal, beside), model, parts, say)
    small = _measured(run, search, chosen, goal, structures_goal, checkpoint, whole, drafts / "smaller", FP32, say)
    tokens = _train(run, small.model, model, parts, _steps(run, parts), say)
    if tokens:
        decoder_to_onnx(small.model, small.file)
    forms = (FP32, *run.weights)
    contenders = {WHOLE: _Contender(model, whole, forms), SMALLER: _Contender(small.model, small.file, forms)}
    if (share := _share_of_best_form(run, checkpoint, whole, goal)) is not None:
        form, ratio = share
        say(f"choosing what must go if the weights are in {form}")
        aim = goal / ratio - beside
        eased = _tried(run, search.every(aim, beside), model, parts, say)
        less = _measured(run, search, eased, goal, aim, checkpoint, whole, drafts / "eased", form, say)
        if _train(run, less.model, model, parts, _steps(run, parts), say):
            decoder_to_onnx(less.model, less.file)
        contenders[LESS] = _Contender(less.model, less.file, (form,))
        less.candidate.plan.save(drafts / "less-removed.plan.json")
        torch.save(less.model.state_dict(), drafts / "less-removed.weights.pt")
    say("measuring all in turns")
    rows, files, notes = _rows(run, checkpoint, contenders, parts, goal)
    missed = not any(each.name == SMALLER and each.weights == FP32.name and each.meets for each in rows)
    if missed:
        notes.append(missed_note(run.budget))
    if checkpoint.random:
        notes.append("The folder has no weights: they are random. Times and sizes are true, perplexities say nothing.")
    opens = _save_model(run, with_true_config(small.model, model, small.candidate.plan), drafts)
    notes += [_opens_note(run, search, opens)]
    small.candidate.plan.save(drafts / "plan.json")
    torch.save(small.model.state_dict(), drafts / "weights.pt")
    small.file.replace(drafts / "model.onnx")
    record = LanguageRecord(
        model=checkpoint.name,
        budget=str(run.budget),
        goal=goal,
        context=run.context,
        prompt=run.prompt,
        threads=run.threads,
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
        environment=environment(("numpy", "torch", "transformers", "onnx", "onnxruntime")),
        files={},
    )
    return _kept(run, record, drafts, files) if run.writes else record


def _kept(run: LanguageRun, record: LanguageRecord, drafts: Path, files: Mapping[str, Path]) -> LanguageRecord:
    """Move the files to their places and write the record."""
    out = Path(run.out)
    names = ["plan.json", "weights.pt", "model.onnx", *(file.name for file in files.values())]
    names += [each.name for each in drafts.glob("less-removed.*") if each.suffix in (".json", ".pt")]
    data = [each.name for each in drafts.iterdir() if each.name.endswith(".data")]
    (out / "slim.json").unlink(missing_ok=True)
    for name in dict.fromkeys([*names, *data]):
        (drafts / name).replace(out / name)
    shutil.rmtree(out / FOLDER, ignore_errors=True)
    (drafts / FOLDER).replace(out / FOLDER)
    every = dict.fromkeys([*names, *data, *sorted(f"{FOLDER}/{each.name}" for each in (out / FOLDER).glob("*.safetensors"))])
    record = replace(record, files={name: str(out / name) for name in every})
    write_whole(out / "slim.json", json.dumps(record.to_json(), indent=1))
    return record


def _save_model(run: LanguageRun, small: nn.Module, drafts: Path) -> bool:
    """Save the smaller model as a folder with the tokenizer of the whole one, and return whether transformers opens it."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record says what opens it
        small.save_pretrained(drafts / FOLDER)  # type: ignore[operator]
    for file in Path(run.model).iterdir():
        if file.name.startswith(TOKENIZER) or file.name in ("vocab.json", "merges.txt", "special_tokens_map.json"):
            shutil.copy(file, drafts / FOLDER / file.name)
    return opens_in_transformers(small)


def _opens_note(run: LanguageRun, search: Candidates, opens: bool) -> str:
    """Say what opens the smaller model, and which layers stay whole so that it opens."""
    place = f"{run.out}/{FOLDER}"
    if not opens:
        words = "No config.json can state these widths: transformers, vLLM and llama.cpp cannot open the smaller model."
        return f"{words} paceline.slim.load({place!r}) does." if run.writes else f"{words} paceline.slim.load would."
    words = f"The smaller model opens in transformers with equal logits, from {place}."
    if not run.writes:
        words = "The smaller model would open in transformers with equal logits; nothing was written."
    words = f"{words} vLLM and llama.cpp were not tried."
    if not search.slim.unstated:
        return words
    whole = ", ".join(each.removesuffix(".weight").removesuffix(".bias") for each in search.slim.unstated)
    return f"{words} config.json cannot state fewer of {whole}, so they stay whole; --widths free changes that."


def _timing(run: LanguageRun) -> dict[str, Any]:
    return {"context": run.context, "prompt": run.prompt, "threads": run.threads}


def _task(run: LanguageRun, model: nn.Module, whole: Path, taken: TokenLatency) -> LanguageTask:
    """Return the decoder on its way to the budget, with the whole model's measured latency."""
    phase = run.budget.phase
    latency: Latency = getattr(taken, phase or "decode")
    inputs = None if phase else (torch.zeros(1, 2, dtype=torch.long),)
    table = {"whole": asdict(latency)}
    task = LanguageTask(model, inputs, budget=run.budget, method="ssl", table=table, widths=run.widths, **_timing(run))
    if not phase:
        task.budget.of(float(_file_bytes(whole)))  # a budget that the file meets is refused
    return task


def _size_goal(budget: Budget, whole: Path) -> float:
    return budget.of(float(_file_bytes(whole)))


def _graph_bytes(slim: Slim, whole: Path) -> float:
    """Return the bytes of a file beyond its weights."""
    return _file_bytes(whole) - slim.cost(())


def _file_bytes(file: Path) -> int:
    """Return the bytes of a file and of its weights next to it."""
    data = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (data.stat().st_size if data.is_file() else 0)


def _steps(run: LanguageRun, parts: TextParts) -> int:
    every = max(1, len(parts.train) // (BATCH * run.context))
    return max(round(run.epochs * every), int(run.epochs > 0))


def _train(run: LanguageRun, small: nn.Module, whole: nn.Module, parts: TextParts, steps: int, say: Say) -> int:
    """Train the smaller model in place, and return the tokens that it saw."""
    if not steps:
        return 0
    say(f"training the smaller model for {steps} steps")
    schedule = TextTraining(steps=steps, batch=BATCH, window=run.context, lr=run.lr, share=run.distill, seed=run.seed)
    train_language_model(small, parts.train, schedule, whole)
    return steps * BATCH * run.context


def _tried(run: LanguageRun, every: list[SmallDecoder], model: nn.Module, parts: TextParts, say: Say) -> SmallDecoder:
    """Return the candidate with the best perplexity after a short training; without one, before it."""
    steps = round(TRIAL_SHARE * _steps(run, parts))
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
    run: LanguageRun,
    search: Candidates,
    chosen: SmallDecoder,
    goal: float,
    aim: float,
    checkpoint: Checkpoint,
    whole: Path,
    draft: Path,
    form: WeightForm,
    say: Say,
) -> _Small:
    """Measure the candidate in a form of its weights, and search again at a nearer aim until it meets the budget closely."""
    best: _Small | None = None
    for number in range(ROUNDS):
        say(f"measuring a smaller model, {number + 1} of at most {ROUNDS}")
        model = load(chosen.plan, checkpoint.model).eval()
        file = decoder_to_onnx(model, draft.with_name(f"{draft.name}-{number}.onnx"))
        timed = file if form == FP32 else quantised(file, file.with_suffix(f".{form.file_name}.onnx"), [_example(file)], form)
        found = _Small(chosen, model, file, _cost(run, search.slim, whole, timed, checkpoint.vocabulary))
        meets, best_meets = found.cost <= goal, best is not None and best.cost <= goal
        if (
            best is None
            or (meets and (not best_meets or found.cost > best.cost))
            or (not best_meets and found.cost < best.cost)
        ):
            best = found
        if CLOSE * goal <= found.cost <= goal:
            break
        aim *= MARGIN * goal / found.cost
        if (next_one := _nearer(search, chosen, aim)) is None:
            break
        chosen = next_one
    assert best is not None
    return best


def _nearer(search: Candidates, chosen: SmallDecoder, aim: float) -> SmallDecoder | None:
    """Return a candidate for another aim: with the same layers if possible; None if there is none or no other one."""
    gone = len(search.influences) - len(chosen.layers)
    try:
        found = search.one(chosen.importance, gone, aim) or search.every(aim)[0]
    except UserError:
        return None
    return None if found.plan == chosen.plan else found


def _cost(run: LanguageRun, slim: Slim, whole: Path, file: Path, vocabulary: int) -> float:
    """Return the measured cost of a file in the budget's unit, relative to the whole model's first measurement."""
    if not run.budget.phase:
        return float(_file_bytes(file))
    ratios: list[float] = []
    for _ in range(SESSIONS):
        times = token_latencies({WHOLE: whole, SMALLER: file}, vocabulary, **_timing(run))
        before, after = (getattr(times[name], run.budget.phase).median_s for name in (WHOLE, SMALLER))
        ratios.append(after / before)
    return float(slim.whole.median_s * statistics.median(ratios))


def _share_of_best_form(run: LanguageRun, checkpoint: Checkpoint, whole: Path, goal: float) -> tuple[WeightForm, float] | None:
    """Return the form in which the whole model costs least, and its cost as a share of fp32's; None if it meets the budget
    clearly, or no form is cheaper than fp32."""
    files: dict[str, tuple[WeightForm, Path]] = {}
    for form in run.weights:
        with suppress(UserError):  # said with the measurements
            files[str(form)] = form, _in_form(whole, WHOLE, form)
    if not files:
        return None
    fp32: float = _file_bytes(whole)
    costs: dict[str, float] = {name: _file_bytes(file) for name, (_, file) in files.items()}
    if run.budget.phase:
        paths = {WHOLE: whole, **{name: file for name, (_, file) in files.items()}}
        found: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(SESSIONS):
            for name, taken in token_latencies(paths, checkpoint.vocabulary, **_timing(run)).items():
                found[name].append(getattr(taken, run.budget.phase).median_s)
        medians = {name: statistics.median(each) for name, each in found.items()}
        fp32 = medians.pop(WHOLE)
        costs = medians
        goal = fp32 / run.budget.value if run.budget.kind == "speedup" else goal
    best = min(costs, key=lambda name: costs[name])
    if costs[best] <= MARGIN * goal or costs[best] >= fp32:
        return None
    return files[best][0], costs[best] / fp32


def _in_form(file: Path, name: str, form: WeightForm) -> Path:
    """Return the file in a form of its weights. Raises UserError if there is none."""
    place = file.with_name(f"{STEMS[name]}.{form.file_name}.onnx")
    return place if place.is_file() else quantised(file, place, [_example(file)], form)


def _rows(
    run: LanguageRun, checkpoint: Checkpoint, contenders: Mapping[str, _Contender], parts: TextParts, goal: float
) -> tuple[list[LanguageMeasurement], dict[str, Path], list[str]]:
    """Return the measurements of all files in turns, the files to keep, and notes."""
    notes: list[str] = []
    files: dict[tuple[str, WeightForm], Path] = {}
    for name, contender in contenders.items():
        for form in contender.forms:
            try:
                files[name, form] = contender.file if form == FP32 else _in_form(contender.file, name, form)
            except UserError as error:
                notes.append(f"There is no {form} file of the {name} model: {error.message}.")
    keys = {f"{name} {form}": file for (name, form), file in files.items()}
    times = token_latencies(keys, checkpoint.vocabulary, **_timing(run))
    limit = _limit(run.budget, goal, times[f"{WHOLE} {FP32}"])
    rows = []
    for (name, form), file in files.items():
        taken, size = times[f"{name} {form}"], _file_bytes(file)
        cost = getattr(taken, run.budget.phase).median_s if run.budget.phase else size
        rows.append(
            LanguageMeasurement(
                name=name,
                weights=str(form),
                bits=form.bits,
                decode_s=taken.decode.median_s,
                decode_low_s=taken.decode.low_s,
                decode_high_s=taken.decode.high_s,
                prefill_s=taken.prefill.median_s,
                perplexity=TokenRunner(file).perplexity(parts.test.numpy(), run.context, HELD_OUT),
                parameters=sum(each.numel() for each in contenders[name].model.parameters()),
                file_bytes=size,
                meets=cost <= limit,
            )
        )
    return (
        rows,
        {f"{name} {form}": file for (name, form), file in files.items() if form != FP32},
        notes,
    )


def _limit(budget: Budget, goal: float, whole: TokenLatency) -> float:
    """Return the budget by the last clock: a speed-up is relative to the whole model in the same turns."""
    limit: float = getattr(whole, budget.phase).median_s / budget.value if budget.kind == "speedup" else goal
    return limit


def _example(file: Path) -> tuple[Any, ...]:
    """Return inputs of a file: two tokens and an empty cache."""
    return torch.zeros(1, 2, dtype=torch.long), *map(torch.from_numpy, TokenRunner(file).empty())


def _widths(search: Candidates, chosen: SmallDecoder) -> dict[str, tuple[int, int]]:
    """Return the structures of each layer that stays, before and after."""
    inside = {each.number for each in search.structures.every if each.number in chosen.removed}
    starts = tuple(f"{search.path}.{number}." for number in chosen.layers)
    return {
        layer.removesuffix(".weight"): (len(every), sum(each.number not in inside for each in every))
        for layer, every in search.structures.layers().items()
        if layer.startswith(starts)
    }
