"""Two Slurm clusters of one federation on a lab's hosts run six real jobs of one owner, and are settled.

    python benchmarks/market_slurm.py --out RESULTS/market_slurm.csv

RESULTS is benchmarks/results. Needs root, slurm-wlm, slurmdbd, munge and mariadb-server. The clusters' partitions, accounts
and limits are those that ``paceline market emit --for slurm`` writes, with CPUs in place of GPUs. What ran where is read from
sacct, becomes entries of a ledger, and is settled in credits: a device-second lent is one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rows import append

import paceline
from paceline import lab
from paceline.lab import journal
from paceline.lab.slurm_federation import SlurmCluster, SlurmFederation
from paceline.market.federation.rendering import render
from paceline.market.federation.site import Federation, Site
from paceline.market.ledger.ledger import Ledger, LedgerEntry, LedgerReader, Origin
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job

COLUMNS = (
    "job",
    "account",
    "cluster",
    "partition",
    "wait_s",
    "start_s",
    "run_s",
    "cpus",
    "state",
    "credits_moved",
    "balance",
    "lent_at_most",
)
HOSTS = {"north": (0, 1), "south": (2, 3)}
SLOTS = 2
JOBS = 6
SECONDS = 12
WORK = f"timeout {SECONDS} nice -n 19 sh -c 'while :; do :; done'; true"
MICRO = 1_000_000


def federation(lends: int) -> Federation:
    """Two sites of four CPUs each; a CPU stands for a device."""
    jobs = (Job(name="any", duration_s=SECONDS, devices=SLOTS),)
    fleet = Fleet.named("2x2xT4")
    return Federation(sites=tuple(Site(name=name, fleet=fleet, jobs=jobs, lends=lends) for name in HOSTS))


def start(topology: Any, directory: Path, lends: int) -> SlurmFederation:
    """The clusters with what is rendered for them."""
    rendered = render(federation(lends), "slurm", "sharing", counted="cpu").files
    lines = {name: rendered[f"{name}/slurm.conf.part"].replace(f"ClusterName={name}\n", "") for name in HOSTS}
    clusters = [SlurmCluster(name, hosts, SLOTS, lines[name]) for name, hosts in HOSTS.items()]
    clustered = SlurmFederation(topology, directory, clusters)

    def account(running: SlurmFederation) -> None:
        for line in (rendered["accounting.sh"] + rendered["limits.sh"]).splitlines():
            if line.startswith("sacctmgr"):
                running.run("north", *shlex.split(line))
        for name in HOSTS:
            running.run("north", "sacctmgr", "-i", "add", "user", "root", f"account={name}")

    clustered.start(account)
    return clustered


def run_jobs(clustered: SlurmFederation) -> list[Mapping[str, str]]:
    """Six jobs of north at once; what became of them."""
    for number in range(JOBS):
        words = ("--account=north", "--partition=own,guests", "-N1", f"-n{SLOTS}", "-o/dev/null", f"--job-name=job-{number}")
        clustered.run("north", "sbatch", "--parsable", *words, "--wrap", WORK)
    fields = ("JobName", "Cluster", "Account", "Partition", "Submit", "Start", "End", "AllocCPUS", "State")
    until = time.monotonic() + 180
    while time.monotonic() < until:
        time.sleep(2)
        text = clustered.run("north", "sacct", "-a", "--federation", "-X", "-n", "-P", f"--format={','.join(fields)}")
        jobs = [dict(zip(fields, line.split("|"), strict=True)) for line in text.splitlines() if line]
        done = [job for job in jobs if job["State"] == "COMPLETED"]
        if len(done) == JOBS:
            return sorted(done, key=lambda job: job["JobName"])
    raise TimeoutError(f"six jobs did not end in three minutes: {text}")


def settled(jobs: list[Mapping[str, str]], directory: Path) -> dict[str, int]:
    """Balances in micro-credits by site, from a ledger of what ran away from home."""
    trace = directory / "sacct.txt"
    trace.write_text("".join("|".join(job.values()) + "\n" for job in jobs))
    first = min(seconds(job["Start"]) for job in jobs)
    ledger = Ledger(directory / "ledger.sqlite", Origin.of_files([trace], "credits", 0, paceline.__version__))
    ledger.append(
        LedgerEntry(
            start_us=(seconds(job["Start"]) - first) * MICRO,
            end_us=(seconds(job["End"]) - first) * MICRO,
            job=job["JobName"],
            owner=job["Account"],
            lender=job["Cluster"],
            device="cpu",
            device_us=used(job),
            normalised_us=used(job),
            amount=used(job) if job["Account"] != job["Cluster"] else 0,
        )
        for job in jobs
    )
    reader = LedgerReader(directory / "ledger.sqlite")
    reader.verify()
    return reader.balances()


def seconds(text: str) -> int:
    """Of a time of sacct."""
    return round(datetime.fromisoformat(text).timestamp())


def used(job: Mapping[str, str]) -> int:
    """CPU-microseconds."""
    return (seconds(job["End"]) - seconds(job["Start"])) * int(job["AllocCPUS"]) * MICRO


def study(lends: int) -> list[dict[str, Any]]:
    """A row a job. ``lends``: CPUs that each site lends at most."""
    directory = Path(tempfile.mkdtemp(prefix="pf-"))
    os.environ[journal.DIRECTORY] = str(directory / "labs")
    with lab.up(4, "1Gb/s", f"fed{os.getpid()}") as hosts:
        clustered = start(hosts.topology, directory / "f", lends)
        try:
            jobs = run_jobs(clustered)
        finally:
            clustered.stop()
    balances = settled(jobs, directory)
    first = min(seconds(job["Submit"]) for job in jobs)
    return [
        {
            "job": job["JobName"],
            "account": job["Account"],
            "cluster": job["Cluster"],
            "partition": job["Partition"],
            "wait_s": seconds(job["Start"]) - seconds(job["Submit"]),
            "start_s": seconds(job["Start"]) - first,
            "run_s": seconds(job["End"]) - seconds(job["Start"]),
            "cpus": job["AllocCPUS"],
            "state": job["State"],
            "credits_moved": used(job) // MICRO if job["Account"] != job["Cluster"] else 0,
            "balance": " ".join(f"{name}:{balance / MICRO:+.0f}" for name, balance in sorted(balances.items())),
            "lent_at_most": lends,
        }
        for job in jobs
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lends", type=int, nargs="+", default=[4, 2], help="CPUs that each site lends at most")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for lends in options.lends:
        for row in study(lends):
            append(options.out, COLUMNS, row)
            print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
