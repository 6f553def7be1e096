"""A federation as what executes it reads: Kueue's cohorts, or Slurm's federation.

Kueue (v1beta1): a ClusterQueue a site in one cohort, with the site's devices as quota and its limits as borrowingLimit and
lendingLimit. Slurm (22.05 and later): clusters of one federation on one slurmdbd, a partition ``own`` for the site's account
and a partition ``guests`` for the others, which gives way. What the target cannot express is refused, or said in a remark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.errors import UserError, known_name, shorten
from paceline.market.site import Federation, Site

_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SLURM_NAME = re.compile(r"[a-z][a-z0-9_]{0,38}")
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
            raise UserError(f"{shorten(each, 40)!r} is no name for Kubernetes", "use lower case letters, digits and dashes")
    types = list(dict.fromkeys(group.device for site in federation.sites for group in site.fleet.groups))
    parts = [_flavor(device) for device in types]
    parts += [_queue(site, name) for site in federation.sites]
    remarks = [
        "kubectl apply -f federation.yaml, on a Kubernetes with Kueue whose nodes are labelled by site and device type.",
        "Each site submits to the LocalQueue of its namespace: kueue.x-k8s.io/queue-name: jobs.",
    ]
    if any(site.notice_s < math.inf for site in federation.sites):
        remarks.append("Kueue knows no notice: give guests' pods a terminationGracePeriodSeconds of the lender's notice.")
    return Rendered({"federation.yaml": "---\n".join(parts)}, tuple(remarks))


def _flavor(device: str) -> str:
    return f"""apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata:
  name: {_label(device)}
spec:
  nodeLabels:
    paceline/device: {_label(device)}
"""


def _queue(site: Site, cohort: str) -> str:
    groups = site.fleet.groups
    if len(groups) > 1 and (site.lends is not None or site.borrows is not None):
        raise UserError(
            f"site {site.name!r} limits lending or borrowing over {len(groups)} device types",
            "Kueue limits each type by itself: make a site of each type, or leave the limits out",
        )
    flavors = "".join(
        f"    - name: {_label(group.device)}\n      resources:\n      - name: nvidia.com/gpu\n"
        f"        nominalQuota: {group.devices}\n"
        + (f"        borrowingLimit: {site.borrows}\n" if site.borrows is not None else "")
        + (f"        lendingLimit: {min(site.lends, group.devices)}\n" if site.lends is not None else "")
        for group in groups
    )
    reclaims = site.notice_s < math.inf
    notice = f" # guests leave within {site.notice_s:g} s" if reclaims else " # guests stay to their end"
    return f"""apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata:
  name: {site.name}
spec:
  cohort: {cohort}
  namespaceSelector:
    matchLabels:
      paceline/site: {site.name}
  queueingStrategy: BestEffortFIFO
  preemption:
    reclaimWithinCohort: {"Any" if reclaims else "Never"}{notice}
    withinClusterQueue: Never
  resourceGroups:
  - coveredResources: ["nvidia.com/gpu"]
    flavors:
{flavors}---
apiVersion: v1
kind: Namespace
metadata:
  name: {site.name}
  labels:
    paceline/site: {site.name}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata:
  name: jobs
  namespace: {site.name}
spec:
  clusterQueue: {site.name}
"""


def _slurm(federation: Federation, name: str, counted: str) -> Rendered:
    for each in (name, *federation.names):
        if not _SLURM_NAME.fullmatch(each):
            raise UserError(
                f"{shorten(each, 40)!r} is no name for a Slurm cluster",
                "begin with a lower case letter, then letters, digits, _",
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
    tracked = f"AccountingStorageTRES={counted}\n" if counted.startswith("gres/") else ""  # the others are always tracked
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


def _label(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


TARGETS: Mapping[str, Callable[[Federation, str, str], Rendered]] = {"kueue": _kueue, "slurm": _slurm}

__all__ = ["TARGETS", "Rendered", "render"]
