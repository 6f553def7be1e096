"""Checkpoints of an FSDP2 model's exchange, saved and loaded by other ranks; run by every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paceline import UserError, attach, attach_local
from paceline.training.attach.shards.sharded_state import KINDS
from sharded_models import INPUTS, backward, hybrid, loss, network, sharded
from sharded_nonfinite import network as network_of_case


def _attached(kind: str, compression: str, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    model = sharded(hybrid() if kind == "hsdp" else None)
    if kind == "nodes":
        options |= {"exchange": "hierarchical", "ranks_per_node": 2}
    return model, attach(model, compression, min_elements=10, seed=seed, **options)


def owed(hook: Any) -> dict[str, torch.Tensor]:
    """The sum over all ranks of what each owes, as whole tensors."""
    found: dict[str, torch.Tensor] = {}
    for kind in ("residual", "velocity"):
        for name, tensor, holding, values in hook._values(kind):
            rows = torch.zeros(holding.owners, tensor.shard, dtype=torch.float64)
            rows[holding.place :: holding.places] = values.double()
            whole = tensor.whole_of(rows).clone()
            dist.all_reduce(whole)
            found[f"{kind} {name}"] = whole
    return found


def save(rank: int, workers: int, kind: str, path: str, compression: str, options: dict[str, Any]) -> Any:
    """Two steps, a checkpoint, and the gradients of two more."""
    model, hook = _attached(kind, compression, **options)
    for step in range(2):
        backward(model, rank, step)
    dcp.save({"exchange": hook}, checkpoint_id=path)
    elements = sum(values.numel() for _, _, _, values in hook._values("residual"))
    return {"owed": owed(hook), "next": [backward(model, rank, step) for step in (2, 3)], "elements": elements}


def load(rank: int, workers: int, kind: str, path: str, compression: str, options: dict[str, Any], by_dcp: bool) -> Any:
    """The same from the checkpoint, on a model that had another seed."""
    model, hook = _attached(kind, compression, seed=9, **options)
    if by_dcp:
        dcp.load({"exchange": hook}, checkpoint_id=path)
    else:
        hook.load_checkpoint(path)
    return {"owed": owed(hook), "next": [backward(model, rank, step) for step in (2, 3)], "at": (hook.step, hook.seed)}


def _poison(module: Any, inputs: Any, out: torch.Tensor) -> None:
    """The gradients of what is before the module become NaN, behind those of later units."""
    out.register_hook(lambda gradient: gradient * torch.nan)


def alone(rank: int, workers: int, kind: str, path: str, again: str, compression: str, options: dict[str, Any]) -> Any:
    """A checkpoint where nothing is encoded any more: what is owed when loaded, saved again, after a bad step and after two
    good ones; their gradients, and those of FSDP2 by itself."""
    model, hook = _attached(kind, compression, **options)
    said: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("paceline").addHandler(listener)
    hook.load_checkpoint(path)
    found: dict[str, Any] = {"loaded": owed(hook), "said": list(said)}
    dcp.save({"exchange": hook}, checkpoint_id=again)
    states: list[Any] = [None] * workers
    dist.all_gather_object(states, hook.own_state())
    for _, _, _, values in hook._values("residual"):
        values.zero_()
    hook.load_own_states(states)
    found["of own states"] = owed(hook)
    plain = sharded()
    bad = model[1].register_forward_hook(_poison)
    loss(model, rank, 2).backward()
    bad.remove()
    found["bad step"] = owed(hook)
    for name, one in (("seen", model), ("wanted", plain)):
        found[name] = [backward(one, rank, step) for step in (2, 3)]
    return {**found, "left": owed(hook)}


def _said(load: Callable[[], None]) -> str:
    try:
        load()
    except UserError as error:
        return str(error)
    return "taken"


def tensor_parallel(rank: int, workers: int) -> dict[str, Any]:
    """What each rank owes after a step, and after the states of all ranks are loaded into a model that had another seed; what
    is said of the states of the ranks that hold other parts of the tensors."""
    hooks = []
    for seed in (0, 9):
        model = network_of_case("tensor parallel")
        hooks.append(attach(model, "topk", min_elements=10, seed=seed, momentum=0.5))
        if not seed:
            backward(model, rank // 2, 0)
    states: list[Any] = [None] * workers
    dist.all_gather_object(states, hooks[0].own_state())
    said = _said(lambda: hooks[1].load_own_states([s for number, s in enumerate(states) if number % 2 != rank % 2]))
    hooks[1].load_own_states(states)
    before, after = ({(k, name): v.clone() for k in KINDS for name, _, _, v in hook._values(k)} for hook in hooks)
    return {"before": before, "after": after, "at": (hooks[1].step, hooks[1].seed), "said": said}


def _of_another_width() -> Any:
    """The hook of a model whose first layer has other outputs."""
    model = network()
    model[0] = nn.Linear(INPUTS, 65)
    for part in (model[0], model[2], model):
        fully_shard(part)
    return attach(model, "topk", min_elements=10)


def refused(rank: int, workers: int, path: str, other: str) -> dict[str, str]:
    """What is said of a checkpoint that does not fit; it holds a state of ``topk``."""
    _, sign = _attached("full", "sign")
    _, hook = _attached("full", "topk")
    return {
        "compression": _said(lambda: sign.load_checkpoint(path)),
        "nothing": _said(lambda: hook.load_checkpoint(other)),
        "name": _said(lambda: hook.load_checkpoint(path, "optimizer")),
        "part": _said(lambda: hook.load_checkpoint(path, "exchange.residual")),
        "width": _said(lambda: _of_another_width().load_checkpoint(path)),
    }


def cut_short(rank: int, workers: int, path: str) -> str:
    """What is said of a checkpoint whose data are gone."""
    _, hook = _attached("full", "topk")
    dcp.save({"exchange": hook}, checkpoint_id=path)
    if rank == 0:
        for file in Path(path).glob("*.distcp"):
            file.write_bytes(b"")
    dist.barrier()
    return _said(lambda: hook.load_checkpoint(path))


def foreign(rank: int, workers: int) -> dict[str, str]:
    """What is said of states that are none of this hook's, whether given as saved or as a rank's own; at the end, its step."""
    model, hook = _attached("full", "topk")
    backward(model, rank, 0)
    good, own = hook.state_dict(), hook.own_state()
    ddp_hook = attach(DistributedDataParallel(network()), "topk")
    low_rank = attach(DistributedDataParallel(network()), "powersgd")
    local = attach_local(network(), "topk", sync_every=2)
    ddp = ddp_hook.state_dict()
    name = next(iter(own["residual"]))
    part = own["residual"][name]
    states = {
        "empty": {},
        "nothing": None,
        "ddp": ddp,
        "ddp, of 0.1.0": {("way" if entry == "gradient_exchange" else entry): value for entry, value in ddp.items()},
        "powersgd": low_rank.state_dict(),
        "local": local.state_dict(),
        "step": {**good, "step": None},
        "not json": {**good, "gradient_exchange": "{"},
        "no object": {**good, "gradient_exchange": "[]"},
    }
    said = {f"{what}, saved": _said(lambda state=state: hook.load_state_dict(state)) for what, state in states.items()}
    said |= {f"{what}, own": _said(lambda state=state: hook.load_own_states([state])) for what, state in states.items()}
    bare = {entry: value for entry, value in good.items() if entry != "residual"}
    said["bare, saved"] = _said(lambda: hook.load_state_dict(bare))
    said["bare, own"] = _said(lambda: hook.load_own_states([bare]))
    said["own, saved"] = _said(lambda: hook.load_state_dict(own))
    said["saved, own"] = _said(lambda: hook.load_own_states([good]))
    said["no states"] = _said(lambda: hook.load_own_states([]))
    said["flat"] = _said(
        lambda: hook.load_own_states([{**own, "residual": {**own["residual"], name: {**part, "values": torch.zeros(3)}}}])
    )
    states_of_all: list[Any] = [None] * workers
    dist.all_gather_object(states_of_all, own)
    said["width"] = _said(lambda: _of_another_width().load_own_states(states_of_all))
    for what, other in (("ddp", ddp_hook), ("powersgd", low_rank), ("local", local)):
        for how, state in (("saved", good), ("own", own), ("all", states_of_all)):
            said[f"{how}, into {what}"] = _said(lambda other=other, state=state: other.load_state_dict(state))
    said["step"] = str(hook.step)
    return said
