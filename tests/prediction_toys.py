"""Small hand-made machines and networks, so that times can be worked out on paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline.calibration.constants import Efficiency, efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device, Fact, Link
from paceline.prediction import Calibration, Line, Predictor
from paceline.strategy import Strategy
from paceline.strategy.phase import Phase
from paceline.workload.layers import Coverage, Layer, Operation, Parameter
from paceline.workload.table import Workload


def fact(value: float) -> Fact:
    return Fact(value, "made up", "2026-01-01")


def make_link(bandwidth: float = 1e9, latency: float = 1e-5, kind: str = "ethernet") -> Link:
    return Link(name=f"{kind} {bandwidth:g}", kind=kind, bandwidth=fact(bandwidth), latency=fact(latency))


def make_cluster(
    per_node: int, nodes: int, network: float = 1e9, intra: float = 1e10, flops: float = 1e13, memory: float = 16e9
) -> Cluster:
    device = Device(
        name="toy",
        kind="gpu",
        peak_flops={"fp32": fact(flops)},
        memory=fact(memory),
        memory_bandwidth=fact(5e11),
        link="pcie",
    )
    return Cluster.of_nodes(device, per_node, nodes, make_link(intra, 5e-6, "pcie"), make_link(network, 2e-5))


def make_workload(layers: int = 4, width: int = 1000, flops: float = 1e9, blocks: int = 0) -> Workload:
    """``layers`` square linear layers, in blocks of ``blocks``; the gradients of the last come first."""
    names = [f"b.{i // blocks}.fc{i}" if blocks else f"fc{i}" for i in range(layers)]
    shape: Any = {"kind": "matmul", "m": flops / (2.0 * width**2), "n": width, "k": width, "batch": 1.0, "grows": "m"}
    table = tuple(
        Layer(
            name=names[i],
            kind="Linear",
            operations=(
                Operation(backward=False, calls=1, flops=flops, bytes=8e3, fixed_bytes=4.0 * width**2, **shape),
                Operation(backward=True, calls=2, flops=2 * flops, bytes=16e3, fixed_bytes=8.0 * width**2, **shape),
            ),
            activation_bytes=4.0 * width,
        )
        for i in range(layers)
    )
    parameters = tuple(
        Parameter(name=f"{names[i]}.weight", shape=(width, width), layer=i, ready=layers - 1 - i) for i in range(layers)
    )
    return Workload(
        name="toy",
        layers=table,
        parameters=parameters,
        input_bytes=4.0 * width,
        sample="vector",
        source="made up",
        coverage=Coverage(ops=3 * layers, known=3 * layers),
    )


def convolutional(network: Workload) -> Workload:
    """The same network with convolutions in place of products."""
    layers = (replace(layer, operations=tuple(replace(o, kind="conv") for o in layer.operations)) for layer in network.layers)
    return replace(network, layers=tuple(layers))


IDEAL = Efficiency(
    matmul_share=1.0,
    joules={},
    matrix_joules={},
    vector_share=1.0,
    conv_share=1.0,
    matrix_share=1.0,
    matrix_conv_share=1.0,
    attention_share=1.0,
    feeding=0.0,
    winograd=1.0,
    depth=0.0,
    matrix_depth=0.0,
    small_tile=1.0,
    units=1.0,
    memory_share=1.0,
    kept_share=1.0,
    launch_s=dict.fromkeys(("gpu", "tpu", "accelerator", "cpu"), 0.0),
    link_share=dict.fromkeys(("pcie", "nvlink", "fabric", "ethernet", "infiniband", "ici", "loopback", "memory"), 1.0),
    concurrent_messages=1,
    latency_factor=1.0,
)

PRICES = {"toy": 1.0, "fast": 2.5}
"""Dollars an hour of a toy device, and of the one that is twice as fast."""


def make_calibration(**changes: Any) -> Calibration:
    """Of four workers with ternary gradients; every line has another slope."""
    values: dict[str, Any] = {
        "workload": "toy",
        "micro_batch_size": 4,
        "world_size": 4,
        "compression": "terngrad",
        "forward_s": 0.010,
        "backward_s": 0.025,
        "optimizer_s": 0.003,
        "allreduce": Line(1e-4, 1e-9),
        "direct": Line(2e-4, 2e-9),
        "encode": Line(1e-5, 1e-9),
        "reduce": Line(2e-5, 2e-9),
        "decode": Line(3e-5, 3e-9),
        "overlap": False,
        "spread": 0.1,
        "source": "a test",
    }
    return Calibration(**{**values, **changes})


def strategy(n: int, **kw: Any) -> Strategy:
    """``n`` workers of ``micro`` samples each (4), and any other choices."""
    return Strategy.of(world_size=n, global_batch_size=n * kw.pop("micro", 4), **kw)


FAST_HOST = Predictor(constants=replace(efficiency("ordinary"), host_s=0.0))
"""Ordinary software whose host is never waited for: small networks show what their kernels and collectives take."""


def every_message(phase: Phase) -> Iterator[tuple[int, int, int]]:
    """Sender, receiver and bytes of every message of a phase that is no all-reduce."""
    sizes = phase.by_rank().tolist()
    for group in phase.groups().tolist():
        if phase.pattern == "shift":
            for here, rank in enumerate(group):
                if len(group) > 1:
                    yield rank, group[(here + 1) % len(group)], sizes[rank]
            continue
        for source, target in itertools.permutations(group, 2):
            yield source, target, sizes[target if phase.pattern == "push" else source]
