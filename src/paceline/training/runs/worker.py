"""Work of every worker: set up, measure, predict, train, record."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.probe import in_precision, join_group, on_gpus, probe_cluster
from paceline.prediction import Prediction, Predictor
from paceline.prediction.learning.noise_scale import batch_efficiency
from paceline.record import Event, RunRecord, environment
from paceline.rundir import RunDir, run_label
from paceline.strategy import FIRST_BUCKET_BYTES, Strategy, busiest_sent
from paceline.strategy.recipe import Recipe, usual_rule
from paceline.training.attach.consistency import CODE, checksum, code_version, module_version, same_everywhere
from paceline.training.attach.liveness import naming_lost_ranks
from paceline.training.runs.calibrate import calibrate, means_over_ranks
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints import surviving_state as survivors
from paceline.training.runs.checkpoints.run_state import layerwise_of, restore
from paceline.training.runs.compute.arithmetic import set_products
from paceline.training.runs.compute.peak_memory import peak_rss_bytes, reset_peak_rss
from paceline.training.runs.compute.prepared_network import check_computes, import_tools, prepared
from paceline.training.runs.data import Dataset, load
from paceline.training.runs.epochs import Epochs
from paceline.training.runs.image_order import ordered, with_image_order
from paceline.training.runs.local_loop import LocalTrainer, check_local
from paceline.training.runs.loop import Trainer, make_optimizer, median_step
from paceline.training.runs.progress import Progress
from paceline.training.runs.schedules import growing_factor, scheduler
from paceline.training.runs.starting_model import starting_model
from paceline.training.runs.stop_requests import StopRequests
from paceline.training.runs.trainers import make_trainer
from paceline.training.runs.training_run import TrainingRun
from paceline.units import format_bytes, format_seconds
from paceline.workload import Workload

_T = TypeVar("_T")
_Stage = dict[str, float]


class RunSource(Protocol):
    """Command line of a worker."""

    @property
    def timeout_s(self) -> float:
        """Seconds that this worker waits for other ranks. It is needed before the run is known."""

    def run(self, world_size: int) -> TrainingRun:
        """Return the run of the command line. Raises UserError."""


def launched(text: str, stops: StopRequests) -> None:
    """Train the run that ``paceline train`` has checked, as this process's rank; ``text`` is its JSON."""
    run = TrainingRun.from_json(text)
    device = join_group(timedelta(seconds=run.timeout_s))
    if dist.get_world_size() != run.strategy.world_size:
        raise UserError(f"{dist.get_world_size()} ranks for {run.strategy.world_size} workers", "start as many as workers")
    train(run, device, stops)
    dist.destroy_process_group()  # but not after an error: a peer may be gone, and this call would wait for it


def joined(options: RunSource, held: ExitStack) -> tuple[TrainingRun, torch.device]:
    """Join the other ranks of torchrun, and check the command line on each.

    Args:
        held: exit stack that holds the lock of the directory, on rank 0.

    Raises:
        UserError: on every rank, with the same text; it names the ranks with the mistake unless all have it.
    """
    device = join_group(timedelta(seconds=options.timeout_s))
    first = dist.get_rank() == 0

    def checked() -> TrainingRun:
        run = options.run(dist.get_world_size())
        if run.elastic and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            raise UserError(
                "torchrun's own store keeps the addresses of ended ranks, which a new group would call",
                "start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
            )
        if first:
            held.enter_context(RunDir(run.out).locked())
        return prepare(run, first, int(os.environ.get("LOCAL_WORLD_SIZE", run.strategy.world_size)))

    run = agreed(checked)
    here = {name: value for name, value in json.loads(run.to_json()).items() if name not in ("out", "resume", "label")}
    code = agreed(lambda: {f"code of {name}": module_version(value) for name, value in run.code.items()})
    same_everywhere(dist.group.WORLD, {CODE: code_version(), **here, **code}, "give the same options on every rank")
    return run, device


def agreed(make: Callable[[], _T]) -> _T:
    """Return the result of ``make`` on this rank. Raises UserError on every rank if any rank raises it."""
    result: _T | None = None
    own: tuple[str, str] | None = None
    try:
        result = make()
    except UserError as error:
        own = error.message, error.fix
    errors: list[tuple[str, str] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, own)
    distinct = {error: [rank for rank, other in enumerate(errors) if other == error] for error in errors if error}
    if not distinct:
        return cast(_T, result)
    (message, fix), ranks = next(iter(distinct.items()))
    if len(ranks) < len(errors):
        message = f"rank {', '.join(map(str, ranks))}: {message}"
    others = [f"rank {', '.join(map(str, more))}: {text}" for (text, _), more in list(distinct.items())[1:]]
    raise UserError("; ".join([message, *others]), fix)


def prepare(run: TrainingRun, first: bool = True, local_ranks: int | None = None) -> TrainingRun:
    """Return the run with its label, after all checks that are possible before training.

    Args:
        first: whether this process also checks that ``run.out`` can be written (only rank 0 does).
        local_ranks: number of ranks of the run on this machine; None: all.

    Raises:
        UserError: unknown names, a network that does not fit the samples, an unwritable directory, a wrong checkpoint.
    """
    local = local_ranks or run.strategy.world_size
    run = run.on_nodes_of(local)
    check_buckets(run.strategy)
    if not on_gpus(local):
        # The same cores compute and exchange, so nothing overlaps and the fewest exchanges are the fastest.
        run = replace(run, strategy=replace(run.strategy, first_bucket_bytes=run.strategy.bucket_bytes))
    if run.resume and first:
        checkpoint.check_same_run(run, checkpoint.load(Path(run.resume), run, mapped=True))
    elif first and not run.elastic:
        checkpoint.refuse_unfinished(Path(run.out))
    probe = [("probe", nn.Parameter(torch.zeros(1, dtype=torch.float32)))]
    make_optimizer(run.strategy.optimizer, probe, run.learning_rate, 0, run.optimizer_options)
    data = load(run.data)
    if len(data.train_y) < run.strategy.global_batch_size:
        raise UserError(
            f"global batch {run.strategy.global_batch_size} is more than the {len(data.train_y)} training samples",
            f"give at most {len(data.train_y)}",
        )
    if run.growth and (largest := run.growth.stages[-1].batch) > len(data.train_y):
        raise UserError(
            f"a batch that grows to {largest} is more than the {len(data.train_y)} training samples", "give smaller stages"
        )
    check_local(run, data)
    check_computes(run, starting_model(run), "cuda" if on_gpus(local) else "cpu")
    directory = RunDir(run.out)
    if first:
        directory.check_writable()
        describe(run, data)
    taken = directory.read(partial=True).records if directory.record_path.exists() else {}
    return replace(run, label=run_label(run.strategy.to_json(), taken))


def describe(run: TrainingRun, data: Dataset) -> Workload:
    """Return the layer table of the run's network on the run's samples. Raises UserError if they do not fit together."""
    model = starting_model(run)
    other = [f"{name} is {p.dtype}" for name, p in model.named_parameters() if p.dtype != torch.float32]
    if other:
        raise UserError(
            f"{run.model}: {other[0]}", "return the network in fp32; precision bf16 and stored_weights bf16 narrow it"
        )
    source, untrained = f"--model {run.model} --data {run.data}", replace(run, start="")
    try:
        table = Workload.trace(
            lambda: starting_model(untrained), data.train_x[:1], name=run.model, source=source, loss="cross_entropy"
        )
    except UserError as error:
        shape = "x".join(map(str, data.train_x.shape[1:]))
        raise UserError(f"{run.model} does not take the samples of {run.data}, {shape}: {error.message}") from error
    classes = _outputs(model, data.train_x[:2])
    used = torch.cat([data.train_y, data.test_y]).unique()
    wrong = used[(used < 0) | (used >= classes)].tolist()
    if wrong:
        raise UserError(
            f"{run.data} has the label {wrong[0]}, {run.model} has {classes} outputs", f"label from 0 to {classes - 1}"
        )
    return table


def _outputs(model: nn.Module, samples: Tensor) -> int:
    """Return the number of classes of the network, from the width of its output, without arithmetic."""
    with torch.no_grad():
        return int(model.to("meta")(samples.to("meta")).shape[-1])


@naming_lost_ranks()
def train(run: TrainingRun, device: torch.device, stops: StopRequests | None = None) -> None:
    """Run one rank of a run that ``prepare`` has checked: calibrate, predict, train, record.

    Args:
        stops: requests to stop this rank; None: only a signal in training stops it.

    Raises:
        UserError: the disk is full.
        Interrupted: a rank was asked to stop; the checkpoint is written.
        LostRank: a rank has ended or does not answer.
        ReplicasDiverged: the weights differ between ranks.
    """
    rank, strategy = dist.get_rank(), run.strategy
    progress = Progress(rank, run)
    data = load(run.data)
    same_everywhere(
        None,
        {"the training samples": data.digest()},
        "let --data be the same on every host; a function must seed what it draws",
    )
    import_tools(run)  # libraries are no memory of the network
    reset_peak_rss()
    before = peak_rss_bytes()
    set_products(strategy)
    module = prepared(run, with_image_order(starting_model(run).to(device), strategy))

    if run.elastic and (_came_further(run) if run.resume else _has_begun(run, progress)):
        run = replace(run, resume=run.out)
    resumed = _checkpoint_of_all(run, progress) if run.resume else None
    progress.say("measuring this machine")
    size = strategy.micro_batch_size
    batch = ordered(data.train_x[:size].to(device), strategy), data.train_y[:size].to(device)
    cluster = in_precision(probe_cluster(device), strategy.precision, device)
    timed = prepared(run, with_image_order(starting_model(run).to(device), strategy), recomputes=False)
    calibration = calibrate(timed, batch, strategy, run.model, run.timeout_s)
    del timed
    reset_peak_rss()
    prediction: Prediction | None = None
    expected: list[float] = []
    if rank == 0:
        workload = describe(run, data)
        predictor = Predictor(calibration=calibration, compile=run.compile)
        prediction = predictor.step(workload, cluster, strategy)
        RunDir(run.out).write_prediction(run.label, prediction)
        expected = [predictor.step(workload, cluster, s).step_time_s for _, s in run.growth.strategies(strategy)]
        progress.say(f"predicted: {format_seconds(prediction.step_time_s)} a step; written to {run.out}/prediction.json")

    trainer, recipe = make_trainer(run, module, data, device)
    first, curve, left = 0, [], False
    if resumed is not None:
        restore(trainer, resumed)
        first, curve, left = resumed["epoch"], list(resumed["curve"]), "lost" in resumed
        resumed = None  # its memory
    grows = None
    if run.growth:
        rule = run.scaling or usual_rule(strategy.optimizer)
        grows = growing_factor(recipe, trainer.plan, strategy.global_batch_size, rule)
    trainer.schedule = scheduler(trainer.optimizer, recipe, trainer.plan.before(first) + trainer.done, grows)

    epochs = Epochs(run, trainer, progress, curve, stops or StopRequests())
    if run.resume and run.elastic:
        if left:
            epochs.save_now(first)
        dist.barrier()
        if rank == 0:
            for directory in {run.resume, run.out}:
                survivors.remove(Path(directory), run)
    epochs.train(first)
    if not trainer.times.step:  # a rank was lost behind the last step
        epochs.writer.finish()
        raise UserError(
            f"every epoch is done and saved in {run.out}, but no step was timed since the run continued: there is no record",
            "ask for more `epochs`, or take the weights of the checkpoint",
        )
    record = _record(run, trainer, recipe, curve, epochs.histogram, cluster, peak_rss_bytes() - before, expected)
    if rank == 0:
        label = RunDir(run.out).add_record(run.label, record)
        if layerwise := layerwise_of(trainer.optimizer):
            layerwise.diagnostics.write(run.out, label)
    epochs.writer.finish()


def _has_begun(run: TrainingRun, progress: Progress) -> bool:
    """Return whether a run has left a state to continue from in its directory, as seen by rank 0."""
    directory, seen = Path(run.out), [False]
    if dist.get_rank() == 0:
        saved = any((directory / name).exists() for name in (checkpoint.FILE, checkpoint.PREVIOUS))
        if not saved and survivors.remove_partial(directory, run):
            progress.say("survivors lacked rows of those that were lost, and no checkpoint was written: starting again")
        seen = [saved or any(directory.glob(survivors.PATTERN))]
    dist.broadcast_object_list(seen, 0)
    return seen[0]


def _came_further(run: TrainingRun) -> bool:
    """Return whether an elastic run has made progress beyond its start in its own directory, as seen by rank 0."""
    further = [False]
    if dist.get_rank() == 0:
        with suppress(UserError):
            own, begun = (survivors.newest(Path(directory), run, checked=False) for directory in (run.out, run.resume))
            further = [(own["epoch"], own["step"]) > (begun["epoch"], begun["step"])]
    dist.broadcast_object_list(further, 0)
    return further[0]


def _checkpoint_of_all(run: TrainingRun, progress: Progress) -> dict[str, Any]:
    """Return the checkpoint to continue from, the same on every rank. Raises UserError on every rank."""
    directory, rank = Path(run.resume), dist.get_rank()
    mapped = run.strategy.parallelism.sharding.optimizer  # each rank takes its rows from the disk
    state = agreed(lambda: survivors.newest(directory, run, mapped=mapped) if rank == 0 else None)
    chosen = [state and state["file"]]
    dist.broadcast_object_list(chosen, 0)

    def own() -> dict[str, Any]:
        alike = run.strategy.world_size == before
        mine = state
        if mine is None and chosen[0]:
            file, wanted = directory / str(chosen[0]), [rank] if alike else None
            mine = checkpoint.read(file, wanted, mapped=mapped, checked=alike or not mapped)  # rank 0 has checked all
        mine = mine or survivors.found(directory, run, mapped=mapped, checked=not mapped)
        if mine is None:
            raise UserError(f"rank {rank} does not see what survivors have left in {directory}", "share it among the hosts")
        checkpoint.check_same_run(run, mine)
        return mine

    workers = [state and state.get("workers")]
    dist.broadcast_object_list(workers, 0)
    before = workers[0]
    result = agreed(own)
    found = f"{checkpoint.place(result)}, weights {checksum(_tensors(result)):016x}"
    if result["sharers"]:  # the weights are elsewhere
        found += f", shards {result['id']}"
    same_everywhere(None, {"the checkpoint": found}, "let `resume` be the same directory on every rank")
    if "lost" in result:
        progress.say(survivors.said(result))
    elif run.elastic:
        progress.say(f"going on from the checkpoint of {checkpoint.place(result)}")
    if result.get("fallback"):
        progress.say(f"{result['fallback']}; going on from the previous checkpoint, {checkpoint.place(result)}")
    return result


def _tensors(state: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of a checkpoint's model."""
    return (value for value in state["model"].values() if isinstance(value, Tensor))


def _record(
    run: TrainingRun,
    trainer: Trainer,
    recipe: Recipe,
    curve: list[dict[str, Any]],
    histogram: dict[str, Any],
    cluster: Cluster,
    grown: float,
    expected: Sequence[float],
) -> RunRecord:
    strategy, device = run.strategy, trainer.device
    times = trainer.times.of_batch(strategy.global_batch_size).averaged(strategy.sync_every)
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else grown
    medians = map(statistics.median, (times.step, times.exposed, times.comm, times.codec))
    here = [*medians, *np.percentile(times.step, [10, 90]).tolist(), memory]
    step, exposed, comm, codec, low, high, memory_bytes = means_over_ranks(here, device)
    sent = torch.tensor(
        [round(statistics.median(times.sent))], dtype=torch.int64, device=device
    )  # the first steps of powersgd are dense
    dist.all_reduce(sent, op=dist.ReduceOp.MAX)
    timelines: list[list[Event]] = [[] for _ in range(strategy.world_size)]
    shown = trainer.times if run.growth else times  # events of early steps are not kept
    chosen = torch.tensor([median_step(shown)], dtype=torch.int64, device=device)
    dist.broadcast(chosen, 0)
    dist.all_gather_object(timelines, shown.events[int(chosen)])
    dense = _dense_bytes(strategy, trainer, int(sent))
    share = {"compute": step - exposed, "network": exposed * comm / (comm + codec) if comm + codec else 0.0}
    share["codec"] = exposed - share["network"]
    return RunRecord(
        workload=run.model,
        strategy=strategy.to_json(),
        step_time_s=step,
        low_s=low,
        high_s=high,
        samples_per_s=strategy.global_batch_size / step,
        compute_s=step - exposed,
        comm_s=comm,
        codec_s=codec,
        exposed_comm_s=exposed,
        wire_bytes_per_device=int(sent),
        compression_ratio=max(1.0, dense / int(sent)) if int(sent) else 1.0,
        memory_bytes=memory_bytes,
        bottleneck=max(share, key=lambda k: share[k]),
        assumptions=(
            f"measured: median of {len(times.step)} {_counted(strategy)}, mean over {strategy.world_size} ranks",
            "range of the step time: 10th to 90th percentile",
            "communication times include waiting for slower ranks",
            "wire bytes: median of the steps, counted at the collectives; an all-reduce counts as a ring",
            "memory: growth of the process while training" if device.type == "cpu" else "memory: peak of the allocator",
            *_bucket_note(strategy, device),
        ),
        timeline=tuple(e for events in timelines for e in events),
        accuracy=curve[-1]["accuracy"],
        epochs=run.epochs,
        seed=run.seed,
        steps=trainer.plan.before(run.epochs),
        stages=_stages(run, trainer, device, expected),
        nonfinite_steps=trainer.hook.meter.nonfinite_steps,
        curve=tuple(curve),
        environment={**environment(), "device": cluster.device.name, "threads": torch.get_num_threads()},
        histogram=histogram,
        cluster=asdict(cluster),
        skipped_steps=trainer.skipped_steps,
        recipe=recipe.to_json(),
        batch_efficiency=batch_efficiency(curve, strategy.global_batch_size),
    )


def _dense_bytes(strategy: Strategy, trainer: Trainer, sent: int) -> int:
    """Return the bytes that a rank would send in a step without compression. ``sent``: with it.

    Gradients within a worker of local steps are not compressed.
    """
    tensors = trainer.sync.whole if isinstance(trainer, LocalTrainer) else trainer.hook.tensors
    plain = strategy.uncompressed()
    if strategy.worker_devices == 1:
        return plain.wire_bytes_per_device(tensors, tensors)
    rounds = [busiest_sent([p for g in s.groups(tensors, tensors) for p in g.traffic.phases]) for s in (plain, strategy)]
    return sent + strategy.local.per_step(rounds[0]) - strategy.local.per_step(rounds[1])


def _stages(run: TrainingRun, trainer: Trainer, device: torch.device, expected: Sequence[float]) -> tuple[_Stage, ...]:
    """Return the stages of a batch that grows, as ``RunRecord`` has them; empty for a constant batch.

    Args:
        expected: predicted seconds of a step of each stage, on rank 0.
    """
    found: list[dict[str, float]] = []
    for number, (samples, strategy) in enumerate(run.growth.strategies(run.strategy) if run.growth else ()):
        own = [s for s, size in zip(trainer.times.step, trainer.times.batch, strict=True) if size == strategy.global_batch_size]
        if own:
            (seconds,) = means_over_ranks([statistics.median(own)], device)
            of_stage = {"batch": strategy.global_batch_size, "samples": samples, "steps": len(own), "step_time_s": seconds}
            found.append(of_stage | ({"predicted_s": expected[number]} if expected else {}))
    return tuple(found)


def _counted(strategy: Strategy) -> str:
    every = strategy.sync_every
    return "steps" if every == 1 else f"rounds of {every} steps, a step is the mean of a round"


def _bucket_note(strategy: Strategy, device: torch.device) -> Iterator[str]:
    """Return the note about buckets that ``prepare`` has chosen instead of the usual ones."""
    if device.type == "cpu" and strategy.gradient_exchange.exchange.by_engine and strategy.sync_every == 1:
        size = format_bytes(strategy.bucket_bytes)
        yield f"buckets: all of {size}, also the first: a CPU computes and exchanges on the same cores, so nothing overlaps"


def check_buckets(strategy: Strategy) -> None:
    """Raise UserError for bucket sizes that DDP cannot make."""
    first, rest = strategy.first_bucket_bytes, strategy.bucket_bytes
    if first not in (FIRST_BUCKET_BYTES, rest):
        raise UserError(
            f"buckets of {first} and then {rest} bytes", "leave first_bucket_bytes out, or give one size for all buckets"
        )
