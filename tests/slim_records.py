"""Records of slimming for tests."""

from __future__ import annotations

from dataclasses import replace

from paceline.slim_record import CurvePoint, LayerLatency, SlimMeasurement, SlimRecord, Training, Width

WHOLE = SlimMeasurement(4e-3, 3.9e-3, 4.2e-3, 1_200_000, 4_800_000, 0.981, 0.07)
SLIMMED = SlimMeasurement(1.25e-3, 1.2e-3, 1.4e-3, 210_000, 850_000, 0.978, 0.081)


def record(**changed: object) -> SlimRecord:
    """A network of three layers with everything that a record may hold."""
    made = SlimRecord(
        model="lenet5",
        data="digits",
        method="auto",
        target="onnxruntime",
        budget="speedup=3x",
        threads=1,
        whole=WHOLE,
        slimmed=SLIMMED,
        predicted_s=1.2e-3,
        widths=(Width("conv1", 20, 8), Width("conv2", 50, 20), Width("fc1", 500, 90)),
        layers=(
            LayerLatency("conv1", 1.0e-3, 0.5e-3, 0.45e-3),
            LayerLatency("conv2", 2.0e-3, 0.4e-3, 0.5e-3),
            LayerLatency("fc1", 0.7e-3, 0.15e-3, 0.15e-3),
            LayerLatency("the rest", 0.3e-3, 0.2e-3, 0.1e-3),
        ),
        curve=(
            CurvePoint("whole", WHOLE.latency_s, WHOLE.latency_s, WHOLE.accuracy),
            CurvePoint("speedup=2x", 2.1e-3, 2.0e-3, 0.980),
            CurvePoint("speedup=3x", SLIMMED.latency_s, 1.2e-3, SLIMMED.accuracy),
        ),
        kept={"fc2": "the output of the network"},
        notes=("a note",),
        environment={"date": "2026-01-01T00:00:00Z", "cpu": "a processor", "cores": 2},
        files={"plan.json": "runs/slim/plan.json"},
        quantised=SlimMeasurement(0.9e-3, 0.8e-3, 1.0e-3, 210_000, 230_000, 0.975),
        training=Training(
            epochs={"whole network": 10, "path": 5, "slimmed network": 5},
            optimizer="momentum",
            lr=0.05,
            batch=64,
            workers=2,
            compression="terngrad",
            distill=0.5,
            seed=7,
        ),
        held_out=360,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def deep(layers: int = 60) -> SlimRecord:
    """A network of so many layers, with long names."""
    names = [f"backbone.stages.{number // 10}.blocks.{number % 10}.attention.projection" for number in range(layers)]
    return record(
        widths=tuple(Width(name, 64 + 8 * number, 32 + 4 * number) for number, name in enumerate(names)),
        layers=tuple(LayerLatency(name, 1e-4 + 1e-6 * n, 4e-5 + 4e-7 * n, 4e-5) for n, name in enumerate(names)),
    )


__all__ = ["SLIMMED", "WHOLE", "deep", "record"]
