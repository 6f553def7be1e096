"""Tiny decoders of Hugging Face for tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

OWN: dict[str, dict[str, Any]] = {
    "GPT2": {"n_positions": 64},
    "Qwen3": {"head_dim": 8, "tie_word_embeddings": True},
    "Mixtral": {"num_local_experts": 4},
}


def config(name: str, **changes: Any) -> Any:
    """Return the configuration of a tiny decoder."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": 256, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    return getattr(transformers, f"{name}Config")(**(sizes | OWN.get(name, {}) | changes))


def decoder(name: str, **changes: Any) -> nn.Module:
    """Return a tiny decoder with random weights, in eval mode."""
    given = config(name, **changes)
    import transformers

    torch.manual_seed(0)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(given)
    return model.eval()
