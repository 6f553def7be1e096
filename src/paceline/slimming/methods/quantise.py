"""Quantisation of an ONNX file to int8 with ONNX Runtime's quantiser."""

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

DYNAMIC = ("MatMul", "Gemm", "LSTM")
"""Operations quantised dynamically: activations of recurrent networks and transformers have too wide a range for one static
scale. On an encoder static int8 was off by a quarter of the largest output, dynamic int8 by a hundredth.
"""
SEQUENCE = frozenset({"LSTM", "GRU", "RNN", "LayerNormalization", "Softmax"})


def to_int8(file: str | Path, path: str | Path, samples: Sequence[tuple[Any, ...]]) -> Path:
    """Quantise an ONNX file. Weights have a scale for each channel.

    A network with recurrent layers or attention is quantised dynamically: its ``DYNAMIC`` operations with constant weights. All
    other networks are quantised statically (QDQ), with scales from the samples.

    Args:
        file: in fp32. ``samples``: inputs from the training data, in the file's shapes.

    Returns:
        The int8 file. No file remains at ``path`` if it fails.

    Raises:
        UserError: no operation can be quantised, an operation that the quantiser refuses, a file that cannot be written.
    """
    out = Path(path)
    draft = out.with_suffix(f".draft{out.suffix}")
    try:
        with silent():
            _quantise(Path(file), draft, samples)
        if not _counts(draft).keys() & {"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM"}:
            raise UserError(f"{Path(file).name} has no operation that ONNX Runtime quantises", "leave out `int8`")
        session = open_session(draft)
        session.run(None, feed(session, samples[0]))
        draft.replace(out)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}", "give another directory") from error
    except Exception as error:  # the quantiser and the runtime raise different errors
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"{Path(file).name} cannot be quantised: {text}", "leave out `int8`") from error
    finally:
        draft.unlink(missing_ok=True)
    return out


def _quantise(file: Path, draft: Path, samples: Sequence[tuple[Any, ...]]) -> None:
    from onnxruntime.quantization import quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as directory:
        simpler = Path(directory) / "simpler.onnx"
        quant_pre_process(str(file), str(simpler), skip_symbolic_shape=True)  # folds transposed weights, else not quantised
        if _counts(simpler).keys() & SEQUENCE:
            quantize_dynamic(simpler, draft, op_types_to_quantize=list(DYNAMIC), per_channel=True, reduce_range=_saturates())
        else:
            session = open_session(simpler)
            fed = _reader(dict(feed(session, each)) for each in samples)
            quantize_static(simpler, draft, fed, per_channel=True, reduce_range=_saturates())


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
