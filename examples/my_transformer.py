"""A class of one's own, as ``file.py:Class``, with arguments and an input.

paceline predict examples/my_transformer.py:Classifier --args hidden=512,layers=8 --input tokens:256 --device A100
"""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """A transformer over tokens whose mean decides among classes."""

    def __init__(self, hidden: int, layers: int = 4, heads: int = 8, vocabulary: int = 32000, classes: int = 10) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        block = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.tokens(tokens)).mean(1))
        return result
