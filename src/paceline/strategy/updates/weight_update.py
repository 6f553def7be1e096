"""Update of the weights: how the optimizer's kernels run, and the types of stored weights and state.

Sources: PyTorch, ``torch.optim`` (``foreach``, ``fused``) and the tutorial on optimizer steps fused into the backward pass; Lv
et al. 2023, LOMO, arXiv:2306.09782; torchtune, ``optimizer_in_bwd`` and full fine-tuning in bf16; Zamirai et al. 2020,
Revisiting BFloat16 Training, arXiv:2010.06192 (stochastic rounding, Kahan summation); Megatron-Core,
``--use-precision-aware-optimizer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import EmitRule, Need, Searched, Trained, check_needs, check_values, choice
from paceline.strategy.choices.choice_values import Bits, Flag, Name
from paceline.strategy.frameworks import Framework
from paceline.strategy.optimizer import BLOCK, OPTIMIZERS, Optimizer
from paceline.strategy.sharding import DDP, DISTRIBUTED, ZERO1

LOOPED, FOREACH, FUSED_KERNEL, IN_BACKWARD = "looped", "foreach", "fused", "in_backward"
UPDATES: Mapping[str, str] = {
    LOOPED: "one tensor after the other, each operation a kernel",
    FOREACH: "each operation a kernel over many tensors",
    FUSED_KERNEL: "one kernel for the whole step of many tensors",
    IN_BACKWARD: "each tensor as soon as its gradient is complete, in the backward pass",
}
"""How the kernels of an optimizer step run."""
_UPDATE_ALIASES = {"for_loop": LOOPED, "optimizer_in_bwd": IN_BACKWARD, "in_bwd": IN_BACKWARD, "lomo": IN_BACKWARD}
BF16, STOCHASTIC, KAHAN = "bf16", "bf16_stochastic", "bf16_kahan"
STORED: Mapping[str, str] = {
    BF16: "weights, gradients and state in bf16, without fp32 copies",
    STOCHASTIC: "the same, with stochastic rounding of updated weights",
    KAHAN: "the same, with a bf16 sum of the rounding errors of each weight",
}
"""Types of stored weights, other than the fp32 weights of mixed precision."""
_STORED_ALIASES = {"bf16_true": BF16, "pure_bf16": BF16, "bf16_sr": STOCHASTIC, "kahan": KAHAN}
STATE_BITS = (0, 8, 16, 32)
EMA_BYTES, _EMA_KERNELS = 4, 3
_NARROW = 2
"""Bytes of a bf16 number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightUpdate:
    """Update of the weights.

    Attributes:
        update: how the optimizer's kernels run, a name of ``UPDATES``; empty: the software's way (``usual_update``).
        stored_weights: type of weights, gradients and optimizer state, a name of ``STORED``; empty: fp32 weights, with 16-bit
            copies in mixed precision.
        state_bits: bits of a value of Adam's moments; 0: those of the optimizer.
        ema: whether a step also updates an fp32 copy of the trained weights, their exponential moving average.

    Raises:
        UserError: a name or a number that does not exist.
    """

    update: str = choice(
        "",
        Name("update", UPDATES, _UPDATE_ALIASES, optional=True),
        "how the optimizer's kernels run: {legal} (default {default})",
        rule="the framework's own",
        metavar="U",
        topic="run",
        example=IN_BACKWARD,
        later=True,
        title="update {value}",
        title_rank=6,
        affects=("time", "memory"),
        plan=Searched(single=True, help="{help}"),
        train=Trained("update {value}", "leave update out: train steps as torch.optim does by default"),
        emit=EmitRule("update {value}", "it is not written here", by_scripts=lambda update: not update.in_backward),
        strategy_needs=(lambda s: check_update(s),),
        synonyms=tool_names.UPDATE,
        source="PyTorch, torch.optim; Lv et al. 2023, arXiv:2306.09782",
    )
    stored_weights: str = choice(
        "",
        Name("stored weights", STORED, _STORED_ALIASES, optional=True),
        "type of stored weights, gradients and optimizer state: {legal} (default {default})",
        rule="fp32, with 16-bit copies in mixed precision",
        metavar="T",
        example=BF16,
        later=True,
        title="weights stored in {value}",
        title_rank=6,
        affects=("exchange", "bytes", "time", "memory", "numerics"),
        plan=Searched(single=True, help="{help}"),
        train=Trained(
            "stored_weights {value}",
            f"give {BF16}, or leave stored_weights out: torch.optim rounds to the nearest",
            runs=lambda update: update.stored_weights == BF16,
            option=True,
            read_as="narrow",
        ),
        emit=EmitRule("stored weights {value}", "the script converts its model"),
        strategy_needs=(lambda s: check_stored(s),),
        source="Zamirai et al. 2020, arXiv:2010.06192; torchtune, full fine-tuning",
    )
    state_bits: int = choice(
        0,
        Bits(STATE_BITS),
        "bits of a value of Adam's moments: {legal} (default {default}: as the optimizer has them)",
        metavar="N",
        example="16",
        later=True,
        title="optimizer state in {value} bits",
        title_rank=6,
        affects=("time", "memory", "numerics"),
        plan=Searched(single=True, help="{help}"),
        train=Trained("state_bits {value}", "leave state_bits out: train keeps torch.optim's state"),
        synonyms=tool_names.STATE_BITS,
        emit=EmitRule("state_bits {value}", "the types of the moments are not written here"),
        strategy_needs=(
            Need(
                lambda s: not s.optimizer or OPTIMIZERS[s.optimizer].is_adam,
                "state_bits {value} of optimizer {of.optimizer}",
                "give optimizer adam or adamw, or leave state_bits out",
            ),
            Need(
                lambda s: not s.parallelism.offload.optimizer,
                "state_bits {value} with offload {of.parallelism.offload}: the host updates fp32 state",
                "leave one of them out",
            ),
            Need(
                lambda s: s.weight_update.update in ("", FUSED_KERNEL),
                "state_bits {value} with update {of.weight_update.update}: kernels of a whole step alone convert state",
                "give update fused, or leave update out",
            ),
        ),
        source="Megatron-Core, --use-precision-aware-optimizer, --exp-avg-dtype",
    )
    ema: bool = choice(
        False,
        Flag(),
        "an fp32 copy of the trained weights averages them over the steps",
        example="yes",
        later=True,
        title="EMA of the weights",
        title_rank=6,
        affects=("time", "memory"),
        plan=Searched(single=True, help="{help}"),
        train=Trained("ema", "leave ema out: average the weights in your own script"),
        emit=EmitRule("ema", "the script averages its own weights"),
        strategy_needs=(
            Need(
                lambda s: not s.parallelism.offload,
                "an EMA of the weights with offload {of.parallelism.offload}: the host has the weights",
                "leave one of them out",
            ),
        ),
        source="Polyak and Juditsky 1992; diffusers, training_utils.py, EMAModel",
    )

    def __post_init__(self) -> None:
        check_values(self)
        check_needs(self)

    @property
    def in_backward(self) -> bool:
        """True if each tensor is updated in the backward pass, and its gradient freed."""
        return self.update == IN_BACKWARD

    @property
    def narrow(self) -> bool:
        """True if weights, gradients and state are stored in bf16 alone."""
        return bool(self.stored_weights)

    @property
    def width(self) -> int:
        """Bytes of a stored weight, of its gradient and of a value of state, unless ``narrow`` and ``state_bits`` say less."""
        return _NARROW if self.narrow else 4

    @property
    def compensation_bytes(self) -> int:
        """Bytes a parameter of the sums of rounding errors."""
        return _NARROW if self.stored_weights == KAHAN else 0

    def ema_cost(self, tensors: int, level: str, together: int) -> tuple[float, int]:
        """Return the bytes for each parameter and the kernels of a step of the moving average; zero without one.

        A step reads the weight, and reads and writes the average. Loops over tensors take a difference, a product and a sum of
        each (diffusers, ``EMAModel.step``); tuned software has kernels of many tensors.
        """
        if not self.ema:
            return 0.0, 0
        return self.width + 2 * EMA_BYTES, _EMA_KERNELS * (-(-tensors // together) if level == "tuned" else tensors)

    def value_bytes(self, optimizer: Optimizer) -> float:
        """Return the bytes of one value of state of a large tensor, with its part of a scale."""
        if optimizer.state_bits == 8:
            return 1 + 4 / BLOCK
        return 4.0 if optimizer.wide_state else self.state_bits / 8 or float(self.width)

    def least_state_bytes(self, optimizer: Optimizer) -> float:
        """Return a lower bound on the bytes of state for each parameter of a network."""
        return 0.0 if optimizer.factored else optimizer.state_words * self.value_bytes(optimizer)

    def way(self, optimizer: Optimizer, framework: Framework) -> str:
        """Return how the kernels run: as chosen, or the software's way."""
        return self.update or usual_update(optimizer, framework)

    def moved_bytes(self, optimizer: Optimizer, framework: Framework) -> float:
        """Return the bytes that a step reads and writes for each parameter.

        Separate operations read and write in the type of the weights. Adafactor works in fp32, on copies of bf16 weights and
        gradients (transformers, ``optimization.py``).
        """
        way, words, sums = self.way(optimizer, framework), optimizer.separate[0], 2 * self.compensation_bytes
        if optimizer.factored:
            return 4 * words + (3 * (4 + self.width) if self.narrow else 0) + sums
        if way and way != FUSED_KERNEL and words:
            return self.width * words + sums
        of_state = 2 * optimizer.state_words
        return self.width * (optimizer.moved_words - of_state) + self.value_bytes(optimizer) * of_state + sums

    def kernels(self, optimizer: Optimizer, tensors: int, framework: Framework, together: int) -> int:
        """Return the kernels of a step of ``tensors`` tensors. ``together``: tensors that one kernel of several updates."""
        way, groups = self.way(optimizer, framework), -(-tensors // together)
        if not way:
            return optimizer.ops * (groups if framework.level == "tuned" else tensors)
        each = optimizer.separate[1] or optimizer.ops
        return {FOREACH: each * groups, FUSED_KERNEL: groups}.get(way, each * tensors)


PLAIN_UPDATE = WeightUpdate()
TRAINED_OPTIMIZERS = Trained(
    "optimizer {value}",
    f"train with {', '.join(name for name, of in OPTIMIZERS.items() if of.trained)}; take the others in your own script",
    runs=lambda strategy: not strategy.optimizer or OPTIMIZERS[strategy.optimizer].trained,
    option=True,
)
"""Optimizers that ``train`` runs."""


def usual_update(optimizer: Optimizer, framework: Framework) -> str:
    """Return how the software runs the optimizer's kernels by default.

    It is the framework's default if the optimizer has it. Software with one way alone runs that. For others the answer is
    empty: kernels of a whole step, launched for each tensor in ordinary software and for groups of tensors in tuned software,
    as the constants were fitted.
    """
    if (default := framework.defaults.get("update", "")) in optimizer.ways:
        return str(default)
    return optimizer.ways[0] if optimizer.ways and FOREACH not in optimizer.ways else ""


def check_update(strategy: Any) -> None:
    """Raise UserError if the optimizer's software does not have the update, or the strategy needs all gradients at once."""
    mesh, way = strategy.parallelism, strategy.weight_update.update
    if strategy.optimizer and way not in (ways := OPTIMIZERS[strategy.optimizer].ways):
        legal = f"give one of {', '.join(ways)}, or leave update out" if ways else "leave update out"
        raise UserError(f"update {way} of optimizer {strategy.optimizer}", legal)
    if mesh.offload.optimizer:
        raise UserError(f"update {way} with offload {mesh.offload}, where the host updates", "leave one of them out")
    if way != IN_BACKWARD:
        return
    shares = "zero2 or zero3" if mesh.replica_count > 1 else ""
    for refused, what, fix in (
        (not mesh.whole, "a network that several devices hold together", "divide it no further than by data"),
        (mesh.micro_batches > 1, f"{mesh.micro_batches} micro steps, whose gradients add up first", "give grad_accum_steps=1"),
        (
            shares and not mesh.sharding.weights,
            f"{mesh.sharding}, which holds all gradients in buckets",
            f"give sharding {shares}",
        ),
        (not strategy.gradient_exchange.is_plain, f"{strategy.gradient_exchange}", "leave the compression out"),
        (strategy.sync_every > 1, f"sync_every {strategy.sync_every}", "leave sync_every out"),
        (strategy.precision == "fp16", "fp16, which checks all gradients for overflows first", "give precision bf16"),
    ):
        if refused:
            raise UserError(f"an update in the backward pass with {what}", fix)


def check_stored(strategy: Any) -> None:
    """Raise UserError for a strategy that stores fp32 weights or state."""
    mesh, what = strategy.parallelism, f"weights stored in {strategy.weight_update.stored_weights}"
    for refused, other, fix in (
        (strategy.precision != "bf16", f"precision {strategy.precision}", "give precision bf16"),
        (not mesh.whole, "a network that several devices hold together", "divide it no further than by data"),
        (
            mesh.sharding in (ZERO1, DISTRIBUTED),
            f"{mesh.sharding}, which shares out fp32 weights",
            f"give {DDP}, zero2 or zero3",
        ),
        (mesh.offload.optimizer, f"offload {mesh.offload}, where the host has fp32 weights", "leave one of them out"),
        (not strategy.gradient_exchange.is_plain, f"{strategy.gradient_exchange}", "leave the compression out"),
        (strategy.sync_every > 1, f"sync_every {strategy.sync_every}", "leave sync_every out"),
    ):
        if refused:
            raise UserError(f"{what} with {other}", fix)


def check_optimizer(strategy: Any) -> None:
    """Raise UserError for an optimizer whose software does not go with the division of the network or of its state."""
    optimizer, mesh = OPTIMIZERS[strategy.optimizer], strategy.parallelism
    if optimizer.plain:
        return
    name = optimizer.name
    if mesh.offload.optimizer:
        raise UserError(f"offload {mesh.offload} of {name}: the host updates fp32 state", "give adamw, or leave offload out")
    if optimizer.paged and not mesh.whole:
        raise UserError(f"{name} of a network that several devices hold together", "divide it no further than by data")
    if optimizer.orthogonal:
        if mesh.sharding.weights and not mesh.whole:
            raise UserError(
                f"{name} with {mesh.sharding} of a network that several devices hold together",
                "give zero1, in which each replica updates whole matrices, or ddp",
            )
    elif mesh.real_sharding is DISTRIBUTED:
        raise UserError(f"{name} with Megatron-Core's distributed optimizer", "give adam, adamw, momentum, sgd or muon")
