"""Measurements of gpu_day.py: one process, or one of torchrun's ranks. Prints JSON lines, and adds them to OUT/NAME.jsonl.

    python benchmarks/gpu_day_rank.py waits --out runs/gpu-day
    torchrun --standalone --nproc-per-node 8 benchmarks/gpu_day_rank.py exchanges --out runs/gpu-day

On a CPU (``--device cpu``) it runs too, on small tensors, to show that the script works; such figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from paceline.record import environment
from paceline.strategy import COMPRESSIONS, EXCHANGES, GradientExchange
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire

WAYS = ("int8:sharded", "int8:ring", "sign:allgather", "terngrad:sharded", "topk:allgather", "inceptionn-scaled:ring")
STEPS = 5
NETWORKS = {
    "resnet-50": ("timm", "resnet50", 64),
    "vit-b-16": ("timm", "vit_base_patch16_224", 64),
    "gpt2": ("transformers", "GPT2", 8),
    "bert-base": ("transformers", "Bert", 16),
    "tinyllama-1.1b": ("transformers", "Llama", 2),
}


class Day:
    """Device of the day, sizes and the file of results."""

    def __init__(self, device: torch.device, out: Path, name: str) -> None:
        self.device, self.gpu, self._file = device, device.type == "cuda", out / f"{name}.jsonl"
        self.rank = int(os.environ.get("RANK", "0"))
        self.scale = 1 if self.gpu else 64

    def say(self, **row: Any) -> None:
        """Print and keep one result of rank 0."""
        if self.rank == 0:
            where = {"device": torch.cuda.get_device_name() if self.gpu else "CPU: these figures mean nothing"}
            print(json.dumps(row), flush=True)
            with self._file.open("a") as file:
                file.write(json.dumps(row | where | environment(), default=str) + "\n")

    def seconds(self, call: Callable[[], object], repetitions: int = STEPS) -> float:
        """Median seconds of a call that leaves the device idle."""
        taken = []
        for number in range(repetitions + 2):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            if number >= 2:
                taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    def wait(self) -> None:
        """Wait for the device."""
        if self.gpu:
            torch.cuda.synchronize()

    @contextmanager
    def counted_waits(self, found: list[int]) -> Iterator[None]:
        """Add the number of waits for the device within the block, as torch's own debug mode sees them."""
        if not self.gpu:
            yield
            return
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        torch.cuda.set_sync_debug_mode("default")
        found.append(sum("synchroniz" in str(w.message) for w in caught))


def waits(day: Day) -> None:
    """Exchange among ranks of this process: the bits of the CPU, and waits that do not grow with the ranks."""
    for way in WAYS:
        counts = {}
        for workers in (2, 4, 8):
            on_host = LocalGroup(workers).run(lambda wire, way=way: _exchanged(wire, way, torch.device("cpu"), day))
            found: list[int] = []
            with day.counted_waits(found):
                here = LocalGroup(workers).run(lambda wire, way=way: _exchanged(wire, way, day.device, day))
            for mine, wanted in zip(here, on_host, strict=True):
                assert all(np.array_equal(mine[name], wanted[name]) for name in wanted), f"{way}: other bits than the CPU's"
            counts[workers] = sum(found) / workers
        day.say(step="waits", way=way, waits_a_rank=counts)
        # A ring's hops grow with the ranks, and INCEPTIONN must tell each hop's length.
        assert way == "inceptionn-scaled:ring" or counts[8] <= counts[2] + 1, counts


def _exchanged(wire: LocalWire, way: str, device: torch.device, day: Day) -> dict[str, np.ndarray]:
    compression, exchange = way.split(":")
    wire.device = device
    setup = make_setup(GradientExchange(compression, exchange), wire, Sample())
    assert setup is not None
    sizes = {"first": (6 << 20) // day.scale, "second": 77_777, "bias": 130}
    offsets = np.cumsum([0, *sizes.values()])
    specs = [TensorSpec(name, (n,), int(at)) for (name, n), at in zip(sizes.items(), offsets, strict=False)]
    layout = Layout(specs, ("bias",), setup.codec.alignment)
    rng = np.random.default_rng(wire.rank)
    parts = {name: torch.from_numpy(rng.standard_normal(n).astype(np.float32)).to(device) for name, n in sizes.items()}
    workspace = torch.empty(room(setup, layout), dtype=torch.float32, device=device)
    exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=workspace, seed=1, step=0))
    return {name: part.cpu().numpy() for name, part in parts.items()}


def optimizers(day: Day) -> None:
    """One step of each optimizer on the matrices of a transformer of 110 M parameters."""
    width, layers = (768, 12) if day.gpu else (64, 1)
    shapes = [s for _ in range(layers) for s in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))]
    made: dict[str, Callable[[nn.Module], Any]] = {
        "torch AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), 1e-4, fused=True),
        "LAMB": lambda m: paceline.LAMB(m.parameters(), 1e-3),
        "LARS": lambda m: paceline.LARS(m.parameters(), 1e-2),
    }
    if hasattr(paceline, "Muon"):
        made["Muon"] = lambda m: paceline.Muon(m, lr=1e-2)
    if hasattr(torch.optim, "Muon"):
        made["torch Muon"] = lambda m: torch.optim.Muon(m.parameters(), lr=1e-2)
    for name, make in made.items():
        model = nn.Sequential(*(nn.Linear(b, a, bias=False) for a, b in shapes)).to(day.device)
        optimizer = make(model)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        elements = sum(p.numel() for p in model.parameters())
        flat, other = (torch.empty(elements, dtype=torch.float32, device=day.device) for _ in range(2))
        day.say(
            step="optimizers",
            optimizer=name,
            parameters=elements,
            milliseconds=1e3 * day.seconds(optimizer.step),
            copy_ms=1e3 * day.seconds(lambda a=flat, b=other: a.copy_(b)),
        )


def networks(day: Day) -> None:
    """Predict a step of each network, then measure it."""
    for name, (library, model_name, batch) in NETWORKS.items():
        batch = batch if day.gpu else 1
        try:
            call = _training_step(library, model_name, batch, day)
        except ImportError as error:
            day.say(step="networks", network=name, missing=str(error))
            continue
        device = torch.cuda.get_device_name() if day.gpu else "H100"
        command = ["predict", name, "--on", f"1 {device}", "--global-batch", str(batch), "--precision", "bf16"]
        if library == "transformers":
            command += ["--seq-len", "512"]
        done = subprocess.run(
            [sys.executable, "-m", "paceline", *command, "--optimizer", "adam", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        predicted = json.loads(done.stdout) if done.returncode in (0, 3) and done.stdout else {}
        measured = day.seconds(call)
        low, step, high = (predicted.get(key) for key in ("low_s", "step_time_s", "high_s"))
        day.say(
            step="networks",
            network=name,
            batch=batch,
            measured_s=measured,
            predicted_s=step,
            low_s=low,
            high_s=high,
            error=step and step / measured - 1,
            refused=done.stderr.strip(),
        )


def _training_step(library: str, name: str, batch: int, day: Day) -> Callable[[], None]:
    if library == "timm":
        import timm

        model = timm.create_model(name).to(day.device)
        inputs = {"x": torch.randn(batch, 3, 224, 224, device=day.device)}
    else:
        import transformers

        head = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM", "Llama": "LlamaForCausalLM"}[name]
        sizes: dict[str, Any] = {}
        if name == "Llama":
            sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_key_value_heads": 4}
        small = {} if day.gpu else {"num_hidden_layers": 1}
        config = getattr(transformers, f"{name}Config")(**sizes | small)
        model = getattr(transformers, head)(config).to(day.device)
        tokens = torch.randint(0, 1000, (batch, 512 if day.gpu else 8), device=day.device)
        inputs = {"input_ids": tokens, "labels": tokens}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=day.gpu)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(day.device.type, torch.bfloat16):
            out = model(**inputs)
            loss = out.loss if library == "transformers" else out.square().mean()
        loss.backward()
        optimizer.step()

    return step


def exchanges(day: Day) -> None:
    """Train with every compression over every exchange: equal replicas, the mean's error, bytes, waits, time."""
    world = dist.get_world_size()
    mean = _gradients(day, None)
    for compression in COMPRESSIONS.values():
        for exchange in EXCHANGES.values():
            if not exchange.carries(compression) or exchange.uses_switch or compression.low_rank:
                continue
            if exchange.by_engine and compression.lossy and compression.name not in ("bf16",):
                continue
            options: dict[str, Any] = {"exchange": exchange.name}
            if exchange.uses_nodes:
                if world % 2:
                    continue
                options["ranks_per_node"] = world // 2
            try:
                found = _gradients(day, compression.name, **options)
            except paceline.UserError as error:
                day.say(step="exchanges", compression=compression.name, exchange=exchange.name, refused=str(error))
                continue
            error = float((found["gradient"] - mean["gradient"]).norm() / mean["gradient"].norm())
            day.say(step="exchanges", compression=compression.name, **options, error=error, **found["said"])
            assert found["equal"], f"{compression.name} over {exchange.name}: replicas differ"
            assert np.isfinite(error)


def _gradients(day: Day, compression: str | None, **options: Any) -> dict[str, Any]:
    """Gradients of one step of a network, and the figures of some more."""
    torch.manual_seed(0)
    model = DDP(_layers(day), device_ids=[day.device] if day.gpu else None)
    hook = paceline.attach(model, compression, check_every=0, **options) if compression else None
    x = torch.randn(64, model.module[0].in_features, generator=torch.Generator().manual_seed(day.rank)).to(day.device)

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    step()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
    same = gradient.clone()
    dist.broadcast(same, 0)
    equal = torch.tensor([float(torch.equal(same, gradient))], dtype=torch.float32, device=day.device)
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    found: list[int] = []
    seconds = day.seconds(step)
    if hook is not None:
        hook.meter.begin_step()
    with day.counted_waits(found):
        step()
    said = {"step_ms": 1e3 * seconds, "waits": sum(found), "sent_bytes": hook.meter.sent_bytes if hook else 0}
    return {"gradient": gradient, "equal": bool(equal), "said": said}


def _layers(day: Day) -> nn.Sequential:
    width, depth = (2048, 12) if day.gpu else (64, 3)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth))).to(day.device)


def overlap(day: Day) -> None:
    """Share of the exchange's kernels that run while kernels of the backward pass do."""
    for way in ("int8:sharded", "bf16:allreduce"):
        compression, exchange = way.split(":")
        model = DDP(_layers(day), device_ids=[day.device] if day.gpu else None)
        paceline.attach(model, compression, exchange=exchange, check_every=0)
        x = torch.randn(4096 if day.gpu else 8, model.module[0].in_features, device=day.device)
        for _ in range(3):
            model(x).square().mean().backward()
        day.wait()
        if not day.gpu:
            day.say(step="overlap", way=way, share=None)
            continue
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            model(x).square().mean().backward()
            day.wait()
        spans: dict[int, list[tuple[int, int]]] = {}
        for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
            if event.device_type() == torch.autograd.DeviceType.CUDA:
                spans.setdefault(event.device_resource_id(), []).append(
                    (event.start_ns(), event.start_ns() + event.duration_ns())
                )
        busiest = max(spans, key=lambda stream: _length(spans[stream]))
        other = [span for stream, of_stream in spans.items() if stream != busiest for span in of_stream]
        both = _length(spans[busiest]) + _length(other) - _length([*spans[busiest], *other])
        share = both / max(1, _length(other))
        day.say(step="overlap", way=way, streams=len(spans), exchange_ms=_length(other) / 1e6, share=share)


def _length(spans: list[tuple[int, int]]) -> int:
    """Nanoseconds covered by any of the spans."""
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def sharded(day: Day) -> None:
    """Train a network under FSDP2 with int8 gradients for some steps."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = _layers(day)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    paceline.attach(model, "int8")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(64, model[0].in_features, device=day.device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    seconds = day.seconds(step)
    found: list[int] = []
    with day.counted_waits(found):
        step()
    day.say(step="sharded", step_ms=1e3 * seconds, waits=sum(found))


ALL: dict[str, Callable[[Day], None]] = {f.__name__: f for f in (waits, optimizers, networks, exchanges, overlap, sharded)}


def main() -> None:
    """Run one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=ALL)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if options.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        ALL[options.measurement](Day(device, options.out, options.measurement))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
