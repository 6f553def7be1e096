"""Quantisation of an ONNX file to int8 or int4 with ONNX Runtime's quantisers."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.slimming.export.exporting import silent
from paceline.slimming.export.onnx_export import feed, open_session
from paceline.slimming.methods.block_weights import changed_operations, prepared, stored_weights, to_blocks
from paceline.slimming.methods.weight_forms import INT8, WeightForm

DYNAMIC = ("MatMul", "Gemm", "LSTM")
"""Operations quantised dynamically: activations of recurrent networks and transformers have too wide a range for one static
scale. On an encoder static int8 was off by a quarter of the largest output, dynamic int8 by a hundredth.
"""
MARKS = {"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "MatMulNBits", "GatherBlockQuantized"}
"""Operations of a quantised file."""
SEQUENCE = frozenset({"LSTM", "GRU", "RNN", "LayerNormalization", "Softmax"})


def quantised(file: str | Path, path: str | Path, samples: Sequence[tuple[Any, ...]], form: WeightForm = INT8) -> Path:
    """Quantise an ONNX file. Weights in int8 have a scale for each channel, those in blocks one for each block.

    For ``int8`` a network with recurrent layers or attention is quantised dynamically: its ``DYNAMIC`` operations with constant
    weights. All other networks are quantised statically (QDQ), with scales from the samples. In forms with blocks, matrix
    products and for 4 bits embeddings are ``MatMulNBits`` and ``GatherBlockQuantized``; convolutions and LSTM layers, which
    have no such kernel, are in int8.

    Args:
        file: in fp32. ``samples``: inputs from the training data, in the file's shapes.

    Returns:
        The file. No file remains at ``path`` if it fails.

    Raises:
        UserError: no operation can be quantised, an operation that the quantiser refuses, a file that cannot be written.
    """
    out = Path(path)
    draft = out.with_suffix(f".draft{out.suffix}")
    leave = f"leave out `{form.name}`"
    try:
        with silent():
            _quantise(Path(file), draft, samples, form)
        if not _counts(draft).keys() & MARKS:
            raise UserError(f"{Path(file).name} has no operation that ONNX Runtime quantises", leave)
        session = open_session(draft)
        session.run(None, feed(session, samples[0]))
        draft.replace(out)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}", "give another directory") from error
    except Exception as error:  # the quantiser and the runtime raise different errors
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"{Path(file).name} cannot be quantised: {text}", leave) from error
    finally:
        draft.unlink(missing_ok=True)
    return out


def to_int8(file: str | Path, path: str | Path, samples: Sequence[tuple[Any, ...]]) -> Path:
    """Quantise an ONNX file to ``int8``. Arguments and errors as of ``quantised``."""
    return quantised(file, path, samples, INT8)


def _quantise(file: Path, draft: Path, samples: Sequence[tuple[Any, ...]], form: WeightForm = INT8) -> None:
    with tempfile.TemporaryDirectory() as directory:
        simpler = prepared(file, directory)
        if not form.blocks:
            _to_int8(simpler, draft, samples, list(DYNAMIC) if _counts(simpler).keys() & SEQUENCE else None)
            return
        _check_blocks(simpler, Path(file).name, form)
        others = Path(directory) / "others.onnx"
        kinds = _counts(simpler).keys()
        if "LSTM" in kinds:
            simpler = _to_int8(simpler, others, samples, ["LSTM"])
        elif "Conv" in kinds:
            simpler = _to_int8(simpler, others, samples, None, ["Conv"])
        to_blocks(simpler, draft, form)


def _to_int8(
    file: Path, out: Path, samples: Sequence[tuple[Any, ...]], dynamic: list[str] | None, static: list[str] | None = None
) -> Path:
    """Write operations in int8: these kinds dynamically, or if None those of ``static``, by default all, statically."""
    from onnxruntime.quantization import quantize_dynamic, quantize_static

    if dynamic is not None:
        quantize_dynamic(file, out, op_types_to_quantize=dynamic, per_channel=True, reduce_range=_saturates())
        return out
    session = open_session(file)
    fed = _reader(dict(feed(session, each)) for each in samples)
    quantize_static(file, out, fed, per_channel=True, reduce_range=_saturates(), op_types_to_quantize=static)
    return out


def _check_blocks(file: Path, name: str, form: WeightForm) -> None:
    """Check that a file has matrix products or embeddings with constant weights. Raises UserError otherwise."""
    import onnx

    if not changed_operations(stored_weights(onnx.load(file)), form):
        what = f"{name} has no matrix product with constant weights, and ONNX Runtime has no {form.bits}-bit convolution"
        raise UserError(f"{what}: {form.name} changes nothing", "give int8")


def _saturates() -> bool:
    """Return whether sums of two 8-bit products overflow 16 bits on this processor: x86 without VNNI.

    Weights then have 7 bits, as ONNX Runtime's page on quantisation asks.
    """
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return "avx2" in flags and not flags & {"avx512_vnni", "avx_vnni"}


def _counts(file: Path) -> Counter[str]:
    """Count nodes of each kind."""
    import onnx

    return Counter(node.op_type for node in onnx.load(file, load_external_data=False).graph.node)


def _reader(samples: Iterator[dict[str, Array]]) -> Any:
    """Reader of samples for the quantiser."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            return next(samples, None)

    return Reader()
