"""Frozen weights of 4 or 8 bits, and the kernels that unpack them in each pass.

4 bits: Dettmers et al. 2023, QLoRA, arXiv:2305.14314, section 3. Each pass through a product reads codes and writes weights of
16 bits for the product to read (bitsandbytes, ``autograd/_functions.py``, ``MatMul4Bit``). Recomputation unpacks them again.
8 bits: Dettmers et al. 2022, LLM.int8(), arXiv:2208.07339. The forward pass quantises what the product reads and multiplies
integers; only the backward pass unpacks the weights (``MatMul8bitLt``). Both keep what the product reads. Embeddings, output
layer, norms and convolutions stay as they are (transformers, ``integrations/bitsandbytes.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.workload.builders.adapters.lora import WIDE_BITS, LoRA
from paceline.workload.builders.adapters.targets import experts_of, product_of
from paceline.workload.builders.layer_builders import HALF, WORD, memory
from paceline.workload.layers import Layer, LayerTable, Operation

SCALE_BITS = 0.5
"""Bits of the scales for each code of 4 bits: 32 bits for a block of 64 (QLoRA, section 3)."""
DOUBLE_SCALE_BITS = 8 / 64 + 32 / (64 * 256)
"""The same with double quantisation: 8 bits for a block of 64, 32 bits for 256 of those, 0.127 in all (QLoRA, section 3)."""
ROW_SCALE_BITS = 32.0
"""Bits of the scale of each row of 8 bits (LLM.int8(), section 2)."""
SLOW = 2.1
"""Factor on the bytes of the kernel that unpacks 4 bits. Qi et al. 2026 (arXiv:2604.02556) make it 2.0 to 2.2 times as fast by
a better use of memory, so it reaches about half of the bandwidth that a plain copy does."""
_KERNELS = {False: 1, True: 3}
"""Kernels that unpack one weight: the codes, and with double quantisation the scales and their offset before
(bitsandbytes, ``functional.py``, ``dequantize_4bit``)."""
_OF_INTEGERS = 5.0
"""Kernels around a product of integers: cast, scales and codes of its input, outliers, sums to 16 bits."""


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Frozen weights of a network in few bits.

    Attributes:
        bits: bits of an element of frozen weights at the mean, with scales; 0 without codes.
        scale_bits: bits of scales among them, which a sharding of weights leaves on every device.
        largest: elements of the largest weight that is unpacked at once.
    """

    bits: float = 0.0
    scale_bits: float = 0.0
    largest: int = 0


def is_packed(layer: Layer, lora: LoRA) -> bool:
    """Return whether the weights of a layer are held in few bits: linear layers and experts, not the output layer."""
    return bool(lora.bits) and not layer.is_logits and (product_of(layer) or experts_of(layer)) is not None


def scale_bits(lora: LoRA, inputs: float) -> float:
    """Return bits of scales for each element of a weight with rows of ``inputs`` elements."""
    if lora.bits == 8:
        return ROW_SCALE_BITS / inputs
    return DOUBLE_SCALE_BITS if lora.double else SCALE_BITS


def packed_weights(table: LayerTable, lora: LoRA) -> PackedWeights:
    """Return the bits of the network's frozen weights."""
    if not lora.bits:
        return PackedWeights()
    elements = table.frozen + table.num_parameters
    codes = scales = 0.0
    packed = largest = 0
    for parameter in table.parameters:
        layer = table.layers[parameter.layer]
        product = product_of(layer) or experts_of(layer)
        if len(parameter.shape) >= 2 and is_packed(layer, lora) and product is not None:
            packed += parameter.size
            largest = max(largest, parameter.size)
            codes += parameter.size * lora.bits
            scales += parameter.size * scale_bits(lora, product.k)
        elif layer.is_logits and lora.others > WIDE_BITS:  # autocast copies it to 16 bits in each pass
            largest = max(largest, parameter.size)
    return PackedWeights((codes + scales + lora.others * (elements - packed)) / elements, scales / elements, largest)


def with_unpacking(made: Layer, trained: Layer, product: Operation, lora: LoRA) -> Layer:
    """Return a layer with frozen weights in few bits, and the kernels that unpack them.

    It keeps its input as the ``trained`` product does. Products of one input share it, since autocast makes no copies.
    """
    passes = _integers(product, lora) if lora.bits == 8 else unpacking(product, lora)
    return replace(
        made,
        operations=made.operations + passes,
        activation_bytes=made.activation_bytes + trained.activation_bytes,
        activation_bytes_half=(made.activation_bytes_half or 0.0) + trained.activation_bytes * HALF / WORD,
    )


def unpacking(product: Operation, lora: LoRA) -> tuple[Operation, ...]:
    """Return the kernels that unpack a weight of 4 bits in the forward and in the backward pass."""
    elements = product.k * product.n * product.batch * product.calls
    moved = SLOW * elements * (lora.bits + scale_bits(lora, product.k) + WIDE_BITS) / 8
    kernels = _KERNELS[lora.double] * product.calls
    forward = Operation(kind="memory", backward=False, calls=kernels, fixed_bytes=moved * WORD / HALF)
    return forward, replace(forward, backward=True)


def _integers(product: Operation, lora: LoRA) -> tuple[Operation, ...]:
    """Return the kernels around a product of 8 bits.

    Forward: a copy of the input in fp16, its codes, sums of 32 bits and the result in 16. Backward: the weight in 16 bits and
    its product with the scales. The product itself takes the time of one in 16 bits (assumed).
    """
    elements = product.k * product.n * product.batch * product.calls
    read, written = (product.m * size * product.batch * product.calls for size in (product.k, product.n))
    bytes_forward = (2 + 2 + 2 + 1) * read + (4 + 4 + 2) * written
    bytes_backward = (1 + 2 + 2 + 2) * elements
    return (
        memory(False, round(_OF_INTEGERS) * product.calls, bytes_forward * WORD / HALF),
        memory(True, 2 * product.calls, 0.0, bytes_backward * WORD / HALF),
    )


def with_wide_weights(made: Layer, product: Operation, lora: LoRA) -> Layer:
    """Return an output layer whose weights of 32 bits autocast copies to 16 in each pass (only trained weights are cached)."""
    if lora.others == WIDE_BITS:
        return made
    moved = product.k * product.n * product.calls * (4 + 2)
    copy = Operation(kind="memory", backward=False, calls=product.calls, fixed_bytes=moved * WORD / HALF)
    return replace(made, operations=(*made.operations, copy))
