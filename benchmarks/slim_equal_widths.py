"""Cost of equal widths in every layer, so that a configuration states them, against free widths at the same size.

    python benchmarks/slim_equal_widths.py --model FOLDER --text books.txt --out benchmarks/results/slim_equal_widths.csv

Both are the best candidate before training for the same bytes of weights, then train for the same steps on the same text as
``paceline slim`` trains. Perplexities are of the part of the text that decides between candidates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rows import append

from paceline.edge.language_run import LanguageTask
from paceline.edge.language_settings import BATCH, DISTILL, LR
from paceline.language_record import WIDTHS
from paceline.slimming.language.candidates import Candidates
from paceline.slimming.language.checkpoint import TextParts, load_checkpoint, read_text
from paceline.slimming.language.distillation import TextTraining, train_language_model
from paceline.slimming.language.perplexity import perplexity
from paceline.slimming.structures.shrink import load, module_bytes

COLUMNS = ("model", "parameters", "share", "widths", "layers", "left", "importance", "whole", "before", "steps", "after")


def main(arguments: list[str] | None = None) -> None:
    """Add two rows for each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a trained decoder in Hugging Face's format")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--share", type=float, nargs="+", default=[0.75, 0.5], help="of the bytes that stay")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(options.model, options.seed)
    model, window = checkpoint.model, options.context
    parts = TextParts.of(checkpoint.tokens(read_text(options.text)), window)
    whole = perplexity(model, parts.tune, window, BATCH)
    for share in options.share:
        goal = share * module_bytes(model)
        for widths in WIDTHS:
            given = {"budget": f"size={goal:.0f}B", "method": "ssl", "widths": widths}
            slim = LanguageTask(model, (torch.zeros(1, 2, dtype=torch.long),), **given)
            chosen = Candidates(slim, parts.train, parts.tune, window).every(goal)[0]
            small = load(chosen.plan, model)
            before = perplexity(small, parts.tune, window, BATCH)
            schedule = TextTraining(steps=options.steps, batch=BATCH, window=window, lr=LR, share=DISTILL, seed=options.seed)
            train_language_model(small, parts.train, schedule, model)
            row = {
                "model": checkpoint.name,
                "parameters": sum(each.numel() for each in model.parameters()),
                "share": share,
                "widths": widths,
                "layers": len(chosen.layers),
                "left": sum(each.numel() for each in small.parameters()),
                "importance": chosen.importance,
                "whole": f"{whole:.2f}",
                "before": f"{before:.2f}",
                "steps": options.steps,
                "after": f"{perplexity(small, parts.tune, window, BATCH):.2f}",
            }
            append(options.out, COLUMNS, row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
