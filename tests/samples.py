"""Made-up runs for the tests of reporting: a dense and a TernGrad run of a small network on four workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.record import Event, Metrics, RunRecord

ENVIRONMENT = {
    "date": "2026-01-02T03:04:05Z",
    "commit": "abc1234",
    "cpu": "Example CPU @ 2.4 GHz",
    "cores": 8,
    "python": "3.11.2",
    "numpy": "2.4.0",
    "torch": "2.13.0",
}


def strategy(compression: str) -> dict[str, Any]:
    return {
        "compression": compression,
        "exchange": "sharded",
        "workers": 4,
        "global_batch_size": 256,
        "optimizer": "sgd",
        "precision": "float32",
    }


def timeline(compute: float, codec: float, network: float, ranks: int = 2) -> tuple[Event, ...]:
    """A forward pass, then three layers whose gradients are encoded, sent and decoded while the next is computed."""
    events = []
    for rank in range(ranks):
        t, codec_free, net_free = compute * 0.33, 0.0, 0.0
        events.append(Event(name="forward", lane="compute", start_s=0.0, duration_s=t, rank=rank))
        for layer in ("fc3", "fc2", "fc1"):
            share = {"fc3": 0.1, "fc2": 0.3, "fc1": 0.6}[layer]
            events.append(
                Event(name=f"backward {layer}", lane="compute", start_s=t, duration_s=compute * 0.6 * share, rank=rank)
            )
            t += compute * 0.6 * share
            ready = t
            if codec:
                begin = max(t, codec_free)
                events.append(Event(name=f"encode {layer}", lane="codec", start_s=begin, duration_s=codec * share, rank=rank))
                ready = codec_free = begin + codec * share
            begin = max(ready, net_free)
            events.append(Event(name=f"exchange {layer}", lane="network", start_s=begin, duration_s=network * share, rank=rank))
            net_free = begin + network * share
        events.append(Event(name="optimizer", lane="compute", start_s=net_free, duration_s=compute * 0.07, rank=rank))
    return tuple(events)


def metrics(compression: str, compute: float = 4.1e-3, scale: float = 1.0, **change: Any) -> Metrics:
    tern = compression != "dense"
    events = timeline(compute * scale, 0.9e-3 * scale if tern else 0.0, (0.8e-3 if tern else 11e-3) * scale)
    step = max(e.end_s for e in events)
    values: dict[str, Any] = {
        "workload": "mnist-mlp",
        "strategy": strategy(compression),
        "step_time_s": step,
        "low_s": step * 0.85,
        "high_s": step * 1.2,
        "samples_per_s": 256 / step,
        "compute_s": compute * scale,
        "comm_s": (0.8e-3 if tern else 11e-3) * scale,
        "codec_s": 0.9e-3 * scale if tern else 0.0,
        "exposed_comm_s": step - compute * scale,
        "wire_bytes_per_device": 181_000 if tern else 2_588_000,
        "compression_ratio": 14.3 if tern else 1.0,
        "memory_bytes": 9.4e6,
        "bottleneck": "compute" if tern else "network",
        "assumptions": (
            "the network link gives 1 Gb/s per direction, from the cluster file",
            "efficiency 0.31, from the calibration of this machine on 2026-01-02",
        ),
        "timeline": events,
    }
    return Metrics(**{**values, **change})


def histogram() -> dict[str, Any]:
    """One layer's gradient before the codec, clipped at 2.5 sigma, ternary, and averaged over four workers."""
    rng = np.random.default_rng(7)
    gradient = rng.standard_t(4, size=(4, 60_000)) * 1e-3
    sigma = float(gradient[0].std())
    clipped = gradient.clip(-2.5 * sigma, 2.5 * sigma)
    scale = float(abs(clipped).max())
    ternary = np.sign(clipped) * scale * (rng.random(clipped.shape) < abs(clipped) / scale)
    edges = np.linspace(-1.05, 1.05, 64) * float(abs(gradient[0]).max())
    panels = {"original": gradient[0], "clipped": clipped[0], "ternary": ternary[0], "averaged": ternary.mean(axis=0)}
    narrow = np.linspace(-1.1, 1.1, 64) * scale
    counts = {k: (e, np.histogram(v, e)[0]) for k, v in panels.items() for e in [edges if k == "original" else narrow]}
    return {
        "layer": "fc1.weight",
        "step": 200,
        "rank": 0,
        "sigma": sigma,
        "scale": scale,
        "panels": {k: {"edges": e.tolist(), "counts": c.tolist()} for k, (e, c) in counts.items()},
    }


def record(compression: str, **change: Any) -> RunRecord:
    tern = compression != "dense"
    base = metrics(compression, scale=1.09 if tern else 0.93, assumptions=())
    goal = 0.974 if tern else 0.978
    curve = tuple(
        {
            "epoch": float(e),
            "loss": 0.09 + 0.9 * 0.7**e + 0.02 * tern,
            "accuracy": goal - 0.13 * 0.62**e,
            "seconds": 1.9,
        }
        for e in range(1, 11)
    )
    values = {k: getattr(base, k) for k in Metrics.__dataclass_fields__}
    values |= {"accuracy": goal, "epochs": 10, "seed": 0, "steps": 2340, "nonfinite_steps": 0, "curve": curve}
    values |= {"environment": ENVIRONMENT, "histogram": histogram() if tern else {}}
    return RunRecord(**{**values, **change})


def named(run: RunRecord, **choices: Any) -> RunRecord:
    """The record with other choices in its strategy."""
    return replace(run, strategy={**run.strategy, **choices})
