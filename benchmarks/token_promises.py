"""Promises of slimming for language models: predicted and measured time of a token and of a prompt, as rows.

The whole models are trained for ``STEPS`` on the README of this folder, so that perplexities choose between dropped layers and
narrower ones. The smaller ones are not trained: times do not depend on it. Each is slimmed as ``paceline slim FOLDER --text``
slims it, to 1.5 times as fast a token, and a prompt. ``predicted`` is by the tables of the layers, which models that were
measured on the way corrected. ``other_clock`` is
of a fresh process without PyTorch (``fresh_ratio.py``), with the caches of both models as inputs. A prompt of the mixture has
no row: its file gathers the weights of the experts for each token, which takes minutes here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.edge.language_run import slim_language
from paceline.edge.language_settings import BATCH, LanguageRun
from paceline.language_record import FREE, SMALLER, WIDTHS, LanguageMeasurement
from paceline.slimming.export.cached_decoder import decoder_to_onnx
from paceline.slimming.language.checkpoint import TextParts, load_checkpoint, read_text
from paceline.slimming.language.distillation import TextTraining, train_language_model
from paceline.slimming.latency.token_times import TokenRunner
from paceline.slimming.methods.budget import Budget

CONTEXT, VOCABULARY = 64, 256
TEXT = Path(__file__).with_name("README.md")
SIZES: Mapping[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 32}),
    "gpt2": ("GPT2Config", {"n_embd": 256, "n_layer": 4, "n_head": 8}),
    "mixtral": ("MixtralConfig", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Configuration of each model, and its settings."""
TRIES: Mapping[str, tuple[str, str, str]] = {
    f"{model} {phase}" + f", {widths} widths" * (widths != FREE): (model, phase, widths)
    for model in MODELS
    for phase in ("decode", "prefill")
    for widths in WIDTHS
    if (model, phase) != ("mixtral", "prefill")
}
"""Model, phase of the budget, and widths of the layers, by the row's name."""
SPEEDUP, STEPS = 1.5, 100


def trained(model: str) -> Path:
    """Return the folder of a model that was trained for ``STEPS``. It lasts as long as this process."""
    return Path(_trained(model).name)


@cache
def _trained(model: str) -> tempfile.TemporaryDirectory[str]:
    import transformers

    kind, settings = MODELS[model]
    config = getattr(transformers, kind)(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **settings)
    config.architectures = [kind.replace("Config", "LMHeadModel" if model == "gpt2" else "ForCausalLM")]
    folder = tempfile.TemporaryDirectory()
    config.save_pretrained(folder.name)
    checkpoint = load_checkpoint(folder.name, 0)
    text = TextParts.of(checkpoint.tokens(read_text(TEXT)), CONTEXT)
    train_language_model(checkpoint.model, text.train, TextTraining(steps=STEPS, batch=BATCH, window=CONTEXT, lr=1e-3))
    checkpoint.model.save_pretrained(folder.name)
    return folder


def token_promise(model: str, phase: str, widths: str) -> dict[str, object]:
    """Return the figures of a model at its budget."""
    with tempfile.TemporaryDirectory() as directory:
        folder, out = trained(model), Path(directory) / "out"
        run = LanguageRun(
            model=str(folder),
            text=str(TEXT),
            budget=Budget.parse(f"{phase}={SPEEDUP}x"),
            out=str(out),
            context=CONTEXT,
            prompt=CONTEXT,
            epochs=0,
            weights=(),
            widths=widths,
        )
        record = slim_language(run)
        whole_file = decoder_to_onnx(load_checkpoint(run.model, run.seed).model, Path(directory) / "whole.onnx")
        other = other_clock(whole_file, out / "model.onnx", phase)
    small = next(row for row in record.rows if row.name == SMALLER)
    whole_s, small_s = (seconds(row, phase) for row in (record.whole, small))
    predicted, measured = record.predicted / (record.goal * SPEEDUP), small_s / whole_s
    spread = (small.decode_low_s / whole_s, small.decode_high_s / whole_s) if phase == "decode" else ()
    return {
        "budget": str(run.budget),
        "whole_ms": f"{1e3 * whole_s:.4f}",
        "predicted": f"{predicted:.4f}",
        "measured": f"{measured:.4f}",
        **{name: f"{each:.4f}" for name, each in zip(("low", "high"), spread, strict=False)},
        "error": f"{predicted / measured - 1:.3f}",
        "other_clock": f"{other:.4f}",
        "over": f"{other * SPEEDUP - 1:.3f}",
    }


def seconds(row: LanguageMeasurement, phase: str) -> float:
    """Return the measured seconds of a phase."""
    return row.decode_s if phase == "decode" else row.prefill_s


def other_clock(whole: Path, small: Path, phase: str) -> float:
    """Return the time of a token or a prompt over the whole model's, measured in a fresh process."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (1, CONTEXT + 1))
    with tempfile.TemporaryDirectory() as directory:
        for file, name in ((whole, "whole"), (small, "small")):
            runner, place = TokenRunner(file), Path(directory) / name
            place.with_suffix(".onnx").write_bytes(file.read_bytes())
            past, last = runner.empty(), tokens[:, :CONTEXT]
            if phase == "decode":
                past, last = runner(tokens[:, :-1], past)[1], tokens[:, -1:]
            np.savez(place.with_suffix(".npz"), **runner._feed(last, past))
        command = [sys.executable, str(Path(__file__).with_name("fresh_ratio.py")), directory]
        return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
