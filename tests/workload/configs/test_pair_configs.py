"""T5, BART and Whisper from configurations."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.configs.pair_configs import PAIRS

T5 = {"d_model": 96, "d_kv": 20, "d_ff": 136, "num_layers": 3, "num_heads": 6, "vocab_size": 211}


def test_t5_untied_has_an_output_of_its_own() -> None:
    """As the released weights of version 1.1 (Raffel et al. 2020, arXiv:1910.10683, the release notes)."""
    tied, own = (Workload.from_config({"model_type": "t5", **T5, "tie_word_embeddings": t}, 16) for t in (True, False))
    assert own.num_parameters - tied.num_parameters == 211 * 96
    shape, longest = PAIRS["t5"]({**T5, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu"})
    assert (shape.encoder.layers, shape.decoder.layers, shape.decoder.gated, longest) == (3, 2, True, 512)
    assert not shape.encoder.causal and shape.decoder.causal


def test_stacks_of_other_widths_are_no_whole_file() -> None:
    with pytest.raises(UserError, match="no encoder_layers"):
        PAIRS["whisper"]({"d_model": 96, "vocab_size": 50})
