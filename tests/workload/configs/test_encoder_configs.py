"""Encoders of text from configurations: positions, narrow embeddings, shared blocks."""

from __future__ import annotations

import pytest

from config_cases import BERT
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.configs.encoder_configs import ENCODERS


def test_roberta_has_positions_that_no_token_has() -> None:
    shape, longest = ENCODERS["roberta"]({**BERT, "pad_token_id": 1})
    assert (longest, shape.context, shape.offset) == (62, 62, 2)
    with pytest.raises(UserError, match="give 1 to 62"):
        Workload.from_config({**BERT, "model_type": "roberta", "pad_token_id": 1}, 63)


def test_blocks_of_albert_share_weights_and_not_work() -> None:
    one, three = (
        Workload.from_config({**BERT, "model_type": "albert", "embedding_size": 40, "num_hidden_layers": n}, 16) for n in (1, 3)
    )
    assert one.num_parameters == three.num_parameters
    blocks = [sum(x.flops_forward for x in t.layers if x.name.startswith("blocks.")) for t in (one, three)]
    assert blocks[1] == 3 * blocks[0]
    with pytest.raises(UserError, match="num_hidden_groups 2"):
        Workload.from_config({**BERT, "model_type": "albert", "num_hidden_groups": 2}, 16)


def test_a_decoder_under_the_name_of_an_encoder_is_refused() -> None:
    with pytest.raises(UserError, match="is_decoder True in the configuration"):
        ENCODERS["bert"]({**BERT, "is_decoder": True})
