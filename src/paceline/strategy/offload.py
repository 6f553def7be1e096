"""Offload of training state and of activations from the device's memory to the host's.

One choice says what is in the host's memory: ``none``, ``optimizer`` or ``weights+optimizer``, each alone or with
``activations`` or ``checkpoints``. State that is on a disk (NVMe) is not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Any, ClassVar, final

from paceline.errors import UserError, shown
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import WRITTEN, EmitRule, Need, Searched, Trained, choice
from paceline.strategy.choices.choice_values import OneOf, WholeNumber
from paceline.strategy.choices.values import Value


class Offload(Value):
    """Training state and activations that are in the host's memory. It is false if everything is on the device.

    Attributes:
        optimizer: True for optimizer state and fp32 master weights, which the host updates.
        weights: True for the shares of the weights too, which are copied to the device before each all-gather.
        activations: True for what the blocks store for the backward pass.
        checkpoints: True for the inputs of recomputed blocks alone.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    optimizer: ClassVar[bool] = False
    weights: ClassVar[bool] = False
    activations: ClassVar[bool] = False
    checkpoints: ClassVar[bool] = False

    def __bool__(self) -> bool:
        return self.optimizer or self.passes

    @property
    def passes(self) -> bool:
        """True if something that the forward pass stores is in the host's memory."""
        return self.activations or self.checkpoints


@final
class NoOffload(Offload):
    """No offload: everything is on the device."""

    __slots__ = ()
    name = "none"


@final
class OffloadOptimizer(Offload):
    """Offload of the optimizer: each worker's host updates its part (Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840)."""

    __slots__ = ()
    name = "optimizer"
    optimizer = True


@final
class OffloadWeights(Offload):
    """Offload of the optimizer and the weights to each worker's host (Rajbhandari et al. 2021, ZeRO-Infinity, arXiv:2104.07857;
    PyTorch FSDP, ``CPUOffload``).
    """

    __slots__ = ()
    name = "weights+optimizer"
    optimizer = weights = True


@final
class OffloadActivations(Offload):
    """Offload of all that the blocks store: copied in the forward, and back in the backward pass (Megatron-Core,
    ``cpu_offloading``; torchtune, ``enable_activation_offloading``; MaxText, ``remat_policy`` with ``offload``; PyTorch,
    ``save_on_cpu``).
    """

    __slots__ = ()
    name = "activations"
    activations = True


@final
class OffloadCheckpoints(Offload):
    """Offload of the inputs of recomputed blocks (Unsloth's gradient checkpointing; axolotl, ``gradient_checkpointing:
    offload``; DeepSpeed, ``cpu_checkpointing``).
    """

    __slots__ = ()
    name = "checkpoints"
    checkpoints = True


@final
class OffloadOptimizerActivations(Offload):
    """Offload of the optimizer and of what the blocks store."""

    __slots__ = ()
    name = "optimizer+activations"
    optimizer = activations = True


@final
class OffloadOptimizerCheckpoints(Offload):
    """Offload of the optimizer and of the inputs of recomputed blocks."""

    __slots__ = ()
    name = "optimizer+checkpoints"
    optimizer = checkpoints = True


@final
class OffloadWeightsActivations(Offload):
    """Offload of the optimizer, the weights and what the blocks store."""

    __slots__ = ()
    name = "weights+optimizer+activations"
    optimizer = weights = activations = True


@final
class OffloadWeightsCheckpoints(Offload):
    """Offload of the optimizer, the weights and the inputs of recomputed blocks."""

    __slots__ = ()
    name = "weights+optimizer+checkpoints"
    optimizer = weights = checkpoints = True


NO_OFFLOAD, OFFLOAD_OPTIMIZER, OFFLOAD_WEIGHTS = NoOffload(), OffloadOptimizer(), OffloadWeights()
OFFLOAD_ACTIVATIONS, OFFLOAD_CHECKPOINTS = OffloadActivations(), OffloadCheckpoints()
for _combined in (
    OffloadOptimizerActivations,
    OffloadOptimizerCheckpoints,
    OffloadWeightsActivations,
    OffloadWeightsCheckpoints,
):
    _combined()
OFFLOADS: Mapping[str, Offload] = MappingProxyType(Offload.known)
"""All offloads by name."""


def _spellings() -> Mapping[str, str]:
    """Return the names of combinations with their parts in another order."""
    orders = {"+".join(parts): name for name in OFFLOADS for parts in permutations(name.split("+")) if "+" in name}
    return MappingProxyType({text: name for text, name in orders.items() if text not in OFFLOADS})


ALIASES = _spellings()
"""Other spellings of combinations, such as ``activations+optimizer``."""


@dataclass(frozen=True, slots=True)
class HostActivations:
    """Blocks that keep activations in the host's memory.

    Attributes:
        checkpoints: True for the inputs of recomputed blocks alone, False for all that blocks store.
        layers: blocks that do; 0: all of them.
    """

    checkpoints: bool = False
    layers: int = 0


def host_activations(offload: Offload, layers: int) -> HostActivations | None:
    """Return what blocks keep in the host's memory; None for nothing."""
    return HostActivations(offload.checkpoints, layers) if offload.passes else None


@dataclass(frozen=True, slots=True)
class _Offloads(OneOf):
    """The offloads. An error says why one to a disk is missing."""

    def check(self, value: Any, name: str) -> Any:
        if isinstance(value, str) and any(word in value.casefold() for word in ("nvme", "disk", "ssd")):
            raise UserError(f"offload {shown(value)}: the rate of disks is not modelled", f"give one of {', '.join(OFFLOADS)}")
        return OneOf.check(self, ALIASES.get(value, value) if isinstance(value, str) else value, name)

    def parse(self, text: str, name: str) -> str:
        return str(self.check(text, name))


OFFLOAD_CHOICE = choice(
    NO_OFFLOAD,
    _Offloads("offload", OFFLOADS, exact=True, few=len(OFFLOADS)),
    "what lies in the host's memory: {legal} (default {default})",
    title="{value} in host memory",
    listed_by_name=True,
    topic="memory",
    metavar="O",
    example="optimizer",
    rule="none, or as the framework's examples",
    needs=(
        Need(
            lambda mesh: not mesh.offload.weights or mesh.sharding.weights,
            "offload of weights with sharding {of.sharding}, which holds them whole",
            "give sharding zero3",
        ),
        Need(
            lambda mesh: not mesh.offload.checkpoints or mesh.recompute.whole_blocks,
            "offload of checkpoints with recompute {of.recompute}: only recomputed blocks have some",
            "give recompute full, or offload activations",
        ),
    ),
    plan=Searched(help="{help}; may be repeated"),
    train=Trained("offload {value}", "use FSDP's CPUOffload or DeepSpeed in your own script"),
    synonyms=tool_names.OFFLOAD,
    source="Ren et al. 2021, arXiv:2101.06840; Rajbhandari et al. 2021, arXiv:2104.07857; Megatron-Core, cpu_offloading",
    affects=("exchange", "time", "memory"),
    emit=WRITTEN,
    detour=True,
)
"""Choice of the offload, a field of ``Parallelism``."""
OFFLOAD_LAYERS = choice(
    0,
    WholeNumber("layers whose activations are offloaded", 0),
    "blocks of each stage whose activations or checkpoints are offloaded (default {default}: all)",
    topic="memory",
    metavar="L",
    example="4",
    needs=(
        Need(
            lambda mesh: mesh.offload.passes,
            "{value} layers with activations in the host's memory without such an offload",
            "give offload activations too",
        ),
    ),
    source="Megatron-Core, cpu_offloading_num_layers",
    synonyms=tool_names.OFFLOAD_LAYERS,
    affects=("time", "memory"),
    later=True,
    emit=EmitRule("offload_layers {value}", "what lies in the host's memory is not written here"),
)
"""Choice of the number of blocks, a field of ``Parallelism``."""
