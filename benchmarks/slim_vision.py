"""Slimmed residual networks beside Torch-Pruning and beside smaller networks from scratch, at one latency: rows of a CSV file.

    python benchmarks/slim_vision.py fashion-mnist DIR --out RESULTS/slim_vision.csv
    python benchmarks/slim_vision.py sign-language FILE.tar.xz --seeds 5 --out RESULTS/slim_vision.csv
    python benchmarks/slim_vision.py cifar10 DIR --out RESULTS/slim_vision.csv
    python benchmarks/slim_vision.py --again FOLDER --out RESULTS/slim_vision.csv
    python benchmarks/slim_vision.py --short --out FILE
    python benchmarks/slim_vision.py --summary --out RESULTS/slim_vision.csv

RESULTS is benchmarks/results. The network is a ResNet-18 (eight basic blocks) of a quarter or half the usual width whose
first convolution has stride 2. One row a way to a smaller network and a seed, all from the same trained network, of equal
steps and with the same fine-tuning: "paceline" (the path of penalties to the budget), "torch-pruning" (its GroupNormPruner:
group Lasso while it trains, global ranking; the least ratio in per cent, of each of three roundings, whose measured latency
is at most ours; of those the one that keeps most parameters), and "from scratch": the network of all widths in one proportion
at our latency, trained for all steps together. Training multiplies in bfloat16. Latencies are end to end on ONNX Runtime, one
thread, one image, in alternation. `--keep FOLDER` keeps the ONNX files, and `--again FOLDER` times them anew on a quiet
machine: other work slows large networks more than small ones. Test images choose nothing: rates and steps are the same for
all and stand in the code. Torch-Pruning 1.6 is not a dependency: its rows are left out, with a line that says so, where it is
missing.
"""

from __future__ import annotations

import argparse
import copy
import io
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from kept_files import kept, time_again
from kept_files import timed as timed_files
from PIL import Image
from rows import append, read
from torch import Tensor, nn
from torch.nn import functional

from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.targets import TARGETS
from paceline.slimming.slim import Slim
from paceline.training.runs.data import load
from paceline.training.runs.loop import distillation_loss
from paceline.training.runs.starting_model import mixed_seed

COLUMNS = (
    "task",
    "width",
    "seed",
    "way",
    "budget",
    "latency_ms",
    "low_ms",
    "high_ms",
    "speedup",
    "predicted_ms",
    "accuracy",
    "whole_accuracy",
    "lost_points",
    "parameters",
    "file_kb",
    "steps",
    "train_seconds",
    "note",
)
Split = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """Steps and rates are of batches of 64."""

    width: int
    budget: str
    whole_steps: int
    path_steps: int
    tune_steps: int
    rate: float = 0.1
    path_rate: float = 0.02
    tune_rate: float = 0.02
    decay: float = 5e-4
    flips: bool = False
    seeds: int = 1


TASKS = {
    "fashion-mnist": Task(32, "speedup=4x", 4000, 1500, 2000),
    "cifar10": Task(32, "speedup=4x", 6000, 2000, 3000, flips=True),
    "sign-language": Task(32, "speedup=3.5x", 600, 300, 400),
    "short": Task(32, "speedup=1.5x", 3, 3, 3),
}
BATCH, DISTILL = 64, 0.5


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        inner = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


def network(width: int, channels: int, side: int, classes: int) -> nn.Module:
    """A ResNet-18 whose first stage has ``width`` channels."""
    stem: list[nn.Module] = [nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    if side > 64:
        stem.append(nn.MaxPool2d(2))
    blocks: list[nn.Module] = []
    inputs = width
    for stage in range(4):
        for stride in (2 if stage else 1, 1):
            blocks.append(Block(inputs, width << stage, stride))
            inputs = width << stage
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def data_of(task: str, place: str) -> Split:
    """Images from 0 to 1 and labels: for training, and held out."""
    if task == "short":
        generator = torch.Generator().manual_seed(0)
        x, y = torch.rand(160, 1, 16, 16, generator=generator), torch.arange(160) % 4
        return x[:128], y[:128], x[128:], y[128:]
    if task == "sign-language":
        return sign_language(Path(place))
    found = load(f"{task}:{place}")
    return found.train_x, found.train_y, found.test_x, found.test_y


def sign_language(archive: Path, side: int = 96) -> Split:
    """The 2,062 photographs at 96 pixels; every fifth of a class is held out."""
    parts: dict[bool, tuple[list[Tensor], list[int]]] = {True: ([], []), False: ([], [])}
    seen = [0] * 10
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda each: each.name):
            if not member.name.lower().endswith(".jpg"):
                continue
            label = int(Path(member.name).parent.name)
            content = tar.extractfile(member)
            if content is None:
                continue
            image = Image.open(io.BytesIO(content.read())).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
            pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(side, side, 3).permute(2, 0, 1)
            images, labels = parts[seen[label] % 5 == 0]
            images.append(pixels.to(torch.float32) / 255)
            labels.append(label)
            seen[label] += 1
    (test_x, test_y), (train_x, train_y) = parts[True], parts[False]
    return torch.stack(train_x), torch.tensor(train_y), torch.stack(test_x), torch.tensor(test_y)


@dataclass
class Run:
    """One seed of a task."""

    task: Task
    data: Split
    seed: int
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(mixed_seed(self.seed, 1))

    def new(self, width: int) -> nn.Module:
        """Untrained."""
        torch.manual_seed(mixed_seed(self.seed))
        x, y = self.data[:2]
        return network(width, x.shape[1], x.shape[-1], int(y.max()) + 1)

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        steps: int,
        *,
        falls: bool = True,
        teacher: nn.Module | None = None,
        before_step: Callable[[], object] = lambda: None,
    ) -> float:
        """Seconds that it took. The rate falls to 0 in a straight line, or stays."""
        x, y = self.data[:2]
        peak = [group["lr"] for group in optimizer.param_groups]
        model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        start = time.perf_counter()
        for step in range(steps):
            for group, rate in zip(optimizer.param_groups, peak, strict=True):
                group["lr"] = rate * (1 - step / steps) if falls else rate
            chosen = torch.randint(len(y), (min(BATCH, len(y)),), generator=self.generator)
            images = x[chosen]
            if self.task.flips:
                turned = torch.rand(len(chosen), generator=self.generator) < 0.5
                images = torch.where(turned[:, None, None, None], images.flip(-1), images)
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                output = model(images)
                loss = functional.cross_entropy(output, y[chosen])
                if teacher is not None:
                    with torch.no_grad():
                        taught = teacher(images)
                    loss = (1 - DISTILL) * loss + DISTILL * distillation_loss(output, taught)
            optimizer.zero_grad()
            loss.backward()
            before_step()
            optimizer.step()
        return time.perf_counter() - start

    def tuned(self, model: nn.Module, teacher: nn.Module) -> float:
        """Fine-tune, alike for every way."""
        return self.train(
            model, self.momentum(model, self.task.tune_rate, self.task.decay), self.task.tune_steps, teacher=teacher
        )

    @staticmethod
    def momentum(model: nn.Module, rate: float, decay: float = 0.0) -> torch.optim.Optimizer:
        """SGD with momentum 0.9."""
        return torch.optim.SGD(model.parameters(), rate, 0.9, weight_decay=decay)

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """On the held-out images."""
        x, y = self.data[2:]
        model.eval()
        right = sum(int((model(a).argmax(-1) == b).sum()) for a, b in zip(x.split(256), y.split(256), strict=True))
        return right / len(y)


def as_fast(small: nn.Module, goal: nn.Module, example: tuple[Tensor, ...]) -> bool:
    """Whether a network takes at most 2 % longer than another, in alternation."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        found = timed_files(kept({"small": small, "goal": goal}, example, folder), folder, 9)
    return found["small"].median_s <= 1.02 * found["goal"].median_s


def torch_pruning(run: Run, whole: nn.Module, example: tuple[Tensor, ...], goal: nn.Module) -> tuple[nn.Module, float] | None:
    """Pruned to another network's latency and fine-tuned, with the seconds of training; None where the library is missing."""
    try:
        import torch_pruning as tp
    except ModuleNotFoundError:
        return None

    def pruner_of(model: nn.Module, ratio: float, round_to: int | None) -> object:
        importance = tp.importance.GroupMagnitudeImportance()
        return tp.pruner.GroupNormPruner(
            model,
            example,
            importance,
            global_pruning=True,
            pruning_ratio=ratio,
            max_pruning_ratio=0.95,
            round_to=round_to,
            ignored_layers=[model[-1]],  # type: ignore[index]
        )

    model = copy.deepcopy(whole)
    pruner = pruner_of(model, 0.5, None)
    pruner.update_regularizer()  # type: ignore[attr-defined]
    seconds = run.train(
        model,
        run.momentum(model, run.task.path_rate),
        run.task.path_steps,
        falls=False,
        before_step=lambda: pruner.regularize(model),  # type: ignore[attr-defined]
    )
    best = least_pruned(lambda small, ratio, round_to: pruner_of(small, ratio, round_to).step(), model, example, goal)  # type: ignore[attr-defined]
    if best is None:
        return None
    return best, seconds + run.tuned(best, whole)


def least_pruned(
    prune: Callable[[nn.Module, float, int | None], object], model: nn.Module, example: tuple[Tensor, ...], goal: nn.Module
) -> nn.Module | None:
    """At the least ratio that meets the latency; of three roundings the one that keeps the most parameters. Beyond some ratio
    rounding prunes nothing: such a ratio does not meet it."""
    width, found = TARGETS["onnxruntime"].vector_width(), []
    for round_to in (width, width // 2, None):
        best, low, high = None, 10, 96
        while low < high:
            percent = (low + high) // 2
            small = copy.deepcopy(model)
            prune(small, percent / 100, round_to)
            if as_fast(small, goal, example):
                best, high = small, percent
            else:
                low = percent + 1
        if best is not None:
            found.append(best)
    return max(found, key=parameters, default=None)


def parameters(model: nn.Module) -> int:
    """How many numbers a network holds."""
    return sum(each.numel() for each in model.parameters())


def ways(name: str, task: Task, data: Split, seed: int, keep: Path) -> Iterator[dict[str, object]]:
    """Rows of one seed; the files are kept in a folder."""
    run = Run(task, data, seed)
    example = (data[0][:1],)
    whole = run.new(task.width)
    seconds = {"whole": run.train(whole, run.momentum(whole, task.rate, task.decay), task.whole_steps)}
    models: dict[str, nn.Module] = {"whole": copy.deepcopy(whole).eval()}
    print(f"{name}, seed {seed}: whole {run.accuracy(whole):.4f}, {seconds['whole']:.0f} s", flush=True)

    slim = Slim(whole, example, budget=task.budget)
    optimizer = slim.wrap(run.momentum(whole, task.path_rate), task.path_steps)
    seconds["paceline"] = run.train(whole, optimizer, task.path_steps, falls=False)
    models["paceline"] = slim.shrink()
    seconds["paceline"] += run.tuned(models["paceline"], models["whole"])
    print(f"paceline {run.accuracy(models['paceline']):.4f}, {seconds['paceline']:.0f} s", flush=True)

    goal = models["paceline"]
    if pruned := torch_pruning(run, models["whole"], example, goal):
        models["torch-pruning"], seconds["torch-pruning"] = pruned
        print(f"torch-pruning {run.accuracy(pruned[0]):.4f}, {seconds['torch-pruning']:.0f} s", flush=True)
    else:
        print("Torch-Pruning is not installed or prunes nothing so far: no row", flush=True)
    width = scratch_width(run, example, goal)
    small = run.new(width)
    total = task.whole_steps + task.path_steps + task.tune_steps
    seconds["from scratch"] = run.train(small, run.momentum(small, task.rate, task.decay), total)
    models["from scratch"] = small
    folder = keep / f"{name}-{seed}"
    files = kept(models, example, folder)
    times = timed_files(files, folder)
    quality = {way: run.accuracy(model) for way, model in models.items()}
    steps = dict.fromkeys(models, total) | {"whole": task.whole_steps}
    for way, model in models.items():
        row: dict[str, object] = {
            "task": name,
            "width": width if way == "from scratch" else task.width,
            "seed": seed,
            "way": way,
            "budget": task.budget,
            "predicted_ms": round((slim.predicted_s or 0.0) * 1e3, 4) if way == "paceline" else "",
            "accuracy": round(quality[way], 5),
            "whole_accuracy": round(quality["whole"], 5),
            "lost_points": round(100 * (quality["whole"] - quality[way]), 3),
            "parameters": parameters(model),
            "file_kb": round(files[way].stat().st_size / 1e3, 1),
            "steps": steps[way],
            "train_seconds": round(seconds[way], 1),
            "note": "",
        }
        write_latency(row, times[way], times["whole"])
        yield row


def write_latency(row: dict[str, Any], latency: Latency, whole: Latency) -> None:
    """Into a row."""
    row["latency_ms"] = round(latency.median_s * 1e3, 4)
    row["low_ms"], row["high_ms"] = round(latency.low_s * 1e3, 4), round(latency.high_s * 1e3, 4)
    row["speedup"] = round(whole.median_s / latency.median_s, 3)


def scratch_width(run: Run, example: tuple[Tensor, ...], goal: nn.Module) -> int:
    """The largest width, in quarters of a vector, of a network that is as fast."""
    step = max(TARGETS["onnxruntime"].vector_width() // 4, 1)
    for width in range(run.task.width - step, 0, -step):
        if as_fast(run.new(width), goal, example):
            return width
    return 1


def summary(path: Path) -> str:
    """Medians over seeds."""
    rows = read(path)
    lines = [f"{'task':15} {'way':14} {'seeds':>5} {'speed-up':>9} {'accuracy':>9} {'lost points':>12}"]
    for task in dict.fromkeys(row["task"] for row in rows):
        for way in dict.fromkeys(row["way"] for row in rows if row["task"] == task):
            own = [row for row in rows if (row["task"], row["way"]) == (task, way)]
            speed, right, lost = (median(float(row[key]) for row in own) for key in ("speedup", "accuracy", "lost_points"))
            lines.append(f"{task:15} {way:14} {len(own):5} {speed:8.2f}x {100 * right:7.2f} % {lost:12.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=[name for name in TASKS if name != "short"])
    parser.add_argument("data", nargs="?", default="")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where ONNX files stay")
    parser.add_argument("--again", type=Path, help="where ONNX files are kept; nothing is trained")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.again:
        time_again(options.out, options.again, lambda row: f"{row['task']}-{row['seed']}", "way", write_latency)
    elif not options.summary:
        name = "short" if options.short else options.task
        if name is None:
            parser.error("name a task, or give --short")
        data = data_of(name, options.data)
        with tempfile.TemporaryDirectory() as directory:
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                for row in ways(name, TASKS[name], data, seed, options.keep or Path(directory)):
                    append(options.out, COLUMNS, row)
    print(summary(options.out))


if __name__ == "__main__":
    main()
