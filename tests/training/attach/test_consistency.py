"""What must not go wrong in silence: each fault is made here, and something says so."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_and_let_fail, launch_once
from paceline import codecs
from paceline.codecs import PayloadError, container, counter
from paceline.errors import UserError
from paceline.strategy import EXCHANGES, GradientExchange
from paceline.training import device_stream
from paceline.training.attach import auto
from paceline.training.attach import bucketing as groups_module
from paceline.training.attach.attach import attach
from paceline.training.exchanges import exchange_streams
from paceline.training.exchanges.pipeline import pipeline
from paceline.training.exchanges.streams import encoded_streams as streams
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.streams.integer_stream import IntegerStream
from paceline.training.exchanges.wires import collectives as wire
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from strategy_toys import WAYS


class Named(nn.Module):
    """Two layers of one shape under any names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(40, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = torch.tanh(layer(x))
        return x


def net(*names: str) -> DDP:
    torch.manual_seed(1)
    return DDP(Named(*(names or ("a", "b"))))


def train(model: DDP, steps: int = 1, rank: int = 0) -> str:
    """Some steps; what was raised."""
    generator = torch.Generator().manual_seed(rank)
    try:
        for _ in range(steps):
            model(torch.randn(5, 40, generator=generator)).square().mean().backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


DISAGREEMENTS: dict[str, list[dict[str, Any]]] = {
    "compression": [{"compression": "dense"}, {"compression": "terngrad"}],
    "unknown name": [{"compression": "terngrad"}, {"compression": "terngard"}],
    "another hook": [{"compression": "terngrad"}, {"compression": "powersgd"}],
    "auto": [{"compression": "auto"}, {"compression": "dense"}],
    "option": [{"compression": "topk", "density": 0.01}, {"compression": "topk", "density": 0.02}],
    "exchange": [{"compression": "int8", "exchange": "ring"}, {"compression": "int8"}],
    "seed": [{"seed": 1}, {"seed": 2}],
    "check": [{"check_every": 3}, {"check_every": 0}],
    "illegal on one rank": [{}, {"timeout_s": -1}],
}


def faults(rank: int, workers: int) -> dict[str, Any]:
    """Every fault that leaves the group usable."""
    seen: dict[str, Any] = {"disagree": {}}

    def refused(model: DDP, **options: Any) -> str:
        try:
            attach(model, **options)
        except UserError as error:
            return str(error)
        return "no error"

    for what, sides in DISAGREEMENTS.items():
        seen["disagree"][what] = refused(net(), **sides[rank])
    seen["disagree"]["tensors"] = refused(net(*("ab" if rank else "ba")))
    version = container.VERSION
    container.VERSION += rank
    seen["disagree"]["version"] = refused(net())
    container.VERSION = version

    model = net()
    attach(model, "dense", check_every=3)
    said = [train(model, 2, rank)]
    if rank:
        with torch.no_grad():
            model.module.a.weight[3, 3] *= 1 + 2**-23
    seen["drift"] = [*said, train(model, 1, rank), train(model, 1, rank)]

    model = net()
    attach(model, "int8", min_elements=0)
    encode = IntegerStream.encode
    IntegerStream.encode = broken  # type: ignore[method-assign]
    seen["broken codec"] = train(model, 1, rank)
    IntegerStream.encode = encode  # type: ignore[method-assign]

    seen["types"] = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        for compression in ("dense", "int8", "terngrad", "topk"):
            model = DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4)).to(dtype))
            attach(model, compression, exchange="sharded")
            model(torch.ones(3, 64, dtype=dtype) * (1 + rank)).sum().backward()
            seen["types"][str(dtype), compression] = [p.grad.double().numpy() for p in model.parameters() if p.grad is not None]
    big = DDP(nn.Linear(2, 1, bias=False).half())
    attach(big, "dense")
    big(torch.full((1, 2), 60_000.0, dtype=torch.float16)).sum().backward()
    seen["large fp16"] = big.module.weight.grad.tolist()

    model = DDP(WithEmpty())
    attach(model, "int8", min_elements=0)
    model(torch.ones(2, 30)).sum().backward()
    seen["empty"] = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
    return seen


def broken(*_: Any, **__: Any) -> Any:
    """A fault of this machine's, raised as the engine raises its own."""
    raise RuntimeError("out of scratch memory")


class WithEmpty(nn.Module):
    """A tensor without elements between two others, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.none, self.last = nn.Linear(30, 20), nn.Parameter(torch.empty(0)), nn.Linear(20, 3)
        self.first.weight = nn.Parameter(torch.ones(30, 20).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)) + self.none.sum()


@pytest.mark.parametrize("what", [*DISAGREEMENTS, "tensors", "version"])
def test_ranks_that_disagree_are_told_on_every_rank(what):
    for r in launch_once(faults, 2):
        said = r["disagree"][what]
        assert "the ranks disagree on" in said and "rank 0: " in said and "rank 1: " in said, said


def test_replicas_that_drifted_apart_are_named_on_every_rank():
    for r in launch_once(faults, 2):
        before, at, after = r["drift"]
        assert before == "no error"
        assert "ReplicasDiverged: weights of rank 1 differ from those of rank 0" in at
        assert "ReplicasDiverged" in after  # it does not go on by itself


def test_a_fault_that_is_not_the_wires_is_told_as_it_is():
    for r in launch_once(faults, 2):
        assert "RuntimeError: out of scratch memory" in r["broken codec"]
        assert "LostRank" not in r["broken codec"] and "link" not in r["broken codec"]


@pytest.mark.parametrize("dtype", ["torch.float16", "torch.bfloat16", "torch.float64"])
@pytest.mark.parametrize("compression", ["dense", "int8", "terngrad", "topk"])
def test_gradients_of_any_float_type(dtype, compression):
    zero, one = (r["types"][dtype, compression] for r in launch_once(faults, 2))
    assert all(np.array_equal(a, b) and np.isfinite(a).all() for a, b in zip(zero, one, strict=True))
    assert np.abs(zero[-2]).max() > 0 and zero[-1].tolist() == [3.0] * 4


def test_dense_fp16_is_divided_before_it_overflows():
    assert all(r["large fp16"] == [[60_000.0, 60_000.0]] for r in launch_once(faults, 2))


def test_empty_and_strided_tensors():
    for r in launch_once(faults, 2):
        weight, bias, none, *last = r["empty"] if r["empty"][0] != [] else (*r["empty"][1:3], r["empty"][0], *r["empty"][3:])
        assert none == [] and np.isfinite(np.array(weight)).all() and np.any(weight) and len(bias) == 20 and len(last) == 2


def corrupt(rank: int, workers: int) -> None:
    """One bit of one message changes on its way to rank 0."""
    model = net()
    hook = attach(model, "terngrad")
    exchange = wire.Wire.all_to_all

    def changed(self: Any, outgoing: Any, expected: Any, name: str, *more: Any) -> Any:
        pending = exchange(self, outgoing, expected, name, *more)
        if rank == 0 and hook.step == 2 and name == "push":
            result = pending._result

            def flipped() -> Any:
                parts = [part.clone() for part in result()]
                parts[1][40] ^= 4
                return parts

            pending._result = flipped
        return pending

    wire.Wire.all_to_all = changed  # type: ignore[method-assign]
    for _ in range(5):
        model(torch.randn(5, 40)).square().mean().backward()


def test_a_corrupted_message_ends_the_run_on_every_rank():
    zero, one = launch_and_let_fail(corrupt, 2)
    assert zero.code == one.code == 1 and max(zero.seconds, one.seconds) < 30
    assert "PayloadError: a message of rank 1: the checksum does not match" in zero.said, zero.said
    assert "LostRank" in one.said, one.said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_a_damaged_message_names_its_sender_in_every_exchange(way, guilty, monkeypatch):
    """Every rank finds the damage by itself and would name the same rank."""
    said: dict[int, str] = {}

    def rank(one: Any) -> None:
        values = torch.linspace(-1, 1, 400)
        stream = CodecStream(codecs.get("int8"), values, counter.Key(1, 1), 0)
        encode = stream.encode

        def damaged(*args: Any, **more: Any) -> torch.Tensor:
            message = encode(*args, **more).clone()
            if one.rank == guilty and message.numel():
                message[-1] ^= 1
            return message

        monkeypatch.setattr(stream, "encode", damaged)
        try:
            exchange_streams([(stream, EXCHANGES[way])], one, 1 << 20)
        except PayloadError as error:
            said[one.rank] = str(error)
            raise

    with pytest.raises(PayloadError):
        LocalGroup(3).run(rank)
    # Who decodes first depends on the turns; a server that is the guilty one decodes its own sum.
    assert said and all(text.startswith(f"a message of rank {guilty}: ") for text in said.values()), said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", ["flipped", "truncated", "foreign"])
def test_damaged_messages_are_refused_in_every_exchange(way, damage, monkeypatch):
    encode = streams._encode

    def damaged(*args: Any, **more: Any) -> torch.Tensor:
        message = encode(*args, **more).clone()
        if damage == "flipped":
            message[-1] ^= 1
        return message[:-3] if damage == "truncated" else message

    def rank(one: Any) -> None:
        values = torch.linspace(-1, 1, 400)
        codec = codecs.get("bf16" if damage == "foreign" and one.rank else "inceptionn")
        exchange_streams([(CodecStream(codec, values, counter.Key(1, 1), 0), EXCHANGES[way])], one, 1 << 20)

    if damage != "foreign":
        monkeypatch.setattr(streams, "_encode", damaged)
    with pytest.raises((PayloadError, RuntimeError)) as raised:
        LocalGroup(3).run(rank)
    assert isinstance(raised.value, PayloadError) or (damage == "foreign" and "calls" in str(raised.value))


class Clock:
    """Time of a played codec and wire."""

    now = 0.0


class Wait:
    """A collective that takes ``seconds`` from when it is issued."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.until = clock, clock.now + seconds

    def wait(self) -> None:
        self.clock.now = max(self.clock.now, self.until)


def test_codec_and_wire_of_several_chunks_overlap():
    def seconds(depth: int) -> float:
        clock = Clock()

        def chunk() -> Any:
            for _ in range(2):
                clock.now += 1.0  # the codec
                yield Wait(clock, 1.0)

        pipeline((chunk() for _ in range(12)), depth)
        return clock.now

    assert seconds(1) == 48.0 and seconds(3) == 25.0  # all hidden but the last message


def slow_codec(rank: int, workers: int) -> dict[str, list[float]]:
    """When buckets became ready, and when the first encoding was done, which waits for the last bucket in the third step."""
    groups_module.FUSE_BYTES = 1
    layers = [nn.Linear(64, 64) for _ in range(6)]
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=0.01)
    hook = attach(model, "int8")
    seen: dict[str, list[float]] = {"ready": [], "encoded": []}
    encode, ready = IntegerStream.encode, hook.meter.bucket_ready
    buckets = 0

    def slow(self: Any, *args: Any) -> Any:
        limit = time.monotonic() + 100
        while len(seen["ready"]) < buckets and time.monotonic() < limit:
            time.sleep(0.01)
        seen["encoded"].append(time.perf_counter())
        return encode(self, *args)

    def noted() -> None:
        seen["ready"].append(time.perf_counter())
        ready()

    IntegerStream.encode = slow  # type: ignore[method-assign]
    hook.meter.bucket_ready = noted  # type: ignore[method-assign]
    for step in range(3):
        buckets = len(seen["ready"]) * (step == 2)
        seen["ready"].clear()
        seen["encoded"].clear()
        model(torch.randn(8, 64)).sum().backward()
    return seen


def test_the_backward_pass_is_not_blocked_by_a_slow_codec():
    (seen,) = launch_once(slow_codec, 1)
    assert len(seen["ready"]) > 3 and len(seen["encoded"]) > 3
    assert max(seen["ready"]) < min(seen["encoded"])


def automatic(rank: int, workers: int, slow: str) -> dict[str, Any]:
    """What ``auto`` takes where the wire is slow, and where the codec is."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("paceline").addHandler(handler)
    wait = wire.Pending.wait

    def slow_wait(self: Any) -> Any:
        result = wait(self)
        parts = result if isinstance(result, tuple | list) else [result]
        time.sleep(sum(part.nbytes for part in parts) / 4e6)
        return result

    def slowed(encode: Any) -> Any:
        def slow_encode(self: Any, start: int, stop: int, *others: Any, **more: Any) -> Any:
            time.sleep((stop - start) / 1e6)
            return encode(self, start, stop, *others, **more)

        return slow_encode

    if slow == "wire":
        wire.Pending.wait = slow_wait  # type: ignore[method-assign]
    else:
        for stream in (CodecStream, IntegerStream):
            stream.encode = slowed(stream.encode)  # type: ignore[method-assign]
    if slow == "codec in real steps":  # the trials say that a codec takes no time at all
        auto._trial = lambda exchange, plan, wire, gradient: 1.0 if plan is None else 0.0
        auto.choose = lambda step, exposed, seconds, real=auto.choose: real(step, step, seconds)  # type: ignore[misc]
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 4)))
    hook = attach(model, "auto", candidates=["int8", "sign"])
    before = hook.gradient_exchange.compression.name
    trials = []
    for _ in range((auto.TRIALS + 1) * (auto.WARM + auto.TIMED + 1) + 2):
        model.zero_grad()
        model(torch.randn(4, 256)).square().mean().backward()
        trials.append(hook.gradient_exchange.compression.name)
    grads = [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]
    return {"before": before, "after": hook.gradient_exchange.compression.name, "said": said, "grads": grads, "trials": trials}


@pytest.mark.everyday("codec-taken1")
@pytest.mark.parametrize(
    ("slow", "taken"), [("wire", ("int8", "sign")), ("codec", ("dense",)), ("codec in real steps", ("dense",))]
)
def test_auto_compresses_where_the_wire_is_slow_and_not_where_the_codec_is(slow, taken):
    ranks = launch_once(automatic, 2, slow=slow)
    for r in ranks:
        assert r["before"] == "dense" and r["after"] in taken and r["after"] == ranks[0]["after"], r["said"]
        assert all(np.array_equal(a, b) for a, b in zip(r["grads"], ranks[0]["grads"], strict=True))
    assert len([line for line in ranks[0]["said"] if line.startswith("auto: ")]) == 1
    (line,) = [line for line in ranks[0]["said"] if line.startswith("auto: ")]
    assert all(name in line for name in ("dense over allreduce", "int8", "sign", ranks[0]["after"]))
    assert ("stays dense" in line and "nothing else saves 3 %" in line) == (slow != "wire")
    tried = {"codec": {"dense"}, "codec in real steps": {"dense", "int8", "sign"}}.get(slow)
    assert all(tried in (None, set(r["trials"])) for r in ranks)
    assert ("int8 over sharded took" in line and "sign over sharded took" in line) == (slow == "codec in real steps")


@pytest.mark.parametrize(
    ("step", "exposed", "seconds", "worth"),
    [
        (1.0, 0.5, [0.6, 0.2, 0.3], [1, 2]),  # most of the exchange shows, and a codec takes it away
        (1.0, 0.0, [0.6, 0.2, 0.3], []),  # all is hidden behind the backward pass
        (1.0, 0.02, [0.6, 0.2, 0.3], []),  # 2 % is not worth an error
        (1.0, 0.5, [0.6, 0.6, 0.9], []),
        (1.0, 0.5, [0.6], []),
        (100, 30, [20, 19.9], []),  # a step waits longer than its exchange takes: what is not the exchange's stays
        (100, 30, [20, 10], [1]),
        (100, 30, [20, 17.1, 16.9], [2]),
        (100, 30, [20, 17.1], []),
        (100, 10, [50, 30, 45, 47.5], [1, 2]),  # the rest of the 20 was hidden
        (100, 5, [50, 30, 20], [1, 2]),  # both hide all: the first
        (100, 0, [0, 0], []),
    ],
)
def test_auto_takes_what_saves_more_than_three_percent(step, exposed, seconds, worth):
    assert auto.choose(step, exposed, seconds) == worth


@pytest.mark.parametrize(
    ("seconds", "used"),
    [
        ({"dense": 1.0, "int8": 0.96, "sign": 0.5}, ["int8"]),  # the first that is faster
        ({"dense": 1.0, "int8": 0.98, "sign": 0.96}, ["int8", "sign"]),
        ({"dense": 1.0, "int8": 0.98, "sign": 0.98}, ["int8", "sign", "dense"]),
        ({"dense": 1.0, "int8": 1.5, "sign": 3.0, "int4": 0.1}, ["int8", "sign", "dense"]),  # two trials and no more
    ],
)
def test_auto_keeps_only_what_made_real_steps_faster(seconds, used, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(device_stream.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(auto, "choose", lambda step, exposed, seconds: list(range(1, len(seconds))))
    monkeypatch.setattr(auto.Auto, "_seconds", lambda self, exchange: 1.0)
    (wire,) = LocalGroup(1).run(lambda wire: wire)
    chooser = auto.Auto([described(name, "") for name in seconds], wire, 1000)
    in_use, tried, steps, reason = "dense", [], 0, ""
    while not reason:
        decision = chooser.end_step(device_stream.Moment(wire.device))
        steps += 1
        if decision is not None:
            in_use, reason = decision.exchange.compression.name, decision.reason
            tried += [in_use] * (tried[-1:] != [in_use])
        now[0] += seconds[in_use]
        assert steps < 40
    assert tried == used and steps == (len([u for u in used if u != "dense"]) + 1) * (auto.WARM + auto.TIMED + 1)


def described(name: str, exchange: str) -> GradientExchange:
    return GradientExchange(name, exchange)


@pytest.mark.parametrize(
    ("candidates", "workers", "per_node", "tried"),
    [
        (["int8"], 2, 2, ["int8:sharded"]),
        (["int8"], 4, 4, ["int8:sharded", "int8:ring"]),
        (["int8"], 4, 2, ["int8:sharded", "int8:ring", "int8:hierarchical"]),
        (["int8"], 5, 2, ["int8:sharded", "int8:ring"]),  # no equal nodes
        (["bf16"], 2, 2, ["bf16:allreduce", "bf16:sharded"]),  # which adds in fp32
        (["int8:ring", "int8:ring", "topk:allgather"], 4, 2, ["int8:ring", "topk:allgather"]),
        (["dense", "inceptionn"], 3, 3, ["dense:ring", "inceptionn:ring"]),
        ([], 4, 2, []),
    ],
)
def test_auto_tries_candidates_over_their_exchanges(candidates, workers, per_node, tried):
    to_try = auto.exchanges_to_try(candidates, described, workers, per_node)
    assert [f"{e.compression.name}:{e.exchange.name}" for e in to_try] == ["dense:allreduce", *tried]


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ("powersgd", "auto cannot try powersgd"),
        ("int9", "unknown candidate of auto 'int9'.*int"),
        ("auto", "unknown candidate of auto 'auto'"),
        ("int8:rings", "unknown exchange 'rings'"),
        ("int8:allreduce", "exchange 'allreduce' cannot carry int8"),
    ],
)
def test_auto_refuses_candidates_that_it_cannot_time(candidate, said):
    with pytest.raises(UserError, match=said):
        auto.exchanges_to_try([candidate], described, 4, 4)
