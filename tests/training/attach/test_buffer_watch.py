"""Replicas' weights and buffers are compared every N steps: equal ones pass, drifted ones are named on every rank."""

from __future__ import annotations

import copy
import hashlib
import io
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.training.attach.attach import attach
from paceline.training.attach.buffer_watch import UNSEEN

EVERY, STEPS = 3, 6
COMPRESSIONS = ("terngrad", "int8", "topk", "powersgd", "bf16")


class Synchronised(nn.SyncBatchNorm):
    """Its statistics, without its kernels, which run on GPUs only: the mean over all ranks' batches, broken on demand."""

    broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        torch.distributed.all_reduce(mean)
        mean = mean / torch.distributed.get_world_size() + self.broken
        self.running_mean.lerp_(mean, 0.1)
        return (x - self.running_mean) * self.weight + self.bias


def net(norm: type[nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 40), norm(40), nn.Tanh(), nn.Linear(40, 40), nn.Linear(40, 3))


def train(model: DDP, rank: int, steps: int, each: Any = None) -> str:
    """The error of a run, or none. ``each`` is called with the step before its forward pass."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step in range(steps):
            if each is not None:
                each(step)
            optimizer.zero_grad()
            x = torch.randn(6, 12, generator=torch.Generator().manual_seed(100 * step + rank))
            model(x).square().mean().backward()
            optimizer.step()
    except RuntimeError as error:
        return f"{type(error).__name__} at step {step}: {error}"
    return "no error"


def digest(tensors: Any) -> str:
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


class Heard(logging.Handler):
    """The messages of Paceline.

    Attributes:
        said: what was logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        logging.getLogger("paceline").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def equal(rank: int, workers: int) -> dict[str, Any]:
    """Weights of each step under every compression."""
    seen: dict[str, Any] = {}
    for compression in COMPRESSIONS:
        model = DDP(net(nn.BatchNorm1d))
        hook = attach(model, compression, check_every=EVERY)
        digests: list[str] = []
        each = lambda step, model=model, digests=digests: digests.append(digest(model.parameters()))  # noqa: E731
        seen[compression] = train(model, rank, STEPS, each), digests, hook.step
    return seen


def replicas(rank: int, workers: int) -> dict[str, Any]:
    """Messages about weights and buffers that drift."""
    DDP._passing_sync_batchnorm_handle = lambda self, module: None  # it wants GPUs
    heard = Heard()

    def drift(what: str, guilty: int, **options: Any) -> str:
        model = DDP(net(Synchronised if what == "sync" else nn.BatchNorm1d), **options)
        attach(model, "int8", check_every=EVERY)
        kept = model.modules_buffers

        def each(step: int) -> None:
            with torch.no_grad():
                if step == 1 and rank == guilty and what == "weights":
                    model.module[0].weight[3, 3] += 2**-20
                if step == 1 and what == "broadcast":
                    model.modules_buffers = kept[:1]  # DDP forgets to broadcast, which is what the check is for
                    model._sync_buffers = lambda: None
                if step == 2 and what == "sync" and rank == guilty:
                    model.module[1].broken = True

        return train(model, rank, STEPS, each)

    seen: dict[str, Any] = {"weights": [drift("weights", guilty) for guilty in range(workers)]}
    seen["broadcast"] = drift("broadcast", 0)
    heard.said.clear()
    seen["local"] = drift("none", 0, broadcast_buffers=False), drift("none", 0)
    seen["local said"] = list(heard.said)
    seen["sync"] = [drift("sync", guilty, broadcast_buffers=False) for guilty in (workers, workers - 1)]
    return seen


@pytest.mark.long
@pytest.mark.everyday("2-terngrad")
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_replicas_have_the_same_digests_every_step(workers: int, compression: str) -> None:
    ranks = [r[compression] for r in launch_once(equal, workers)]
    for error, digests, steps in ranks:
        assert (error, steps) == ("no error", STEPS) and len(set(digests)) == STEPS
        assert digests == ranks[0][1]


@pytest.mark.everyday("3")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_weights_that_drift_are_named_by_the_next_check(workers: int) -> None:
    for r in launch_once(replicas, workers):
        for guilty, error in enumerate(r["weights"]):
            odd = ", ".join(map(str, range(1, workers))) if guilty == 0 else str(guilty)
            assert error == f"ReplicasDiverged at step {EVERY - 1}: weights of rank {odd} differ from those of rank 0"


@pytest.mark.everyday("3")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_buffers_that_ddp_broadcasts_must_be_equal_after_it(workers: int) -> None:
    for r in launch_once(replicas, workers):
        odd = ", ".join(map(str, range(1, workers)))
        assert r["broadcast"] == f"ReplicasDiverged at step {EVERY - 1}: buffers of rank {odd} differ from those of rank 0"


@pytest.mark.everyday("3")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_buffers_of_each_rank_are_reported_once_and_are_no_error(workers: int) -> None:
    for rank, r in enumerate(launch_once(replicas, workers)):
        assert r["local"] == ("no error", "no error")
        assert len(r["local said"]) == (rank == 0)
        assert all("buffers differ between the ranks (1.running_mean, 1.running_var, " in said for said in r["local said"])


@pytest.mark.everyday("3")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_synchronised_batch_norm_must_be_equal_without_a_broadcast(workers: int) -> None:
    for r in launch_once(replicas, workers):
        fine, broken = r["sync"]
        assert fine == "no error"
        said = f"buffers of SyncBatchNorm of rank {workers - 1} differ from those of rank 0"
        assert broken.startswith("ReplicasDiverged") and broken.endswith(said)


def copied(rank: int, workers: int) -> dict[str, Any]:
    """A model that is copied and saved while the watch waits for a forward pass; passes that it must not look at."""
    seen: dict[str, Any] = {}
    model = DDP(net(nn.BatchNorm1d))
    hook = attach(model, "int8", check_every=1)
    x = torch.ones(4, 12)
    file = io.BytesIO()
    torch.save(model.module, file)
    file.seek(0)
    seen["outputs"] = [twin(x) for twin in (copy.deepcopy(model.module), torch.load(file, weights_only=False))]
    model.module(x)
    seen["inner"] = hook._buffers._seen
    with model.no_sync():
        model(x).sum().backward()
        seen["first"] = hook._buffers._seen
        model(x).sum().backward()
    model(x).sum().backward()
    seen["steps"], seen["after"] = hook.step, hook._buffers._seen
    return seen


def test_a_copied_or_saved_model_has_no_watch_and_other_passes_are_not_looked_at() -> None:
    (seen,) = launch_once(copied, 1)
    assert torch.equal(*seen["outputs"])
    assert seen["inner"] == UNSEEN and seen["first"] != UNSEEN
    assert seen["steps"] == 1 and seen["after"] == UNSEEN


class Cached(nn.Module):
    """A buffer that no checkpoint holds, of each rank's own."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((rank + 1,), float(rank)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def sharded(rank: int, workers: int) -> dict[str, Any]:
    """What FSDP2 models of batch normalisation say and raise: over one mesh, four ranks over two dimensions too."""
    seen: dict[str, Any] = {}
    heard = Heard().said
    meshes = {"fsdp": init_device_mesh("cpu", (workers,))}
    if workers == 4:
        meshes["hsdp"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name, mesh in meshes.items():
        for case, guilty in (("own", None), ("sync", None), ("broken", workers - 1)):
            heard.clear()
            model = net(nn.BatchNorm1d if case == "own" else Synchronised)
            model.append(Cached(rank))  # type: ignore[operator]
            norm = model[1]  # type: ignore[index]
            fully_shard(model, mesh=mesh)
            hook = attach(model, "int8", check_every=EVERY)

            def each(step: int, norm: Any = norm, guilty: Any = guilty) -> None:
                if step == 2 and rank == guilty:
                    norm.broken = True

            seen[f"{name} {case}"] = train(model, rank, STEPS, each), hook.step, list(heard)
    heard.clear()
    model = net(nn.BatchNorm1d)
    fully_shard(model, ignored_params={model[4].bias})  # type: ignore[index]
    attach(model, "int8", check_every=0)
    seen["ignored"] = heard
    return seen


@pytest.mark.everyday("1", "4")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_buffers_of_sharded_models_are_reported_once_and_are_no_error(workers: int) -> None:
    """FSDP2 broadcasts none. Those that no checkpoint holds may differ."""
    for rank, r in enumerate(launch_once(sharded, workers)):
        for mesh in ("fsdp", "hsdp")[: 1 + (workers == 4)]:
            error, steps, said = r[f"{mesh} own"]
            assert (error, steps) == ("no error", STEPS if workers > 1 else 0)
            assert len(said) == (rank == 0 and workers > 1)
            wanted = "buffers differ between the ranks (1.running_mean, 1.running_var, 1.num_batches_tracked): FSDP2 does not"
            assert all(text.startswith(wanted) and "cache" not in text for text in said)


@pytest.mark.everyday("4")
@pytest.mark.parametrize("workers", [2, 4])
def test_synchronised_batch_norm_of_sharded_models_must_be_equal(workers: int) -> None:
    for r in launch_once(sharded, workers):
        for mesh in ("fsdp", "hsdp")[: 1 + (workers == 4)]:
            assert r[f"{mesh} sync"] == ("no error", STEPS, [])
            text = f"buffers of SyncBatchNorm of rank {workers - 1} differ from those of rank 0"
            assert r[f"{mesh} broken"][0] == f"ReplicasDiverged at step {EVERY - 1}: {text}"


@pytest.mark.everyday("1", "4")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_trained_tensors_in_no_unit_are_named_at_attach(workers: int) -> None:
    for rank, r in enumerate(launch_once(sharded, workers)):
        said = "4.bias: trained, but in no unit of fully_shard. It is not exchanged; leave it out of ignored_params"
        assert len(r["ignored"]) == (rank == 0) and all(text.startswith(said) for text in r["ignored"])
