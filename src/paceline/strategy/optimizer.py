"""Descriptions of optimizers, with the state and the memory traffic per parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Optimizer, with the cost of one step.

    Sources: Kingma and Ba 2015, algorithm 1 (Adam); Loshchilov and Hutter 2019, algorithm 2 (AdamW); You et al. 2017 (LARS);
    You et al. 2020 (LAMB). LARS and LAMB take two passes (``training/optimizers/``): the first reads for the norms, the second
    reads again and writes.

    Attributes:
        state_words: fp32 values kept per parameter.
        moved_words: fp32 values read or written per parameter and step.
        ops: kernels per parameter tensor (unfused).
        lr: the default learning rate of ``paceline train``.
        options: its other options there, with their defaults (LARS: You et al. 2017, section 5).
        python: its class, by the name with which a script of PyTorch writes it.
        deepspeed: its name in a file of DeepSpeed; empty if that has none.
        layerwise: True if each layer has its own rate, from norms.
    """

    name: str
    state_words: int
    moved_words: int
    ops: int
    lr: float
    options: Mapping[str, float | str]
    python: str
    deepspeed: str = ""
    layerwise: bool = False

    @property
    def of_torch(self) -> str:
        """Its class in ``torch.optim``; empty for Paceline's own."""
        room, _, name = self.python.rpartition(".")
        return name if room == "torch.optim" else ""

    @property
    def is_adam(self) -> bool:
        """True for Adam with either kind of weight decay."""
        return self.of_torch.startswith("Adam")

    @property
    def needed(self) -> Mapping[str, float | str]:
        """Options without which PyTorch's class is another optimizer."""
        return {name: value for name, value in self.options.items() if self.of_torch == "SGD" and name == "momentum"}


OPTIMIZERS: Mapping[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer("sgd", 0, 3, 1, 0.05, {"weight_decay": 0.0}, "torch.optim.SGD", "SGD"),
        Optimizer("momentum", 1, 5, 2, 0.01, {"momentum": 0.9, "weight_decay": 0.0}, "torch.optim.SGD", "SGD"),
        Optimizer("adam", 2, 7, 6, 0.001, {"weight_decay": 0.0}, "torch.optim.Adam", "Adam"),
        Optimizer("adamw", 2, 7, 7, 0.001, {"weight_decay": 0.01}, "torch.optim.AdamW", "AdamW"),
        Optimizer(
            "lars", 1, 7, 9, 2.0, {"variant": "paper", "momentum": 0.9, "weight_decay": 5e-4}, "paceline.LARS", layerwise=True
        ),
        Optimizer("lamb", 2, 11, 26, 0.01, {"variant": "paper", "weight_decay": 0.01}, "paceline.LAMB", "Lamb", layerwise=True),
    )
}


PUBLISHED: Mapping[str, str] = {
    "dlrm": "sgd",
    "gnmt": "adam",
    "rgat": "adam",
    "rnnt": "lamb",
    "tacotron2": "adam",
    "waveglow": "adam",
}
"""Published optimizers of networks. Sources: MLPerf training, reference implementations of DLRM and GNMT (v0.7),
RNN-T (v1.0) and R-GAT (v4.0); Shen et al. 2018 (Tacotron 2), section 3.1; Prenger et al. 2019 (WaveGlow), section 3."""
DEFAULT = (
    f"as published for {', '.join(sorted(PUBLISHED))}, else adam for networks of attention, scans or token sequences and "
    "momentum for others"
)
"""Rule of ``usual_optimizer``."""


def usual_optimizer(workload: Workload | None) -> str:
    """Return the common optimizer for a network: that of ``PUBLISHED``, else by the rule in ``DEFAULT``.

    Args:
        workload: the network; None if it is unknown: ``momentum``.
    """
    if workload is None:
        return "momentum"
    return PUBLISHED.get(workload.name) or ("adam" if workload.on_sequences else "momentum")
