"""What ``attach`` says of models that it does not serve, and that it serves those that only look like it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.errors import UserError
from paceline.training.attach.attach import attach


class Lookup(nn.Module):
    """An embedding of one's own: the functional form, sparse or not."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.rows, self.out = nn.Parameter(torch.ones(30, 8)), nn.Linear(8, 3)
        self.sparse = sparse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.embedding(x, self.rows, sparse=self.sparse))


class Says(nn.Linear):
    """A layer whose attribute ``sparse`` is something else."""

    sparse = "2:4"


class Frozen(nn.Module):
    """A sparse embedding that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(30, 8, sparse=True), nn.Linear(8, 3)
        self.table.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(x))


def said(call: Any) -> str:
    try:
        call()
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def models(rank: int, workers: int) -> dict[str, str]:
    """What becomes of each kind of model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel.distributed import _MixedPrecision

    words = torch.arange(6).view(2, 3)
    seen: dict[str, str] = {}
    sharded = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    fully_shard(sharded, mesh=init_device_mesh("cpu", (workers,)))
    seen["sharded"] = said(lambda: attach(sharded))
    seen["plain"] = said(lambda: attach(nn.Linear(8, 3)))  # type: ignore[arg-type]
    seen["compiled"] = said(lambda: attach(torch.compile(nn.Linear(8, 3), backend="eager")))  # type: ignore[arg-type]
    from torch.distributed._composable import replicate
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp

    seen["replicated"] = said(lambda: attach(replicate(nn.Linear(8, 3))))
    seen["replicated by FSDP2"] = said(lambda: attach(replicate_with_fsdp(nn.Linear(8, 3))))
    seen["embedding"] = said(lambda: attach(DDP(nn.Embedding(30, 8, sparse=True))))
    seen["bag"] = said(lambda: attach(DDP(nn.Sequential(nn.EmbeddingBag(30, 8, sparse=True), nn.Linear(8, 3)))))

    def trained(model: nn.Module, x: torch.Tensor) -> str:
        def train() -> None:
            hook = attach(model, "int8", min_elements=0)  # type: ignore[arg-type]
            for step in range(3):
                model(x).square().sum().backward()
                assert hook.step == step + 1

        return said(train)

    torch.manual_seed(0)
    seen["compiled DDP"] = trained(torch.compile(DDP(nn.Linear(8, 3)), backend="eager"), torch.ones(2, 8))
    seen["frozen"] = trained(DDP(Frozen()), words)
    seen["another sparse"] = trained(DDP(Says(8, 3)), torch.ones(2, 8))
    seen["own lookup"] = trained(DDP(Lookup(sparse=False)), words)
    seen["mixed"] = "no error"
    plain = DDP(nn.Linear(8, 3))
    plain.mixed_precision = _MixedPrecision(torch.float16)  # DDP itself takes it on accelerators only
    seen["mixed"] = said(lambda: attach(plain))
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        by_python = DDP(nn.Linear(8, 3))
    seen["python reducer"] = said(lambda: attach(by_python))
    seen["sparse lookup"] = trained(DDP(Lookup(sparse=True)), words)
    return seen


SAYS = {
    "plain": "attach takes a model in DistributedDataParallel or sharded by fully_shard, got Linear; wrap it first: "
    "model = DistributedDataParallel(model), or shard it: fully_shard(model)",
    "compiled": "attach got a compiled Linear without DistributedDataParallel or fully_shard; wrap, "
    "attach, compile: model = DistributedDataParallel(Linear()), or fully_shard(model); attach(model); ",
    "replicated": "this model is replicated by replicate(), which no exchange can be attached to; wrap it in "
    "DistributedDataParallel instead, or shard it with fully_shard, and attach to that",
    "replicated by FSDP2": "this model is replicated by replicate(), which no exchange can be attached to; wrap it in ",
    "embedding": "Embedding: sparse gradients cannot be exchanged here; build the layer with sparse=False",
    "bag": "0: sparse gradients cannot be exchanged here",
    "mixed": "DDP's mixed_precision exchanges gradients through its own communication hook",
    "python reducer": "torch._dynamo.config.optimize_ddp was python_reducer when DDP wrapped the model",
    "sparse lookup": "rows has a sparse gradient, which cannot be exchanged here; call F.embedding with sparse=False",
}
SERVED = ("sharded", "compiled DDP", "frozen", "another sparse", "own lookup")


@pytest.mark.parametrize("model", SAYS)
def test_what_cannot_be_served_is_refused_with_the_reason(model: str) -> None:
    (seen,) = launch_once(models, 1)
    assert seen[model].startswith(SAYS[model])


@pytest.mark.parametrize("model", SERVED)
def test_what_only_looks_like_it_is_served(model: str) -> None:
    (seen,) = launch_once(models, 1)
    assert seen[model] == "no error"
