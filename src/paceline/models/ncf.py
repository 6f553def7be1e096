"""Neural collaborative filtering (NeuMF) on MovieLens-1M: 1,602,657 parameters.

Source: He et al., WWW 2017 (arXiv:1708.05031), section 3.4, in the form that Pollux trains (petuum/adaptdl,
benchmark/models/ncf): 6,040 users, 3,706 items, 32 factors, three layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

USERS, ITEMS, _FACTORS, _LAYERS = 6040, 3706, 32, 3


class NeuMf(nn.Module):
    """NeuMF network, from pairs of a user and an item (B, 2) to one logit each (B,)."""

    def __init__(self) -> None:
        super().__init__()
        wide = _FACTORS * 2 ** (_LAYERS - 1)
        self.user_factors, self.item_factors = nn.Embedding(USERS, _FACTORS), nn.Embedding(ITEMS, _FACTORS)
        self.user_features, self.item_features = nn.Embedding(USERS, wide), nn.Embedding(ITEMS, wide)
        layers: list[nn.Module] = []
        for i in range(_LAYERS):
            layers += [nn.Linear(2 * wide >> i, wide >> i), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.predict = nn.Linear(2 * _FACTORS, 1)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.01)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = pairs.unbind(-1)
        product = self.user_factors(user) * self.item_factors(item)
        deep = self.layers(torch.cat((self.user_features(user), self.item_features(item)), -1))
        result: Tensor = self.predict(torch.cat((product, deep), -1)).squeeze(-1)
        return result


def ncf() -> nn.Module:
    """Return NeuMF, from pairs (B, 2) of a user below 6,040 and an item below 3,706 to logits (B,)."""
    return NeuMf()
