"""A decoder of Hugging Face trained on books, slimmed to a budget of its token, next to peers, as rows of a CSV file.

    python benchmarks/slim_decoder.py --data FOLDER --work WORK --out benchmarks/results/slim_decoder.csv
    python benchmarks/slim_decoder.py --short --data FOLDER --work WORK --out FILE.csv
    python benchmarks/slim_decoder.py --summary --out benchmarks/results/slim_decoder.csv

FOLDER holds tinyshakespeare/ and war-and-peace/. The whole model is a Qwen3 of 10.5 million parameters with random weights at
the start and a vocabulary of byte pairs of the books. It trains for ``--steps``. ``paceline slim`` then runs as a user runs it.
WORK/whole and WORK/slim are used again if they are there. All other contenders see as many tokens as the smaller model:

- trained whole: the whole model, trained on (``longer`` in older rows). ``paceline slim`` makes it.
- magnitude: a smaller model by the norms of the weights, with all layers, and the same distillation.
- scratch: the smaller model's sizes with random weights; it also gets the tokens of the whole model's training.

Perplexities are of held-out text, times of ONNX Runtime with a cache, all in turns. Torch-Pruning 1.6 has no row: it does not
prune a Qwen3 to fewer key and value heads and rows at a budget of a token's time; ``slim_reach.py`` has what it does.

``change`` is against the whole model as it is. --summary measures nothing: it prints the answer of ``paceline slim`` on the
rows of each run, and the loss of each row, which is against the whole model after as many tokens.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rows import append, read
from torch import nn

from paceline.edge.language_bench import HELD_OUT
from paceline.edge.language_run import LanguageTask, slim_language
from paceline.edge.language_settings import BATCH, DISTILL, LR, LanguageRun
from paceline.language_record import LESS, SMALLER, TRAINED_WHOLE, WHOLE, WIDTHS, LanguageMeasurement, LanguageRecord
from paceline.reporting.text.language_text import answer_text
from paceline.slimming.export.cached_decoder import decoder_to_onnx
from paceline.slimming.language.candidates import Candidates
from paceline.slimming.language.checkpoint import Checkpoint, TextParts, load_checkpoint
from paceline.slimming.language.distillation import TextTraining, train_language_model
from paceline.slimming.latency.token_times import TokenLatency, TokenRunner, token_latencies
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import FP32, INT4, INT8, INT8_BLOCKS, parse_weights
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load

COLUMNS = (
    *("contender", "weights", "budget", "parameters", "layers", "perplexity", "change", "decode_ms", "decode_speedup"),
    *("prefill_ms", "prefill_speedup", "file_mb", "meets", "tokens", "context", "seed", "cpu_s", "note"),
)
FILES = ("tinyshakespeare/input.txt.gz", "war-and-peace/2600-0.txt.gz")
PEERS = ["magnitude", "scratch"]
LONGER = (TRAINED_WHOLE, "longer")
"""Names of the whole model after as many tokens as the smaller one: of ``paceline slim``, and of a peer here before."""
BITS = {str(form): form.bits for form in (FP32, INT8, INT8_BLOCKS, INT4)}
VOCABULARY, CONTEXT, WHOLE_BATCH = 2048, 128, 4
SIZES: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1152,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SHORT: dict[str, Any] = {**SIZES, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 16}


@dataclass
class Contender:
    """A model that was trained, its file, and the tokens and processor seconds that it took."""

    model: nn.Module
    file: Path
    tokens: int
    cpu_s: float
    note: str = ""


def books(folder: Path, characters: int) -> str:
    """Return the books in parts that alternate, so that the held-out end has both."""
    every = [gzip.decompress((folder / name).read_bytes()).decode("utf-8-sig").replace("\r", "") for name in FILES]
    part = 50_000
    text = "".join(each[start : start + part] for start in range(0, max(map(len, every)), part) for each in every)
    return text[:characters] if characters else text


def whole_model(options: argparse.Namespace, text: str) -> Path:
    """Return the checkpoint of the whole model; train it if there is none."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder: Path = options.work / "whole"
    if (folder / "model.safetensors").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text[: int(0.85 * len(text))]], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes = SHORT if options.short else SIZES
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=4 * CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        **sizes,
    )
    torch.manual_seed(options.seed)
    model = transformers.Qwen3ForCausalLM(config)
    tokens = torch.tensor(tokenizer.encode(text).ids)
    start = time.process_time()
    schedule = TextTraining(steps=options.steps, batch=WHOLE_BATCH, window=CONTEXT, lr=options.lr, seed=options.seed)
    train_language_model(model, TextParts.of(tokens, CONTEXT).train, schedule, say=_say)
    model.save_pretrained(folder)
    done = {"tokens": options.steps * WHOLE_BATCH * CONTEXT, "cpu_s": time.process_time() - start}
    (folder / "training.json").write_text(json.dumps(done))
    return folder


def _say(step: int, loss: float) -> None:
    if step % 25 == 0:
        print(f"step {step}: loss {loss:.3f}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Train, slim, measure, add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, help="where checkpoints and files stay")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--budget", default="decode=2x")
    parser.add_argument("--steps", type=int, default=600, help="of the whole model, 512 tokens each")
    parser.add_argument("--epochs", type=int, default=1, help="of the smaller model and its peers")
    parser.add_argument("--characters", type=int, default=0, help="of the books (all)")
    parser.add_argument("--lr", type=float, default=1e-3, help="of the whole model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--widths", default="free", choices=list(WIDTHS), help="of the layers, as of paceline slim (free)")
    parser.add_argument("--weights", default="", help="forms next to fp32, such as int8 (all)")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--short", action="store_true", help="a tiny model on the first characters")
    options = parser.parse_args(arguments)
    if options.summary:
        print(summary(read(options.out)))
        return
    if options.data is None or options.work is None:
        parser.error("give --data and --work")
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    text = books(options.data, options.characters)
    (options.work / "books.txt").write_text(text, encoding="utf-8")
    folder = whole_model(options, text)
    run = LanguageRun(
        model=str(folder),
        text=str(options.work / "books.txt"),
        budget=Budget.parse(options.budget),
        out=str(options.work / "slim"),
        context=CONTEXT,
        prompt=CONTEXT,
        epochs=options.epochs,
        seed=options.seed,
        widths=options.widths,
        weights=parse_weights(options.weights) or None,
    )
    done = Path(run.out) / "slim.json"
    if done.is_file():
        record = LanguageRecord.from_json(json.loads(done.read_text()))
    else:
        record = slim_language(run, lambda words: print(f"slim: {words}", flush=True))
    rows(options, run, record, folder)


def rows(options: argparse.Namespace, run: LanguageRun, record: LanguageRecord, folder: Path) -> None:
    """Add the rows of ``paceline slim``, then train each peer, time it in turns with the whole model, and add its row."""
    checkpoint = load_checkpoint(folder)
    before = json.loads((folder / "training.json").read_text())
    parts = TextParts.of(checkpoint.tokens(Path(run.text).read_text(encoding="utf-8")), CONTEXT)
    small, less = (_slimmed(Path(run.out), stem, checkpoint.model) for stem in ("", "less-removed."))
    assert small is not None
    tokens = int(record.trained["tokens"])
    first = record.whole
    for row in record.rows:
        values = (row.decode_s, first.decode_s / row.decode_s, row.prefill_s, first.prefill_s / row.prefill_s)
        made = Contender(checkpoint.model, Path(), int(before["tokens"]), 0.0)
        if row.parameters < first.parameters:
            model = less if row.name == LESS and less is not None else small
            made = Contender(model, Path(), tokens, record.trained["cpu_s"], f"importance {record.importance}")
        elif row.name == TRAINED_WHOLE:
            made = Contender(checkpoint.model, Path(), tokens, record.trained["cpu_s"])
        _write(options, run, row.name, row.weights, values, row.perplexity, first.perplexity, made, row.file_bytes, row.meets)
    whole = options.work / "whole.onnx"
    decoder_to_onnx(checkpoint.model, whole)
    for peer in options.peers:
        if (peers := _peer(options, run, record, peer, checkpoint, small, parts, int(before["tokens"]))) is None:
            print(f"{peer}: no widths meet the budget", flush=True)
            continue
        times = token_latencies({"whole": whole, peer: peers.file}, VOCABULARY, context=CONTEXT, prompt=CONTEXT)
        found = TokenRunner(peers.file).perplexity(parts.test.numpy(), CONTEXT, HELD_OUT)
        _append(options, run, peer, "fp32", times["whole"], times[peer], found, first.perplexity, peers)


def summary(every: Iterable[Mapping[str, Any]]) -> str:
    """Return the answer on each run's rows, and a line for each row with its loss."""
    lines: list[str] = []
    for record in records(every):
        lines += [f"{answer_text(record)}.", ""]
        for row in record.rows:
            loss = record.loss(row)
            change = "loss unknown" if loss is None else f"{100 * loss:+.1f} %"
            lines.append(f"- {row.name}, {row.weights}: {record.whole.decode_s / row.decode_s:.2f}x per token, {change}")
        lines.append("")
    return "\n".join(lines[:-1])


def records(every: Iterable[Mapping[str, Any]]) -> list[LanguageRecord]:
    """Return the records of the runs in a file. Each begins with the whole model in fp32.

    A run without the whole model after as many tokens takes its row from another run of the same whole model.
    """
    runs: list[list[Mapping[str, Any]]] = []
    for row in every:
        if (row["contender"], row["weights"]) == (WHOLE, FP32.name):
            runs.append([])
        runs[-1].append(row)
    yardsticks = {(run[0]["perplexity"], row["tokens"]): row for run in runs for row in run if row["contender"] in LONGER}
    found = []
    for run in runs:
        learned = next((row["tokens"] for row in run if row["contender"] == SMALLER), 0)
        if not any(row["contender"] in LONGER for row in run) and (run[0]["perplexity"], learned) in yardsticks:
            run.append(yardsticks[run[0]["perplexity"], learned])
        found.append(_record(run, learned))
    return found


def _record(run: list[Mapping[str, Any]], learned: int) -> LanguageRecord:
    made = [
        LanguageMeasurement(
            name=TRAINED_WHOLE if row["contender"] in LONGER else row["contender"],
            weights=row["weights"],
            bits=BITS[row["weights"]],
            **dict.fromkeys(("decode_s", "decode_low_s", "decode_high_s"), run[0]["decode_ms"] / 1e3 / row["decode_speedup"]),
            prefill_s=row["prefill_ms"] / 1e3,
            perplexity=row["perplexity"],
            parameters=row["parameters"],
            file_bytes=round(1e6 * row["file_mb"]),
            meets=row["meets"] == str(True),
        )
        for row in run
    ]
    first = run[0]
    return LanguageRecord(
        model="decoder",
        budget=first["budget"],
        goal=0.0,
        context=first["context"],
        prompt=first["context"],
        threads=1,
        rows=tuple(made),
        layers=(),
        whole_layers=first["layers"],
        widths={},
        importance="",
        before=0.0,
        predicted=0.0,
        trained={"tokens": learned},
        random=False,
    )


def _slimmed(folder: Path, stem: str, whole: nn.Module) -> nn.Module | None:
    """Return a model that ``paceline slim`` made; None without one."""
    plan = folder / f"{stem}plan.json"
    if not plan.is_file():
        return None
    model = load(SlimPlan.load(plan), whole).eval()
    model.load_state_dict(torch.load(folder / f"{stem}weights.pt", weights_only=True))
    return model


def _peer(
    options: argparse.Namespace,
    run: LanguageRun,
    record: LanguageRecord,
    peer: str,
    checkpoint: Checkpoint,
    small: nn.Module,
    parts: TextParts,
    before: int,
) -> Contender | None:
    """Train a peer for as many tokens as the smaller model, and export it."""
    start, teacher, share, lr, note = time.process_time(), None, 0.0, LR, ""
    tokens = int(record.trained["tokens"])
    if peer == "magnitude":
        whole = {"median_s": record.whole.decode_s, "low_s": 0.0, "high_s": 0.0, "turns": 1}
        given = {"budget": run.budget, "method": "ssl", "context": CONTEXT, "prompt": CONTEXT, "widths": run.widths}
        slim = LanguageTask(checkpoint.model, table={"whole": whole}, **given)
        search = Candidates(slim, parts.train, parts.tune, CONTEXT, ["magnitude"])
        made = search.one("magnitude", 0, slim.whole.median_s * record.predicted / record.goal / run.budget.value)
        if made is None:
            return None
        model, teacher, share = load(made.plan, checkpoint.model), checkpoint.model, DISTILL
    else:
        torch.manual_seed(options.seed)
        model, lr, note = copy.deepcopy(small), options.lr, "tokens of the whole model's training too"
        model.apply(model._init_weights)  # type: ignore[operator, arg-type]
        tokens += before
    steps = tokens // (BATCH * CONTEXT)
    schedule = TextTraining(steps=steps, batch=BATCH, window=CONTEXT, lr=lr, share=share, seed=options.seed)
    train_language_model(model, parts.train, schedule, teacher, say=_say)
    taken = time.process_time() - start
    return Contender(model, decoder_to_onnx(model, options.work / f"{peer}.onnx"), tokens, taken, note)


def _append(
    options: argparse.Namespace,
    run: LanguageRun,
    name: str,
    weights: str,
    whole: TokenLatency,
    taken: TokenLatency,
    perplexity: float,
    whole_perplexity: float,
    each: Contender,
) -> None:
    speedup, prefill = whole.decode.median_s / taken.decode.median_s, whole.prefill.median_s / taken.prefill.median_s
    values = (taken.decode.median_s, speedup, taken.prefill.median_s, prefill)
    meets = {"decode": speedup, "prefill": prefill}.get(run.budget.phase, 0.0) >= run.budget.value
    _write(options, run, name, weights, values, perplexity, whole_perplexity, each, each.file.stat().st_size, meets)


def _write(
    options: argparse.Namespace,
    run: LanguageRun,
    name: str,
    weights: str,
    values: tuple[float, float, float, float],
    perplexity: float,
    whole_perplexity: float,
    each: Contender,
    size: int,
    meets: bool,
) -> None:
    row = {
        "contender": name,
        "weights": weights,
        "budget": str(run.budget),
        "parameters": sum(parameter.numel() for parameter in each.model.parameters()),
        "layers": each.model.config.num_hidden_layers,  # type: ignore[union-attr]
        "perplexity": f"{perplexity:.2f}",
        "change": f"{100 * (perplexity / whole_perplexity - 1):+.1f}%",
        "decode_ms": f"{1e3 * values[0]:.3f}",
        "decode_speedup": f"{values[1]:.2f}",
        "prefill_ms": f"{1e3 * values[2]:.2f}",
        "prefill_speedup": f"{values[3]:.2f}",
        "file_mb": f"{size / 1e6:.2f}",
        "meets": meets,
        "tokens": each.tokens,
        "context": CONTEXT,
        "seed": options.seed,
        "cpu_s": round(each.cpu_s),
        "note": "; ".join(filter(None, [each.note, options.note])),
    }
    append(options.out, COLUMNS, row)
    print(row, flush=True)


if __name__ == "__main__":
    main()
