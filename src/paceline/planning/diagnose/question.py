"""A question, the values of it that causes use in their changes, and the conditions under which they apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.networks import by_transport, transport_unsaid
from paceline.planning.compare.changes import BatchScaling, Change, apply, changed_predictor
from paceline.prediction import Prediction, StepPredictor
from paceline.strategy import Strategy
from paceline.units import format_bandwidth
from paceline.workload.table import Workload

FULL = 0.85
"""Share of the memory from which it counts as nearly full: fragments of PyTorch's memory take up to 15 % (GMLake,
arXiv:2401.08156, figure 2)."""
TIGHT = 0.5
"""Share of the memory from which users look for ways to save it. An assumption."""
_RATES = (1600.0, 800.0, 400.0, 200.0, 100.0, 50.0, 25.0, 10.0, 5.0, 2.5, 1.0)
"""Gb/s of networks that a job may use in place of the stated one. Over TCP it reaches a part of them (``Link.carried``)."""
_MOST_TCP = 400.0
"""Most Gb/s of Ethernet that a node has next to its RDMA cards: 100 on DGX, 4 x 100 on EC2's p4d. An assumption for others."""
_MICRO_STEPS = (2, 4, 5, 8, 10, 16, 20, 32, 40, 64)
_GBIT = 1.25e8
_BEFORE_AMPERE = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")


@dataclass(frozen=True)
class RunQuestion:
    """A step: network, machines, strategy and the model that predicts it.

    Attributes:
        stated: choices that the user names, of the strategy and of the predictor.
    """

    workload: Workload
    cluster: Cluster
    strategy: Strategy
    predictor: StepPredictor
    stated: frozenset[str] = frozenset()

    @cached_property
    def step(self) -> Prediction:
        """The predicted step. Raises UserError as ``StepPredictor.step``."""
        return self.predictor.step(self.workload, self.cluster, self.strategy)

    def changed(self, changes: Sequence[Change], scaling: BatchScaling = "strong") -> RunQuestion:
        """Return the question after changes. Raises UserError if they are impossible.

        Args:
            scaling: global batch on other numbers of devices: unchanged (``strong``) or proportional (``weak``).
        """
        cluster, strategy, _ = apply(changes, self.cluster, self.strategy, scaling)
        return replace(self, cluster=cluster, strategy=strategy, predictor=changed_predictor(changes, self.predictor))

    @property
    def micro_steps(self) -> int:
        """Micro steps of a step without a pipeline; 1 with one."""
        mesh = self.strategy.parallelism
        return mesh.micro_batches if mesh.pipeline == 1 else 1

    @property
    def of_images(self) -> bool:
        """True for a network whose samples have no tokens."""
        return not self.workload.tokens


Values = Callable[[RunQuestion], Sequence[str]]


def _line(question: RunQuestion) -> float:
    """Return Gb/s of the network of a node; 0 on a single node."""
    return question.cluster.network.bandwidth.value / _GBIT if question.cluster.num_nodes > 1 else 0.0


def _over_tcp(question: RunQuestion) -> bool:
    network = question.cluster.network
    return network.kind == "ethernet" and (transport_unsaid(network) or network.transport == "TCP")


def _tcp(question: RunQuestion) -> Sequence[str]:
    line = _line(question)
    if not line or _over_tcp(question):
        return ()
    rates = dict.fromkeys(rate for rate in (line, *_RATES) if rate <= line and rate >= line / 512)
    return [f"{rate:g}Gb/s TCP" for rate in rates if rate <= _MOST_TCP or rate == min(rates)]


def _slower(question: RunQuestion) -> Sequence[str]:
    line = _line(question)
    slower = [rate for rate in _RATES if rate <= 0.6 * line and rate >= line / 64]
    return [f"{rate:g}Gb/s TCP" for rate in slower] if _over_tcp(question) else ()


def _one(question: RunQuestion) -> Sequence[str]:
    count, times, single = question.cluster.network.name.partition("x ")
    return (single,) if _line(question) and times and count.isdigit() else ()


def _pcie(question: RunQuestion) -> Sequence[str]:
    device = question.cluster.device
    joined = question.cluster.devices_per_node > 1 and question.cluster.intra_link.kind == "nvlink"
    return (device.host_link,) if joined and device.host_link.startswith("PCIe") else ()


def _host_path(question: RunQuestion) -> Sequence[str]:
    inside, name = question.cluster.intra_link, question.cluster.device.host_link
    if question.cluster.devices_per_node == 1 or not name.startswith("PCIe") or inside.shared is not None:
        return ()
    try:
        return (hardware.link(f"{name} via host").name,)
    except UserError:
        return ()


def _looped(question: RunQuestion) -> Sequence[str]:
    model = question.predictor.uncorrected.typical.framework
    if not any("expert" in layer.name or "Expert" in layer.kind for layer in question.workload.layers):
        return ()
    sharded = question.strategy.parallelism.sharding.weights
    return () if model.experts == "looped" else ("deepspeed-4",) if sharded else ("hf-trainer-4",)


def _rdma(question: RunQuestion) -> Sequence[str]:
    link = by_transport(question.cluster.network).get("RDMA") if _line(question) else None
    return (link.name,) if link else ()


def _micro_batch(question: RunQuestion) -> Sequence[str]:
    several = question.micro_steps > 1 and question.cluster.world_size > 1
    return (str(question.strategy.global_batch_size // question.micro_steps),) if several else ()


def _most_micro(question: RunQuestion) -> Sequence[str]:
    mesh = question.strategy.parallelism
    each = question.strategy.global_batch_size // mesh.data
    divisors = [n for n in range(2 * mesh.micro_batches, each + 1, mesh.micro_batches) if each % n == 0]
    return [str(n) for n in divisors] if mesh.pipeline == 1 else ()


def _k(question: RunQuestion) -> Sequence[str]:
    return [str(k) for k in _MICRO_STEPS] if question.micro_steps == 1 and question.strategy.parallelism.pipeline == 1 else ()


VALUES: Mapping[str, Values] = {
    "tcp": _tcp,
    "slower": _slower,
    "one": _one,
    "pcie": _pcie,
    "host_path": _host_path,
    "looped": _looped,
    "rdma": _rdma,
    "micro_batch": _micro_batch,
    "most_micro": _most_micro,
    "k": _k,
}
"""Values of a question for the words in braces of changes. Without a value the change does not apply."""


def words_of(question: RunQuestion) -> dict[str, str]:
    """Return the question's values for titles and proofs."""
    count = question.cluster.network.name.partition("x ")[0]
    return {
        "n": str(question.cluster.world_size),
        "cards": count if count.isdigit() else "several",
        "precision": question.strategy.precision,
        "micro": str(max(2, question.micro_steps)),
    }


def _compiled(question: RunQuestion) -> bool:
    plain = question.predictor.uncorrected
    return bool(plain.typical.framework.compiles if plain.compile is None else plain.compile)


def _slow_16_bits(question: RunQuestion) -> bool:
    """Return whether the device computes in fp16 at a lower rate than in fp32."""
    peaks = question.cluster.device.peak_flops
    return peaks["fp16"].value < peaks["fp32"].value if {"fp16", "fp32"} <= peaks.keys() else False


CONDITIONS: Mapping[str, Callable[[RunQuestion], bool]] = {
    "replicated": lambda q: q.strategy.parallelism.data > 1 and not q.strategy.parallelism.sharding.shares_out,
    "several": lambda q: q.strategy.parallelism.data > 1,
    "tight": lambda q: q.step.memory_bytes > TIGHT * q.cluster.device.memory.value,
    "slow 16 bits": _slow_16_bits,
    "tokens": lambda q: not q.of_images,
    "constant lengths": lambda q: not q.strategy.tokens_per_sample.vary,
    "compiled": _compiled,
    "several nodes": lambda q: q.cluster.num_nodes > 1,
    "devices of one node": lambda q: q.cluster.num_nodes == 1 and q.cluster.world_size > 1,
    "adapters": lambda q: q.workload.frozen > 0 and not q.workload.frozen_bits,
    "consumer board": lambda q: q.cluster.device.name.startswith(("RTX", "GTX", "TITAN")),
    "before Ampere": lambda q: q.cluster.device.architecture in _BEFORE_AMPERE,
    "DeepSpeed": lambda q: q.predictor.uncorrected.typical.framework.name.startswith("deepspeed"),
    "nearly full": lambda q: q.step.memory_bytes > FULL * q.cluster.device.memory.value,
}
"""Conditions of causes on the question. ``steps`` and ``not each`` are on the measured speed (``effects``)."""


def line_text(name: str) -> str:
    """Return the speed of a network by its name, for a title: ``10 Gb/s``."""
    return format_bandwidth(hardware.network(name).bandwidth.value)
