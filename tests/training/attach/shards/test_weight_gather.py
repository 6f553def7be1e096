"""Weights gathered in fewer bits: every rank computes with the same ones, within the format's error, for fewer bytes."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import sharded_models
from distributed import launch, launch_and_let_fail, launch_once
from paceline import codecs
from paceline.codecs import key
from paceline.codecs.reference.fp8 import Fp8
from paceline.training.attach.attach import attach
from paceline.training.attach.shards.weight_gather import DRAWS, WeightGather
from paceline.training.exchanges.wires.message_buffers import BufferPool
from paceline.training.exchanges.wires.meter import Meter

LIMIT_S = 30
ON_TWO = ("frozen_unit", "warm_gathers", "unlike_neighbours", "draws_of_a_step", "in_fp8")


def several(rank: int, workers: int, names: list[str]) -> list[Any]:
    """Call functions of this file or its models in one group of processes, and return their results."""
    return [(globals().get(name) or getattr(sharded_models, name))(rank, workers) for name in names]


def on_two(name: str) -> list[Any]:
    """Return what each of two ranks returns."""
    return [results[ON_TWO.index(name)] for results in launch_once(several, 2, names=ON_TWO)]


@pytest.mark.long
def test_every_rank_sees_the_same_rounded_weights() -> None:
    results = launch_once(sharded_models.rounded_weights, 3)
    for bits in ("0", "8", "16"):
        first = results[0][bits]["seen"]
        assert all(torch.equal(first, other[bits]["seen"]) for other in results)
    assert torch.equal(results[0]["0"]["seen"], results[0]["0"]["own"])
    assert torch.equal(results[0]["16"]["seen"], results[0]["16"]["own"].bfloat16().float())
    assert torch.equal(results[0]["32"]["seen"], results[0]["32"]["own"])
    largest = results[0]["8"]["largest"]  # of the tensor, which shares no block with another one
    found = float((results[0]["8"]["seen"] - results[0]["8"]["own"]).abs().max())
    assert 0 < found <= largest / 127  # QSGD: one step of 127 at most


def test_a_frozen_unit_is_gathered_in_fewer_bits_too() -> None:
    """Rows as below, on two ranks; the block is gathered in the forward and, for the layer before it, in the backward pass, and
    its gradients are not exchanged. Frozen after ``attach`` it is left alone as well, and may be trained again."""
    matrices, biases = [31 * 31, 22 * 61, 24 * 43], [31, 22, 24]
    shards = [matrices[0] + biases[0], sum(matrices[1:]) + sum(biases[1:]), 4 * 47 + 4]
    scattered = sum(32 + 4 * n for n in (shards[0], shards[2]))
    fp32 = sum(times * 4 * n for times, n in zip([2, 2, 1], shards, strict=True))
    int8 = sum(2 * int8_bytes(*unit) for unit in (matrices[:1], matrices[1:])) + 4 * (2 * sum(biases) + shards[2])
    for result in on_two("frozen_unit"):
        assert result == {"32": fp32 + scattered, "8": int8 + scattered, "late": fp32 + scattered, "thawed": 8}


def int8_bytes(*matrices: int) -> int:
    """A header of 32 bytes; for each matrix whole blocks of 1,024 with a scale of 4 bytes each. Biases, and a matrix below a
    quarter of a block, are fp32."""
    return 32 + sum(1028 * -(-n // 1024) for n in matrices)


def test_bytes() -> None:
    """Rows of 672 (0.), 1,634 (2.) and 144 (4.) elements on three ranks: two gathers of the first two units, one of the
    root's."""
    shards = [21 * 31 + 21, 15 * 61 + 15 + 16 * 43 + 16, 3 * 47 + 3]
    times, small = [2, 2, 1], 2 * (21 + 15 + 16) + shards[2]
    scattered = 2 * 4 * sum(shards)
    wanted = {
        **dict.fromkeys(("0", "32"), 2 * sum(t * 4 * n for t, n in zip(times, shards, strict=True))),
        "16": 2 * sum(t * 2 * n for t, n in zip(times, shards, strict=True)),
        "8": 2 * (2 * int8_bytes(21 * 31) + 2 * int8_bytes(15 * 61, 16 * 43) + 4 * small),
    }
    for result in launch_once(sharded_models.rounded_weights, 3):
        assert {bits: result[bits]["sent"] for bits in wanted} == {bits: n + scattered for bits, n in wanted.items()}


def allocated(call: Callable[[], Any]) -> list[int]:
    """Bytes of every larger allocation of torch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 256]


def warm_gathers(rank: int, workers: int) -> dict[str, Any]:
    """What a third gather allocates beside the engine's own of such a message; what a fresh pool gathers beside a used one."""
    found: dict[str, Any] = {}
    for bits, dtype in ((8, torch.float32), (8, torch.bfloat16), (8, torch.float16), (16, torch.float32)):
        shard = torch.randn(9001, generator=torch.Generator().manual_seed(rank)).to(dtype)
        gathers = [WeightGather(bits, dist.group.WORLD, Meter(rank), 0, 60.0, BufferPool()) for _ in range(2)]
        used, fresh = (torch.empty(workers * shard.numel(), dtype=dtype) for _ in gathers)
        for step in range(2):
            gathers[0](used, shard * (step + 1), dist.group.WORLD, key(0, step, rank), False)
        made = allocated(partial(gathers[0], used, shard, dist.group.WORLD, key(0, 7, rank), False))
        message = torch.empty(2 * 9001 if bits == 16 else int8_bytes(9001), dtype=torch.uint8)
        engine = allocated(partial(dist.all_gather_into_tensor, message.new_empty(workers * message.numel()), message))
        gathers[1](fresh, shard, dist.group.WORLD, key(0, 7, rank), False)
        found[f"{bits} {dtype}"] = sorted(made) == sorted(engine), torch.equal(used, fresh), used, (made, engine)
    return found


def test_a_warm_gather_allocates_no_memory_for_messages_and_has_the_bits_of_fresh_memory() -> None:
    results = on_two("warm_gathers")
    for result in results:
        for name, (as_engine, same, whole, made) in result.items():
            assert as_engine and same and torch.equal(whole, results[0][name][2]), (name, made)


def unlike_neighbours(rank: int, workers: int) -> list[float]:
    """Errors of three tensors that are gathered in int8, each over its largest magnitude: 0.001, 1 and a bias of 0.001."""
    draws = torch.Generator().manual_seed(rank)
    parts = [scale * torch.randn(size, generator=draws) for scale, size in ((0.001, 1500), (1.0, 1300), (0.001, 255))]
    sizes = [part.numel() for part in parts]
    gather = WeightGather(8, dist.group.WORLD, Meter(rank), 0, 60.0, BufferPool(), sizes)
    whole = torch.empty(workers * sum(sizes))
    gather(whole, torch.cat(parts), dist.group.WORLD, key(0, 0, rank), False)
    found = whole.view(workers, -1)[rank].split(sizes)
    return [float((one - part).abs().max() / part.abs().max()) for one, part in zip(found, parts, strict=True)]


def in_fp8(rank: int, workers: int) -> tuple[torch.Tensor, int]:
    """Weights that are gathered in fp8, and the bytes of the message."""
    meter = Meter(rank)
    gather = WeightGather(8, dist.group.WORLD, meter, 0, 60.0, BufferPool(), form="fp8")
    whole = torch.empty(workers * 3000)
    gather(whole, weights_of(rank), dist.group.WORLD, key(5, 2, rank), False)
    return whole, meter.sent_bytes


def weights_of(rank: int) -> torch.Tensor:
    return torch.randn(3000, generator=torch.Generator().manual_seed(rank))


def test_weights_in_fp8_are_those_of_the_reference_codec_and_of_torchs_e4m3() -> None:
    (first, sent), (second, _) = on_two("in_fp8")
    codec = Fp8(block=1024)
    for rank, found in enumerate(first.view(2, -1)):
        values = weights_of(rank).numpy()
        body = np.zeros(codec.body_range(values.size)[1], dtype=np.uint8)
        size = codec.encode_body(values, body, key(5, 2, rank), DRAWS)
        assert np.array_equal(codec.decode_body(body[:size], values.size), found.numpy())
        for block, sent_block in zip(weights_of(rank).split(1024), found.split(1024), strict=True):
            codes = sent_block / 2.0 ** math.ceil(math.log2(float(block.abs().max()) / 448))
            assert torch.equal(codes.to(torch.float8_e4m3fn).float(), codes)
    assert torch.equal(first, second) and sent == int8_bytes(3000)


def test_a_tensor_takes_no_noise_from_its_neighbour() -> None:
    for first, second, bias in on_two("unlike_neighbours"):
        assert 0 < first <= 1 / 127 and 0 < second <= 1 / 127 and bias == 0


def gather_without_one(rank: int, workers: int, bits: int, later: bool, lost: int, how: int, timeout_s: float) -> None:
    """A step, and another before whose forward pass a rank gets a signal; ``later``: FSDP2 waits for what it has launched."""
    model = sharded_models.sharded(sharded_models.hybrid() if workers == 4 else None)
    attach(model, "dense", gather_bits=bits, timeout_s=timeout_s)
    model._set_unshard_async_op(later)
    sharded_models.backward(model, rank, 0)
    if rank == lost:
        os.kill(os.getpid(), how)
    sharded_models.loss(model, rank, 1).backward()


@pytest.mark.everyday("8-True-3-1")
@pytest.mark.parametrize(
    ("bits", "later", "workers", "lost"),
    [(0, False, 3, 1), (0, True, 3, 1), (16, False, 3, 1), (8, True, 3, 1), (0, False, 4, 3)],
)
def test_a_rank_lost_in_a_gather_is_named_by_every_survivor(bits: int, later: bool, workers: int, lost: int) -> None:
    """Four ranks are two replicas: the ranks of the other one find their peers gone in the backward pass."""
    check(gather_without_one, workers, bits=bits, later=later, lost=lost, how=int(signal.SIGKILL), timeout_s=1800)


@pytest.mark.everyday("0-False")
@pytest.mark.parametrize(("bits", "later"), [(0, False), (0, True), (8, True)])
def test_a_rank_that_stops_in_a_gather_is_named_when_the_hooks_time_is_up(bits: int, later: bool) -> None:
    """Its connections stay open, and the user's group waits half an hour."""
    check(gather_without_one, 3, bits=bits, later=later, lost=1, how=int(signal.SIGSTOP), timeout_s=8)


def check(function: Any, workers: int, *, lost: int, **arguments: Any) -> None:
    """Every survivor ends in time and names the lost rank."""
    outcomes = launch_and_let_fail(function, workers, lost=lost, **arguments)
    for rank, outcome in enumerate(outcomes):
        if rank == lost:
            assert outcome.code == -signal.SIGKILL  # of a stopped one by the test, in the end
        else:
            assert outcome.code == 1 and outcome.seconds < LIMIT_S, outcome.said
            raised = outcome.said[outcome.said.rindex("Traceback") :]
            assert f"LostRank: rank {lost} is lost" in raised, f"{rank}: {outcome.said}"


def weights_with_a_bad_one(rank: int, workers: int, value: str, narrow: bool) -> dict[str, Any]:
    """A step with one weight of rank 1 bad, and one with it mended: the weights of a layer in both passes and what was sent;
    the loss, and the number of gradients that are not finite."""
    mixed = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float16)} if narrow else {}
    model, seen = sharded_models.sharded(**mixed), list[torch.Tensor]()
    hook = attach(model, "dense", gather_bits=8)
    layer = model[2][0]
    layer.register_forward_hook(lambda module, inputs, out: seen.append(module.weight.detach().clone()))
    layer.register_full_backward_pre_hook(lambda module, gradients: seen.append(module.weight.detach().clone()))
    rows, found = layer.weight.to_local(), dict[str, Any]()
    good = float(rows[3, 4])
    for step, name in enumerate(("bad", "mended")):
        with torch.no_grad():
            rows[3, 4] = float(value) if rank == 1 and name == "bad" else good
        hook.meter.begin_step()
        model.zero_grad()
        loss = sharded_models.loss(model, rank, step)
        loss.backward()
        odd = [gradient for gradient in sharded_models.gradients(model).values() if not gradient.isfinite().all()]
        found[name] = {"seen": seen[-2:], "sent": hook.meter.sent_bytes, "loss": float(loss.detach()), "odd": len(odd)}
    return found


@pytest.mark.everyday("nan-False")
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_a_shard_with_a_nan_or_an_infinity_arrives_as_nan_on_every_rank(value: str, narrow: bool) -> None:
    """Its rows alone, in both passes, for the same bytes; the loss is NaN, as where nothing is rounded, and the run goes on."""
    results = launch(weights_with_a_bad_one, 3, value=value, narrow=narrow)
    bad_rows = [15 <= row < 30 for row in range(43)]
    for result in results:
        for number, seen in enumerate(result["bad"]["seen"]):
            assert seen.isnan().any(1).tolist() == seen.isnan().all(1).tolist() == bad_rows
            assert torch.equal(seen.nan_to_num(0), results[0]["bad"]["seen"][number].nan_to_num(0))
        assert math.isnan(result["bad"]["loss"]) and result["bad"]["odd"] == 8
        assert math.isfinite(result["mended"]["loss"]) and result["mended"]["odd"] == 0
        assert all(seen.isfinite().all() for seen in result["mended"]["seen"])
        assert result["bad"]["sent"] == result["mended"]["sent"]


def damaged_weights(rank: int, workers: int, guilty: int) -> str:
    """What a step says whose weights a rank sends with a bit flipped; four ranks are two replicas."""
    model = sharded_models.sharded(sharded_models.hybrid() if workers == 4 else None)
    attach(model, "int8", gather_bits=8, timeout_s=8)
    plain = codecs.encode

    def encode(*args: Any, **more: Any) -> Any:
        message = torch.as_tensor(plain(*args, **more))
        message[-1] ^= 1
        return message

    codecs.encode = encode if rank == guilty else plain
    try:
        sharded_models.loss(model, rank, 0)
    except codecs.PayloadError as error:
        return str(error)
    return "accepted"


@pytest.mark.everyday("3-1-told1")
@pytest.mark.parametrize(("workers", "guilty", "told"), [(3, 0, [0, 1, 2]), (3, 1, [0, 1, 2]), (4, 3, [2, 3])])
def test_damaged_weights_name_their_sender(workers: int, guilty: int, told: list[int]) -> None:
    """By its number in the whole job, to every rank that gathers from it."""
    said = launch(damaged_weights, workers, guilty=guilty)
    for rank, text in enumerate(said):
        assert text.startswith(f"a message of rank {guilty}: the checksum" if rank in told else "accepted"), said


def draws_of_a_step(rank: int, workers: int) -> dict[str, Any]:
    """Three units of equal weights, one of them frozen, gathered and reduced as int8: the weights of both passes, and the
    draws of every message."""
    model, seen, drawn = (
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64)) for _ in range(3))),
        dict[str, list[torch.Tensor]](),
        [],
    )
    for name, unit in model.named_children():
        torch.manual_seed(1)
        unit[0].reset_parameters()  # type: ignore[index]
        fully_shard(unit.requires_grad_(name != "1"))
    fully_shard(model)
    attach(model, "int8", gather_bits=8, exchange="sharded", min_elements=0, dense=[])

    def encode(codec: Any, values: Any, key: codecs.Key, start: int = 0, **more: Any) -> Any:
        if codec.name == "int8":  # dense numbers draw nothing
            drawn.append((tuple(key), start, start + len(values)))
        return plain(codec, values, key, start, **more)

    def look(name: str, layer: Any) -> None:
        seen.setdefault(name, []).append(layer.weight.detach().clone())

    for name, unit in model.named_children():
        layer = unit[0]  # type: ignore[index]
        layer.register_forward_hook(lambda module, inputs, out, name=name: look(name, module))
        layer.register_full_backward_pre_hook(lambda module, gradients, name=name: look(name, module))
    plain = codecs.encode
    codecs.encode = encode
    model(torch.ones(2, 64, requires_grad=True)).square().sum().backward()
    return {"seen": seen, "drawn": drawn}


def test_units_of_equal_weights_are_rounded_apart_and_share_no_draws_with_gradients() -> None:
    for result in on_two("draws_of_a_step"):
        assert [len(seen) for seen in result["seen"].values()] == [2, 2, 2]
        for forward, backward in result["seen"].values():
            assert torch.equal(forward, backward)
        for one, other in combinations(result["seen"].values(), 2):
            assert (one[0] != other[0]).float().mean() > 0.1
        different = sorted(set(result["drawn"]))
        assert len(different) == 3 + 2  # weights of three units, gradients of two
        for (drawn, _, end), (following, start, _) in combinations(different, 2):
            assert drawn != following or end <= start
