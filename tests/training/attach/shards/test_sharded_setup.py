"""What reduces the units of a sharded model; how it runs is tested with the hook (``hooks/test_sharded.py``)."""

from __future__ import annotations

from paceline.codecs.reference.topk import TopK
from paceline.strategy import GradientExchange
from paceline.training.exchanges.exchange_setup import codec_at, codec_of


def test_the_codec_of_a_step_follows_the_warm_up_of_the_sparsity() -> None:
    """From 25 % to the density, exponentially (Lin et al. 2018, Deep Gradient Compression, section 3.3)."""
    exchange = GradientExchange("topk", "sharded", options={"density": 0.01, "warmup_steps": 4})
    codecs = [codec_at(exchange, codec_of(exchange), step) for step in range(6)]
    densities = [codec.density for codec in codecs if isinstance(codec, TopK)]
    assert densities[0] > densities[1] > densities[2] > densities[3] > 0.01 and densities[4:] == [0.01, 0.01]
