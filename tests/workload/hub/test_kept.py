"""Kept tables of models of transformers and diffusers, which need no library."""

from __future__ import annotations

from collections import Counter

import pytest

from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.catalogue import canonical
from paceline.workload.hub.kept import kept_models, kept_name

PUBLISHED = {
    "smollm3-3b": 3.08,  # Hugging Face 2025, SmolLM3
    "glm-4.5-air": 106.85,  # Zeng et al. 2025, arXiv:2508.06471: 106B
    "ernie-4.5-21b-a3b": 21.83,  # Baidu 2025, ERNIE 4.5: 21B
    "minimax-m2": 228.69,  # MiniMax 2025, MiniMax-M2: 230B
    "esm2-650m": 0.65,  # Lin et al. 2023, Science 379
    "dinov2-large": 0.30,  # Oquab et al. 2023, arXiv:2304.07193
    "flux.1-dev-12b": 11.90,  # Black Forest Labs 2024: 12B
    "wan2.1-t2v-14b": 14.29,  # Wan team 2025, arXiv:2503.20314
    "whisper-large-v3": 1.54,  # Radford et al. 2023, arXiv:2212.04356, table 1: 1550M
    "pythia-6.9b": 6.86,  # Biderman et al. 2023, arXiv:2304.01373, table 1
    "deberta-v3-large": 0.44,  # He et al. 2023, arXiv:2111.09543, section 5: 304M and 131M of embeddings
    "modernbert-large": 0.40,  # Warner et al. 2024, arXiv:2412.13663: 395M
}
"""Parameters in billions."""
ON_THE_HUB = {
    "facebook/esm2_t33_650M_UR50D": "esm2-650m",
    "openai/whisper-large-v3": "whisper-large-v3",
    "EleutherAI/pythia-1.4b": "pythia-1.4b",
    "sentence-transformers/all-MiniLM-L6-v2": "all-minilm-l6",
    "facebook/wav2vec2-base-960h": "wav2vec2-base",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen-2.5-7b",
    "BAAI/bge-base-en-v1.5": "bert-base",
    "google/gemma-3-4b-it": "gemma-3-4b",
}


def test_parameters_are_the_published_ones() -> None:
    assert {name: round(kept_models()[name].parameters / 1e9, 2) for name in PUBLISHED} == PUBLISHED


def test_a_table_is_what_the_index_says() -> None:
    for name in ("smollm3-3b", "transformers/deberta-v2"):
        table, kept = Workload.named(name), kept_models()[name]
        assert (table.num_parameters, table.sample) == (kept.parameters, kept.sample) and "transformers 5" in table.source
    assert "defaults" in Workload.named("transformers/deberta-v2").source


def test_many_models_of_every_group_are_found_by_the_names_that_people_write() -> None:
    groups = Counter(kept.group for kept in kept_models().values())
    assert len(kept_models()) >= 300 and len(groups) == 8 and min(groups.values()) > 5
    assert canonical("HuggingFaceTB/SmolLM3-3B") == canonical("SmolLM3 3B") == kept_name("smollm3_3b") == "smollm3-3b"
    assert canonical("llama-3-8b") == "llama-3-8b"
    assert {text: canonical(text) for text in ON_THE_HUB} == ON_THE_HUB


def test_another_length_is_built_from_the_published_values(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Workload.named("smollm3-3b", 8192).tokens == 8192
    t5, longer = Workload.named("google-t5/t5-3b", 128), Workload.named("t5-3b")
    assert t5.num_parameters == longer.num_parameters == 2_851_598_336  # the released checkpoint
    assert t5.flops_forward < longer.flops_forward / 3.9  # of 512 tokens
    monkeypatch.setattr("paceline.workload.table.library_of", lambda settings: "")
    with pytest.raises(UserError, match=r"paceline\[hub\]"):
        Workload.named("smollm3-3b", 4096)
    with pytest.raises(UserError, match=r"one size .*paceline\[hub\]"):
        Workload.named("transformers/bart", 77)
