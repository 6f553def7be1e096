"""Objects of Kubernetes, as ``kubectl get ... -o yaml`` and ``-o json`` print them: kinds, devices of pods, conditions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.gres import split_slice
from paceline.scheduling.traces.logs.log_times import parse_time
from paceline.scheduling.traces.record import SkippedRow

Value = Mapping[str, Any]
Made = TypeVar("Made")
_DEVICES = frozenset(
    {"gpu", "tpu", "gaudi", "neuron", "neuroncore", "neurondevice", "npu", "dcu", "mlu", "gpu-number", "vgpu-number"}
)
"""Last parts of the names of resources that are devices: ``nvidia.com/gpu``, ``google.com/tpu``, ``huawei.com/npu``."""
_TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/model",
    "karpenter.k8s.aws/instance-gpu-name",
)
"""Labels of nodes that name the type of their devices."""


def items(objects: Sequence[Any]) -> Iterator[Value]:
    """Yield the objects of documents that are objects or lists of them."""
    for each in objects:
        if isinstance(each, Mapping) and isinstance(each.get("items"), list):
            kind = str(each.get("kind", "")).removesuffix("List")
            version = each.get("apiVersion", "")
            yield from (_typed(item, kind, version) for item in each["items"] if isinstance(item, Mapping))
        elif isinstance(each, Mapping):
            yield each
        elif isinstance(each, list):
            yield from items(each)


def _typed(item: Value, kind: str, version: str) -> Value:
    """Return an item with the kind of its list, which items of a typed list leave out."""
    return item if "kind" in item or not kind else {**item, "kind": kind, "apiVersion": version}


def has_group(objects: Sequence[Any], group: str) -> bool:
    """Return whether some object is one of an API group."""
    return any(group in str(item.get("apiVersion", "")) for item in items(objects))


def kinds_of(source: JobFile, group: str) -> dict[str, list[tuple[str, Value]]]:
    """Return the objects of an API group by kind, each with its place."""
    kinds: dict[str, list[tuple[str, Value]]] = {}
    for number, item in enumerate(items(source.objects or ()), start=1):
        if group in str(item.get("apiVersion", "")):
            kinds.setdefault(str(item.get("kind", "")), []).append((f"{source.name}, object {number}", item))
    return kinds


def made_of(
    kinds: Mapping[str, Sequence[tuple[str, Value]]], makers: Mapping[str, Callable[[Value, str], Iterable[Made]]]
) -> tuple[list[Made], list[SkippedRow]]:
    """Return what each object of some kinds becomes. An object of another shape than its kind has is skipped.

    Args:
        makers: function from an object and its place to results, by kind.
    """
    made: list[Made] = []
    skipped = []
    for kind, make in makers.items():
        for place, item in kinds.get(kind, ()):
            try:
                made += make(item, place)
            except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
                skipped.append(SkippedRow(place, name_of(item), "had wrong values", str(error)[:80]))
    return made, skipped


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Devices of a list of resources."""

    count: int = 0
    share: float = 1.0
    profile: str = ""
    name: str = ""


def devices_in(resources: Value) -> PodDevices:
    """Return the devices of a list of resources: ``nvidia.com/gpu: "8"``, ``nvidia.com/mig-1g.5gb: 2``."""
    for name, value in resources.items():
        last = str(name).rpartition("/")[2]
        kind = last.removeprefix("requests.").casefold()
        count = int(number(str(value), 0.0))
        if count and (kind in _DEVICES or kind.endswith(".gpu")):
            return PodDevices(count, name=str(name))
        if count and kind.startswith("mig-"):
            _, profile, share = split_slice(kind.removeprefix("mig-"))
            return PodDevices(count, share, profile, str(name))
    return PodDevices()


def devices_of_pod(template: Value) -> tuple[PodDevices, str, str]:
    """Return the devices of a pod, the type that its node selector names, and its command.

    The pod asks for what its containers and sidecars hold together, or for the most that an earlier container needs
    (Kubernetes, "Sidecar containers", "Resource sharing within containers").
    """
    spec = table(template, "spec")
    first = [each for each in spec.get("initContainers") or () if isinstance(each, Mapping)]
    containers = [each for each in spec.get("containers") or () if isinstance(each, Mapping)]
    found, command = PodDevices(), ""
    total, most = 0, 0
    for container in first:
        each = _of_container(container)
        found = each if each.count else found
        is_sidecar = container.get("restartPolicy") == "Always"
        most = max(most, total + each.count)
        total += each.count if is_sidecar else 0
    for container in containers:
        each = _of_container(container)
        total += each.count
        found = each if each.count else found
        words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
        command = command or " ".join(words)
    found = PodDevices(max(total, most), found.share, found.profile, found.name)
    return found, labelled_type(table(spec, "nodeSelector")) or _affine_type(spec), command


def _of_container(container: Value) -> PodDevices:
    """Return the devices that a container requests; its limit where it states no request."""
    return devices_in({**table(container, "resources", "limits"), **table(container, "resources", "requests")})


def _affine_type(spec: Value) -> str:
    """Return the type that the required affinity to nodes names; empty if it names none or several."""
    required = table(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    values = [
        value
        for term in required.get("nodeSelectorTerms") or ()
        for rule in term.get("matchExpressions") or ()
        if rule.get("key") in _TYPE_LABELS and rule.get("operator") == "In"
        for value in rule.get("values") or ()
    ]
    return str(values[0]) if len(values) == 1 else ""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of an object: whether it holds, since when, and why."""

    holds: bool = False
    at: float = math.nan
    reason: str = ""
    message: str = ""


def condition(status: Value, kind: str) -> Condition:
    """Return the condition of a kind; one that does not hold if the object lacks it."""
    for each in status.get("conditions") or ():
        if isinstance(each, Mapping) and each.get("type") == kind:
            at = parse_time(texts(each, "lastTransitionTime") or texts(each, "transitionTime"))
            return Condition(texts(each, "status") == "True", at, texts(each, "reason"), texts(each, "message"))
    return Condition()


def labelled_type(labels: Value) -> str:
    """Return the type of device that labels of nodes name; empty if they name none."""
    return next((str(labels[label]) for label in _TYPE_LABELS if labels.get(label)), "")


def split_product(product: str) -> tuple[str, str, float]:
    """Return the device, the MIG profile and the share of the device of a label of the product.

    Under the strategy ``single`` of NVIDIA's GPU operator, ``nvidia.com/gpu`` counts the slices of a node, and the label names
    their profile: ``NVIDIA-A100-SXM4-40GB-MIG-1g.5gb``.
    """
    base, profile, share = split_slice(product)
    return (re.sub(r"[-_ ]MIG$", "", base), profile, share) if profile else (product, "", 1.0)


def slice_type(base: str, profile: str) -> str:
    """Return the name of the type of MIG slices: the first word of the device and the profile."""
    return f"{base.split()[0]} {profile}" if base else profile


def table(value: Value, *keys: str) -> Value:
    """Return the table at nested keys; empty if it is missing."""
    for key in keys:
        inner = value.get(key)
        if not isinstance(inner, Mapping):
            return {}
        value = inner
    return value


def name_of(item: Value) -> str:
    """Return the name of an object."""
    return texts(item, "metadata", "name")


def path_of(item: Value) -> str:
    """Return ``namespace/name``, or the name of an object outside of namespaces."""
    space = texts(item, "metadata", "namespace")
    return f"{space}/{name_of(item)}" if space else name_of(item)


def owner_of(item: Value) -> str:
    """Return the name of the object that owns an item."""
    owners = table(item, "metadata").get("ownerReferences")
    return (
        next((texts(owner, "name") for owner in owners if isinstance(owner, Mapping)), "") if isinstance(owners, list) else ""
    )


def number(text: str, missing: float) -> float:
    """Return a number, or ``missing`` for an empty text. ``8k`` is 8,000. Raises ValueError for another text."""
    return missing if not text else float(text[:-1]) * 1000 if text.endswith("k") else float(text)
