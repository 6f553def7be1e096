"""WaveGlow, from a segment of 8,000 audio samples and its spectrum of 80 mel bins to noise: 268 M parameters.

Source: Prenger et al., ICASSP 2019 (arXiv:1811.00002), section 2, in the form that NVIDIA trains (DeepLearningExamples,
PyTorch/SpeechSynthesis/Tacotron2): groups of 8 samples, 12 steps of flow, each a 1x1 convolution that mixes the channels
and a coupling layer with a WaveNet of 8 dilated layers of 512 channels; two channels leave after every fourth step. The
determinants of the 8x8 matrices are not counted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SEGMENT, _MELS, _GROUP, _FLOWS, _EARLY_EVERY, _EARLY = 8000, 80, 8, 12, 4, 2
_LAYERS, _CHANNELS, _HOP, _WINDOW = 8, 512, 256, 1024


class WaveNet(nn.Module):
    """Dilated gated convolutions, from (B, inputs, T) and the spectrum (B, 640, T) to (B, 2 inputs, T)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        wide = _CHANNELS
        self.start, self.end = nn.Conv1d(inputs, wide, 1), nn.Conv1d(wide, 2 * inputs, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(wide, 2 * wide, 3, dilation=2**i, padding=2**i) for i in range(_LAYERS))
        self.given = nn.ModuleList(nn.Conv1d(_MELS * _GROUP, 2 * wide, 1) for _ in range(_LAYERS))
        outputs = [2 * wide] * (_LAYERS - 1) + [wide]
        self.residual = nn.ModuleList(nn.Conv1d(wide, size, 1) for size in outputs)

    def forward(self, audio: Tensor, spectrum: Tensor) -> Tensor:
        x = self.start(audio)
        total: Tensor | None = None
        for dilated, given, residual in zip(self.dilated, self.given, self.residual, strict=True):
            left, right = (dilated(x) + given(spectrum)).chunk(2, 1)
            parts = residual(left.tanh() * right.sigmoid())
            if parts.shape[1] > _CHANNELS:
                change, parts = parts.chunk(2, 1)
                x = x + change
            total = parts if total is None else total + parts
        result: Tensor = self.end(total)
        return result


class WaveGlow(nn.Module):
    """WaveGlow, from audio (B, 1, 8000) to noise (B, 8, 1000) and the logarithms of the scales."""

    def __init__(self) -> None:
        super().__init__()
        self.upsample = nn.ConvTranspose1d(_MELS, _MELS, _WINDOW, stride=_HOP)
        widths, left = [], _GROUP
        for i in range(_FLOWS):
            left -= _EARLY if i and i % _EARLY_EVERY == 0 else 0
            widths.append(left)
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1, bias=False) for width in widths)
        self.coupling = nn.ModuleList(WaveNet(width // 2) for width in widths)

    def forward(self, audio: Tensor) -> tuple[Tensor, ...]:
        frames = torch.zeros((len(audio), _MELS, SEGMENT // _HOP + 1), device=audio.device, dtype=audio.dtype)
        spectrum = self.upsample(frames)[..., :SEGMENT].unflatten(-1, (-1, _GROUP))
        spectrum = spectrum.transpose(1, 2).flatten(2).transpose(1, 2).contiguous()
        x = audio.squeeze(1).unflatten(-1, (-1, _GROUP)).transpose(1, 2)
        early, scales = [], []
        for i, (mix, coupling) in enumerate(zip(self.mix, self.coupling, strict=True)):
            if i and i % _EARLY_EVERY == 0:
                early.append(x[:, :_EARLY])
                x = x[:, _EARLY:]
            kept, changed = mix(x).chunk(2, 1)
            shift, scale = coupling(kept, spectrum).chunk(2, 1)
            x = torch.cat((kept, changed * scale.exp() + shift), 1)
            scales.append(scale)
        return torch.cat((*early, x), 1).square(), *scales


def waveglow() -> nn.Module:
    """Return WaveGlow, from audio (B, 1, 8000) to noise and scales."""
    return WaveGlow()
