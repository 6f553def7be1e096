"""Tacotron 2, from a text of 154 characters to a spectrum of 870 frames of 80 mel bins: 28.2 M parameters.

Source: Shen et al., ICASSP 2018 (arXiv:1712.05884), section 2, in the form that NVIDIA trains (DeepLearningExamples,
PyTorch/SpeechSynthesis/Tacotron2): three convolutions and a bidirectional LSTM over the text, a decoder of two LSTM cells that
runs one step after the other for each frame, with attention that sees where it was before, and five convolutions over the whole
spectrum. The frame before is the true one. Dropout of a half in prenet and convolutions, a tenth of the cells.

A batch is padded to its longest clip, and all of its samples take as many steps: the longest clip of LJ Speech has 10.10 s, 870
frames of 256 samples at 22,050 Hz, and as long a text as the mean rate gives it (1,308,678 characters in 86,117 s;
keithito.com, The LJ Speech Dataset).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SYMBOLS, CHARACTERS, FRAMES = 148, 154, 870
_MELS, _WIDE, _PRENET, _STATE = 80, 512, 256, 1024
_ATTENTION, _FILTERS, _REACH, _KERNEL = 128, 32, 31, 5


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(inputs, outputs, _KERNEL, padding=_KERNEL // 2), nn.BatchNorm1d(outputs))


class Encoder(nn.Module):
    """Encoder from character embeddings (B, 512, S) to (B, S, 512)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(_convolution(_WIDE, _WIDE) for _ in range(3))
        self.lstm = nn.LSTM(_WIDE, _WIDE // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions:
            x = F.dropout(F.relu(convolution(x)), 0.5)
        result: Tensor = self.lstm(x.transpose(1, 2).contiguous())[0]
        return result


class LocationAttention(nn.Module):
    """Attention of a query (B, 1024) over (B, S, 512), given earlier weights (B, 2, S). Returns the context (B, 512) and
    weights (B, S).
    """

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(_STATE, _ATTENTION, bias=False)
        self.memory = nn.Linear(_WIDE, _ATTENTION, bias=False)
        self.before = nn.Conv1d(2, _FILTERS, _REACH, padding=_REACH // 2, bias=False)
        self.place = nn.Linear(_FILTERS, _ATTENTION, bias=False)
        self.score = nn.Linear(_ATTENTION, 1, bias=False)

    def forward(self, query: Tensor, memory: Tensor, keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        places = self.place(self.before(weights).transpose(1, 2))
        scores = self.score(torch.tanh(self.query(query[:, None]) + places + keys)).squeeze(-1)
        hidden = torch.zeros_like(scores, dtype=torch.bool)
        new = scores.masked_fill(hidden, float("-inf")).softmax(1)
        return torch.bmm(new[:, None], memory).squeeze(1), new


class Decoder(nn.Module):
    """Decoder from the text (B, S, 512) and the true frames (B, T, 80) to frames (B, 80, T) and end flags (B, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.prenet = nn.ModuleList(nn.Linear(size, _PRENET, bias=False) for size in (_MELS, _PRENET))
        self.attention_cell = nn.LSTMCell(_PRENET + _WIDE, _STATE)
        self.attention = LocationAttention()
        self.cell = nn.LSTMCell(_STATE + _WIDE, _STATE)
        self.frame, self.last = nn.Linear(_STATE + _WIDE, _MELS), nn.Linear(_STATE + _WIDE, 1)

    def forward(self, memory: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        given = torch.cat((frames.new_zeros(len(frames), 1, _MELS), frames[:, :-1]), 1).transpose(0, 1)
        for layer in self.prenet:
            given = F.dropout(F.relu(layer(given)), 0.5)
        keys = self.attention.memory(memory)
        state, store, top, top_store = (memory.new_zeros(len(memory), _STATE) for _ in range(4))
        weights, total = (memory.new_zeros(memory.shape[:2]) for _ in range(2))
        context = memory.new_zeros(len(memory), _WIDE)
        spectrum, ends = [], []
        for frame in given.unbind(0):
            state, store = self.attention_cell(torch.cat((frame, context), -1), (state, store))
            state = F.dropout(state, 0.1)
            context, weights = self.attention(state, memory, keys, torch.stack((weights, total), 1))
            total = total + weights
            top, top_store = self.cell(torch.cat((state, context), -1), (top, top_store))
            top = F.dropout(top, 0.1)
            both = torch.cat((top, context), -1)
            spectrum.append(self.frame(both))
            ends.append(self.last(both).squeeze(1))
        return torch.stack(spectrum, 2), torch.stack(ends, 1)


class Tacotron2(nn.Module):
    """Tacotron 2, from characters (B, 154) to frames before and after the last convolutions, (B, 80, 870) each, and end flags
    (B, 870).

    ``frames``: number of training frames. The true frames are zeros.
    """

    def __init__(self, frames: int = FRAMES) -> None:
        super().__init__()
        self.frames = frames
        self.symbols = nn.Embedding(SYMBOLS, _WIDE)
        self.encoder, self.decoder = Encoder(), Decoder()
        widths = (_MELS, *[_WIDE] * 4, _MELS)
        self.postnet = nn.ModuleList(_convolution(a, b) for a, b in pairwise(widths))

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory = self.encoder(self.symbols(text).transpose(1, 2))
        spectrum, ends = self.decoder(memory, memory.new_zeros(len(text), self.frames, _MELS))
        x = spectrum
        for i, convolution in enumerate(self.postnet):
            x = convolution(x) if i == len(self.postnet) - 1 else torch.tanh(convolution(x))
            x = F.dropout(x, 0.5)
        return spectrum.square(), (spectrum + x).square(), ends


def tacotron2() -> nn.Module:
    """Return Tacotron 2, from characters (B, 154) to spectra of 870 frames."""
    return Tacotron2()
