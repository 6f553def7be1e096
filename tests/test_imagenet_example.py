"""The ImageNet recipes, on a dozen pictures of 40x32, in this process."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from distributed import free_port
from paceline.models import build
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load
from paceline.strategy.recipe import Recipe

EXAMPLE = Path(__file__).parents[1] / "examples" / "04_imagenet_mlperf.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(EXAMPLE.parent)  # as python and torchrun do
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes, six pictures of each for training and one for the test; and one rank, as torchrun sets it up."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 1)):
        for name in ("n01", "n02"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (32, 40, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{i}.JPEG")
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    return tmp_path


FEW = ["--network", "cifar10-terngrad", "--image-size", "24", "--micro-batch", "2", "--global-batch", "4", "--loaders", "0"]


def test_an_epoch_a_checkpoint_and_a_dry_run(
    example: dict[str, Any], pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", str(pictures / "out")]
    with monkeypatch.context() as short:
        whole = example["published"]
        made = lambda name, batch, samples: replace(whole(name, batch, 1e8), total_steps=3, warmup_steps=1)  # noqa: E731
        short.setitem(example["train"].__globals__, "published", made)
        example["main"]([str(pictures), *FEW, *out, "--epochs", "1"])
        other = lambda name, batch, samples: replace(made(name, batch, samples), total_steps=4)  # noqa: E731
        short.setitem(example["train"].__globals__, "published", other)
        with pytest.raises(SystemExit):
            example["main"]([str(pictures), *FEW, *out, "--epochs", "2", "--resume"])
    said = capsys.readouterr()
    assert "last.pt is of another recipe: lars, rate 0.01287 after 1 of 3 steps" in said.err
    _, plan, epoch = said.out.splitlines()[:3]
    assert plan == "1 epochs of 3 steps: 1 ranks, 2 x 2 pictures each"
    assert epoch.startswith("epoch 1/1  loss ") and "skipped steps 0" in epoch and "rate 0 " in epoch
    kept = Recipe.from_json(torch.load(pictures / "out" / "last.pt", weights_only=True)["recipe"])
    assert kept.total_steps == 3 and kept.arguments["variant"] == "mlperf"
    example["main"]([str(pictures), *FEW, *out, "--resume", "--dry-run"])
    recipe, plan, epoch = capsys.readouterr().out.splitlines()
    assert recipe.startswith("lars, rate 0.01287 after") and "MLPerf Training v4.0 reference convergence points" in recipe
    assert plan.startswith("37 epochs of 3 steps") and epoch.startswith("epoch 2/37  ")
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--global-batch", "5"], "a batch of 5 on 1 ranks with 2 at once; give a multiple of 2"),
        (["--global-batch", "64"], "a batch of 64, 12 pictures; give a smaller --global-batch"),
        (["--resume", "--out", "nowhere"], "no nowhere/last.pt; leave --resume out to begin"),
    ],
)
def test_mistakes(
    example: dict[str, Any], pictures: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        example["main"]([str(pictures), *FEW, "--dry-run", *more])
    assert left.value.code == 2 and message in capsys.readouterr().err


def test_crops_lie_in_the_picture_and_epochs_follow_the_batch(example: dict[str, Any]) -> None:
    random_box, middle_box = (example["both_parts"].__globals__[name] for name in ("_random_box", "_middle_box"))
    for width, height in ((500, 375), (20, 900), (7, 7)):
        for _ in range(50):
            left, top, right, bottom = random_box(width, height)
            assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert middle_box(512, 256) == (144.0, 16.0, 368.0, 240.0)
    assert [example["epochs_for"](batch) for batch in (3264, 8192, 32768, 65536)] == [40, 44, 62, 87]


@pytest.fixture
def slimming(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> dict[str, Any]:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    torch.save(build("cifar10-terngrad").state_dict(), pictures / "whole.pt")
    return runpy.run_path(str(EXAMPLE.with_name("05_imagenet_slim.py")))


SMALL = ["--network", "cifar10-terngrad", "--image-size", "24", "--batch", "2", "--loaders", "0"]


@pytest.mark.long
def test_a_trained_network_is_slimmed_and_exported(
    slimming: dict[str, Any], pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(pictures), *SMALL, "--weights", str(pictures / "whole.pt"), "--out", str(pictures / "slim")]
    slimming["main"]([*arguments, "--budget", "size=1.5MB", "--path-epochs", "4", "--tune-epochs", "1"])
    before, *path, tune, after = capsys.readouterr().out.splitlines()
    assert before.startswith("cifar10-terngrad: top-1 ") and len(path) == 4 and tune.startswith("tune: epoch 1/1  loss ")
    assert after.endswith(f": {pictures}/slim/model.onnx")
    plan, whole = SlimPlan.load(pictures / "slim" / "plan.json"), build("cifar10-terngrad")
    small = load(plan, whole)
    small.load_state_dict(torch.load(pictures / "slim" / "weights.pt", weights_only=True))
    assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in whole.parameters())
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget", "size=9B"], "cannot be met; give a larger budget"),
        (["--method", "sssl"], "did you mean ssl?"),
        (["--weights", "nowhere.pt"], "nowhere.pt"),
        (["--batch", "64"], "12 pictures, 64 for each rank; give a smaller --batch"),
    ],
)
def test_mistakes_in_slimming(
    slimming: dict[str, Any], pictures: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        slimming["main"]([str(pictures), *SMALL, "--weights", str(pictures / "whole.pt"), "--dry-run", *more])
    assert left.value.code == 2 and message in capsys.readouterr().err
