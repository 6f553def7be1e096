"""Settings of Kueue from its objects: ClusterQueue, Cohort, LocalQueue, ResourceFlavor, and its Configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paceline.errors import UserError, shorten
from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota
from paceline.scheduling.traces.logs.kubernetes import devices_in, labelled_type, slice_type, split_product

_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "m": 1e-3}


DRAIN = "HoldAndDrain"
"""``stopPolicy`` under which running workloads are evicted too (Kueue 0.14, concepts/cluster_queue)."""
SLICE = " "
"""Separator between a flavor and the profile of its MIG slices. No name of a flavor holds it."""


def parse_kueue(objects: Iterable[Mapping[str, Any]], device_type: Callable[[str], str] = str) -> KueueSettings:
    """Read the settings from objects as ``kubectl get -o json`` or ``-o yaml`` prints them. Lists of objects are flattened.

    A queue without GPUs counts its first resource, and a device is one unit of it. MIG slices of a flavor are a flavor of their
    own, ``default 1g.5gb``, whose type is that slice of the flavor's device.

    Args:
        device_type: function from the product name of a flavor's label to a device type.

    Raises:
        UserError: no cluster queue, or a quantity that is no number.
    """
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for item in _flat(objects):
        by_kind.setdefault(str(item.get("kind", "")), []).append(item)
    queues = {_name(item): _queue(item) for item in by_kind.get("ClusterQueue", ())}
    if not queues:
        kinds = ", ".join(sorted(filter(None, by_kind))) or "none"
        raise UserError(f"no ClusterQueue among the objects (kinds: {kinds})", "print `kubectl get clusterqueues -o yaml` too")
    cohorts = {
        _name(item): Cohort(parent=_parent(item["spec"], "parentName", "parent"), quotas=_quotas(item["spec"]))
        for item in by_kind.get("Cohort", ())
    }
    local: dict[str, str] = {}
    stopped, drained = [], []
    for item in by_kind.get("LocalQueue", ()):
        space, name = str((item.get("metadata") or {}).get("namespace", "")), _name(item)
        path = f"{space}/{name}" if space else name
        local[name] = local[path] = str(item["spec"]["clusterQueue"])
        if (item["spec"].get("stopPolicy") or "None") != "None":
            stopped.append(path)
        if item["spec"].get("stopPolicy") == DRAIN:
            drained.append(path)
    flavors = {}
    for item in by_kind.get("ResourceFlavor", ()):
        if product := labelled_type((item.get("spec") or {}).get("nodeLabels") or {}):
            base, profile, _ = split_product(product)
            flavors[_name(item)] = slice_type(device_type(base), profile) if profile else device_type(product)
    for name in {flavor for queue in queues.values() for flavor in queue.quotas if SLICE in flavor}:
        flavor, profile = name.split(SLICE)
        flavors[name] = slice_type(flavors.get(flavor, ""), profile)
    configured = [item["fairSharing"] for item in by_kind.get("Configuration", ()) if item.get("fairSharing")]
    fair = any(sharing.get("enable", True) for sharing in configured)
    return KueueSettings(
        queues=queues,
        cohorts=cohorts,
        local_queues={name: queue for name, queue in local.items() if queue in queues},
        stopped=tuple(stopped),
        drained=tuple(drained),
        flavors=flavors,
        fair_sharing=fair,
    )


def _flat(objects: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for item in objects:
        if isinstance(item.get("items"), Sequence):
            yield from _flat(item["items"])
        else:
            yield item


def _name(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name", ""))


def _parent(spec: Mapping[str, Any], *names: str) -> str:
    return next((str(spec[name]) for name in names if spec.get(name)), "")


def _queue(item: Mapping[str, Any]) -> ClusterQueue:
    spec = item.get("spec") or {}
    preemption = spec.get("preemption") or {}
    within = preemption.get("borrowWithinCohort") or {}
    return ClusterQueue(
        quotas=_quotas(spec),
        cohort=_parent(spec, "cohortName", "cohort"),
        strategy=spec.get("queueingStrategy") or "BestEffortFIFO",
        within=preemption.get("withinClusterQueue") or "Never",
        reclaim=preemption.get("reclaimWithinCohort") or "Never",
        borrow_within=(within.get("policy") or "Never") != "Never",
        borrow_threshold=within.get("maxPriorityThreshold"),
        weight=_number((spec.get("fairSharing") or {}).get("weight", 1)),
        stopped=(spec.get("stopPolicy") or "None") != "None",
        drains=spec.get("stopPolicy") == DRAIN,
    )


def _quotas(spec: Mapping[str, Any]) -> dict[str, Quota]:
    """Return the quotas of the GPUs by flavor, or of the first resource if no flavor has GPUs."""
    found: dict[str, dict[str, Quota]] = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                limits = [resource.get("borrowingLimit"), resource.get("lendingLimit")]
                borrowing, lending = (None if limit is None else int(_number(limit)) for limit in limits)
                quota = Quota(nominal=int(_number(resource["nominalQuota"])), borrowing_limit=borrowing, lending_limit=lending)
                found.setdefault(str(resource["name"]), {})[str(flavor["name"])] = quota
    devices = {}
    for name, quotas in found.items():
        kind = devices_in({name: 1})
        for flavor, quota in quotas.items() if kind.count else ():
            devices[f"{flavor}{SLICE}{kind.profile}" if kind.profile else flavor] = quota
    return devices or next(iter(found.values()), {})


def _number(value: Any) -> float:
    """Parse a quantity of Kubernetes."""
    text = str(value)
    unit = text.lstrip("0123456789.")
    digits = text[: len(text) - len(unit)]
    try:
        number = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        raise UserError(f"quota {shorten(text, 40)!r}", "give a quantity such as 8 or 36Gi") from None
    if not math.isfinite(number):
        raise UserError(f"quota {shorten(text, 40)!r}", "give a finite quantity")
    return number
