"""SparseLoCo between two workers that FSDP2 shards over two processes each: a small language model on made-up text.

torchrun --standalone --nproc-per-node 4 examples/08_sharded_workers.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import paceline

WORKERS, LETTERS, LENGTH, WIDTH = 2, 32, 24, 64


class LanguageModel(nn.Module):
    """Two blocks of a transformer that predict the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of each next letter."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.letters(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            y = block(y, src_mask=mask, is_causal=True)
        chances: Tensor = self.head(y).log_softmax(-1)
        return chances


def text(generator: torch.Generator) -> Tensor:
    """Return sentences in which each letter follows from the two before it."""
    letters = [torch.randint(LETTERS, (16,), generator=generator) for _ in range(2)]
    for _ in range(LENGTH - 1):
        letters.append((letters[-1] + 3 * (letters[-2] % 2) + 1) % LETTERS)
    return torch.stack(letters, dim=1)


def main() -> None:
    """Train; the processes of a worker add gradients in every step, the workers exchange every ten."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (WORKERS, ranks // WORKERS), mesh_dim_names=("worker", "shard"))
    torch.manual_seed(0)
    model = LanguageModel()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])  # over the processes of this worker alone
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    sync = paceline.attach_local(model, "sparseloco", sync_every=10)

    samples = torch.Generator().manual_seed(1 + rank)
    for step in range(1, 61):
        letters = text(samples)
        loss = nn.functional.nll_loss(model(letters[:, :-2]).flatten(0, 1), letters[:, 1:-1].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if sync.step() and rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}, {sync.meter.sent_bytes:,} bytes from each process")

    sync.check_replicas()  # raises if the shards of the workers differ
    elements = sum(p.numel() for p in model.parameters())
    if rank == 0:
        dense = 10 * 4 * elements // 2  # of one of two workers' processes, in ten steps
        print(f"{dense / sync.meter.sent_bytes:,.0f} times fewer bytes than dense fp32 gradients in every step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
