"""Every choice of a strategy, away from its default: ``train`` executes it, or refuses it before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
import torch
import torch.distributed as dist

from distributed import launch
from everyday import cases_of
from paceline.errors import UserError
from paceline.hardware import probe
from paceline.rundir import RunDir
from paceline.strategy import COMPRESSIONS, BucketPlan, DenseRule, Strategy, busiest_sent
from paceline.training.runs import calibrate, worker
from paceline.training.runs.data import load
from paceline.training.runs.training_run import TrainingRun

CALIBRATED = 1 << 12
DATA = "user_module:fewer"
BASE = {"world_size": 2, "global_batch_size": 24}


class Case(NamedTuple):
    """Choices on top of ``BASE``, and ``against``: the choices of the run that they are compared with."""

    choices: dict[str, Any]
    against: dict[str, Any]
    changes: str
    everyday: bool = True


def _case(changes: str, against: Mapping[str, Any] = {}, /, **choices: Any) -> Case:
    return Case({**against, **choices}, dict(against), changes)


def _rare(changes: str, against: Mapping[str, Any] = {}, /, **choices: Any) -> Case:
    """A case of a kind that another case shows every day. A case of four ranks runs in ``make test-all`` only."""
    return _case(changes, against, **choices)._replace(everyday=False)


INT8, TERNGRAD = {"compression": "int8"}, {"compression": "terngrad"}
HIERARCHICAL = {"world_size": 4, "exchange": "hierarchical", "ranks_per_node": 2}
COPIES = {"world_size": 4, "sharding": "zero3", "shard_devices": 2}
LOCAL = {"sync_every": 2}
SIGN, POWERSGD = {"compression": "sign"}, {"compression": "powersgd"}
EXECUTED: dict[str, list[Case]] = {
    "world_size": [],  # of every run here; a launch of other ranks than workers is refused
    "global_batch_size": [_case("steps", global_batch_size=48)],
    "compression": [
        (_case if name in ("terngrad", "int8", "topk", "powersgd") else _rare)("result", compression=name)
        for name in COMPRESSIONS
        if name != "dense"
    ],
    "exchange": [
        *(_case("phases", INT8, exchange=name) for name in ("allgather", "ring")),
        _case("phases", INT8, exchange="hierarchical"),
        _case("bytes", INT8, exchange="parameter_server"),
    ],
    "options": [
        _case("bytes", {"compression": "topk"}, options={"density": 0.5}),
        _rare("result", {"compression": "topk"}, options={"momentum": 0.5}),
        _rare("bytes", {"compression": "topk"}, options={"value_bits": 16}),
        _case("result", {"compression": "inceptionn"}, options={"bound": 2.0**-4}),
        _rare("result", {"compression": "inceptionn-scaled"}, options={"bound": 2.0**-4}),
        _rare("bytes", {"compression": "topk"}, options={"warmup_steps": 100}),
        _rare("bytes", {"compression": "powersgd"}, options={"rank": 4}),
        _case("bytes", {"compression": "powersgd"}, options={"start_iter": 100}),
        _rare("bytes", {"compression": "powersgd"}, options={"min_rate": 1000}),
    ],
    "ranks_per_node": [
        _case("phases", {**INT8, "exchange": "hierarchical"}, world_size=4, ranks_per_node=2),
        _rare("bytes", {**INT8, "world_size": 4, "exchange": "hierarchical"}, ranks_per_node=2),
    ],
    "residual_bits": [
        _case("result", SIGN, residual_bits=16),
        _rare("result", {**SIGN, **HIERARCHICAL}, residual_bits=16),
        _case("result", {**SIGN, "sharding": "zero3"}, residual_bits=16),
        _rare("result", {**SIGN, **COPIES}, residual_bits=16),
        _rare("result", {**SIGN, **LOCAL}, residual_bits=16),
        _case("result", POWERSGD, residual_bits=16),
    ],
    "residuals_at": [_case("nothing", SIGN, residuals_at="host")],  # a CPU's memory is its host's
    "dense_bits": [
        _case("bytes", TERNGRAD, dense_bits=16),
        _rare("bytes", {**TERNGRAD, "compress_pull": False}, dense_bits=16),
        _rare("bytes", {**TERNGRAD, **HIERARCHICAL}, dense_bits=16),
        _rare("bytes", {"compression": "bf16", **HIERARCHICAL}, dense_bits=16),
        _rare("bytes", {**TERNGRAD, "sharding": "zero3"}, dense_bits=16),
        _rare("bytes", {**INT8, **HIERARCHICAL, "sharding": "zero2"}, dense_bits=16),
        _rare("bytes", {**TERNGRAD, **COPIES}, dense_bits=16),
        _rare("bytes", {**POWERSGD, "residual_bits": 16}, dense_bits=16),
    ],
    "compress_pull": [_case("bytes", INT8, compress_pull=False)],
    "memory_format": [_case("nothing", memory_format="channels_last")],  # the network has no images
    "optimizer": [
        _case("result", optimizer="sgd"),
        *(_rare("result", optimizer=name) for name in ("adam", "lars", "muon")),
        *(_rare("result", of, optimizer="muon") for of in ({"sharding": "zero1"}, {"sharding": "zero3"}, LOCAL)),
    ],
    "bucket_bytes": [_case("buckets", bucket_bytes=4096)],
    "clip": [_rare("result", TERNGRAD, clip=1.0), _case("result", TERNGRAD, clip=None)],
    "sharding": [
        *(_case("phases", INT8, sharding=name) for name in ("zero1", "zero3")),
        _rare("phases", INT8, sharding="zero2"),
        _case("phases", {"compression": "topk"}, sharding="zero2"),  # whose default elsewhere has no reduce-scatter
    ],
    "shard_devices": [_case("phases", {**INT8, "sharding": "zero3"}, world_size=4, shard_devices=2)],
    "gather_bits": [
        _case("bytes", {**INT8, "sharding": "zero3"}, gather_bits=16),
        _rare("bytes", {**INT8, "sharding": "zero3"}, gather_bits=8),
        _rare("nothing", {**INT8, "sharding": "zero3"}, gather_bits=32),  # what fp32 has
    ],
    "gather_format": [_case("result", {**INT8, "sharding": "zero3", "gather_bits": 8}, gather_format="fp8")],
    "dense_rule": [_case("bytes", INT8, dense_rule=DenseRule(min_elements=1 << 20))],
    "sync_every": [_case("bytes", sync_every=2)],
    "fragments": [_case("result", LOCAL, fragments=2)],
    "sync_delay": [_case("result", LOCAL, sync_delay=1)],
    "mixing": [_case("result", {**LOCAL, "sync_delay": 1}, mixing=0.0)],
    "precision": [
        _case("result", precision="bf16"),
        _rare("result", INT8, precision="bf16"),
        _rare("result", LOCAL, precision="bf16"),
        _case("bytes", {"sharding": "zero3"}, precision="bf16"),
        _rare("bytes", {**INT8, "sharding": "zero2"}, precision="bf16"),
        _rare("result", {"sharding": "zero1"}, precision="bf16"),
    ],
    "gradient_bits": [_rare("bytes", {"sharding": "zero3", "precision": "bf16"}, gradient_bits=32)],
    "stored_weights": [
        _rare("bytes", {"precision": "bf16"}, stored_weights="bf16"),
        _rare("result", {"precision": "bf16", "sharding": "zero3"}, stored_weights="bf16"),
    ],
    "grad_accum_steps": [
        _rare("result", INT8, grad_accum_steps=2),
        _case("bytes", {**INT8, "sharding": "zero3"}, grad_accum_steps=2),
        _rare("result", {"sharding": "zero1"}, grad_accum_steps=2),
        _rare("result", {**LOCAL, "precision": "bf16"}, grad_accum_steps=3),
        _rare("result", POWERSGD, grad_accum_steps=2),
        _rare("bytes", {"sharding": "zero2", "precision": "bf16"}, grad_accum_steps=4),
    ],
    "recompute": [
        _rare("nothing", INT8, recompute="full"),
        _rare("nothing", recompute="selective"),
        _rare("nothing", recompute="selective:op"),
        _case("nothing", {**INT8, "sharding": "zero3"}, recompute="full"),
        _rare("nothing", {"sharding": "zero2", "precision": "bf16", "grad_accum_steps": 2}, recompute="full"),
        _rare("nothing", LOCAL, recompute="full"),
        _rare("nothing", {"precision": "bf16", "grad_accum_steps": 2}, recompute="full"),
    ],
    "recompute_layers": [_rare("nothing", recompute="full", recompute_layers=2)],
    "outer_lr": [_case("result", LOCAL, outer_lr=1.0)],
    "outer_momentum": [_case("result", LOCAL, outer_momentum=0.0)],
    "worker_devices": [
        _rare("phases", {**INT8, **LOCAL, "world_size": 4}, worker_devices=2),
        _rare("phases", {**INT8, **LOCAL, "world_size": 4}, sharding="zero3", shard_devices=2),
        _rare("phases", {**INT8, **LOCAL, "world_size": 4}, sharding="zero2", shard_devices=2),
    ],
    "residual_decay": [_rare("result", {"compression": "topk", **LOCAL}, residual_decay=0.5)],
}
"""Effect of each choice: the number of ``steps`` or ``buckets``, the ``result`` (the losses), the collectives, the ``bytes``,
or ``nothing`` here."""
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "precision": [
        ({"precision": "fp8"}, "cannot run precision fp8"),
        ({"precision": "fp16"}, "fp16 on a CPU"),
        ({"precision": "tf32"}, "tf32 on a CPU"),
        ({"precision": "fp16", "sharding": "zero3"}, "fp16 with sharding zero3"),
    ],
    "gradient_bits": [
        ({"sharding": "distributed_optimizer"}, "cannot run sharding distributed_optimizer"),
        ({"sharding": "zero1", "gradient_bits": 16}, "cannot run gradient_bits 16 with sharding zero1"),
        ({"sharding": "zero2", "gradient_bits": 16}, "cannot run gradient_bits 16 with sharding zero2"),
    ],
    "loss": [({"loss": "chunked"}, "cannot run loss chunked")],
    "update": [({"update": "fused"}, "cannot run update fused")],
    "stored_weights": [({"stored_weights": "bf16_kahan", "precision": "bf16"}, "stored_weights bf16_kahan")],
    "state_bits": [({"state_bits": 16, "optimizer": "adam"}, "cannot run state_bits 16")],
    "ema": [({"ema": True}, "cannot run ema")],
    "task": [({"task": "dpo"}, "cannot run task dpo")],
    "tokens_per_sample": [({"tokens_per_sample": "mean=400,max=2048"}, "cannot run")],
    "offload": [({"offload": "optimizer"}, "cannot run offload optimizer")],
    "offload_layers": [({"offload": "activations", "offload_layers": 1}, "cannot run offload activations")],
    "recompute": [
        ({"recompute": "selective:layernorm"}, "cannot run recomputation selective:layernorm"),
        ({"recompute": "selective:mlp"}, "no block has a module mlp"),
    ],
    "recompute_layers": [({"recompute": "full", "recompute_layers": 9}, "the network has 7 blocks")],
    "servers": [({"exchange": "parameter_server", "servers": 2}, "runs one server, not 2")],
    "codec_at": [({"compression": "inceptionn", "exchange": "ring", "codec_at": "nic"}, "paceline lab up --nic inceptionn")],
    **{name: [({name: 2, "world_size": 2}, f"{name} parallelism of 2")] for name in ("tensor", "context", "expert")},
    "expert_tensor": [({"expert_tensor": 2, "world_size": 2}, "cannot run expert parallelism of 2")],
    "expert_exchange": [
        ({"expert": 2, "world_size": 2, "expert_exchange": "once_per_node"}, "cannot run expert parallelism of 2")
    ],
    "expert_overlap": [
        ({"expert": 2, "world_size": 2, "grad_accum_steps": 2, "expert_overlap": True}, "cannot run expert parallelism of 2")
    ],
    "expert_imbalance": [({"expert": 2, "world_size": 2, "expert_imbalance": 1.5}, "cannot run expert parallelism of 2")],
    "context_exchange": [
        ({"context": 2, "world_size": 2, "context_exchange": "all_to_all"}, "cannot run context parallelism of 2")
    ],
    "sequence": [({"tensor": 2, "world_size": 2, "sequence": True}, "cannot run tensor parallelism of 2")],
    **{
        name: [({"pipeline": 2, "world_size": 2, "grad_accum_steps": 2, **choice}, "cannot run a pipeline of 2 stages")]
        for name, choice in (
            ("pipeline", {}),
            ("virtual_stages", {"virtual_stages": 2}),
            ("schedule", {"schedule": "gpipe"}),
            ("first_stage_layers", {"first_stage_layers": 1}),
            ("last_stage_layers", {"last_stage_layers": 1}),
        )
    },
    "round_deadline_s": [({**LOCAL, "round_deadline_s": 5.0}, "cannot run round_deadline_s=5, whose workers are peers")],
    "max_age": [({**LOCAL, "round_deadline_s": 5.0, "max_age": 1}, "cannot run .*, whose workers are peers")],
    "first_bucket_bytes": [({"first_bucket_bytes": 2 << 20}, "buckets of 2097152 and then 26214400 bytes")],
    "ranks_per_node": [({**INT8, "ranks_per_node": 2}, "'sharded' has no nodes of 2 ranks")],
}
NAMES = {"data": "world_size", "micro_batches": "grad_accum_steps"}
"""Fields whose choice has another name than theirs."""


def choices_of(kind: type) -> set[str]:
    """The names of all choices of a strategy, whatever part of it they are in."""
    names: set[str] = set()
    for item in fields(kind):
        hint = get_type_hints(kind)[item.name]
        names |= choices_of(hint) if is_dataclass(hint) else {NAMES.get(item.name, item.name)}
    return names


def network_of(choices: Mapping[str, Any]) -> str:
    return "user_module:unnormalized" if choices.get("sharding") in ("zero2", "zero3") else "user_module:network"


def run_of(choices: Mapping[str, Any], out: Path | str) -> TrainingRun:
    strategy = Strategy.of(**{**BASE, **choices})
    return TrainingRun(model=network_of(choices), data=DATA, strategy=strategy, epochs=1, seed=6, out=str(out))


def key(choices: Mapping[str, Any]) -> str:
    return repr(sorted(choices.items(), key=str))


def workers_of(choices: Mapping[str, Any]) -> int:
    return int(choices.get("world_size", BASE["world_size"]))


CASES = [case for cases in EXECUTED.values() for case in cases]
RUNS = {key(choices): choices for case in CASES for choices in (case.choices, case.against)}


def train_all(rank: int, workers: int, folder: str, names: list[str]) -> dict[str, Any]:
    """Each of the named ``RUNS`` once, by the code that every worker runs."""
    calibrate.STEPS, calibrate.ELEMENTS = 1, (CALIBRATED,)  # how long things take is not asked here
    probe.SECONDS, probe.COPY_BYTES, probe.LINK_BYTES = 0.0, 1 << 12, 1 << 12
    runs = [run_of(choices, "") for choices in ({}, {"sharding": "zero3"})]
    described = [{run.model: worker.describe(run, load(DATA)) for run in runs} if rank == 0 else None]
    dist.broadcast_object_list(described)
    machine, tables = probe.probe_cluster(torch.device("cpu")), described[0]
    worker.probe_cluster, worker.describe = lambda device: machine, lambda run, _: tables[run.model]
    sent: list[int] = []
    attach, hooks = calibrate.attach, list[Any]()
    calibrate.attach = lambda *args, **kwargs: hooks.append(attach(*args, **kwargs)) or hooks[-1]
    outcomes: dict[str, Any] = {}
    for number, name in enumerate(names):
        out = Path(folder) / str(number)
        hooks.clear()
        try:
            one = worker.prepare(run_of(RUNS[name], out), first=rank == 0)
            worker.train(TrainingRun.from_json(one.to_json()), torch.device("cpu"))
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
        else:
            sent = [0] * workers
            dist.all_gather_object(sent, hooks[-1].meter.sent_bytes)
            outcomes[name] = {"out": str(out), "calibrated": max(sent)}
        dist.barrier()
    return outcomes


class Outcome(NamedTuple):
    record: Any
    prediction: Any
    calibrated: int

    @property
    def network(self) -> list[str]:
        """The collectives of a step on rank 0."""
        return [event.name for event in self.record.timeline if event.lane == "network" and event.rank == 0]

    @property
    def losses(self) -> tuple[float, float]:
        """On the samples of training, which the last update does not change, and on those held out."""
        last = self.record.curve[-1]
        return float(last["loss"]), float(last["held_out_loss"])


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Any]], Outcome]:
    """The outcomes of the runs that the selected tests look at."""
    selected = [parameters["case"] for parameters in cases_of(request)]
    outcomes: dict[str, Any] = {}
    for workers in (2, 4):
        wanted = [choices for case in selected for choices in (case.choices, case.against) if workers_of(choices) == workers]
        if names := list(dict.fromkeys(map(key, wanted))):
            folder = str(tmp_path_factory.mktemp("choices"))
            outcomes |= launch(train_all, workers, folder=folder, names=names)[0]

    def of(choices: Mapping[str, Any]) -> Outcome:
        value = outcomes[key(choices)]
        assert not isinstance(value, str), f"{choices}: {value}"
        contents = RunDir(value["out"]).read()
        label = contents.labels[0]
        record = contents.records[label]
        timeline = contents.measured[label]
        object.__setattr__(record, "timeline", timeline)
        return Outcome(record, contents.predictions[label], value["calibrated"])

    return of


def test_every_choice_is_listed():
    """A new one fails here until a case shows that ``train`` executes it or refuses it."""
    # Left out where they are as usual: local steps, places, and bits of residuals and of what is dense.
    placed = Strategy.of(
        **BASE, compression="inceptionn", exchange="ring", codec_at="nic", memory_format="channels_last", **LOCAL
    )
    narrow = Strategy.of(**BASE, **SIGN, residual_bits=16, residuals_at="host", dense_bits=16).to_json()
    update = {"stored_weights": "bf16", "update": "fused", "state_bits": 16, "optimizer": "adam", "ema": True}
    stored = Strategy.of(**BASE, precision="bf16", loss="chunked", **update)
    workers = Strategy.of(**{**BASE, "world_size": 4}, compression="topk", **LOCAL, residual_decay=0.5, worker_devices=2)
    peers = Strategy.of(**BASE, sync_every=2, round_deadline_s=1.0, max_age=1).to_json().keys()
    written = placed.to_json().keys() | narrow.keys() | stored.to_json().keys() | workers.to_json().keys() | peers
    tasks = {"task": "dpo", "tokens_per_sample": "mean=400,max=2048"}
    for more in (tasks, {"offload": "activations", "offload_layers": 1}):
        written |= Strategy.of(**BASE, **more).to_json().keys()
    assert choices_of(Strategy) == EXECUTED.keys() | REFUSED.keys() == written


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    if case.everyday:
        return []
    return [pytest.mark.long if workers_of(case.choices) == 2 else pytest.mark.full]


NAMED = [pytest.param(case, id=f"{case.changes}: {key(case.choices)}", marks=marks_of(case)) for case in CASES]


@pytest.mark.parametrize("case", NAMED)
def test_a_choice_is_executed(case, outcome):
    ran, against = outcome(case.choices), outcome(case.against)
    measures: dict[str, Callable[[Outcome], Any]] = {
        "steps": lambda o: o.record.steps,
        "result": lambda o: o.losses,
        "bytes": lambda o: o.record.wire_bytes_per_device,
        "phases": lambda o: sorted(set(o.network)),
        "buckets": lambda o: len(o.network),
    }
    if case.changes == "nothing":
        assert all(measure(ran) == measure(against) for measure in measures.values())
    else:
        assert measures[case.changes](ran) != measures[case.changes](against)
    executed = Strategy.of(**ran.record.strategy)
    for name, value in case.choices.items():
        assert executed.choice(name) == (tuple(value.items()) if name == "options" else value), name
    optimizer = case.choices.get("optimizer", "momentum")
    assert ran.record.recipe["optimizer"] == optimizer
    # Rates differ between optimizers, and so does the result: these are of the optimizer that has run.
    assert ran.record.recipe["options"].get("momentum", 0.0) == {"momentum": 0.9, "lars": 0.9, "muon": 0.95}.get(optimizer, 0.0)


@pytest.mark.parametrize("case", NAMED)
def test_what_is_executed_is_what_was_predicted_and_calibrated(case, outcome):
    ran = outcome(case.choices)
    strategy = Strategy.of(**ran.record.strategy)
    name = strategy.gradient_exchange.compression.name
    if name in ("inceptionn", "inceptionn-scaled", "bf16-coded"):
        return  # its lengths depend on the values
    if {"warmup_steps", "start_iter"} & dict(strategy.gradient_exchange.options).keys():
        assert ran.record.wire_bytes_per_device > ran.prediction.wire_bytes_per_device  # predicted is a step after the warm-up
        return
    assert ran.record.wire_bytes_per_device == ran.prediction.wire_bytes_per_device
    if name != "powersgd":  # which is calibrated by its own bytes
        over = strategy.gradient_exchange.exchange.name  # what is sharded is calibrated over the same links
        if strategy.worker_devices > 1:  # whose calibration is of the gradients within a worker
            strategy, over = strategy.changed(compression="dense", exchange="", sync_every=1), "allreduce"
        whole = strategy.changed(
            sharding="ddp", shard_devices=0, gather_bits=0, gather_format="int8", gradient_bits=0, exchange=over
        )
        assert ran.calibrated == busiest_sent(whole.traffic(BucketPlan(CALIBRATED, 1, 0)).phases)


@pytest.mark.parametrize(("choices", "said"), [item for items in REFUSED.values() for item in items], ids=str)
def test_a_choice_is_refused_before_anything_starts(choices, said, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=said):
        worker.prepare(run_of(choices, out))
    assert not out.exists()
