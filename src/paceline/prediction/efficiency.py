"""How much of a datasheet number a real step gets: every constant of the prediction that is not physics, in one place.

Three levels: ``TYPICAL`` is what ordinary framework code reaches, ``LOW`` and ``HIGH`` bound the range that users see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from paceline.prediction.protocols import BARE, NCCL, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of what a resource could do at best, and the fixed costs.

    Attributes:
        matmul_share: best dense matmul / datasheet peak, where nobody measured it. Measured ones of the catalogue lie
            between 0.51 (MI300X) and 0.97 (Gaudi 2).
        vector_share: what a big layer gets of that rate on ordinary cores (fp32, and any precision no faster than it).
        matrix_share: the same on matrix units, which starve sooner: operands arrive slower than they are eaten.
        winograd: FLOPs of a 3x3 convolution / multiplications really done on ordinary cores; at most 2.25 with
            F(2x2, 3x3) (Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks).
        half_s: seconds at the full rate at which a kernel reaches half its efficiency: F_half = half_s x rate, so
            ``e(F) = share x F / (F + F_half)``: a kernel of few FLOPs does not fill the device.
        memory_share: bandwidth that a streaming kernel gets of the datasheet's.
        launch_s: seconds from one kernel to the next when the kernels do nothing, by kind of device.
        link_share: bandwidth that a collective gets of a link's, by kind of link; protocol headers included.
        concurrent_messages: messages of one rank in flight at once in a push or pull; NCCL posts 8 a round, the
            pairwise exchange of Thakur et al. 2005 one.
        latency_factor: on the catalogue's latencies.
        codec_cores: cores of a CPU that a rank's codec has; no device says how many it has.
        protocols: of the engine's collectives on anything but a CPU.
        overlap_penalty: share of the time in which exchange and compute work at once that is lost to both: the kernels that
            move messages take multiprocessors and memory bandwidth. 0 hides all of it, 1 none.
        straggler_spread: standard deviation of the workers' compute times in one step, relative to their mean.
        time_factor: on the seconds of layers and optimizer; 1 unless the rate of one device is known (validation).
    """

    matmul_share: float
    vector_share: float
    matrix_share: float
    winograd: float
    half_s: float
    memory_share: float
    launch_s: Mapping[str, float]
    link_share: Mapping[str, float]
    concurrent_messages: int
    latency_factor: float
    time_factor: float = 1.0
    codec_cores: float = 1
    protocols: tuple[Protocol, ...] = BARE
    overlap_penalty: float = 0.0
    straggler_spread: float = 0.0

    def timed(self, factor: float) -> Efficiency:
        """These efficiencies with every second of layers and optimizer multiplied by ``factor``."""
        return replace(self, time_factor=self.time_factor * factor)


def _kinds(pcie: float, nvlink: float, ethernet: float, infiniband: float, loopback: float) -> Mapping[str, float]:
    """Link shares by kind; fabric and ici are taken to be like NVLink, the nearest thing that was measured."""
    return MappingProxyType(
        {
            "pcie": pcie,
            "nvlink": nvlink,
            "fabric": nvlink,
            "ici": nvlink,
            "ethernet": ethernet,
            "infiniband": infiniband,
            "loopback": loopback,
            "memory": loopback,
        }
    )


def _launch(gpu: float, cpu: float) -> Mapping[str, float]:
    """Seconds per operation; a TPU or accelerator runs a compiled program, still counted as a GPU's launches."""
    return MappingProxyType({"gpu": gpu, "tpu": gpu, "accelerator": gpu, "cpu": cpu})


# Compute and memory were chosen by hand, few round numbers, on 43 published single-GPU training rates (ResNet-50, VGG-16,
# AlexNet, BERT large at 128 tokens; K80, P100, V100, RTX 3090, A100; TensorFlow benchmarks 2017, Lambda, NVIDIA
# DeepLearningExamples). TYPICAL misses them by 17 % in the median; 32 lie within 30 %, 40 between LOW and HIGH. It is
# too fast for ResNet-50 on the K80 (2x) and for ill-tuned mixed precision on the A100 (1.7x).
# Links are estimates: TCP/IP over Ethernet carries at most 0.94 of the line (1448 bytes of data in a frame of 1538);
# 8 H100 on NVLink 4 (450 GB/s) reach a bus bandwidth of 466 GB/s with sums in the switch (NVIDIA dgxc-benchmarking), which
# bounds HIGH; gloo reaches 0.94 between four hosts at 1 Gb/s (100 MB in 1.28 s). The other shares are unmeasured.
LOW = Efficiency(
    matmul_share=0.65,
    vector_share=0.7,
    matrix_share=0.4,
    winograd=1.0,
    half_s=20e-6,
    memory_share=0.36,
    launch_s=_launch(10e-6, 20e-6),
    link_share=_kinds(pcie=0.45, nvlink=0.55, ethernet=0.6, infiniband=0.6, loopback=0.5),
    concurrent_messages=1,
    latency_factor=2.0,
    codec_cores=1,
    protocols=NCCL,
)
TYPICAL = Efficiency(
    matmul_share=0.85,
    vector_share=0.9,
    matrix_share=0.65,
    winograd=1.5,
    half_s=5e-6,
    memory_share=0.62,
    launch_s=_launch(5e-6, 8e-6),
    link_share=_kinds(pcie=0.7, nvlink=0.8, ethernet=0.94, infiniband=0.85, loopback=0.8),
    concurrent_messages=8,
    latency_factor=1.0,
    codec_cores=4,
    protocols=NCCL,
)
HIGH = Efficiency(
    matmul_share=0.97,
    vector_share=0.97,
    matrix_share=0.9,
    winograd=2.25,
    half_s=2e-6,
    memory_share=0.92,
    launch_s=_launch(2e-6, 3e-6),
    link_share=_kinds(pcie=0.85, nvlink=1.0, ethernet=0.94, infiniband=0.97, loopback=1.0),
    concurrent_messages=32,
    latency_factor=0.6,
    codec_cores=16,
    protocols=NCCL,
)
