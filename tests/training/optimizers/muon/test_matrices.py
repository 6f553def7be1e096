"""The matrices of tensors, and their division between Muon and AdamW."""

from __future__ import annotations

from math import sqrt

import torch
from torch import nn

import paceline
from paceline.training.optimizers.muon.matrices import SCALES, Piece, pieces


def test_pieces() -> None:
    assert pieces("w", (6, 4), True, {}) == [Piece(0, 6, 6, 4)]
    assert pieces("qkv", (6, 4), True, {"q*": 3}) == [Piece(0, 2, 2, 4), Piece(2, 4, 2, 4), Piece(4, 6, 2, 4)]
    assert pieces("qkv", (6, 4), True, {"q*": (4, 1, 1)})[1:] == [Piece(4, 5, 1, 4), Piece(5, 6, 1, 4)]
    assert pieces("conv", (8, 3, 5, 5), True, {}) == [Piece(0, 8, 8, 75)]
    assert pieces("experts", (2, 3, 5), True, {}) == [Piece(0, 1, 3, 5), Piece(1, 2, 3, 5)]
    assert pieces("conv1d", (2, 3, 5), False, {}) == [Piece(0, 2, 2, 15)]


def test_scales() -> None:
    assert SCALES["original"](4, 16) == 1 and SCALES["original"](16, 4) == 2
    assert SCALES["match_rms_adamw"](16, 4) == SCALES["match_rms_adamw"](4, 16) == 0.2 * sqrt(16)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv1d(4, 4, 3, bias=False), nn.Linear(4, 4)) for _ in range(1))
        self.head = nn.Linear(4, 2)


def test_the_rule_says_why() -> None:
    """By the layers of a model; by names alone the embedding is told by nothing but its place."""
    model = Model()
    division = paceline.Muon(model, lr=0.1).division
    assert str(division).splitlines()[:4] == [
        "blocks.0.0.weight  muon   4 x 12",
        "blocks.0.1.weight  muon   4 x 4",
        "words.weight       adamw  an embedding",
        "stem.bias          adamw  fewer than two dimensions",
    ]
    assert division.rest["stem.weight"] == division.rest["head.weight"] == "outside the numbered blocks"
    by_name = paceline.Muon(model.named_parameters(), lr=0.1).division
    assert by_name.rest["words.weight"] == "outside the numbered blocks" and len(by_name.matrices["blocks.0.0.weight"]) == 4


def test_other_rules() -> None:
    named = [("a", torch.ones(2, 3, requires_grad=True)), ("b", torch.ones(3, 2, requires_grad=True))]
    assert paceline.Muon(named, rule="vectors").division.rest == {}
    assert paceline.Muon(named, rule=["b"]).division.rest == {"b": "by a pattern"}
    assert paceline.Muon(named, rule=lambda name, tensor: tensor.shape[0] == 2).division.rest == {"a": "by the rule"}
    assert paceline.Muon(named).division.rest == {"b": "the last matrix"}
