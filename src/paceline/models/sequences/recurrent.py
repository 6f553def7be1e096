"""Networks with recurrent layers: DeepSpeech 2 as Pollux trains it, and GNMT as MLPerf Training v0.6 and v0.7 did.

DeepSpeech 2: Amodei et al. 2015 (arXiv:1512.02595) in the form of SeanNaren/deepspeech.pytorch as used by petuum/adaptdl
(benchmark/models/deepspeech2): two convolutions, five bidirectional layers of 800 gated units whose directions are summed,
29 characters. Speech of 4 s, a spectrum of 161 bins each 10 ms: about the longest sentence of a batch of CMU ARCTIC. CTC is
counted as a mean.

GNMT: Wu et al. 2016 (arXiv:1609.08144) in the form of mlcommons/training, rnn_translator ("GNMT v2"): four layers of 1024
units either side, the first of the encoder in both directions, additive attention from the first of the decoder.
Sentences of 27 tokens, the mean of WMT16 English-German; all are of one length, where the reference packs them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHARACTERS, BINS = 29, 161
VOCABULARY, _WIDTH, _DROPOUT = 32317, 1024, 0.2


class Both(nn.Module):
    """Bidirectional gated layer, (B, T, inputs) to (B, T, width), with normalised input except in the first layer."""

    def __init__(self, inputs: int, width: int, *, normalised: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs) if normalised else None
        self.gru = nn.GRU(inputs, width, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is not None:
            x = self.norm(x.flatten(0, 1)).view(x.shape)
        result: Tensor = self.gru(x)[0].unflatten(-1, (2, -1)).sum(2)
        return result


class DeepSpeech2(nn.Module):
    """DeepSpeech 2, from spectra (B, 1, 161, T) to log probabilities of characters (B, T / 2, 29)."""

    def __init__(self, width: int = 800, layers: int = 5) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        inputs = [32 * 41] + [width] * (layers - 1)
        self.layers = nn.Sequential(*(Both(size, width, normalised=i > 0) for i, size in enumerate(inputs)))
        self.norm = nn.BatchNorm1d(width)
        self.output = nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.conv(x).flatten(1, 2).transpose(1, 2).contiguous())
        logits: Tensor = self.output(self.norm(x.flatten(0, 1)))
        return F.log_softmax(logits.view(*x.shape[:2], -1), -1)


class AdditiveAttention(nn.Module):
    """Normalised additive attention of (B, T, width) to (B, S, width): Bahdanau et al. 2015, arXiv:1409.0473, A.1.2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.bias, self.direction = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.empty(width).uniform_(-0.1, 0.1))
        self.size = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        sums = torch.tanh(self.query(x)[:, :, None] + self.key(memory)[:, None] + self.bias)
        direction = self.direction / self.direction.norm() * self.size
        result: Tensor = F.linear(sums, direction[None]).squeeze(-1).softmax(-1) @ memory
        return result


class Gnmt(nn.Module):
    """GNMT, from source and target tokens (B, 2, S) to logits of the target (B, S, 32317)."""

    def __init__(self) -> None:
        super().__init__()
        width = _WIDTH
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.drop = nn.Dropout(_DROPOUT)
        self.first = nn.LSTM(width, width, bidirectional=True, batch_first=True)
        self.second = nn.LSTM(2 * width, width, batch_first=True)
        self.encoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.attend = nn.LSTM(width, width, batch_first=True)
        self.attention = AdditiveAttention(width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(3))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, pairs: Tensor) -> Tensor:
        source, target = pairs.unbind(1)
        x = self.second(self.drop(self.first(self.drop(self.tokens(source)))[0]))[0]
        for layer in self.encoder:
            x = x + layer(self.drop(x))[0]
        y = self.attend(self.drop(self.tokens(target)))[0]
        context = self.attention(y, x)
        for i, layer in enumerate(self.decoder):
            new = layer(torch.cat((self.drop(y), context), -1))[0]
            y = new if i == 0 else y + new
        result: Tensor = self.head(y)
        return result


def deepspeech2() -> nn.Module:
    """Return DeepSpeech 2, from spectra (B, 1, 161, 400) to log probabilities of characters (B, 200, 29)."""
    return DeepSpeech2()


def gnmt() -> nn.Module:
    """Return GNMT, from token pairs (B, 2, 27) to logits (B, 27, 32317)."""
    return Gnmt()
