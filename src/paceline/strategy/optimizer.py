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

    bitsandbytes has one kernel a tensor (``Optimizer2State``, ``Optimizer1State``; Dettmers et al. 2022, arXiv:2110.02861).
    Lion: Chen et al. 2023, arXiv:2302.06675, program 1. Adafactor: Shazeer and Stern 2018, arXiv:1804.04235, as
    ``transformers.optimization.Adafactor`` without a first moment. Muon: Jordan et al. 2024, as ``torch.optim.Muon``
    and ``training/optimizers/muon``, with the rate of AdamW (Liu et al. 2025, arXiv:2502.16982).

    Attributes:
        state_words: values kept per parameter, of ``state_bits`` bits; Muon's are those of a matrix.
        moved_words: fp32 values read or written per parameter and step by a kernel that does the whole step.
        ops: kernels per parameter tensor (unfused).
        lr: the default learning rate of ``paceline train``.
        options: its other options there, with their defaults (LARS: You et al. 2017, section 5).
        python: its class, by the name with which a script of PyTorch writes it.
        deepspeed: its name in a file of DeepSpeed; empty if that has none.
        huggingface: its name in ``TrainingArguments.optim`` of transformers; empty if that has none.
        layerwise: True if each layer has its own rate, from norms.
        separate: the same values moved, and kernels per tensor, if each operation of PyTorch is one kernel.
        ways: updates that its software has, names of ``UPDATES``.
        state_bits: bits of a value of state: 8 in blocks of ``BLOCK`` values that share an fp32 scale.
        paged: True if its state is in unified memory, so that the driver moves it to the host when the device is full.
        factored: True if the second moment of a matrix is kept as sums of its rows and columns, in fp32.
        orthogonal: True if it orthogonalizes the update of each matrix in a block, and AdamW updates all other tensors.
        wide_state: True if its state is fp32 next to bf16 weights too.
        trained: True if ``train`` runs it.
    """

    name: str
    state_words: int
    moved_words: int
    ops: int
    lr: float
    options: Mapping[str, float | str]
    python: str
    deepspeed: str = ""
    huggingface: str = ""
    layerwise: bool = False
    separate: tuple[int, int] = (0, 0)
    ways: tuple[str, ...] = ()
    state_bits: int = 32
    paged: bool = False
    factored: bool = False
    orthogonal: bool = False
    wide_state: bool = False
    trained: bool = True

    @property
    def plain(self) -> bool:
        """True if it keeps equally many fp32 values of every parameter."""
        return self.state_bits == 32 and not (self.paged or self.factored or self.orthogonal)

    @property
    def of_torch(self) -> str:
        """Its class in ``torch.optim``; empty for Paceline's own."""
        room, _, name = self.python.rpartition(".")
        return name if room == "torch.optim" else ""

    @property
    def is_adam(self) -> bool:
        """True for PyTorch's Adam with either kind of weight decay."""
        return self.of_torch in ("Adam", "AdamW")

    @property
    def needed(self) -> Mapping[str, float | str]:
        """Options without which PyTorch's class is another optimizer."""
        return {name: value for name, value in self.options.items() if self.of_torch == "SGD" and name == "momentum"}


BLOCK = 256
"""Values of 8-bit state that share an fp32 scale (bitsandbytes, ``functional.py``, ``optimizer_update_8bit_blockwise``)."""
LEAST_8BIT = 4096
"""Elements of a tensor from which its state has 8 bits (bitsandbytes, ``optim/optimizer.py``, ``min_8bit_size``)."""
TORCH_WAYS = ("looped", "foreach", "fused", "in_backward")
_ONE_BY_ONE = ("looped", "in_backward")
"""Updates of software that updates one tensor after the other."""


def _of_bitsandbytes(
    name: str, kind: str, words: int, bits: int, lr: float, paged: bool = False, deepspeed: str = "", huggingface: str = ""
) -> Optimizer:
    """Return an optimizer of bitsandbytes, whose kernel reads and writes each value once."""
    options: dict[str, float | str] = {"weight_decay": 0.01 if words == 2 else 0.0}
    python = f"bitsandbytes.optim.{kind}"
    return Optimizer(
        name,
        words,
        3 + 2 * words,
        1,
        lr,
        options,
        python,
        deepspeed,
        huggingface or name,
        ways=_ONE_BY_ONE,
        state_bits=bits,
        paged=paged,
        wide_state=True,
        trained=False,
    )


ADAMW = Optimizer(
    "adamw",
    2,
    7,
    7,
    0.001,
    {"weight_decay": 0.01},
    "torch.optim.AdamW",
    "AdamW",
    "adamw_torch",
    separate=(21, 8),
    ways=TORCH_WAYS,
)
"""AdamW of PyTorch, which also updates the tensors that an optimizer of matrices leaves."""
OPTIMIZERS: Mapping[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer(
            "sgd", 0, 3, 1, 0.05, {"weight_decay": 0.0}, "torch.optim.SGD", "SGD", "sgd", separate=(3, 1), ways=TORCH_WAYS
        ),
        Optimizer(
            "momentum",
            1,
            5,
            2,
            0.01,
            {"momentum": 0.9, "weight_decay": 0.0},
            "torch.optim.SGD",
            "SGD",
            separate=(8, 3),
            ways=TORCH_WAYS,
        ),
        Optimizer("adam", 2, 7, 6, 0.001, {"weight_decay": 0.0}, "torch.optim.Adam", "Adam", separate=(19, 7), ways=TORCH_WAYS),
        ADAMW,
        Optimizer(
            "lars", 1, 7, 9, 2.0, {"variant": "paper", "momentum": 0.9, "weight_decay": 5e-4}, "paceline.LARS", layerwise=True
        ),
        Optimizer("lamb", 2, 11, 26, 0.01, {"variant": "paper", "weight_decay": 0.01}, "paceline.LAMB", "Lamb", layerwise=True),
        _of_bitsandbytes("adamw_8bit", "AdamW8bit", 2, 8, 0.001),
        _of_bitsandbytes("paged_adamw_8bit", "PagedAdamW8bit", 2, 8, 0.001, paged=True),
        _of_bitsandbytes("paged_adamw", "PagedAdamW32bit", 2, 32, 0.001, paged=True, huggingface="paged_adamw_32bit"),
        _of_bitsandbytes("lion", "Lion", 1, 32, 1e-4, deepspeed="Lion", huggingface="lion_32bit"),
        _of_bitsandbytes("lion_8bit", "Lion8bit", 1, 8, 1e-4),
        _of_bitsandbytes("paged_lion_8bit", "PagedLion8bit", 1, 8, 1e-4, paged=True),
        Optimizer(
            "adafactor",
            0,
            3,
            15,
            0.001,
            {"weight_decay": 0.0},
            "transformers.optimization.Adafactor",
            huggingface="adafactor",
            separate=(21, 15),
            ways=_ONE_BY_ONE,
            factored=True,
            wide_state=True,
            trained=False,
        ),
        Optimizer(
            "muon",
            1,
            5,
            7,
            0.001,
            {"momentum": 0.95, "weight_decay": 0.1},
            "paceline.Muon",
            "Muon",
            separate=(14, 7),
            ways=_ONE_BY_ONE,
            orthogonal=True,
        ),
    )
}
"""Optimizers by name. ``separate`` counts what operations of PyTorch 2.13 read and write, as a test does. Muon's leaves out the
products of the orthogonalization (``prediction/passes/orthogonal.py``)."""
OPTIMIZER_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(
        ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_hf", "adamw_apex_fused"),
        "adamw",
    ),
    **dict.fromkeys(("adam_8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw_8bit"),
    **dict.fromkeys(("paged_adam_8bit", "paged_adamw_bnb_8bit"), "paged_adamw_8bit"),
    **dict.fromkeys(("paged_adamw_32bit", "paged_adam"), "paged_adamw"),
    **dict.fromkeys(("lion_32bit", "lion_pytorch"), "lion"),
    **dict.fromkeys(("dist_muon", "muon_with_adamw"), "muon"),
    **dict.fromkeys(("sgd_momentum", "nesterov"), "momentum"),
}
"""Other names: those of Hugging Face's ``TrainingArguments.optim``, of bitsandbytes and of Megatron-Core. The choice ``update``
says if kernels are fused."""


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
