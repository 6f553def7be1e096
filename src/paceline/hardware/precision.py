"""Precisions of arithmetic, and recipes that quantise the operands of products to fewer than 16 bits.

With a recipe the products of layers read quantised operands and write bf16; all else is bf16: convolutions, attention, the
logits, norms, and the operations between them (Micikevicius et al. 2022, arXiv:2209.05433, section 4).

Sources: NVIDIA, Transformer Engine 2.19, Low precision training (one page for each recipe: data format, handling transposes,
quantized all-gather); OCP Microscaling Formats v1.0 (blocks of 32); DeepSeek-AI 2024, arXiv:2412.19437, section 3.3 (blocks of
128); NVIDIA 2025, Pretraining LLMs with NVFP4, arXiv:2509.25149, section 4 (blocks of 16, Hadamard transforms).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paceline.names import fold, look_up

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "float32": "fp32",
        "float": "fp32",
        "single": "fp32",
        "f32": "fp32",
        "tensorfloat32": "tf32",
        "bfloat16": "bf16",
        "bf16-mixed": "bf16",
        "float16": "fp16",
        "half": "fp16",
        "f16": "fp16",
        "fp16-mixed": "fp16",
        "16-mixed": "fp16",
        "float8": "fp8",
        "fp8-delayed": "fp8",
        "amp": "bf16",
        "mixed": "bf16",
        "autocast": "bf16",
    }
)
"""Other names of a precision; those of mixed precision mean bf16 (``precision_on``)."""
MIXED = ("amp", "mixed", "autocast")
WIDE = "bf16"
"""Precision of everything that a recipe does not quantise."""
DELAYED = "fp8"
"""Recipe whose scales are those of the steps before."""
_HALF = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisationRecipe:
    """Recipe for quantised operands. Every operand is cast once and used in two of a layer's three products.

    Attributes:
        title: for people.
        peak: the precision of the datasheet whose peak the products have.
        width: bytes of an element; ``scales`` those of the scales that go with it.
        reads, weight_reads: how often a cast reads the 16-bit tensor: of activations and gradients, and of weights. A scale
            from the tensor itself takes an additional pass (``amax``) before the cast.
        twice: whether rows and columns are scaled on their own, so that each tensor is always written twice; else the second
            copy is a transpose, which only matrix units that read one layout need.
        gathers_weights: whether weights can be gathered quantised (Megatron-Core, ``fp8_param_gather``). Copies with separate
            scales for rows and columns are made on arrival.
        architectures: further ones with the recipe, in addition to those with the peak; empty: all.
    """

    title: str
    peak: str
    width: float
    scales: float = 0.0
    reads: int = 1
    weight_reads: int = 1
    twice: bool = True
    gathers_weights: bool = False
    architectures: tuple[str, ...] = ()

    @property
    def operand(self) -> float:
        """Bytes of one element of an operand, including its scales."""
        return self.width + self.scales

    def copies(self, architecture: str) -> int:
        """Copies of each quantised tensor, by rows and by columns."""
        return 2 if self.twice or architecture not in ANY_LAYOUT else 1

    def cast_bytes(self, architecture: str, *, weight: bool) -> float:
        """Bytes moved for each element that is cast."""
        reads = self.weight_reads if weight else self.reads
        return _HALF * reads + self.copies(architecture) * self.operand

    def kernels(self, *, weight: bool) -> int:
        """Number of kernels of a cast, one for each read."""
        return self.weight_reads if weight else self.reads


ANY_LAYOUT = ("Blackwell",)
"""Architectures whose matrix units take 8-bit operands in any layout, so that they need no transpose (Transformer Engine,
Performance considerations, Handling transposes)."""
RECIPES: Mapping[str, QuantisationRecipe] = MappingProxyType(
    {
        DELAYED: QuantisationRecipe(
            title="8 bits, one scale a tensor from the steps before (delayed scaling)",
            peak="fp8",
            width=1.0,
            twice=False,
            gathers_weights=True,
        ),
        "fp8-current": QuantisationRecipe(
            title="8 bits, one scale a tensor from the tensor itself (current scaling)",
            peak="fp8",
            width=1.0,
            reads=2,
            weight_reads=2,
            twice=False,
            gathers_weights=True,
        ),
        "fp8-block": QuantisationRecipe(
            title="8 bits, an fp32 scale for 128 numbers, for 128 x 128 of a weight",
            peak="fp8",
            width=1.0,
            scales=4 / 128,
            architectures=("Hopper", "Blackwell"),
        ),
        "mxfp8": QuantisationRecipe(title="8 bits, an 8-bit scale for 32 numbers", peak="mxfp8", width=1.0, scales=1 / 32),
        # Activations and gradients: the largest value as it is and rotated, in one pass; in another the cast by rows, and the
        # rotated one by columns for the gradient of the weight (Transformer Engine #2555, of early 2026). Weights are scaled by
        # squares: the largest value, then both copies.
        "nvfp4": QuantisationRecipe(
            title="4 bits, an 8-bit scale for 16 numbers, one a tensor, and Hadamard transforms",
            peak="nvfp4",
            width=0.5,
            scales=1 / 16,
            reads=2,
            weight_reads=2,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Precision:
    """Precision of the arithmetic.

    Attributes:
        dtype: PyTorch's type of what mixed precision computes in 16 bits; empty for fp32 numbers. Recipes leave it in bf16.
        bytes: bytes of one element that a layer keeps or passes on.
        on_matrix_units: True if its products always run on matrix units.
        scales_loss: True if small gradients vanish, so that the loss is scaled.
    """

    dtype: str = "bfloat16"
    bytes: int = 2
    on_matrix_units: bool = True
    scales_loss: bool = False

    @property
    def full(self) -> bool:
        """True for fp32 products of fp32 numbers."""
        return not self.dtype and not self.on_matrix_units

    @property
    def truncates(self) -> bool:
        """True for fp32 numbers whose products run on matrix units (tf32)."""
        return not self.dtype and self.on_matrix_units


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp32": Precision("", 4, on_matrix_units=False),
        "tf32": Precision("", 4),
        "bf16": Precision(),
        "fp16": Precision("float16", on_matrix_units=False, scales_loss=True),
        **dict.fromkeys(RECIPES, Precision()),
    }
)
"""All precisions by name, the widest first."""
BYTES_PER_ELEMENT: Mapping[str, int] = MappingProxyType({name: precision.bytes for name, precision in PRECISIONS.items()})
"""Bytes of one element that a layer keeps or passes on."""


def precision_on(name: str, precisions: Collection[str]) -> str:
    """Return the precision that ``name`` means on a device with these ``precisions``. Mixed precision is bf16 if the device has
    it, else fp16. An unknown name is unchanged."""
    if fold(name) in MIXED and "bf16" not in precisions and "fp16" in precisions:
        return "fp16"
    return look_up(name, PRECISIONS, ALIASES) or name


def gathered_bytes(precision: str, bits: int) -> float:
    """Return the bytes of a weight that is sent in this number of bits: at least those of the precision, and 16 if its recipe
    needs them."""
    recipe = RECIPES.get(precision)
    least = recipe.operand if recipe is not None and recipe.gathers_weights else float(BYTES_PER_ELEMENT[precision])
    return max(bits / 8, least)
