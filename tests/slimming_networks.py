"""Small networks with every kind of tie."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 50


class Residual(nn.Module):
    """Convolutions with norms, an addition, a depthwise and a grouped convolution, a concatenation, a flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.first, self.norm = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.second = nn.Conv2d(12, 8, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped = nn.Conv2d(8, 16, 3, padding=1, groups=4)
        self.output = nn.Linear((8 + 16) * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.second(torch.relu(self.norm(self.first(x))))
        parts = torch.cat([self.depthwise(x), self.grouped(x)], 1)
        return self.output(torch.flatten(nn.functional.max_pool2d(parts, 2), 1))


class Deconvolutions(nn.Module):
    """A deconvolution between two convolutions, and a grouped one, which stays whole; of time series."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.up = nn.Conv1d(3, 8, 3), nn.ConvTranspose1d(8, 10, 4, stride=2)
        self.out, self.grouped = nn.Conv1d(10, 6, 3), nn.ConvTranspose1d(6, 4, 2, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.up(torch.relu(self.into(x))))
        result: Tensor = self.grouped(torch.relu(self.out(x)))
        return result


class Recurrent(nn.Module):
    """An embedding, two recurrent layers, an output."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, hidden: int = 12, **more: object) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.layers = kind(8, hidden, 2, batch_first=True, **more)  # type: ignore[arg-type]
        width = (self.layers.proj_size or hidden) * (1 + self.layers.bidirectional)
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(self.layers(self.table(x))[0])
        return result


class Transformer(nn.Module):
    """PyTorch's own encoder, causal."""

    def __init__(self, norm_first: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(16, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        result: Tensor = self.output(self.encoder(self.table(x), mask=mask, is_causal=True))
        return result


def images() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)


def tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1)),)


def unlike(model: nn.Module, seed: int = 0) -> nn.Module:
    """With parameters and moments that are all different from one another and from zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *(each for each in model.buffers() if each.dtype.is_floating_point)):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.5 + 0.25)
            if tensor.dim() > 1:
                tensor.mul_(torch.where(torch.rand(tensor.shape, generator=generator) < 0.5, -1.0, 1.0))
    return model.eval()
