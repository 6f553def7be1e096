"""Forms of files of jobs: how each is recognized and read. A new form is one more entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.csv_rows import Row
from paceline.scheduling.traces import published, user_csv
from paceline.scheduling.traces.content import JobFile, TextTable
from paceline.scheduling.traces.logs import datacenter, kueue, philly, ray_jobs, scontrol, slurm_json, slurm_text, swf, volcano
from paceline.scheduling.traces.logs.slurm_columns import SACCT, SQUEUE, SQUEUE_WORDS, fit, known_words
from paceline.scheduling.traces.record import JobLog
from paceline.scheduling.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class TraceForm:
    """Form of a file of jobs.

    Attributes:
        name: name of the form.
        about: origin of such files. ``example``: command that writes one, or its columns.
        columns: columns that identify a table. If several forms fit a header, the one with the most columns is used.
        read: reader of the rows of a table in which a mistake is an error, since a person wrote it.
        log: reader of the log or the queue of a cluster, in which a bad row is skipped.
        fits: test of the content, for a form that its columns do not identify.
        parts: columns that split a file into several traces. One value of each must be chosen.
    """

    name: str
    about: str
    example: str = ""
    columns: tuple[str, ...] = ()
    read: Callable[[Sequence[Row]], Trace] | None = None
    log: Callable[[JobFile], JobLog] | None = None
    fits: Callable[[JobFile], bool] | None = None
    parts: tuple[str, ...] = ()

    def matches(self, source: JobFile) -> bool:
        """Return whether a file has this form."""
        if self.fits is not None:
            return self.fits(source)
        return source.table is not None and set(self.columns) <= set(source.table.header)


def _slurm(squeue: bool) -> Callable[[JobFile], bool]:
    """Return the test for the header of ``squeue``, or for that of ``sacct``."""

    def fits(source: JobFile) -> bool:
        if source.table is None or known_words(source.table.header) < 3:
            return False
        return is_squeue(source.table.header) == squeue

    return fits


def is_squeue(header: Sequence[str]) -> bool:
    """Return whether a header of Slurm is one of ``squeue`` (``JOBID ST TIME``), not of ``sacct`` (``JobID Submit Start``)."""
    words = {column.casefold() for column in header}
    if {"submit", "alloctres", "jobname", "elapsed", "alloccpus", "jobidraw"} & words:
        return False
    if {"st", "nodelist(reason)", "submit_time", "time_limit", "tres_per_node", "start_time"} & words:
        return True
    return fit(header, SQUEUE_WORDS) > 0.5 and "JOBID" in header


def _objects(test: Callable[..., bool]) -> Callable[[JobFile], bool]:
    """Return the test of the JSON or YAML objects of a file."""
    return lambda source: source.objects is not None and test(source.objects)


def _rows(test: Callable[[TextTable], bool]) -> Callable[[JobFile], bool]:
    """Return the test of the table of a file."""
    return lambda source: source.table is not None and test(source.table)


FORMS: tuple[TraceForm, ...] = (
    TraceForm(
        "own",
        "your own CSV, a row a job",
        "name,arrival_s,devices,duration_s",
        user_csv.COLUMNS,
        user_csv.read_own,
    ),
    TraceForm("sacct", "Slurm's accounting", SACCT, log=slurm_text.read_sacct, fits=_slurm(squeue=False)),
    TraceForm(
        "sacct_json",
        "Slurm's accounting",
        "sacct -a -X --json",
        log=slurm_json.read_sacct_json,
        fits=_objects(slurm_json.is_sacct),
    ),
    TraceForm(
        "sacct_headless",
        "Slurm's accounting without a header",
        "sacct -n -a -X -P --format=JobID,User,Account,Submit,Start,End,State,AllocTRES",
        log=slurm_text.read_headless,
        fits=_rows(lambda table: bool(slurm_text.headless(table))),
    ),
    TraceForm("squeue", "Slurm's queue", SQUEUE, log=slurm_text.read_squeue, fits=_slurm(squeue=True)),
    TraceForm(
        "squeue_json", "Slurm's queue", "squeue -a --json", log=slurm_json.read_squeue_json, fits=_objects(slurm_json.is_squeue)
    ),
    TraceForm("scontrol", "Slurm's queue", scontrol.COMMAND, log=scontrol.read_scontrol, fits=scontrol.is_scontrol),
    TraceForm(
        "kueue",
        "workloads and queues of Kueue",
        kueue.COMMAND,
        log=kueue.read_kueue,
        fits=_objects(kueue.is_kueue),
    ),
    TraceForm(
        "volcano",
        "jobs, pod groups and queues of Volcano",
        volcano.COMMAND,
        log=volcano.read_volcano,
        fits=_objects(volcano.is_volcano),
    ),
    TraceForm("ray", "Ray's list of jobs", ray_jobs.COMMAND, log=ray_jobs.read_ray, fits=_objects(ray_jobs.is_ray)),
    TraceForm(
        "swf", "Standard Workload Format, Parallel Workloads Archive", "*.swf, *.swf.gz", log=swf.read_swf, fits=swf.is_swf
    ),
    TraceForm(
        "philly_log", "Philly's log, ATC 2019", "cluster_job_log", log=philly.read_philly_log, fits=_objects(philly.is_philly)
    ),
    TraceForm("helios", "Helios, SC 2021", "cluster_log.csv", datacenter.HELIOS, log=datacenter.read_helios),
    TraceForm("acme", "Acme, NSDI 2024", "trace_seren.csv, trace_kalos.csv", datacenter.ACME, log=datacenter.read_acme),
    TraceForm("openb", "Alibaba's pods, ATC 2023", "openb_pod_list_*.csv", datacenter.OPENB, log=datacenter.read_openb),
    TraceForm("pai", "Alibaba PAI, NSDI 2022", "pai_task_table.csv", log=datacenter.read_pai, fits=_rows(datacenter.is_pai)),
    TraceForm(
        "pai_jobs",
        "Alibaba PAI's table of jobs",
        log=datacenter.refuse_pai_jobs,
        fits=_rows(datacenter.is_pai_jobs),
    ),
    TraceForm("spot", "Alibaba's spot GPUs, ASPLOS 2026", "job_info_df.csv", datacenter.SPOT, log=datacenter.read_spot),
    TraceForm(
        "supercloud", "MIT SuperCloud, HPEC 2021", "slurm-log.csv", datacenter.SUPERCLOUD, log=datacenter.read_supercloud
    ),
    TraceForm(
        "philly",
        "Philly, rigid jobs with durations",
        ",".join(published.PHILLY_COLUMNS),
        published.PHILLY_COLUMNS,
        published.read_philly,
    ),
    TraceForm(
        "workloads",
        "workloads of Pollux and Sia, jobs of profiled models",
        ",".join(published.WORKLOAD_COLUMNS),
        published.WORKLOAD_COLUMNS,
        published.read_workload,
        parts=("set", "workload"),
    ),
    TraceForm(
        "gavel",
        "Gavel's physical traces, rigid jobs with steps",
        ",".join(published.GAVEL_COLUMNS),
        published.GAVEL_COLUMNS,
        published.read_gavel,
        parts=("trace",),
    ),
    TraceForm(
        "elasticflow",
        "ElasticFlow, elastic jobs with deadlines",
        ",".join(published.ELASTICFLOW_COLUMNS),
        published.ELASTICFLOW_COLUMNS,
        published.read_elasticflow,
    ),
)
"""Every form that can be read."""
READ = "your own CSV, sacct, squeue, Kueue, Volcano, Ray, SWF, Philly, Helios, Acme, Alibaba (openb, PAI, spot), SuperCloud"
"""Forms by the names that their users know, for an error."""
