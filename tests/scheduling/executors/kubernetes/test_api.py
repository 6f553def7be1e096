"""Requests and refusals, asked of the fake server and of a real one in the same words.

A real one is asked where ``PACELINE_TEST_KUBECONFIG`` names the kubeconfig of an administrator of an empty cluster.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs Kubernetes: pip install 'paceline[kubernetes]'")

from kubernetes_fake import FakeServer, Refusal
from paceline.errors import UserError
from paceline.scheduling.executors.executor import Unavailable
from paceline.scheduling.executors.kubernetes import api as requests
from paceline.scheduling.executors.kubernetes.api import MERGE, Api, Conflict, Exists, Invalid, QuotaExceeded

BATCH = "BatchV1Api"
REAL = os.environ.get("PACELINE_TEST_KUBECONFIG", "")
CASES = ["fake", *(["real"] if REAL else [])]


@pytest.fixture(params=CASES)
def api(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A server with the namespace ``default``, without Jobs of ours."""
    config, server = Path(REAL), None
    if request.param == "fake":
        server = FakeServer().start()
        config = server.kubeconfig(tmp_path / "config")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    yield Api(namespace="default")
    if server is not None:
        server.stop()


def job(name: str, **spec: Any) -> dict[str, Any]:
    """A Job of a mode that every release has."""
    resources = {"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}}
    container = {"name": "training", "image": "image", "resources": resources}
    pod = {"restartPolicy": "Never", "containers": [container]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    return {"metadata": {"name": name, "labels": {"test": name[:8]}}, "spec": {"completions": 1, "template": template, **spec}}


def create(api: Api, name: str, namespace: str = "default", **spec: Any) -> dict[str, Any] | None:
    return api.call("create job", BATCH, "create_namespaced_job", namespace, job(name, **spec))


def patch(api: Api, name: str, body: Any) -> dict[str, Any] | None:
    return api.call("change job", BATCH, "patch_namespaced_job", name, "default", body, _content_type=MERGE)


def test_objects_refusals_lists_and_watches(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    base = uuid.uuid4().hex[:7] + "x"
    names = [f"{base}-{number}" for number in range(3)]
    for name in names:
        create(api, name)
    assert create(api, names[0], "nowhere") is None
    with pytest.raises(Exists, match=f'jobs.batch "{names[0]}" already exists'):
        create(api, names[0])
    with pytest.raises(Conflict, match="the object has been modified; please apply your changes to the latest version"):
        patch(api, names[0], {"metadata": {"resourceVersion": "1"}, "spec": {"parallelism": 2}})
    with pytest.raises(Invalid, match=r"Job.batch \S+ is invalid: spec.completions: Invalid value: .*immutable"):
        patch(api, names[0], {"spec": {"completions": 2}})
    with pytest.raises(Invalid, match=r"spec.template: Invalid value: .*"):
        patch(api, names[0], {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}})
    with pytest.raises(Invalid, match=r'metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain'):
        create(api, "A_b")
    with pytest.raises(Invalid, match=r"spec.parallelism: Invalid value: -1: must be greater than or equal to 0"):
        create(api, "x", parallelism=-1)
    monkeypatch.setattr(requests, "PAGE", 2)
    chosen = {"label_selector": f"test={base}"}
    found = api.list("list jobs", BATCH, "list_namespaced_job", "default", **chosen)
    assert found is not None and [each["metadata"]["name"] for each in found[0]] == names
    watched = (BATCH, "list_namespaced_job", "default")
    assert api.changes(found[1], 1.0, *watched, **chosen) is None
    changed = patch(api, names[1], {"spec": {"parallelism": 2}})
    assert changed is not None
    assert api.changes(found[1], 5.0, *watched, **chosen) == changed["metadata"]["resourceVersion"]
    for name in names:
        assert api.call("delete", BATCH, "delete_namespaced_job", name, "default", propagation_policy="Background") is not None
    assert api.call("read", BATCH, "read_namespaced_job", names[0], "default") is None
    assert api.call("delete", BATCH, "delete_namespaced_job", names[0], "default") is None
    groups = api.call("list groups", "ApisApi", "get_api_versions")
    assert groups is not None and "batch" in [group["name"] for group in groups["groups"]]
    assert api.list("list", "CustomObjectsApi", "list_namespaced_custom_object", "no.such", "v1", "default", "things") is None
    assert api.text("read the log", "CoreV1Api", "read_namespaced_pod_log", "none", "default", container="training") == ""


def test_quotas(api: Api) -> None:
    quota = f"q{uuid.uuid4().hex[:8]}"
    body = {"metadata": {"name": quota}, "spec": {"hard": {"count/jobs.batch": "0"}}}
    api.call("create quota", "CoreV1Api", "create_namespaced_resource_quota", "default", body)
    counted = {"status": {"hard": {"count/jobs.batch": "0"}, "used": {"count/jobs.batch": "0"}}}  # as the quota controller does
    words = ("patch_namespaced_resource_quota_status", quota, "default", counted)
    api.call("count quota", "CoreV1Api", *words, _content_type=MERGE)
    try:
        time.sleep(2.0 * (REAL != ""))  # until a real server's informers have seen it
        said = (
            rf'jobs.batch "x" is forbidden: exceeded quota: {quota}, requested: count/jobs.batch=1, used: .*=0, limited: .*=0'
        )
        with pytest.raises(QuotaExceeded, match=said):
            create(api, "x")
    finally:
        api.call("delete quota", "CoreV1Api", "delete_namespaced_resource_quota", quota, "default")


def test_a_list_whose_pages_expire_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer().start()
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(server.kubeconfig(tmp_path / "c")))
    api = Api()
    for number in range(3):
        create(api, f"j{number}")
    monkeypatch.setattr(requests, "PAGE", 2)
    call, pages = api.call, []

    def compacting(*words: Any, **options: Any) -> Any:
        pages.append(options.get("_continue"))
        answer = call(*words, **options)
        if len(pages) == 1:
            call("create job", BATCH, "create_namespaced_job", "default", job("j3"))
            server.store.compact()
        return answer

    monkeypatch.setattr(api, "call", compacting)
    found = api.list("list jobs", BATCH, "list_namespaced_job", "default")
    assert found is not None and len(found[0]) == 4 and [page is None for page in pages] == [True, False, True, False]
    server.fails = [Refusal(429, "TooManyRequests", "slow down")]
    with pytest.raises(Unavailable, match="slow down"):
        create(api, "x")
    with pytest.raises(UserError, match=r"'nowhere'.*legal: fake"):
        Api("nowhere")
    server.stop()
