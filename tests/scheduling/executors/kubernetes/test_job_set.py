"""Manifests against the published schema of JobSet, of which ``tests/data/kubernetes`` has what they use."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.executors.kubernetes import jobset

SCHEMAS = json.loads((Path(__file__).parents[3] / "data" / "kubernetes" / "schemas.json").read_text())
TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}
BASE = Path("/data")


def errors(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """What of a value a schema does not allow; an unknown field is an error, as kubectl's strict validation has it."""
    kinds = [TYPES[kind["type"]] for kind in schema.get("anyOf", [schema])]
    if not any(isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) for kind in kinds):
        yield f"{path} is {value!r}"
    elif isinstance(value, dict):
        yield from (f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if name in known or others:
                yield from errors(item, known.get(name, others), f"{path}.{name}")
            elif known:
                yield f"{path}.{name} is unknown"
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{path} is empty"
        for number, item in enumerate(value):
            yield from errors(item, schema["items"], f"{path}[{number}]")
    elif value not in schema.get("enum", [value]) or not re.search(schema.get("pattern", ""), str(value)):
        yield f"{path} is {value!r}"


def checked(manifest: Mapping[str, Any]) -> list[str]:
    return list(errors(dict(manifest), SCHEMAS[manifest["kind"]], manifest["kind"]))


def elastic(**more: Any) -> dict[str, Any]:
    job = training(BASE, environment={"NOTE": "a b"}, grace_s=12.5)
    return jobset(job, {"x": 2, "y": 2}, image="registry/paceline:1", claim="runs", **more)


def test_a_jobset_is_what_its_schema_allows() -> None:
    for made in (
        elastic(),
        elastic(queue="team", resource="cpu"),
        jobset(script(BASE, "train.sh"), {"x": 1}, image="i", claim="runs"),
    ):
        assert checked(made) == []
    broken = elastic()
    broken["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "2"
    broken["spec"]["suspended"] = True
    del broken["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["name"]
    assert len(checked(broken)) == 3


def test_a_pod_a_node_and_torchrun_in_each() -> None:
    made = elastic(queue="team")
    batch = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (batch["parallelism"], batch["completions"], batch["completionMode"]) == (2, 2, "Indexed")
    pod = batch["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 13 and pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    words = shlex.split(pod["containers"][0]["command"][2])
    assert words[words.index("--nnodes") + 1 : words.index("--nnodes") + 4] == ["2", "--nproc-per-node", "2"]
    assert words[words.index("--master-addr") + 1] == "job-nodes-0-0.job" and "paceline.training" in words
    assert made["spec"]["suspend"] is True and made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert elastic()["spec"]["suspend"] is False and "labels" not in elastic()["metadata"]


def test_what_kubernetes_does_not_take_is_refused() -> None:
    job = training(BASE, "Job_1")
    with pytest.raises(UserError, match="'Job_1' is not a name on Kubernetes"):
        jobset(job, {"x": 1}, image="i", claim="c")
    with pytest.raises(UserError, match="on nodes of 1, 3 devices"):
        jobset(training(BASE), {"x": 1, "y": 3}, image="i", claim="c")
    with pytest.raises(UserError, match="is not a Paceline job and has 2 nodes"):
        jobset(script(BASE, "true", min_devices=2, max_devices=2), {"x": 1, "y": 1}, image="i", claim="c")
