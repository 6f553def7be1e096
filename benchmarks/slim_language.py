"""Slimmed language models beside sizes trained from scratch and Torch-Pruning, as rows of a CSV file.

    python benchmarks/slim_language.py --data FOLDER --network lstm --seeds 0 1 --out RESULTS/slim_language.csv
    python benchmarks/slim_language.py --again KEPT --out RESULTS/slim_language.csv
    python benchmarks/slim_language.py --short --data FOLDER --out FILE.csv

FOLDER holds tinyshakespeare/ and war-and-peace/; RESULTS is benchmarks/results. The whole network trains at a high dropout,
then at a lower one, and is left at its best epoch. The path to the budget follows, over hidden units and embedding columns
(LSTM: intrinsic sparse structures, Wen et al., ICLR 2018) or heads and rows (transformer). What stays is fine-tuned, with
little dropout, beside the whole network's distribution. The whole network also trains on for as many epochs: the better one
on the tuning part counts. Training multiplies in bfloat16.

The same sizes train from scratch for as many epochs in all, at each dropout; the best one on the tuning part counts.
Torch-Pruning, where it is installed, gets the same whole network, must be as fast, and is fine-tuned alike for the epochs of
path and fine-tuning. Latency is of ONNX Runtime, one thread, 10 x 35 tokens, output layer included, all contenders in
alternation. `--keep KEPT` keeps the ONNX files, and `--again KEPT` times them anew on a quiet machine. Rates and dropouts were
chosen on the tuning part of tinyshakespeare's first 125,000 words, seed 0, LSTM of 300.
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from kept_files import kept, time_again
from kept_files import timed as timed_files
from language_tasks import (
    FILES,
    STEPS,
    Block,
    LstmModel,
    Text,
    Trained,
    TransformerModel,
    perplexity,
    set_dropout,
    steps_of,
    train,
)
from rows import append
from torch import Tensor, nn

from paceline.slimming.latency.latency import Latency
from paceline.slimming.methods.budget import Budget
from paceline.slimming.slim import Slim

COLUMNS = (
    *(
        "text",
        "tokens",
        "vocabulary",
        "network",
        "contender",
        "seed",
        "sizes",
        "parameters",
        "tune_perplexity",
        "test_perplexity",
        "ms",
        "low_ms",
    ),
    *("high_ms", "speedup", "predicted_ms", "epochs", "dropout", "processor_s", "note"),
)
BATCH = 10
"""Sentences of a timed run, as in the paper's measurement."""
PUBLISHED = Path(__file__).parents[1] / "validation" / "edge" / "iss.csv"
Example = tuple[Tensor, ...]


@dataclass(frozen=True)
class Settings:
    """What a run trains. The LSTM is the medium one of Zaremba et al. 2014 (arXiv:1409.2329): twice 650, dropout 0.5, 35 steps.

    Attributes:
        width: of the embedding. ``hidden``: of the LSTM's layers. ``blocks``: heads and rows of the transformer's.
        epochs: of the whole network at the first dropout, at the second, of the path, of the fine-tuning.
        dropout: in these four stages. ``rates``: of Adam, likewise. ``speedup``: the budget.
    """

    vocabulary: int = 2000
    width: int = 650
    hidden: tuple[int, ...] = (650, 650)
    head_width: int = 32
    blocks: tuple[tuple[int, int], ...] = ()
    epochs: tuple[int, int, int, int] = (8, 8, 6, 10)
    dropout: tuple[float, float, float, float] = (0.5, 0.3, 0.3, 0.1)
    rates: tuple[float, float, float, float] = (2e-3, 1e-3, 2e-3, 4e-3)
    speedup: float = 7.5

    def make(self) -> nn.Module:
        """The network, new."""
        if self.blocks:
            return TransformerModel(self.vocabulary, self.width, self.head_width, self.blocks, self.dropout[0])
        return LstmModel(self.vocabulary, self.width, self.hidden, self.dropout[0])

    def at(self, width: int) -> Settings:
        """The same at another width."""
        if self.blocks:
            return replace(self, width=width, blocks=((width // self.head_width, 4 * width),) * len(self.blocks))
        return replace(self, width=width, hidden=(width,) * len(self.hidden))


SETTINGS = {
    "lstm": Settings(),
    "transformer": Settings(
        width=192,
        blocks=((6, 768),) * 4,
        dropout=(0.3, 0.2, 0.2, 0.1),
        rates=(1e-3, 5e-4, 1e-3, 2e-3),
        speedup=2.2,
    ),
}
SHORT = {
    "lstm": replace(SETTINGS["lstm"], vocabulary=100, width=48, hidden=(48, 48), epochs=(1, 1, 1, 1), speedup=1.1),
    "transformer": replace(
        SETTINGS["transformer"],
        vocabulary=100,
        width=32,
        head_width=8,
        blocks=((4, 64),) * 2,
        epochs=(1, 1, 1, 1),
        speedup=1.05,
    ),
}


@dataclass
class Contender:
    """A trained network, and what is known of it."""

    model: nn.Module
    trained: Trained
    epochs: int
    dropout: float
    note: str = ""
    predicted_s: float | None = None
    latency: Latency | None = field(default=None, repr=False)


def main(arguments: list[str] | None = None) -> None:
    """Train, slim, measure, add rows."""
    options = _options(arguments)
    torch.set_num_threads(1)
    if options.again:
        time_again(options.out, options.again, _run, "contender", write_latency)
        return
    for name in options.text:
        for network in options.network:
            settings = (SHORT if options.short else SETTINGS)[network]
            settings = settings.at(options.width) if options.width else settings
            settings = replace(settings, epochs=tuple(options.epochs)) if options.epochs else settings
            text = Text.read(name, options.data, settings.vocabulary, 12_000 if options.short else options.tokens)
            given = {"text": name, "tokens": len(text.train), "vocabulary": text.vocabulary, "network": network}
            for seed in options.seeds:
                run = _run({"text": name, "network": network, "seed": str(seed)})
                rows = table(contend(text, settings, seed, options.keep and options.keep / run), text.test)
                print(beside_published(network, rows), flush=True)
                for row in rows:
                    row["note"] = " ".join(filter(None, [row["note"], options.note])).replace(",", ";")
                    append(options.out, COLUMNS, {**given, "seed": seed, **row})


def _run(row: dict[str, str]) -> str:
    return f"{row['text']}-{row['network']}-{row['seed']}"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network", choices=list(SETTINGS), nargs="+", default=list(SETTINGS))
    parser.add_argument("--text", choices=list(FILES), nargs="+", default=["tinyshakespeare"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tokens", type=int, help="of the text, the first ones (all)")
    parser.add_argument("--width", type=int, help="of the whole network")
    parser.add_argument("--epochs", type=int, nargs=4, help="of the four stages")
    parser.add_argument("--keep", type=Path, help="where ONNX files stay")
    parser.add_argument("--again", type=Path, help="where ONNX files are kept; nothing is trained")
    parser.add_argument("--note", default="", help="what else the machine did")
    parser.add_argument("--short", action="store_true", help="tiny networks on the first words, in seconds")
    options = parser.parse_args(arguments)
    if not options.data and not options.again:
        parser.error("name the folder of the texts: --data FOLDER")
    return options


def contend(text: Text, settings: Settings, seed: int, keep: Path | None = None) -> dict[str, Contender]:
    """All contenders of one seed, timed in alternation; their files may be kept."""
    example = (text.train[: BATCH * STEPS].view(BATCH, STEPS),)
    torch.manual_seed(seed)
    model = settings.make()
    trained = train(model, text, adam(model, settings.rates[0]), settings.epochs[0])
    _say("whole", trained)
    start = Contender(model, trained, settings.epochs[0], settings.dropout[0])
    start = trained_on(start, text, settings, 1, settings.epochs[1])
    longer = trained_on(start, text, settings, 1, sum(settings.epochs[2:]))
    found = {"whole": longer, "slimmed": slimmed(start, text, settings, example)}
    epochs = sum(settings.epochs)
    found["from scratch"] = from_scratch(found["slimmed"].model, text, settings, epochs, seed)
    if importlib.util.find_spec("torch_pruning"):
        found["Torch-Pruning"] = torch_pruning(start, found["slimmed"].model, text, settings, example)
    for name, latency in timed({name: each.model for name, each in found.items()}, example, keep).items():
        found[name].latency = latency
    return found


def adam(model: nn.Module, rate: float) -> torch.optim.Adam:
    """The optimizer of every stage."""
    return torch.optim.Adam(model.parameters(), lr=rate)


def slimmed(whole: Contender, text: Text, settings: Settings, example: Example) -> Contender:
    """Down the path, removal, fine-tuning."""
    model, epochs = copy.deepcopy(whole.model), settings.epochs[2]
    set_dropout(model, settings.dropout[2])
    slim = Slim(model, example, budget=Budget("speedup", settings.speedup))
    optimizer = slim.wrap(adam(model, settings.rates[2]), epochs * steps_of(text))
    path = train(model, text, optimizer, epochs, falling=False)
    _say("path", path)
    tuned = fine_tuned(slim.shrink(), whole, text, settings, settings.epochs[3])
    return replace(tuned, trained=_after(whole, path, tuned.trained), predicted_s=slim.predicted_s)


def fine_tuned(small: nn.Module, whole: Contender, text: Text, settings: Settings, epochs: int) -> Contender:
    """A smaller network after so many epochs beside the whole one's distribution."""
    set_dropout(small, settings.dropout[3])
    tuned = train(small, text, adam(small, settings.rates[3]), epochs, teacher=whole.model.eval())
    _say(f"fine-tuned {_sizes(small)}", tuned)
    return Contender(small, tuned, sum(settings.epochs), settings.dropout[3])


def trained_on(whole: Contender, text: Text, settings: Settings, stage: int, epochs: int) -> Contender:
    """The whole network after so many epochs more, with a stage's dropout and rate; or as it was, if that is better on the
    tuning part."""
    model = copy.deepcopy(whole.model)
    set_dropout(model, settings.dropout[stage])
    more = train(model, text, adam(model, settings.rates[stage]), epochs)
    _say(f"whole, {epochs} epochs more", more)
    longer = Contender(model, _after(whole, more), whole.epochs + epochs, settings.dropout[stage])
    return min(longer, whole, key=lambda each: each.trained.tune)


def _after(whole: Contender, *stages: Trained) -> Trained:
    """The last stage, with the seconds of all."""
    return replace(stages[-1], seconds=whole.trained.seconds + sum(each.seconds for each in stages))


def from_scratch(small: nn.Module, text: Text, settings: Settings, epochs: int, seed: int) -> Contender:
    """The same sizes, trained at each dropout; the best one on the tuning part."""
    found = []
    for dropout in dict.fromkeys(settings.dropout):
        torch.manual_seed(seed)
        model = same_sizes(small, settings)
        set_dropout(model, dropout)
        trained = train(model, text, adam(model, settings.rates[0]), epochs)
        _say(f"from scratch, dropout {dropout:g}", trained)
        found.append(Contender(model, trained, epochs, dropout))
    return min(found, key=lambda each: each.trained.tune)


def same_sizes(small: nn.Module, settings: Settings) -> nn.Module:
    """A new network of a slimmed one's sizes."""
    if isinstance(small, LstmModel):
        hidden = tuple(layer.hidden_size for layer in small.layers)  # type: ignore[misc]
        return replace(settings, width=small.table.embedding_dim, hidden=hidden).make()
    return replace(settings, width=small.table.embedding_dim, blocks=_blocks(small)).make()  # type: ignore[union-attr, arg-type]


def torch_pruning(whole: Contender, small: nn.Module, text: Text, settings: Settings, example: Example) -> Contender:
    """Torch-Pruning's pruner by group norms on the same whole network, until it is as fast, then as many epochs."""
    import torch_pruning as tp

    for ratio in (0.1 * step for step in range(2, 10)):
        model = copy.deepcopy(whole.model)
        try:
            _prune(tp, model, ratio, example)
            model(*example)
        except Exception as error:  # whatever that library raises is its result here
            return replace(whole, note=f"Torch-Pruning: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        times = timed({"its": model, "ours": small}, example)
        if times["its"].median_s <= times["ours"].median_s:
            break
    tuned = fine_tuned(model, whole, text, settings, sum(settings.epochs[2:]))
    return replace(tuned, trained=_after(whole, tuned.trained), note=f"ratio {ratio:.1f}")


class Logits(nn.Module):
    """A model without its states, which Torch-Pruning does not take."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.model(tokens)[0]
        return result


def _prune(tp: Any, model: nn.Module, ratio: float, example: Example) -> None:
    heads = {block.attention.qkv: block.attention.heads for block in model.modules() if isinstance(block, Block)}
    pruner = tp.pruner.MagnitudePruner(
        Logits(model),
        *example,
        importance=tp.importance.GroupMagnitudeImportance(),
        pruning_ratio=ratio,
        ignored_layers=[model.output],
        num_heads=heads,
        prune_num_heads=bool(heads),
        head_pruning_ratio=ratio,
    )
    pruner.step()
    for block in model.modules():
        if isinstance(block, Block):
            block.attention.heads = pruner.num_heads[block.attention.qkv]


def timed(models: Mapping[str, nn.Module], example: Example, keep: Path | None = None) -> dict[str, Latency]:
    """Latencies in alternation."""
    with tempfile.TemporaryDirectory() as directory:
        folder = keep or Path(directory)
        return timed_files(kept(models, example, folder), folder)


def table(found: dict[str, Contender], test: Tensor) -> list[dict[str, Any]]:
    """One row a contender."""
    whole = found["whole"].latency
    rows = []
    for name, each in found.items():
        row: dict[str, Any] = {
            "contender": name,
            "sizes": _sizes(each.model),
            "parameters": _parameters(each.model),
            "tune_perplexity": f"{each.trained.tune:.2f}",
            "test_perplexity": f"{perplexity(each.model, test):.2f}",
            "epochs": each.epochs,
            "dropout": each.dropout,
            "processor_s": round(each.trained.seconds),
            "note": each.note,
        }
        if whole and each.latency:
            write_latency(row, each.latency, whole)
        if each.predicted_s is not None:
            row["predicted_ms"] = _ms(each.predicted_s)
        rows.append(row)
    return rows


def write_latency(row: dict[str, Any], latency: Latency, whole: Latency) -> None:
    """Into a row."""
    row |= {"ms": _ms(latency.median_s), "low_ms": _ms(latency.low_s), "high_ms": _ms(latency.high_s)}
    row["speedup"] = f"{whole.median_s / latency.median_s:.2f}"


def beside_published(network: str, rows: list[dict[str, Any]]) -> str:
    """What this run gave, and for an LSTM what the paper's tables say."""
    lines = [
        f"{row['contender']} ({row['sizes']}): test perplexity {row['test_perplexity']}, {row['ms']} ms, {row['speedup']}x"
        for row in rows
    ]
    if network == "lstm":
        with PUBLISHED.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["what"].startswith(("test perplexity", "speed-up")):
                    lines.append(f"published, {row['status']}: {row['network']}, {row['data']}: {row['what']} {row['value']}")
    return "\n".join(lines)


def _sizes(model: nn.Module) -> str:
    if isinstance(model, LstmModel):
        return " ".join(map(str, (model.table.embedding_dim, *(layer.hidden_size for layer in model.layers))))
    width = model.table.embedding_dim  # type: ignore[union-attr]
    return f"{width}: " + " ".join(f"{heads}x{rows}" for heads, rows in _blocks(model))


def _blocks(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Heads and rows of each block."""
    blocks = (block for block in model.modules() if isinstance(block, Block))
    return tuple((block.attention.heads, block.expand.out_features) for block in blocks)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _say(stage: str, trained: Trained) -> None:
    curve = " ".join(f"{each:.1f}" for each in trained.curve)
    print(f"{stage}: {trained.seconds:.0f} s; tuning perplexity {curve}", flush=True)


if __name__ == "__main__":
    main()
