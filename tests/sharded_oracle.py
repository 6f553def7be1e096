"""Sharded models with a codec, momentum and error feedback, beside an oracle that has the gradients of all ranks; run by every
rank of training/attach/hooks/test_sharded_codecs.py."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from paceline import UserError, attach
from paceline.training.attach.shards.fsdp_units import units_of
from sharded_cases import cases, outcome
from sharded_models import Grads, backward, gradients, hybrid, loss, network, sharded

DENSITY, MOMENTUM = 0.2, 0.5
TOPK: dict[str, Any] = {"compression": "topk", "density": DENSITY, "momentum": MOMENTUM, "min_elements": 1}


def largest(values: Tensor) -> Tensor:
    """The elements of largest magnitude, of equal ones the first, and zeros (Aji & Heafield 2017)."""
    kept = values.abs().argsort(descending=True, stable=True)[: ceil(DENSITY * values.numel())]
    return torch.zeros_like(values).index_copy(0, kept, values[kept])


def compensated(gradient: Tensor, residual: Tensor, velocity: Tensor) -> Tensor:
    """What one rank sends of a flat gradient; the rest stays in ``residual`` (Lin et al. 2018, algorithm 1 with momentum)."""
    velocity.mul_(MOMENTUM).add_(gradient)
    residual.add_(velocity)
    sent = largest(residual)
    residual.sub_(sent)
    velocity[sent != 0] = 0
    return sent


class Oracle(ReduceScatter):
    """The reduce-scatter of one unit: every rank computes what all ranks send.

    Attributes:
        residual, velocity: (sender, owner, columns), of unscaled gradients.
    """

    def __init__(self, module: Any, scale: Callable[[], float]) -> None:
        state = module._get_fsdp_state()
        (group,) = getattr(state, "_fsdp_param_groups", None) or (state._fsdp_param_group,)  # before torch 2.13: one
        ranks = dist.get_world_size()
        trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
        columns = sum(p.padded_sharded_param_size.numel() for p in trained)
        self.residual, self.velocity = (torch.zeros(ranks, ranks, columns) for _ in range(2))
        self.scale = scale

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> None:
        ranks, me = group.size(), group.rank()
        everyone = [torch.empty_like(input_tensor) for _ in range(ranks)]
        dist.all_gather(everyone, input_tensor, group=group)
        matrices = torch.stack(everyone).view(ranks, ranks, -1).float()
        total = matrices[:, me].sum(0)
        if matrices.shape[-1] == self.residual.shape[-1]:
            scale = self.scale()
            rows = matrices / scale
            for sender in range(ranks):
                for owner in range(ranks):
                    if sender != owner:
                        kept = self.residual[sender, owner], self.velocity[sender, owner]
                        rows[sender, owner] = compensated(rows[sender, owner], *kept)
            total = rows[:, me].sum(0) * scale
        output_tensor.copy_(total / ranks)


def _by_codec(case: Callable[..., Grads], rank: int) -> dict[str, Grads]:
    """A case with a codec, and with the oracle's: what comes of it, with this rank's residuals of each unit."""
    hooks: list[Any] = []
    oracles: list[Oracle] = []

    def hook(model: Any, **options: Any) -> None:
        hooks.append(attach(model, exchange="sharded", **TOPK, **options))

    def oracle(model: Any, grad_scaler: Any = None) -> None:
        for module in getattr(model, "_orig_mod", model).modules():
            if isinstance(module, FSDPModule):
                oracles.append(Oracle(module, lambda: float(grad_scaler.get_scale()) if grad_scaler else 1.0))
                module.set_custom_reduce_scatter(oracles[-1])

    found, wanted = outcome(case, rank, hook), outcome(case, rank, oracle)
    scale = hooks[0]._factor
    for number, (unit, known) in enumerate(zip(hooks[0].units, oracles, strict=True)):
        reducer = hooks[0]._reducers[unit]
        for kind in ("residual", "velocity"):
            own = [reducer.owed_to(t, kind) for t in unit.tensors]
            found[f"{kind} of unit {number}"] = torch.cat([v for v in own if v is not None], 1) / scale
            wanted[f"{kind} of unit {number}"] = getattr(known, kind)[rank]
    return {"found": found, "wanted": wanted}


def run(rank: int, workers: int, parts: list[str]) -> dict[str, Any]:
    """Outcome of each part: the first word is the name of a function of this file, the rest are its arguments.

    Four ranks are two replicas of two shards.
    """
    return {part: globals()[part.split()[0]](rank, *part.split()[1:]) for part in parts}


def case(rank: int, name: str) -> dict[str, Grads]:
    """A case with a codec and with the oracle."""
    return _by_codec(cases()[name], rank)


def scaler_restored(rank: int) -> dict[str, tuple[Grads, Grads]]:
    """The unscaled gradients of a step behind a checkpoint whose gradient scaler has changed its factor since, and those of a
    run without the checkpoint; powers of two, so that both have the same bits."""

    def step(model: Any, scaler: Any, number: int) -> Grads:
        model.zero_grad()
        scaler.scale(loss(model, rank, number)).backward()
        return {name: gradient / scaler.get_scale() for name, gradient in gradients(model).items()}

    def attached(scale: float) -> tuple[Any, Any, Any]:
        model, scaler = sharded(), torch.amp.GradScaler("cpu", init_scale=scale)
        return model, scaler, attach(model, grad_scaler=scaler, exchange="sharded", **TOPK)

    model, scaler, hook = attached(64.0)
    for number in range(2):
        step(model, scaler, number)
    states = copy.deepcopy((hook.state_dict(), hook.own_state()))
    scaler.update(16.0)
    wanted = step(model, scaler, 2)
    found = {}
    for way, state in zip(("state_dict", "own_state"), states, strict=True):
        model, scaler, hook = attached(16.0)
        hook.load_state_dict(state) if way == "state_dict" else hook.load_own_states([state])
        found[way] = step(model, scaler, 2), wanted
    return found


def whole_sum(rank: int) -> Grads:
    """PyTorch's gradients."""
    return backward(sharded(), rank, 0)


def divided(rank: int, dtype: str, factor: str) -> dict[str, Grads]:
    """Gradients in a type of numbers with a divisor of the script, or 0 for none: dense and as int8."""
    found = {}
    mesh = hybrid() if dist.get_world_size() == 4 else None
    for compression in ("dense", "int8"):
        model = sharded(mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=getattr(torch, dtype)))
        for module in model.modules():
            if float(factor) and isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(float(factor))
        attach(model, compression, exchange="sharded")
        found[compression] = backward(model, rank, 0)
    return found


def early(rank: int) -> dict[str, Any]:
    """Which gradients FSDP2 reads before the end of the backward pass, and what a parameter's hook has seen of them."""
    late: dict[str, bool] = {}

    def asked(name: str, model: Any, output: Tensor = torch.empty(1)) -> None:  # noqa: B008
        (late[name],) = {unit.may_be_late(output) for unit in units_of(model)}

    model = sharded()
    backward(model, rank, 0)  # FSDP2 settles its types in the first forward pass
    asked("earlier gradients", model)
    model.zero_grad()
    asked("plain", model)
    asked("fp16", model, torch.empty(1, dtype=torch.float16))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(3.0)
    asked("divisor", model)
    model = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    backward(model, rank, 0)
    model.zero_grad()
    asked("offload", model)

    model, seen = sharded(), dict[str, Tensor]()
    backward(model, rank, 1)
    model.zero_grad()
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: seen.__setitem__(name, p.grad.to_local().detach().clone())
        )
    asked("post-accumulate hook", model)
    hook = attach(model, exchange="sharded", **TOPK)
    run = hook._run

    def slowly(reducer: Any, output: Tensor, *rest: Any) -> None:
        output.fill_(torch.nan)
        time.sleep(0.02)
        run(reducer, output, *rest)

    hook._run = slowly
    backward(model, rank, 0)
    own = {name: p.grad.to_local() for name, p in model.named_parameters()}  # type: ignore[union-attr]
    return {"late": late, "seen": seen, "wanted": own}


def rounded(rank: int) -> dict[str, Tensor]:
    """A layer's int8 weights in the forward and the backward pass of two steps, and with another seed; the shards of both
    ranks are alike."""
    found: dict[str, Tensor] = {}
    for seed in (0, 1):
        torch.manual_seed(7)
        layer = nn.Linear(64, 8, bias=False)
        nn.init.normal_(layer.weight)
        layer.weight.data[4:] = layer.weight.data[:4]
        model = nn.Sequential(nn.Sequential(layer, nn.Tanh()), nn.Linear(8, 5))
        for part in (model[0], model):
            fully_shard(part)
        attach(model, "dense", seed=seed, gather_bits=8)
        for step in range(2):
            where = f"seed {seed}, step {step}"
            hooks = (
                layer.register_forward_hook(
                    lambda m, i, o, where=where: found.__setitem__(f"{where}, forward", m.weight.detach().clone())
                ),
                layer.register_full_backward_pre_hook(
                    lambda m, g, where=where: found.__setitem__(f"{where}, backward", m.weight.detach().clone())
                ),
            )
            model(torch.ones(3, 64, requires_grad=True)).sum().backward()
            for one in hooks:
                one.remove()
    return found


def momentum_between_replicas(rank: int) -> dict[str, list[Grads]]:
    """Two replicas of two shards whose messages go to all replicas, over three steps; and the same by hand."""
    mesh = hybrid()
    model = sharded(mesh)
    attach(model, exchange="allgather", **TOPK)
    found = [backward(model, rank, step) for step in range(3)]

    model, wanted = sharded(mesh), []
    plain = network()
    units = [[n for n, _ in plain.named_parameters() if n.startswith(prefix)] for prefix in ("0.", "2.", "4.")]
    kept: dict[Any, tuple[Tensor, Tensor]] = {}
    for step in range(3):
        rows: dict[int, Grads] = {}
        for other in range(4):  # the gradients of every rank, whole
            plain.zero_grad()
            loss(plain, other, step).backward()
            rows[other] = {name: p.grad.clone() for name, p in plain.named_parameters()}  # type: ignore[union-attr]
        total: Grads = {name: torch.zeros(0) for names in units for name in names}
        for number, names in enumerate(units):
            for shard in range(2):
                sent = None
                for replica in range(2):
                    summed = {n: rows[2 * replica][n] + rows[2 * replica + 1][n] for n in names}
                    pieces = [_padded(summed[n])[shard] for n in names]
                    flat = torch.cat(pieces)
                    memory = kept.setdefault((number, shard, replica), (torch.zeros_like(flat), torch.zeros_like(flat)))
                    message = compensated(flat, *memory)
                    sent = message if sent is None else sent + message
                assert sent is not None
                for name, piece in zip(names, (sent / 4).split([len(p) for p in pieces]), strict=True):
                    total[name] = torch.cat([total[name], piece])
        shapes = {n: p.shape for n, p in plain.named_parameters()}
        wanted.append({n: v[: shapes[n].numel()].view(shapes[n]) for n, v in total.items()})
    return {"found": found, "wanted": wanted}


def _padded(whole: Tensor) -> Tensor:
    """The shards of a tensor on two ranks, each flat."""
    rows = ceil(whole.shape[0] / 2)
    padded = whole.new_zeros(2 * rows, *whole.shape[1:])
    padded[: whole.shape[0]] = whole
    return padded.view(2, -1)


def streams(rank: int) -> dict[str, Tensor]:
    """A gradient whose rows are all alike, as int8, on two shards of two replicas."""
    found = {}
    for exchange in ("sharded", "ring", "allgather"):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(64, 8, bias=False))
        fully_shard(model, mesh=hybrid())
        attach(model, "int8", exchange=exchange, min_elements=10)
        model(torch.linspace(0.1, 1, 64).repeat(3, 1)).sum().backward()
        found[exchange] = gradients(model)["0.weight"]
    return found


def secondary(rank: int) -> dict[str, Any]:
    """Weights that pairs of ranks keep in parts after the forward pass (ZeRO++'s hpZ): gradients, bytes, and the weights that
    both passes of a step have seen."""
    found: dict[str, Any] = {"torch": backward(sharded(reshard_after_forward=2), rank, 0)}
    for bits in (0, 8, 16):
        model, seen = sharded(reshard_after_forward=2), list[Tensor]()
        hook = attach(model, "dense", gather_bits=bits)
        model[2][0].register_forward_hook(lambda m, i, o, seen=seen: seen.append(m.weight.detach().clone()))
        model[2][0].register_full_backward_pre_hook(lambda m, g, seen=seen: seen.append(m.weight.detach().clone()))
        hook.meter.begin_step()
        found[str(bits)] = {"gradients": backward(model, rank, 0), "seen": seen, "sent": hook.meter.sent_bytes}
    model = sharded(reshard_after_forward=2)
    attach(model, "int8", exchange="sharded", min_elements=10)
    found["int8"] = backward(model, rank, 0)
    return found


def refused(rank: int) -> dict[str, str]:
    """Replicas that differ, where the ranks of each agree."""
    found = {}
    for name, options in {"seed": {"seed": rank // 2}, "step": {"timeout_s": 100 + rank // 2}}.items():
        try:
            attach(sharded(hybrid()), "int8", **options)
            found[name] = "nothing refused"
        except UserError as error:
            found[name] = str(error)
    return found
