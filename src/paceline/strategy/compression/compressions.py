"""All compressions. A new one is one entry of ``COMPRESSIONS``, with a codec of its name in ``paceline.codecs.reference``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from paceline.strategy.compression import formats
from paceline.strategy.compression.compression import ASSUMED, WARM_DENSITY, Compression, DenseRule, cpu_rate
from paceline.strategy.compression.compression_options import Option
from paceline.strategy.compression.formats import BF16, FP32, TERNARY, Format

_RATIO = Option(
    name="ratio", default=0, least=0, most=16, text="measured compression ratio, for prediction; 0 takes the published range"
)
_EVERY_LAYER = DenseRule(last_layer=False)
"""Rule for codecs with a small error in each block, or with error feedback. They need no dense last layer."""
_BLOCK = Option(
    name="block", default=1024, least=64, most=65536, whole=True, power=True, text="elements that share a scale; a power of two"
)


def _bound(k: int, largest_k: int, text: str) -> Option:
    return Option(name="bound", default=2.0**-k, least=2.0**-largest_k, most=0.5, power=True, text=text)


COMPRESSIONS: Mapping[str, Compression] = {
    c.name: c
    for c in (
        Compression(
            name="dense",
            title="no compression",
            layout=lambda _: FP32,
            cpu_rate=cpu_rate(8.6, 9.7),
            codec="fp32",
            adds=True,
            switch_sums=("fp32", "int32"),
            rule=None,
            unbiased=True,
            encode_bytes=8,
            decode_bytes=8,
            citation="",
        ),
        Compression(
            name="bf16",
            title="gradients rounded to bfloat16",
            layout=lambda _: BF16,
            cpu_rate=cpu_rate(13.9, 13.9),
            adds=True,
            rule=None,
            unbiased=False,
            encode_bytes=6,
            decode_bytes=6,
            auto_rank=1,
            citation="Kalamkar et al. 2019, arXiv 1905.12322",
        ),
        Compression(
            name="bf16-coded",
            title="bfloat16 with its exponents coded in fewer bits",
            layout=formats.bf16_coded,
            cpu_rate=cpu_rate(1.0, 1.8),
            rule=None,
            unbiased=False,
            options=(_RATIO,),
            # The values, and their exponents twice.
            encode_bytes=7.4,
            decode_bytes=7.4,
            auto_rank=2,
            citation="ZipCCL, arXiv 2604.27844, and UCCL-Zip, arXiv 2604.17172",
        ),
        Compression(
            name="terngrad",
            title="TernGrad: stochastic ternary gradients",
            layout=lambda _: TERNARY,
            cpu_rate=cpu_rate(10.3, 20.7),
            codec="ternary",
            clips=True,
            switch_sums=("ternary",),
            rule=DenseRule(),
            unbiased=True,
            shares_scale=True,
            in_place=True,
            # Two reads (moments and extremes, then the draw) and two bits out; the integer sum in and fp32 out.
            encode_bytes=8.25,
            decode_bytes=4.5,
            auto_rank=6,
            citation="Wen et al. 2017, TernGrad, NIPS, arXiv 1705.07878",
        ),
        Compression(
            name="inceptionn",
            title="INCEPTIONN: 0, 8, 16 or 32 bits by magnitude",
            layout=formats.inceptionn,
            cpu_rate=cpu_rate(10.7, 7.4),
            preferred="ring",
            in_card=True,
            rule=DenseRule(),
            unbiased=False,
            options=(_bound(10, 15, "magnitudes below it become 0"), _RATIO),
            encode_bytes=4.5,
            decode_bytes=4.5,
            citation="Li et al. 2018, INCEPTIONN, MICRO, doi 10.1109/MICRO.2018.00023",
        ),
        Compression(
            name="inceptionn-scaled",
            title="INCEPTIONN with a scale a block and error feedback",
            layout=formats.inceptionn_scaled,
            cpu_rate=cpu_rate(8.4, 6.9),
            in_card=True,
            card_scales=True,
            rule=_EVERY_LAYER,
            unbiased=False,
            options=(_bound(6, 14, "largest error over a block's largest magnitude"), _RATIO),
            error_feedback=True,
            # The maximum of the block, then the block; the residual is read and written too.
            encode_bytes=16.5,
            decode_bytes=4.5,
            auto_rank=5,
            citation="Li et al. 2018, INCEPTIONN, MICRO, doi 10.1109/MICRO.2018.00023; the scale is ours",
        ),
        Compression(
            name="int8",
            title="stochastic 8-bit integers with a scale a block",
            layout=partial(formats.whole_numbers, "int8", 8),
            cpu_rate=cpu_rate(10.6, 15.2),
            rule=_EVERY_LAYER,
            unbiased=True,
            options=(_BLOCK,),
            in_place=True,
            encode_bytes=9,
            decode_bytes=5,
            auto_rank=3,
            citation="Alistarh et al. 2017, QSGD, NIPS, arXiv 1610.02132",
        ),
        Compression(
            name="fp8",
            title="stochastic 8-bit floats (e4m3) with a power of two a block",
            layout=partial(formats.whole_numbers, "fp8", 8),
            cpu_rate=cpu_rate(7.9, 13.5),
            rule=_EVERY_LAYER,
            unbiased=True,
            options=(_BLOCK,),
            encode_bytes=9,
            decode_bytes=5,
            auto_rank=4,
            citation="Micikevicius et al. 2022, arXiv 2209.05433; scales as OCP's MX, Rouhani et al. 2023, arXiv 2310.10537",
        ),
        Compression(
            name="int4",
            title="stochastic 4-bit integers with a scale a block",
            layout=partial(formats.whole_numbers, "int4", 4),
            cpu_rate=cpu_rate(10.6, 17.3),
            rule=DenseRule(),
            unbiased=True,
            options=(_BLOCK,),
            in_place=True,
            encode_bytes=8.5,
            decode_bytes=4.5,
            citation="Alistarh et al. 2017, QSGD, NIPS, arXiv 1610.02132",
        ),
        Compression(
            name="sign",
            title="signs with a scale a block and error feedback",
            layout=formats.sign,
            cpu_rate=cpu_rate(24.4, 22.6),
            rule=_EVERY_LAYER,
            unbiased=False,
            options=(_BLOCK,),
            error_feedback=True,
            encode_bytes=16.1,
            decode_bytes=4.1,
            citation="Karimireddy et al. 2019, Error feedback fixes SignSGD, ICML, arXiv 1901.09847",
        ),
        Compression(
            name="topk",
            title="the largest elements, with error feedback",
            layout=formats.topk,
            cpu_rate=cpu_rate(8.9, 16.1),
            preferred="allgather",
            rule=_EVERY_LAYER,
            unbiased=False,
            options=(
                Option(name="density", default=0.01, least=1e-4, most=1, text="share of the elements that is sent"),
                Option(
                    name="value_bits",
                    default=32,
                    least=16,
                    most=32,
                    whole=True,
                    power=True,
                    others=(2,),
                    text="fp32 or bfloat16; 2 with a chunk: a sign and one of two magnitudes of the chunk",
                ),
                Option(
                    name="chunk",
                    default=0,
                    least=64,
                    most=65536,
                    whole=True,
                    power=True,
                    others=(0,),
                    text="elements of which the largest are sent, such as 4096; 0 for those of a whole message",
                ),
                Option(
                    name="momentum",
                    default=0,
                    least=0,
                    most=0.9999,
                    text="corrected here; the optimizer has its own for dense tensors only",
                ),
                Option(name="warmup_steps", default=0, least=0, most=1e9, whole=True, text=f"from {WARM_DENSITY:g} to density"),
            ),
            error_feedback=True,
            encode_bytes=16,
            decode_bytes=4,
            citation="Lin et al. 2018, Deep Gradient Compression, ICLR, arXiv 1712.01887",
        ),
        Compression(
            name="powersgd",
            title="PowerSGD: factors of low rank, PyTorch's own hook",
            layout=lambda _: Format("low-rank", 32),
            cpu_rate=cpu_rate(2, 2, ASSUMED),
            adds=True,
            rule=None,
            unbiased=False,
            options=(
                Option(name="rank", default=2, least=1, most=1024, whole=True, text="columns of the factors"),
                Option(name="start_iter", default=2, least=2, most=1e9, whole=True, text="the first compressed step, from 0"),
                Option(name="min_rate", default=2, least=0.1, most=1e6, text="least ratio of a matrix to its factors"),
            ),
            error_feedback=True,
            low_rank=True,
            # P = M Q, Q = M' P, and P Q' with the residual: the matrix is read three times and written twice.
            encode_bytes=12,
            decode_bytes=8,
            citation="Vogels et al. 2019, PowerSGD, NeurIPS, arXiv 1905.13727",
        ),
    )
}
DENSE = COMPRESSIONS["dense"]
