"""Jobs of Slurm from rows whose columns are named as in ``slurm_columns``: of sacct, squeue, JSON and the database."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence

from paceline.scheduling.traces.logs.gres import Held, held_devices
from paceline.scheduling.traces.logs.log_times import NEVER, after_clock_change, parse_duration, parse_minutes, parse_time
from paceline.scheduling.traces.logs.slurm_columns import RUNNING, WAITING, state_word
from paceline.scheduling.traces.record import JobState, LoggedJob, SkippedRow

Cells = Mapping[str, str]
"""Cells of a row by field. A field that the file lacks is missing, an empty cell is an empty text."""
_ARRAY = re.compile(r"^(?P<job>\d+)_\[(?P<tasks>[^\]%]*)(?:%(?P<most>\d+))?\]?")
_TASK = re.compile(r"^(?P<job>\d+)_\d+$")
_ID = re.compile(r"^\d+(?:_(?:\d+|\[.*)|\+\d+)?$")
_TOTAL = ("alloc_tres", "alloc_gres", "req_tres", "job_tres")
"""Fields with the devices of all nodes, in the order of trust."""
_PER_NODE = ("node_tres", "req_gres")
_BRACKETS = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<numbers>[\d,\-]+)\](?P<tail>.*)$")
SEVERAL_TYPES = "held several types of device, and one type is used"
CLOCK_CHANGED = "crossed a change of clocks, and an hour was added"


def is_step(cells: Cells) -> bool:
    """Return whether a row is a step of a job, such as ``7.batch``."""
    return "." in cells.get("id", "")


def names_devices(fields: Container[str]) -> bool:
    """Return whether some field names GPUs. Without one, a node counts as one device."""
    return any(field in fields for field in (*_TOTAL, *_PER_NODE, "task_tres"))


def slurm_job(cells: Cells, place: str) -> LoggedJob | SkippedRow:
    """Return the job of a row, or the reason why it has none. The start of a waiting job is one that Slurm expects."""
    name = _name(cells)
    if not name:
        return SkippedRow(place, cells.get("id", "")[:40], "had no job id")
    times: dict[str, float] = {}
    for field, parse in _PARSERS.items():
        try:
            times[field] = parse(cells.get(field, ""))
        except (ValueError, OverflowError):
            return SkippedRow(place, name, "had a wrong time", f"{field}: {cells[field][:40]!r}")
    status = state_word(cells.get("state", ""))
    submit, start, end, run, changed = _solved(times, status)
    state: JobState = _state(status, start, end)
    planned = math.nan
    if state == "waiting":
        planned, start, end = start, math.nan, math.nan
        run = math.nan
    elif state == "running":  # its end is the one that its limit allows
        end = math.nan
        run = times["elapsed"] if math.isnan(times["elapsed_s"]) else times["elapsed_s"]
        if math.isnan(run):
            run = max(times["limit"] - times["left"], 0.0)
    held, remark = _held(cells)
    if remark:
        return SkippedRow(place, name, remark, "it runs, and its devices count as free" if state == "running" else "")
    count = sum(each.count for each in held)
    types = tuple(dict.fromkeys(each.device_type for each in held if each.device_type))
    notes = [CLOCK_CHANGED] * changed + [SEVERAL_TYPES] * (len(types) > 1)
    if not names_devices(cells):
        count = _whole(cells.get("nodes", ""))
    array = _ARRAY.match(cells.get("id", ""))
    task = _TASK.match(name)
    return LoggedJob(
        name=name,
        title=cells.get("title", ""),
        state=state,
        status=status,
        submit_s=submit,
        eligible_s=times["eligible"],
        start_s=start,
        end_s=end,
        planned_start_s=planned if planned > 0 else math.nan,
        run_s=run,
        limit_s=next((times[field] for field in ("limit", "limit_minutes") if times[field] > 0), 0.0),
        devices=count,
        device_types=() if len(types) > 1 else types,
        share=held[0].share if held and len({each.share for each in held}) == 1 else 1.0,
        profile=held[0].profile if len(held) == 1 else "",
        nodes=_whole(cells.get("nodes", "")),
        node_devices=_per_node(cells) if state == "waiting" else 0,
        node_names=_node_names(cells.get("node_list", "")) if state == "running" else (),
        resources=_resources(cells),
        priority=_number(cells.get("priority", "")),
        user=_word(cells, "user"),
        account=_word(cells, "account"),
        queue=_word(cells, "queue"),
        qos=_word(cells, "qos"),
        reason=_reason(cells.get("reason", ""), state),
        command=_word(cells, "command"),
        array=array["job"] if array else task["job"] if task else "",
        tasks=_task_numbers(array["tasks"]) if array and state == "waiting" else (),
        after=_after(cells.get("dependency", "")) if state == "waiting" else (),
        throttle=_whole((array and array["most"]) or cells.get("array_most", "")),
        place=place,
        notes=tuple(notes),
    )


_PARSERS: Mapping[str, Callable[[str], float]] = {
    **dict.fromkeys(("submit", "eligible", "start", "end"), parse_time),
    **dict.fromkeys(("elapsed", "planned", "limit", "left"), parse_duration),
    "elapsed_s": lambda text: math.nan if text.strip().casefold() in NEVER else float(text),
    "limit_minutes": parse_minutes,
}


def _name(cells: Cells) -> str:
    name = cells.get("id", "").strip()
    if not _ID.match(name) and not re.match(r"^[\w.+-]+$", name):
        return ""
    parent, task = cells.get("array_id", "").strip(), cells.get("array_task", "").strip()
    if parent.isdigit() and int(parent) and task.isdigit() and int(task) < (1 << 32) - 2:
        return f"{parent}_{task}"
    return name


def _solved(times: Mapping[str, float], status: str) -> tuple[float, float, float, float, bool]:
    """Return submission, start, end, run time, and whether a change of clocks was corrected.

    A missing time follows from the others: the end from start and run time, the start from the time that the job waited.
    """
    submit, start, end = times["submit"], times["start"], times["end"]
    end = math.nan if status in RUNNING else end  # Slurm prints the end of its limit
    run = times["elapsed"] if math.isnan(times["elapsed_s"]) else times["elapsed_s"]
    arrival = times["eligible"] if times["eligible"] > submit else submit
    if math.isnan(start) and status not in WAITING:
        known = run > 0 and not math.isnan(end) and status not in RUNNING
        start = end - run if known else arrival + times["planned"]
    fixed_start = after_clock_change(submit, start)
    end += fixed_start - start if fixed_start > start else 0.0
    if math.isnan(end) and status not in WAITING | RUNNING:
        end = fixed_start + run
    fixed_end = after_clock_change(fixed_start, end)
    if math.isnan(run):
        run = fixed_end - fixed_start
    return submit, fixed_start, fixed_end, run, fixed_start > start or fixed_end > end


def _state(status: str, start: float, end: float) -> JobState:
    if status in WAITING:
        return "ended" if status != "PENDING" and end > start > 0 else "waiting"  # sacct's earlier run of a requeued job
    if status in RUNNING:
        return "running"
    if status:
        return "ended"
    return "ended" if not math.isnan(end) else "running" if not math.isnan(start) else "waiting"


def _held(cells: Cells) -> tuple[Sequence[Held], str]:
    """Return the devices of the first field that names GPUs, and why they are unknown."""
    nodes, tasks = max(_whole(cells.get("nodes", "")), 1), max(_whole(cells.get("tasks", "")), 1)
    times = {**dict.fromkeys(_TOTAL, 1), **dict.fromkeys(_PER_NODE, nodes), "task_tres": tasks}
    remarks = []
    for field, factor in times.items():
        text = cells.get(field, "")
        if text.casefold() in NEVER:
            continue
        held, remark = held_devices(text)
        if held:
            if factor == 1:
                return held, ""
            return [Held(each.count * factor, each.device_type, each.share, each.profile) for each in held], ""
        remarks.append(remark)
    return [], next((REMARKS[remark] for remark in remarks if remark), "")


_AMOUNT = re.compile(r"(?:^|,)(cpu|mem|node)=(\d+(?:\.\d+)?)([KMGTP]?)", re.IGNORECASE)


def _resources(cells: Cells) -> tuple[tuple[str, float], ...]:
    """Return the processors, bytes of memory and nodes of a job, as far as the log states them."""
    found: dict[str, float] = {}
    for field in ("alloc_tres", "req_tres"):
        for name, number, unit in _AMOUNT.findall(cells.get(field, "")):
            scale = 2.0 ** (10 * ("KMGTP".index(unit.upper() or "M") + 1)) if name.casefold() == "mem" else 1.0
            found.setdefault(name.casefold(), float(number) * scale)
    for name, field in (("cpu", "cpus"), ("node", "nodes")):
        if name not in found and (count := _whole(cells.get(field, ""))):
            found[name] = float(count)
    return tuple(found.items())


def _per_node(cells: Cells) -> int:
    """Return the devices that a job asks for on each node; 0 if it states only their sum, as ``--gpus`` does."""
    for field in _PER_NODE:
        found, _ = held_devices(cells.get(field, ""))
        if found and all(each.share == 1 for each in found):
            return sum(each.count for each in found)
    return 0


REMARKS = {
    "shards": "held shards of a GPU whose size the log does not state",
    "cut off": "had a column of devices that was cut off (print it with -P)",
}


def _reason(text: str, state: JobState) -> str:
    """Return the reason of a waiting job, without the brackets of squeue's last column."""
    text = text.strip()
    if state != "waiting" or text.casefold() in NEVER:
        return ""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _node_names(text: str) -> tuple[str, ...]:
    """Return the nodes of a running job; empty if the log does not name them."""
    return () if text.startswith("(") or text.casefold() in (*NEVER, "none assigned") else tuple(expanded_nodes(text))


def _task_numbers(text: str) -> tuple[int, ...]:
    """Parse the tasks of a waiting array: ``2-4,8-12:2``."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.match(r"^(\d+)(?:-(\d+)(?::(\d+))?)?$", part.strip())
        if found:
            first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
            numbers += range(first, min(last, first + 10_000_000) + 1, max(step, 1))[:MOST]
    return tuple(numbers[:MOST])


_DEPENDENCY = re.compile(r"(?:^|,)(\w+)((?::\d+(?:_(?:\d+|\*))?)*)(?:\+\d+)?(?:\(\w+\))?(?=,|$)")
_EVENTS = {"after": "start", "afterany": "end", "afterok": "end", "aftercorr": "end", "singleton": "singleton"}
"""Events of other jobs that dependencies wait for (sbatch(1), --dependency). Jobs count as ending well."""


def _after(text: str) -> tuple[tuple[str, str], ...]:
    """Return the jobs that a dependency waits for: ``afterok:301_*(unfulfilled)``; empty for one that cannot be foreseen."""
    found = _DEPENDENCY.findall(text.strip())
    if (
        "?" in text
        or len(found) != len([part for part in text.split(",") if part])
        or any(word not in _EVENTS for word, _ in found)
    ):
        return ()
    names = [(name.removesuffix("_*"), _EVENTS[word]) for word, jobs in found for name in jobs.split(":")[1:] or [""]]
    return tuple(names)


MOST = 100_000


def expanded_nodes(text: str) -> list[str]:
    """Return the names of a list of nodes: ``gpu[001-003,7],login`` is gpu001, gpu002, gpu003, gpu7 and login."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        found = _BRACKETS.match(part.strip())
        if found is None:
            names += [part.strip()] if part.strip() else []
            continue
        for piece in found["numbers"].split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names += expanded_nodes(f"{found['head']}{number:0{len(first)}d}{found['tail']}")
    return names


def _word(cells: Cells, field: str) -> str:
    text = cells.get(field, "").strip()
    return "" if text in ("(null)", "N/A") else text


def _whole(text: str) -> int:
    """Return a count: of ``4``, ``4-8`` or ``1K``; 0 for anything else."""
    found = re.match(r"^\s*(\d{1,9})(K?)", text)
    return int(found[1]) * (1000 if found[2] else 1) if found else 0


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
