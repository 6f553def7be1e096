"""A language model is slimmed to the budget of a token or a file, and the files are those of the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.edge.language_bench import file_bytes
from paceline.edge.language_run import slim_language
from paceline.edge.language_settings import LanguageRun
from paceline.errors import UserError
from paceline.language_record import LanguageRecord
from paceline.slimming.export.cached_decoder import decoder_to_onnx
from paceline.slimming.latency.token_times import TokenRunner
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT8
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load
from tiny_decoders import decoder

TEXT = "The whale swam past the ship, and the crew saw it. " * 80


def run_of(folder: Path, **changes: Any) -> LanguageRun:
    (folder / "text.txt").write_text(TEXT)
    given = {"budget": Budget.parse("decode=1.5x"), "context": 16, "prompt": 32, "lr": 3e-3, **changes}
    return LanguageRun(model=str(folder / "model"), text=str(folder / "text.txt"), out=str(folder / "out"), **given)


def checked(record: LanguageRecord, run: LanguageRun, model: torch.nn.Module) -> None:
    """Check that plan and weights are the file, and that the file is the record's."""
    out = Path(run.out)
    small = load(SlimPlan.load(out / "plan.json"), model)
    small.load_state_dict(torch.load(out / "weights.pt", weights_only=True))
    tokens = np.arange(32, 60)[None]
    runner = TokenRunner(out / "model.onnx")
    logits, _ = runner(tokens, runner.empty())
    with torch.no_grad():
        expected = small.eval()(torch.from_numpy(tokens)).logits.numpy()
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()
    assert json.loads((out / "slim.json").read_text())["rows"][1]["name"] == record.rows[1].name
    assert all(Path(file).is_file() for file in record.files.values())


@pytest.mark.long
def test_a_token_becomes_as_fast_as_the_budget_and_the_text_is_learned(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "head_dim": 32, "num_hidden_layers": 3}
    model = decoder("Qwen3", **sizes)
    model.save_pretrained(tmp_path / "model")
    run = run_of(tmp_path)
    record = slim_language(run)
    whole, small = record.rows[0], next(each for each in record.rows if (each.name, each.weights) == ("smaller", "fp32"))
    assert small.decode_s < whole.decode_s  # by how much depends on what else the machine does
    assert small.perplexity < 0.5 * record.before
    assert {(each.name, each.weights) for each in record.rows} >= {("whole", "fp32"), ("whole", "int8"), ("smaller", "int8")}
    import transformers

    assert record.opens and len({left for layer, (_, left) in record.widths.items() if "mlp" in layer}) == 1
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model").eval()
    small_again = load(SlimPlan.load(tmp_path / "out" / "plan.json"), model).eval()
    small_again.load_state_dict(torch.load(tmp_path / "out" / "weights.pt", weights_only=True))
    tokens = torch.arange(40, 60)[None]
    assert torch.equal(opened(tokens).logits, small_again(tokens).logits)
    meeting = [each for each in record.rows if each.meets]  # tokens of a third of a millisecond differ by some per cent
    assert record.best == min(meeting, key=lambda each: each.perplexity, default=None)
    checked(record, run, model)


@pytest.mark.long
def test_less_is_removed_where_fewer_bits_take_a_part_of_the_budget(tmp_path: Path) -> None:
    model = decoder("Qwen3", hidden_size=64, intermediate_size=2048, num_hidden_layers=3)
    model.save_pretrained(tmp_path / "model")
    whole = file_bytes(decoder_to_onnx(model, tmp_path / "whole.onnx"))
    run = run_of(tmp_path, budget=Budget.parse(f"size={whole / 4.5e3:.0f}kB"), epochs=0, weights=(INT8,))
    record = slim_language(run)
    rows = {(each.name, each.weights): each for each in record.rows}
    less, small = rows["less removed", "int8"], rows["smaller", "fp32"]
    assert (
        less.file_bytes
        == (Path(run.out) / "less-removed.int8.onnx").stat().st_size
        <= whole / 5
        < rows["whole", "int8"].file_bytes
    )
    assert small.parameters < less.parameters < model.num_parameters() and less.meets
    plan = SlimPlan.load(Path(run.out) / "less-removed.plan.json")
    load(plan, model).load_state_dict(torch.load(Path(run.out) / "less-removed.weights.pt", weights_only=True))


@pytest.mark.long
def test_a_file_becomes_as_small_as_the_budget(tmp_path: Path) -> None:
    model = decoder("GPT2", hidden_size=64, vocab_size=256)
    model.save_pretrained(tmp_path / "model")
    run = run_of(tmp_path, budget=Budget.parse("size=400kB"), epochs=0, weights=(), widths="free")
    record = slim_language(run)
    assert not record.opens and "paceline.slim.load" in record.notes[-1]
    assert (Path(run.out) / "model.onnx").stat().st_size == record.rows[1].file_bytes <= 400e3
    checked(record, run, model)


@pytest.mark.long
def test_a_mixture_loses_the_experts_that_the_text_uses_least(tmp_path: Path) -> None:
    model = decoder("Mixtral", num_local_experts=6, hidden_size=64, intermediate_size=64)
    model.save_pretrained(tmp_path / "model")
    run = run_of(tmp_path, budget=Budget.parse("size=420kB"), epochs=0, weights=())
    record = slim_language(run)
    assert record.rows[1].meets and record.opens
    left = {layer: left for layer, (_, left) in record.widths.items() if layer.endswith("gate")}
    assert left and 2 <= next(iter(left.values())) < 6
    checked(record, run, model)


@pytest.mark.long
def test_a_context_beyond_the_model_or_the_text_is_refused(tmp_path: Path) -> None:
    decoder("Qwen3", max_position_embeddings=1000).save_pretrained(tmp_path / "model")
    for changes, says in (({"context": 10**6}, "1000001 tokens for model"), ({"context": 300}, r"a text of .* tokens")):
        with pytest.raises(UserError, match=says):
            slim_language(run_of(tmp_path, **changes))
