"""Weights of matrix products and embeddings in 4 or 8 bits, a scale for each block, by ONNX Runtime's ``MatMulNBits``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from paceline.slimming.export.exporting import silent
from paceline.slimming.methods.weight_forms import WeightForm

WORD = 4
"""Bytes of fp32: of a weight that stays, of a scale and of a bias."""
PRODUCTS = ("MatMul", "Gemm")
RECURRENT = {"LSTM": 8}
"""Recurrent operations that ONNX Runtime has in 8 bits. It leaves GRU and RNN in fp32."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """Weight tensor of an ONNX file.

    Attributes:
        name: name of its initializer. ``operation``: kind of the node that reads it, such as ``MatMul``.
        shape: for a product (inputs, outputs), else as stored.
    """

    name: str
    operation: str
    shape: tuple[int, ...]

    def stored_bytes(self, form: WeightForm) -> float:
        """Return the predicted bytes in a form: weights, scales and zero points, as ONNX Runtime's tools lay them out."""
        count = prod(self.shape)
        if form.bits == 32:
            return float(WORD * count)
        if form.blocks and self.operation in PRODUCTS:
            inputs, outputs = self.shape
            blocks = ceil(inputs / form.block)
            zeros = 0 if form.symmetric else ceil(blocks * form.bits / 8)
            return float(outputs * (blocks * (form.block * form.bits // 8 + WORD) + zeros))
        if self.operation == "Gather":
            rows, columns = self.shape
            blocks = rows * ceil(columns / form.block)
            zeros = 0 if form.symmetric else ceil(blocks / 2)
            return ceil(count / 2) + WORD * blocks + zeros if form.bits == 4 else float(WORD * count)
        scales = {"Conv": self.shape[0], **dict.fromkeys(PRODUCTS, self.shape[-1])}.get(self.operation)
        if scales is None:
            scales = self.shape[0] * self.shape[1] if self.operation in RECURRENT else 0
        return float(count + (WORD + 1) * scales) if scales else float(WORD * count)


def stored_weights(model: Any) -> list[StoredWeight]:
    """Return the weights of a prepared ONNX model that some form may change, each once."""
    tensors = {each.name: each for each in model.graph.initializer}
    return list(dict.fromkeys(_weights(model, tensors)))


def _weights(model: Any, tensors: dict[str, Any]) -> Iterator[StoredWeight]:
    for node in model.graph.node:
        kind, given = node.op_type, list(node.input)
        if kind in PRODUCTS and given[1] in tensors and len(tensors[given[1]].dims) == 2:
            rows, columns = tensors[given[1]].dims
            turned = any(each.name == "transB" and each.i for each in node.attribute)
            yield StoredWeight(given[1], kind, (columns, rows) if turned else (rows, columns))
        elif kind in ("Conv", *RECURRENT):
            yield from (StoredWeight(name, kind, tuple(tensors[name].dims)) for name in given[1:3] if _is_wide(tensors, name))
        elif is_embedding(node, tensors):
            yield StoredWeight(given[0], kind, tuple(tensors[given[0]].dims))


def _is_wide(tensors: dict[str, Any], name: str) -> bool:
    return name in tensors and len(tensors[name].dims) > 2


def is_embedding(node: Any, tensors: dict[str, Any]) -> bool:
    """Return whether a node reads rows of a constant table of real numbers."""
    from onnx import TensorProto

    table = tensors.get(node.input[0]) if node.op_type == "Gather" else None
    axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
    return table is not None and table.data_type == TensorProto.FLOAT and len(table.dims) == 2 and axis == 0


def predicted_bytes(file: str | Path, form: WeightForm) -> float:
    """Return the predicted bytes of an fp32 ONNX file in a form, without quantising it.

    Weights that the form changes count as ``StoredWeight.stored_bytes``; all other bytes stay as ``prepared`` leaves them.
    """
    import onnx

    if form.bits == 32:
        return float(Path(file).stat().st_size)
    with tempfile.TemporaryDirectory() as directory:
        simpler = prepared(file, directory)
        weights = stored_weights(onnx.load(simpler))
        once = {each.name: prod(each.shape) for each in weights}
        rest = simpler.stat().st_size - WORD * sum(once.values())
    return rest + sum(each.stored_bytes(form) for each in weights)


def prepared(file: str | Path, directory: str | Path) -> Path:
    """Write a file with constants folded, such as transposed weights, as the quantisers need it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    simpler = Path(directory) / "simpler.onnx"
    with silent():
        quant_pre_process(str(file), str(simpler), skip_symbolic_shape=True)
    return simpler


def to_blocks(file: Path, draft: Path, form: WeightForm) -> None:
    """Write a file with its matrix products, and for 4 bits its embeddings, in blocks. Other operations stay.

    Args:
        file: without transposed weights, as ``prepared`` leaves it.
    """
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    model = ONNXModel(onnx.load(file))
    model.replace_gemm_with_matmul()
    graph = model.model.graph
    tables = _named_tables(graph) if form.bits == 4 else []
    model.model.ir_version = max(model.model.ir_version, 10)  # which has tensors of 4 bits
    quantiser = MatMulNBitsQuantizer(
        model.model,
        bits=form.bits,
        block_size=form.block,
        is_symmetric=form.symmetric,
        accuracy_level=form.accuracy or None,
        nodes_to_include=tables or None,
    )
    quantiser.process()
    quantiser.model.save_model_to_file(str(draft), use_external_data_format=False)


def _named_tables(graph: Any) -> list[str]:
    """Return the names of the nodes that read embeddings; nodes without a name get one."""
    tensors = {each.name: each for each in graph.initializer}
    nodes = [node for node in graph.node if is_embedding(node, tensors)]
    for number, node in enumerate(nodes):
        node.name = node.name or f"embedding_{number}"
    return [node.name for node in nodes]


def changed_operations(weights: Sequence[StoredWeight], form: WeightForm) -> list[StoredWeight]:
    """Return the weights that a form holds in blocks."""
    kinds = (*PRODUCTS, "Gather") if form.bits == 4 else PRODUCTS
    return [each for each in weights if each.operation in kinds] if form.blocks else []
