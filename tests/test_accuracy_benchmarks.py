"""The benchmark of accuracy after whole trainings in short form: its tasks, its rows and what it makes of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from page_figures import says
from test_benchmarks import PAGE, RESULTS, ROOT, rows, run

sys.path.insert(0, str(ROOT / "benchmarks"))

import accuracy_rank
import accuracy_to_convergence
from accuracy_tasks import RECIPES, SHIFT, Task, moments, shortened, task_of, whitening

SHORT = {name: shortened(recipe) for name, recipe in RECIPES.items()}


def pair(name: str, seed: int = 0) -> list[Any]:
    """The task on either worker."""
    return [task_of(SHORT[name], seed, rank, 2, None) for rank in range(2)]


@pytest.mark.long
def test_two_workers_train_and_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    out, picture = tmp_path / "a.csv", tmp_path / "a.svg"
    few = ("--short", "--task", "cifar10", "--compressions", "dense", "topk", "--seeds", "0", "--out", str(out))
    assert run("accuracy_to_convergence.py", *few).count("seed 0: accuracy") == 2
    dense, topk = rows(out)
    assert run("accuracy_to_convergence.py", *few) == "" and len(rows(out)) == 2
    # 4 bytes of each parameter in each of 12 steps, as the ring of two sends them, and a flag beside.
    exact = 4 * int(dense["parameters"]) * 12
    assert dense["steps"] == "12" and exact <= int(dense["sent_bytes"]) < 1.01 * exact + 12 * 64
    assert int(topk["sent_bytes"]) < 0.5 * exact
    assert json.loads(topk["options"]) == {"momentum": 0.85, "warmup_steps": 1} and dense["options"] == "{}"
    assert dense["recipe"] == topk["recipe"] and dense["digest"] != topk["digest"]
    for row in (dense, topk):
        curve = json.loads(row["curve"])
        assert len(curve) == 2 and float(row["final"]) == curve[-1] and float(row["best"]) == max(curve)
        assert curve[-1] > 15 < float(row["test"]), "10 % is chance"
    run("accuracy_to_convergence.py", "--out", str(out), "--picture", str(picture))
    assert "<svg" in picture.read_text()


@pytest.mark.full
def test_words_with_every_compression(tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    run("accuracy_to_convergence.py", "--short", "--task", "language", "--seeds", "0", "--out", str(out))
    found = {row["compression"]: row for row in rows(out)}
    assert tuple(found) == accuracy_to_convergence.ORDER
    for name, row in found.items():
        assert 20 < float(row["final"]) < 60, (name, "64 is chance, 3 is perfect")
        assert name == "dense" or int(row["sent_bytes"]) < 0.8 * int(found["dense"]["sent_bytes"])


@pytest.mark.full
def test_a_worker_that_fails_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"cifar10, dense, seed 5: workers ended with \["):
        accuracy_to_convergence.run(replace(SHORT["cifar10"], widths=()), "dense", 5, None)


@pytest.mark.parametrize("name", list(SHORT))
def test_the_workers_see_every_sample_of_an_epoch_once(name: str) -> None:
    tasks = pair(name)
    parts = [list(task.batches(1)) for task in tasks]
    assert len(parts[0]) == len(parts[1]) == tasks[0].epoch_steps > 3
    assert all(len(y) == SHORT[name].batch // 2 for part in parts for _, y in part)
    again = list(tasks[0].batches(1))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(parts[0], again, strict=True))
    assert not torch.equal(next(tasks[0].batches(0))[0], parts[0][0][0])
    labels = torch.cat([y.reshape(len(y), -1) for part in parts for _, y in part])
    if name == "cifar10":
        assert torch.equal(labels.flatten().bincount(), tasks[0].train_y.bincount())
    else:
        starts = torch.cat([x[:, 0] for part in parts for x, _ in part])
        text, context = tasks[0].text.train, SHORT[name].context
        at = [text[offset::context][: tasks[0].rows] for offset in range(context)]
        longest = len(starts)
        assert any(len(a) >= longest and bool((starts.bincount() - a.bincount() <= 0).all()) for a in at if len(a) >= longest)


def key(picture: torch.Tensor) -> int:
    return hash(picture.contiguous().numpy().tobytes())


def test_pictures_are_shifted_and_mirrored_in_alternate_epochs() -> None:
    task = pair("cifar10")[0]
    whole = task.train_x
    assert whole.shape[1:3] == (32 + 2 * SHIFT,) * 2
    possible = {}
    for index in range(task.rows):
        for dy in range(2 * SHIFT + 1):
            for dx in range(2 * SHIFT + 1):
                crop = task.normal(whole[index : index + 1, dy : dy + 32, dx : dx + 32])[0]
                possible[key(crop)] = (index, False)
                possible[key(crop.flip(-1))] = (index, True)
    seen: list[dict[int, bool]] = []
    for epoch in range(2):
        x = torch.cat([x for x, _ in task.batches(epoch)])
        seen.append(dict(possible.get(key(each), (-1, False)) for each in x))
    assert -1 not in seen[0] | seen[1], "no shifted picture"
    both = seen[0].keys() & seen[1].keys()
    assert len(both) > 20 and all(seen[0][index] != seen[1][index] for index in both)
    assert 0.2 < sum(seen[0].values()) / len(seen[0]) < 0.8


def test_the_last_test_sees_each_picture_and_its_mirror_image() -> None:
    tasks = pair("cifar10")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    right = {"tune": 0, "test": 0}
    with torch.no_grad():
        for pixels, label in zip(tasks[0].test_x, tasks[0].test_y, strict=True):
            picture = tasks[0].normal(pixels[None])
            logits = model(picture)
            right["tune"] += int(logits.argmax() == label)
            right["test"] += int((logits + model(picture.flip(3))).argmax() == label)
        found = {part: [task.sums(model, part) for task in tasks] for part in right}
    assert {part: sum(total for total, _ in each) for part, each in found.items()} == right
    assert sum(count for _, count in found["test"]) == len(tasks[0].test_y) and right["tune"] != right["test"]


def test_mean_and_deviation_of_bytes() -> None:
    given = torch.randint(256, (7, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, deviation = moments(given)
    assert torch.allclose(mean, given.float().mean((0, 2, 3)))
    assert torch.allclose(deviation, given.float().std((0, 2, 3), correction=0))


def test_whitened_patches_have_no_correlation_and_unit_variance() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 3, 12, 12)
    x = x + 0.8 * x.roll(1, -1) + 0.5 * x.flip(1)
    out = nn.functional.conv2d(x, whitening(x)).permute(1, 0, 2, 3).flatten(1)
    assert torch.allclose(torch.cov(out[:12]), torch.eye(12), atol=0.05)
    assert torch.allclose(out[12:], -out[:12])


@pytest.mark.parametrize("name", list(SHORT))
def test_the_rate_rises_once_and_falls(name: str) -> None:
    task: Task = task_of(replace(SHORT[name], epochs=20), 0, 0, 2, None)
    shares = [task.share(step) for step in range(task.steps)]
    top = shares.index(max(shares))
    assert 0.97 < shares[top] <= 1 and 0 < top < task.steps // 4
    assert shares[: top + 1] == sorted(shares[: top + 1]) and shares[top:] == sorted(shares[top:], reverse=True)
    assert 0 <= shares[-1] < 0.1


@pytest.mark.parametrize("name", list(SHORT))
def test_momentum_is_either_the_hooks_or_the_optimizers(name: str) -> None:
    task: Task = pair(name)[0]
    model = task.model()
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    hook = SimpleNamespace(tensors=[SimpleNamespace(name=n) for n in names], dense={names[0]: "small"})
    assert accuracy_rank.corrected(hook, {"density": 0.01}) == set()
    groups = task.parameter_groups(model, accuracy_rank.corrected(hook, {"momentum": 0.9}))
    assert [group["momentum"] != 0 for group in groups] == [True] + [False] * (len(names) - 1)
    optimizer = task.optimizer(groups)
    before = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    task.loss(model, next(task.batches(0))).backward()
    optimizer.step()
    moved = [p for group in optimizer.param_groups for p in group["params"]]
    assert sum(not torch.equal(a, b) for a, b in zip(before, moved, strict=True)) >= len(moved) - 1


def test_differences_are_of_the_same_seed() -> None:
    def row(compression: str, seed: int, test: float, sent: int) -> dict[str, Any]:
        both = {"task": "cifar10", "data": "D", "measure": "accuracy %", "epochs": 3, "parameters": 1000, "tflop": 1.5}
        one = {"compression": compression, "seed": seed, "test": test, "final": test - 1}
        return {**both, **one, "sent_bytes": sent, "cpu_seconds": 90.0}

    one_seed = [row("dense", 0, 90.0, 800), row("int8", 0, 89.5, 200)]
    assert accuracy_to_convergence.table(one_seed).splitlines()[-1] == "| int8 | 1 | 89.50 | -0.50 | 88.50 | 4.0x fewer | 1.5 |"
    given = [row("dense", 0, 90.0, 800), row("dense", 1, 92.0, 800), row("int8", 0, 89.5, 200), row("int8", 1, 92.25, 200)]
    given += [row("dense", 2, 94.0, 800), row("int8", 2, 93.0, 200)]
    lines = accuracy_to_convergence.table(given).splitlines()
    assert lines[0] == "D; 3 epochs, 1,000 parameters, 1.5 TFLOP"
    assert lines[-2] == "| dense | 3 | 92.00 (90.00 to 94.00) | - | 91.00 (89.00 to 93.00) | - | 1.5 |"
    assert (
        lines[-1]
        == "| int8 | 3 | 92.25 (89.50 to 93.00) | -0.50 (-1.00 to +0.25) | 91.25 (88.50 to 92.00) | 4.0x fewer | 1.5 |"
    )


def test_the_page_shows_the_committed_rows() -> None:
    path = RESULTS / "accuracy_to_convergence.csv"
    if not path.exists():
        pytest.skip("needs benchmarks/results/accuracy_to_convergence.csv: run benchmarks/accuracy_to_convergence.py")
    found = accuracy_to_convergence.read(path)
    assert {(row["compression"], row["seed"]) for row in found if row["task"] == "cifar10"} == {
        (name, seed) for name in accuracy_to_convergence.ORDER for seed in range(3)
    }
    assert all(row["test"] >= 90 for row in found if (row["task"], row["compression"]) == ("cifar10", "dense"))
    shown = PAGE.splitlines()
    assert all(line in shown for line in accuracy_to_convergence.table(found).splitlines())


def test_the_page_shows_the_rows_of_the_study_under_way() -> None:
    found = accuracy_to_convergence.read(ROOT / "benchmarks" / "unfinished" / "accuracy_to_convergence.csv")
    line = next(line for line in PAGE.splitlines() if line.startswith("| accuracy after whole trainings"))
    first = {row["compression"]: row["test"] for row in found if (row["task"], row["seed"]) == ("cifar10", 0)}
    assert first.keys() == set(accuracy_to_convergence.ORDER) and first["dense"] >= 90
    assert all(f"{name} {test:.2f}" in line for name, test in first.items())
    (alone,) = (row["final"] for row in found if (row["task"], row["seed"], row["compression"]) == ("cifar10", 0, "dense"))
    assert says(line, f"{alone:.2f} % by the picture alone")
    book = {(row["compression"], row["seed"]): row["test"] for row in found if row["task"] == "language"}
    others = accuracy_to_convergence.ORDER[1:]
    above = {name: sorted(100 * (book[name, seed] / book["dense", seed] - 1) for seed in range(3)) for name in others}
    for name, (least, middle, most) in above.items():
        assert f"{name.replace('powersgd', 'powersgd (rank 2)')} {middle:+.2f} ({least:+.2f} to {most:+.2f})" in line
    kept = ("bf16", "int8", "inceptionn-scaled")
    guide = " ".join((ROOT / "docs" / "compression.md").read_text().split())
    assert says(guide, f"within {max(above[name][-1] for name in kept):.1f} % with `bf16`, `int8` and")
    assert max(first["dense"] - first[name] for name in (*kept, "int4")) <= 0.13 + 1e-9
    for name, digits in (("int4", 1), ("terngrad", 1), ("topk", 1), ("powersgd", 0)):
        assert says(guide, f"{above[name][-1]:.{digits}f} % with `{name}`")
    hooks = next(line for line in PAGE.splitlines() if line.startswith("| Paceline's compressions against PyTorch's hooks"))
    for name in ("int4", "terngrad"):
        assert f"{first['dense'] - first[name]:.2f}" in hooks
    assert says(hooks, f"up to {above['int4'][-1]:.1f} % above dense's, TernGrad's {above['terngrad'][-1]:.1f} %")
