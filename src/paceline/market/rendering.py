"""A federation as what executes it reads: Kueue's cohorts, or Slurm's federation.

Kueue (v1beta2): a ClusterQueue a site in one cohort, with the site's devices as quota and its limits as borrowingLimit and
lendingLimit. A queue borrows only of flavors that it lists, so it lists every device type that its jobs may use. Slurm (22.05
and later): clusters of one federation on one slurmdbd, a partition ``own`` for the site's account and a partition ``guests``
for the others, which gives way. What the target cannot express is refused, or said in a remark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.errors import UserError, known_name, shorten
from paceline.market.site import Federation, Site

_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KUEUE = "kueue.x-k8s.io/v1beta2"
_RESOURCES = {
    "amd.com/gpu": r"^(MI\d|RX |Radeon)",
    "google.com/tpu": r"^TPU",
    "habana.ai/gaudi": r"^Gaudi",
    "graphcore.ai/ipu": r"^IPU",
    "aws.amazon.com/neuron": r"^Trainium",
    "cpu": r"^Xeon|^EPYC|CPU",
    "nvidia.com/gpu": r"^(K80|TITAN|Tesla|GTX|RTX|Quadro|GH?B?\d|[PVTABHL]\d+)",
}
"""By what a catalogue's name begins with: what the maker's device plugin counts."""
_SLURM_NAME = re.compile(r"[a-z][a-z0-9_-]{0,38}")
"""Slurm's accounting stores names of clusters in lower case and makes tables of them."""


@dataclass(frozen=True)
class Rendered:
    """Files by their names, and what a reader must do with them or know, a sentence each."""

    files: Mapping[str, str]
    remarks: tuple[str, ...]


def render(federation: Federation, target: str, name: str = "paceline", counted: str = "gres/gpu") -> Rendered:
    """The files of a target: ``kueue`` or ``slurm``.

    Args:
        name: of the cohort or the federation. ``counted``: what a device is to Slurm's accounting.

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
        if each.startswith("kube-") or each == "default":  # these namespaces are Kubernetes' own
            raise UserError(f"{each!r} is reserved in Kubernetes", "choose another than default or kube-...")
    flavors = _flavors(federation)
    parts = [_flavor(label) for label in flavors.values()]
    parts += [_queue(site, name, flavors) for site in federation.sites]
    remarks = [
        "kubectl apply -f federation.yaml, where Kueue serves v1beta2 and nodes have the label paceline/device.",
        "Each site submits to the LocalQueue of its namespace: kueue.x-k8s.io/queue-name: jobs.",
    ]
    if any(site.notice_s < math.inf for site in federation.sites):
        remarks.append("Kueue knows no notice: give guests' pods a terminationGracePeriodSeconds of the lender's notice.")
    return Rendered({"federation.yaml": "---\n".join(parts)}, tuple(remarks))


def _flavors(federation: Federation) -> dict[str, str]:
    """The name of each device type's flavor. Raises UserError for two of one name."""
    flavors: dict[str, str] = {}
    for device in dict.fromkeys(group.device for site in federation.sites for group in site.fleet.groups):
        label = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:63].rstrip("-")
        if not label or label in flavors.values():
            raise UserError(
                f"device {shorten(device, 40)!r} has no label of its own in Kubernetes: {label!r}",
                "give the device another name of letters and digits",
            )
        flavors[device] = label
    return flavors


def _flavor(label: str) -> str:
    return f"""apiVersion: {KUEUE}
kind: ResourceFlavor
metadata:
  name: {label}
spec:
  nodeLabels:
    paceline/device: {label}
"""


def _queue(site: Site, cohort: str, flavors: Mapping[str, str]) -> str:
    own = {device: sum(g.devices for g in site.fleet.groups if g.device == device) for device in flavors}
    used = [device for device in flavors if own[device] or any(job.may_use(device) for job in site.jobs)]
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
        by_resource.setdefault(resource_of(device), []).append(device)
    groups = ""
    for resource, devices in by_resource.items():
        groups += f'  - coveredResources: ["{resource}"]\n    flavors:\n'
        for device in devices:
            groups += f"    - name: {flavors[device]}\n      resources:\n      - name: {resource}\n"
            groups += f"        nominalQuota: {own[device]}\n"
            if site.borrows is not None:
                groups += f"        borrowingLimit: {site.borrows}\n"
            if site.lends is not None and own[device]:
                groups += f"        lendingLimit: {min(site.lends, own[device])}\n"
    reclaims = site.notice_s < math.inf
    notice = f" # guests leave within {site.notice_s:g} s" if reclaims else " # guests stay to their end"
    return f"""apiVersion: {KUEUE}
kind: ClusterQueue
metadata:
  name: {site.name}
spec:
  cohortName: {cohort}
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: {site.name}
  queueingStrategy: BestEffortFIFO
  preemption:
    reclaimWithinCohort: {"Any" if reclaims else "Never"}{notice}
    withinClusterQueue: Never
  resourceGroups:
{groups}---
apiVersion: v1
kind: Namespace
metadata:
  name: {site.name}
---
apiVersion: {KUEUE}
kind: LocalQueue
metadata:
  name: jobs
  namespace: {site.name}
spec:
  clusterQueue: {site.name}
"""


def resource_of(device: str) -> str:
    """The resource that the device plugin of its maker counts, as Kubernetes names it. Raises UserError where none is known."""
    found = next((resource for resource, names in _RESOURCES.items() if re.search(names, device)), "")
    if not found:
        raise UserError(
            f"no Kubernetes resource is known for {shorten(device, 40)!r}",
            "paceline market emit --for slurm, or name a device of NVIDIA, AMD, Google, Intel, Graphcore or AWS",
        )
    return found


def _slurm(federation: Federation, name: str, counted: str) -> Rendered:
    for each in (name, *federation.names):
        if not _SLURM_NAME.fullmatch(each):
            raise UserError(
                f"{shorten(each, 40)!r} is no name for a Slurm cluster",
                "begin with a lower case letter, then up to 38 letters, digits, _ and -",
            )
    files = {f"{site.name}/slurm.conf.part": _slurm_conf(site, counted) for site in federation.sites}
    files["accounting.sh"] = _accounting(federation, name, counted)
    remarks = [
        "Add each site's part to its slurm.conf, point AccountingStorageHost at one slurmdbd, then run accounting.sh once.",
        "A user of a site submits with --account=SITE --partition=own,guests: the first cluster with room runs the job.",
    ]
    if any(site.borrows is not None for site in federation.sites):
        remarks.append("Slurm limits borrowing by cluster: a site may hold its limit on each other cluster at the same time.")
    return Rendered(files, tuple(remarks))


def _slurm_conf(site: Site, counted: str) -> str:
    reclaims = site.notice_s < math.inf
    mode = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE" if reclaims else "PreemptType=preempt/none"
    gres = counted.removeprefix("gres/") if counted.startswith("gres/") else ""  # the others are always tracked
    tracked = f"GresTypes={gres}\nAccountingStorageTRES={counted}\n" if gres else ""
    grace = f" GraceTime={math.ceil(site.notice_s)}" if reclaims else ""
    return f"""ClusterName={site.name}
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos
{tracked}FederationParameters=fed_display
{mode}
PartitionName=own Nodes=ALL AllowAccounts={site.name} PriorityTier=10 Default=YES State=UP
PartitionName=guests Nodes=ALL DenyAccounts={site.name} PriorityTier=1 QOS=guests_{site.name}{grace} State=UP
"""


def _accounting(federation: Federation, name: str, counted: str) -> str:
    names = federation.names
    lines = [
        "#!/bin/sh",
        "# Clusters, accounts and limits of the federation. Run once, where sacctmgr reaches the slurmdbd.",
        "set -e",
    ]
    lines += [f"sacctmgr -i add cluster {site}" for site in names]
    lines += [f"sacctmgr -i add federation {name} clusters={','.join(names)}"]
    for site in federation.sites:
        lines += [f"sacctmgr -i add account {site.name}"]
        limit = "" if site.lends is None else f" set GrpTRES={counted}={site.lends}"
        lines += [f"sacctmgr -i add qos guests_{site.name}{limit}"]
    for site in federation.sites:
        if site.borrows is not None:
            others = [other for other in names if other != site.name]
            lines += [
                f"sacctmgr -i modify account where name={site.name} cluster={other} set GrpTRES={counted}={site.borrows}"
                for other in others
            ]
    return "\n".join(lines) + "\n"


TARGETS: Mapping[str, Callable[[Federation, str, str], Rendered]] = {"kueue": _kueue, "slurm": _slurm}

__all__ = ["TARGETS", "Rendered", "render"]
