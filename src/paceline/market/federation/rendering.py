"""Render a federation as configuration of Kueue (a cohort) or Slurm (a federation).

Kueue (v1beta2): one ClusterQueue per site in one cohort, with the site's devices as quota and its limits as borrowingLimit and
lendingLimit. A queue borrows only flavors that it lists, so it lists every device type that its jobs may use. Slurm (22.05 and
later): clusters of one federation on one slurmdbd, a partition ``own`` for the site's account and a partition ``guests`` for
the others, which gives way. A limit that the target cannot express is refused or noted in a remark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import UserError, known_name, shorten
from paceline.hardware import Device
from paceline.market.federation.site import Federation, Site

_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KUEUE = "kueue.x-k8s.io/v1beta2"
NVIDIA = "nvidia.com/gpu"
_RESOURCES = {
    "cpu": "cpu",
    "tpu": "google.com/tpu",
    **dict.fromkeys(("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"), NVIDIA),
    **dict.fromkeys(("CDNA", "RDNA"), "amd.com/gpu"),
    "Gaudi": "habana.ai/gaudi",
    "Trainium": "aws.amazon.com/neuron",
    "Ascend": "huawei.com/Ascend910",
}
"""Resource of the maker's device plugin, by a device's kind, or the first word of its architecture, or of its name."""
_SLURM_NAME = re.compile(r"(?!(all|root)$)[a-z0-9_][a-z0-9_-]{0,39}")
"""Slurm's limit on cluster names, stored in lower case (slurm.conf(5)). Taken: ``all`` (every account) and ``root``."""
_KILL_WAIT_S = 30
"""Slurm's default delay from the second SIGTERM, at the end of GraceTime, to SIGKILL (slurm.conf(5))."""


@dataclass(frozen=True)
class Rendered:
    """Files by name, and remarks about their use, one sentence each."""

    files: Mapping[str, str]
    remarks: tuple[str, ...]


def render(federation: Federation, target: str, name: str = "paceline", counted: str = "gres/gpu") -> Rendered:
    """Render the files of a target: ``kueue`` or ``slurm``.

    Args:
        name: name of the cohort or the federation. ``counted``: the unit of a device in Slurm's accounting.

    Raises:
        UserError: an unknown target; a name that the target does not take; a limit that it cannot express.
    """
    return TARGETS[known_name("target", target, TARGETS)](federation, name, counted)


def _kueue(federation: Federation, name: str, counted: str) -> Rendered:
    for each in (name, *federation.names):
        if not _KUBERNETES_NAME.fullmatch(each):
            raise UserError(
                f"{shorten(each, 40)!r} is no name for Kubernetes", "use up to 63 lower case letters, digits and dashes"
            )
        if each.startswith("kube-") or each in ("default", "kueue-system"):  # these namespaces have owners
            raise UserError(
                f"{each!r} is a reserved name in Kubernetes", "choose another than default, kueue-system or kube-..."
            )
    flavors = _flavors(federation)
    parts = [_flavor(flavor.label) for flavor in flavors.values()]
    parts += [_queue(site, name, flavors) for site in federation.sites]
    covered = {flavor.resource for flavor in flavors.values()}
    others = " and ".join(resource for resource in ("cpu", "memory") if resource not in covered)
    remarks = [
        "kubectl apply -f federation.yaml, where Kueue serves v1beta2 and nodes have the label paceline/device.",
        "Each site submits to the LocalQueue of its namespace: kueue.x-k8s.io/queue-name: jobs.",
        f"Kueue admits a pod where all that it asks for has quota: put {others} into its excludeResourcePrefixes.",
    ]
    if any(site.notice_s < math.inf for site in federation.sites):
        remarks.append("Kueue knows no notice: give guests' pods a terminationGracePeriodSeconds of the lender's notice.")
    return Rendered({"federation.yaml": "---\n".join(parts)}, tuple(remarks))


class _Flavor(NamedTuple):
    """A device type: the flavor's name, the plugin's resource, and units of it per device."""

    label: str
    resource: str
    amount: int


def _flavors(federation: Federation) -> dict[str, _Flavor]:
    """Return the flavor of each device type. Raises UserError for two of one name, and for an unknown resource."""
    flavors: dict[str, _Flavor] = {}
    groups = {group.device: group for site in federation.sites for group in site.fleet.groups}
    for device, group in groups.items():
        label = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:63].rstrip("-")
        if not label or any(label == other.label for other in flavors.values()):
            raise UserError(
                f"device {shorten(device, 40)!r} has no distinct label in Kubernetes: {label!r}",
                "give the device another name of letters and digits",
            )
        flavors[device] = _Flavor(label, resource_of(group.hardware), _amount(group.hardware))
    return flavors


def _flavor(label: str) -> str:
    return f"""apiVersion: {KUEUE}
kind: ResourceFlavor
metadata:
  name: "{label}"
spec:
  nodeLabels:
    paceline/device: "{label}"
"""


def _queue(site: Site, cohort: str, flavors: Mapping[str, _Flavor]) -> str:
    own = {device: sum(g.devices for g in site.fleet.groups if g.device == device) for device in flavors}
    used = [device for device in flavors if own[device] or any(job.may_use(device) for job in site.jobs)]
    used.sort(key=lambda device: not own[device])  # Kueue takes the first flavor that has room, borrowed room too
    for limit, what, types in (
        (site.lends, "lending", [device for device in used if own[device]]),
        (site.borrows, "borrowing", used),
    ):
        if limit and len(types) > 1:
            raise UserError(
                f"site {site.name!r} limits {what} over {len(types)} device types",
                "Kueue limits each type by itself: make a site of each type, name the types of jobs, or leave the limit out",
            )
    by_resource: dict[str, list[str]] = {}
    for device in used:
        by_resource.setdefault(flavors[device].resource, []).append(device)
    groups = ""
    for resource, devices in by_resource.items():
        groups += f'  - coveredResources: ["{resource}"]\n    flavors:\n'
        for device in devices:
            label, _, amount = flavors[device]
            groups += f'    - name: "{label}"\n      resources:\n      - name: {resource}\n'
            groups += f"        nominalQuota: {own[device] * amount}\n"
            if site.borrows is not None:
                groups += f"        borrowingLimit: {site.borrows * amount}\n"
            if site.lends is not None and own[device]:
                groups += f"        lendingLimit: {min(site.lends, own[device]) * amount}\n"
    reclaims = site.notice_s < math.inf
    notice = f" # guests leave within {site.notice_s:g} s" if reclaims else " # guests stay to their end"
    return f"""apiVersion: {KUEUE}
kind: ClusterQueue
metadata:
  name: "{site.name}"
spec:
  cohortName: "{cohort}"
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: "{site.name}"
  queueingStrategy: BestEffortFIFO
  preemption:
    reclaimWithinCohort: {"Any" if reclaims else "Never"}{notice}
    withinClusterQueue: Never
  resourceGroups:
{groups}---
apiVersion: v1
kind: Namespace
metadata:
  name: "{site.name}"
---
apiVersion: {KUEUE}
kind: LocalQueue
metadata:
  name: jobs
  namespace: "{site.name}"
spec:
  clusterQueue: "{site.name}"
"""


def resource_of(device: Device) -> str:
    """Return the Kubernetes resource of the maker's device plugin. Raises UserError if it is unknown."""
    found = _RESOURCES.get(device.kind) or _RESOURCES.get(device.chip.partition(" ")[0])
    if found is None:
        raise UserError(
            f"no Kubernetes resource is known for {shorten(device.name, 40)!r}",
            "give its architecture in the file of devices, or take --for slurm",
        )
    return found


def _amount(device: Device) -> int:
    """Return the units of a device's resource: the cores of a CPU, else 1. Raises UserError if the cores are unknown."""
    if device.kind != "cpu":
        return 1
    if device.units is None:
        raise UserError(f"the cores of {shorten(device.name, 40)!r} are not known", "give its units in the file of devices")
    return int(device.units.value)


def _slurm(federation: Federation, name: str, counted: str) -> Rendered:
    for each in (name, *federation.names):
        if not _SLURM_NAME.fullmatch(each):
            raise UserError(
                f"{shorten(each, 40)!r} is no name for a Slurm cluster",
                "use up to 40 lower case letters, digits, _ and -, no - in front; neither all nor root",
            )
    files = {f"{site.name}/slurm.conf.part": _slurm_conf(site, counted) for site in federation.sites}
    files |= {"accounting.sh": _accounting(federation, name), "limits.sh": _limits(federation, counted)}
    remarks = [
        "Put each site's part into its slurm.conf in place of lines of the same keys.",
        "Point AccountingStorageHost at one slurmdbd. Run accounting.sh once, start each slurmctld, then run limits.sh.",
        "A user of a site submits with --account=SITE --partition=own,guests: the first cluster with room runs the job.",
    ]
    if any(site.notice_s < math.inf for site in federation.sites):
        remarks.append("Guests start their work with srun: Slurm tells a batch script only KillWait before its end.")
    if any(site.borrows is not None for site in federation.sites):
        remarks.append("Slurm limits borrowing by cluster: a site may hold its limit on each other cluster at the same time.")
    return Rendered(files, tuple(remarks))


def _slurm_conf(site: Site, counted: str) -> str:
    mode, own, guests = "PreemptType=preempt/none\nPreemptMode=OFF", "", ""
    if site.notice_s < math.inf:
        wait_s = min(_KILL_WAIT_S, math.floor(site.notice_s))
        mode = f"PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nJobRequeue=1\nKillWait={wait_s}"
        own, guests = " PreemptMode=OFF", f" PreemptMode=REQUEUE GraceTime={math.floor(site.notice_s) - wait_s}"
    gres = counted.removeprefix("gres/") if counted.startswith("gres/") else ""  # the others are always tracked
    tracked = f"GresTypes={gres}\nAccountingStorageTRES={counted}\n" if gres else ""
    return f"""ClusterName={site.name}
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos
{tracked}FederationParameters=fed_display
{mode}
PartitionName=own Nodes=ALL AllowAccounts={site.name} PriorityTier=10{own} Default=YES State=UP
PartitionName=guests Nodes=ALL DenyAccounts={site.name} PriorityTier=1 QOS=guests_{site.name}{guests} State=UP
"""


def _accounting(federation: Federation, name: str) -> str:
    names = federation.names
    lines = [
        "#!/bin/sh",
        "# Clusters, accounts and QOS of the federation. slurmctld does not start where a partition's QOS is missing.",
    ]
    lines += ["set -e", *(f"sacctmgr -i add cluster {site}" for site in names)]
    lines += [f"sacctmgr -i add federation {name} clusters={','.join(names)}"]
    for site in names:
        lines += [f"sacctmgr -i add account {site}", f"sacctmgr -i add qos guests_{site}"]
    return "\n".join(lines) + "\n"


def _limits(federation: Federation, counted: str) -> str:
    lines = [
        "#!/bin/sh",
        "# What sites lend and borrow. slurmdbd knows a gres once a slurmctld that counts it has started.",
        "set -e",
    ]
    for site in federation.sites:
        if site.lends is not None:
            lines += [f"sacctmgr -i modify qos guests_{site.name} set GrpTRES={counted}={site.lends}"]
        if site.borrows is not None:
            lines += [
                f"sacctmgr -i modify account where name={site.name} cluster={other} set GrpTRES={counted}={site.borrows}"
                for other in federation.names
                if other != site.name
            ]
    return "\n".join(lines) + "\n"


TARGETS: Mapping[str, Callable[[Federation, str, str], Rendered]] = {"kueue": _kueue, "slurm": _slurm}
