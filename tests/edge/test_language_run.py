"""A language model is slimmed to the budget of a token or a file, and the files are those of the record."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.edge.language_bench import file_bytes
from paceline.edge.language_run import LanguageTask, next_aim, slim_language
from paceline.edge.language_settings import LanguageRun
from paceline.errors import UserError
from paceline.language_record import LanguageRecord
from paceline.slimming.export.cached_decoder import decoder_to_onnx
from paceline.slimming.language.candidates import Candidates
from paceline.slimming.latency.token_times import TokenRunner, token_latencies
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


def measured_again(model: torch.nn.Module, run: LanguageRun) -> float:
    """Return the token of the smaller file over that of the whole model, exported again: median of five sessions in turns."""
    files = {"whole": decoder_to_onnx(model, Path(run.out).with_name("again.onnx")), "small": Path(run.out) / "model.onnx"}
    ratios = []
    for _ in range(5):
        times = token_latencies(files, 256, context=run.context, prompt=run.prompt)
        ratios.append(times["small"].decode.median_s / times["whole"].decode.median_s)
    return statistics.median(ratios)


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
    run, said = run_of(tmp_path), list[str]()
    record = slim_language(run, said.append)
    small = next(each for each in record.rows if (each.name, each.weights) == ("smaller", "fp32"))
    assert 0.8 < 1.5 * measured_again(model, run) < 1.08
    assert small.perplexity < 0.5 * record.before
    trained = next(each for each in record.rows if each.name == "trained whole")
    assert (
        record.loss(small) == small.perplexity / trained.perplexity - 1 and trained.perplexity < 0.5 * record.whole.perplexity
    )
    assert {(each.name, each.weights) for each in record.rows} >= {("whole", "fp32"), ("whole", "int8"), ("smaller", "int8")}
    import transformers

    assert record.opens and len({left for layer, (_, left) in record.widths.items() if "mlp" in layer}) == 1
    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model").eval()
    small_again = load(SlimPlan.load(tmp_path / "out" / "plan.json"), model).eval()
    small_again.load_state_dict(torch.load(tmp_path / "out" / "weights.pt", weights_only=True))
    tokens = torch.arange(40, 60)[None]
    assert torch.equal(opened(tokens).logits, small_again(tokens).logits)
    first = next(number for number, line in enumerate(said) if "training" in line)
    assert any("the whole model in int8: " in line for line in said[:first])
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
    assert less.file_bytes == (Path(run.out) / "less-removed.int8.onnx").stat().st_size
    assert 0.9 * whole / 4.5 < less.file_bytes <= whole / 4.5 < rows["whole", "int8"].file_bytes
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


def test_the_width_between_layers_stays() -> None:
    tokens = torch.zeros(1, 2, dtype=torch.long)
    slim = LanguageTask(decoder("Qwen3", num_hidden_layers=1), (tokens,), budget=Budget.parse("size=20kB"), method="ssl")
    assert {layer.split(".", 3)[3] for layer in slim.traced((tokens,)).layers()} == {
        "self_attn.q_proj.weight",
        "mlp.gate_proj.weight",
    }


@pytest.mark.long
def test_tables_are_corrected_by_a_measured_model_and_a_dropped_layer_counts() -> None:
    slim = LanguageTask(decoder("Qwen3"), budget=Budget.parse("decode=1.5x"), context=8, method="ssl")
    slim.remember({"whole": {"median_s": 1e-3, "low_s": 1e-3, "high_s": 1e-3, "turns": 1}})
    tokens = torch.randint(0, 20, (400,))
    search = Candidates(slim, tokens, tokens, 8, ["magnitude"])
    first = search.one("magnitude", 1, 0.8e-3)
    assert first is not None and len(search.gone(first)) > len(first.removed)
    slim.correct(search.gone(first), 0.9 * first.cost / 1e-3)
    assert slim.cost(search.gone(first)) == pytest.approx(0.9 * first.cost) and slim.cost(()) == pytest.approx(1e-3)


def test_the_next_aim_meets_a_cost_with_a_fixed_part_at_the_second_try() -> None:
    def cost(aim: float) -> float:
        return 300 + 0.25 * aim

    points = [(1000.0, cost(1000))]
    first = next_aim(points, 450.0)
    assert first == pytest.approx(1000 * 450 / 550)
    points.append((first, cost(first)))
    assert cost(next_aim(points, 450.0)) == pytest.approx(450)
    assert next_aim([(10.0, 5.0), (9.0, 6.0)], 3.0) == pytest.approx(4.5)


@pytest.mark.long
def test_a_context_beyond_the_model_or_the_text_is_refused(tmp_path: Path) -> None:
    decoder("Qwen3", max_position_embeddings=1000).save_pretrained(tmp_path / "model")
    for changes, says in (({"context": 10**6}, "1000001 tokens for model"), ({"context": 300}, r"a text of .* tokens")):
        with pytest.raises(UserError, match=says):
            slim_language(run_of(tmp_path, **changes))
