"""Settings of the executor on Kubernetes, and names of objects and labels."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from paceline.errors import UserError, shorten
from paceline.scheduling.launch import Launch

GPU = "nvidia.com/gpu"
JOB_LABEL = "paceline/job"
SCHEDULE_LABEL = "paceline/schedule"
GATE = "paceline/placement"
"""Scheduling gate of a pod until the executor has chosen its node."""
START = "paceline/start"
"""Annotation of a pod: number of pods and number of the start. A running pod starts its command again when it changes."""
HOST = "kubernetes.io/hostname"
MOST_NAME = 42
"""Longest name of a Job, so that the names of its pods fit in a host name of 63 characters."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RESOURCE = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*")


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """Settings of pods and queue.

    Attributes:
        image: container image with the programs of the jobs.
        claim: volume claim with the jobs' directories and checkpoints. ``mount``: its path in pods, and here if it is mounted.
        resource: resource that counts as a device, such as ``nvidia.com/gpu``, ``nvidia.com/mig-1g.5gb`` or ``cpu``.
        queue: LocalQueue of Kueue; empty: Jobs start without Kueue.
        context, namespace: as ``Api``.

    Raises:
        UserError: a setting that is missing or illegal.
    """

    image: str
    claim: str
    mount: str
    resource: str = GPU
    queue: str = ""
    context: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if not self.image.strip():
            raise UserError("no image for the pods", "give `image`, such as registry/name:tag, with the programs of the jobs")
        if not self.claim or not PurePosixPath(self.mount).is_absolute():
            raise UserError(
                f"{shorten(f'{self.claim}:{self.mount}')!r} is not a mounted volume",
                "give `claim`, such as runs:/data: a PersistentVolumeClaim for the jobs' folders and its path in pods",
            )
        for option, value in (("queue", self.queue), ("namespace", self.namespace), ("claim", self.claim)):
            if value and not _LABEL.fullmatch(value):
                raise UserError(f"`{option}` {shorten(value)!r} is not a name on Kubernetes", "use a to z, 0 to 9 and -")
        if not _RESOURCE.fullmatch(self.resource):
            raise UserError(f"{shorten(self.resource)!r} is not a resource", f"give one such as {GPU} or cpu")

    def check(self, launch: Launch) -> None:
        """Raise UserError for a job whose folders are not on the volume."""
        for name in ("directory", "checkpoint"):
            path = PurePosixPath(getattr(launch, name))
            if not path.is_relative_to(self.mount):
                raise UserError(
                    f"job {launch.name}: its {name} {path} is not on the volume {self.claim}, mounted at {self.mount}",
                    f"give a path below {self.mount}",
                )


def job_name(name: str, schedule: str, number: int) -> str:
    """Return the name of the Job of a start. Start numbers make it unique, so a Job in deletion does not block the next."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}"  # a Service's name begins with a letter
    digest = hashlib.sha256(f"{schedule}/{name}".encode()).hexdigest()[:6]
    return f"{plain[: MOST_NAME - 8 - len(str(number))].rstrip('-')}-{digest}-{number}"
