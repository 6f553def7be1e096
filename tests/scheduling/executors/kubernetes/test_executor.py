"""Jobs on the fake Kubernetes: what the executor asks, and what it makes of the answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs Kubernetes: pip install 'paceline[kubernetes]'")

from kubernetes_fake import Refusal
from kubernetes_fake.controllers import condition
from kubernetes_worlds import World, make_world
from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.executors.executor import Unavailable
from paceline.scheduling.launch import Launch

__all__ = ["make_world"]
Make = Callable[..., World]


def job(world: World, name: str = "job", **more: Any) -> Launch:
    """An elastic job of 1, 2 or 4 devices, whose folder is on the volume."""
    return training(world.base, name, directory=str(world.base), **more)


def test_a_job_runs_where_it_was_placed_is_suspended_and_resumes_in_the_same_job(make_world: Make) -> None:
    world = make_world({"a": 3, "b": 2})
    assert world.runs(job(world), {"a": 3, "b": 1}).placement == {"a": 3, "b": 1}
    assert world.placed("job") == {"a": 3, "b": 1}
    world.executor.stop("job", 30.0)
    assert world.until("job", "stopped").reason == ""
    first = world.store.list("jobs")[0]
    assert first["spec"]["suspend"] and not world.pods("job")
    world.runs(job(world), {"b": 2})
    (again,) = world.store.list("jobs")
    assert world.placed("job") == {"b": 2} and again["spec"]["completions"] == 2
    assert again["metadata"]["uid"] == first["metadata"]["uid"]  # its place in a queue is kept
    world.runs(job(world, "two"), {"a": 2})
    world.executor.stop("two", 30.0)
    world.until("two", "stopped")
    world.runs(job(world, "two"), {"a": 1})  # a pod of two devices cannot have one
    assert world.placed("two") == {"a": 1} and world.until("job", "running")


@pytest.mark.parametrize("elastic", [True, False])
def test_an_elastic_job_grows_and_shrinks_where_it_runs(make_world: Make, elastic: bool) -> None:
    world = make_world({"a": 1, "b": 1, "c": 1, "d": 1}, elastic=elastic, queue="team")
    world.queue({"any": 4})
    world.runs(job(world), {"b": 1})
    uid = world.pods("job")[0]["metadata"]["uid"]
    world.executor.resize("job", {"a": 1, "b": 1, "c": 1, "d": 1})
    world.step(4)
    assert world.until("job", "running").placement == {"a": 1, "b": 1, "c": 1, "d": 1} == world.placed("job")
    pods = world.pods("job")
    assert (pods[0]["metadata"]["uid"] == uid) == elastic  # else Kueue stops it and queues it again
    assert {pod["metadata"]["annotations"]["paceline/start"] for pod in pods} == {"4 2"}
    nodes = [pod["spec"]["nodeName"] for pod in pods]
    world.executor.resize("job", dict.fromkeys(nodes[:2], 1))
    world.step(4)
    assert world.until("job", "running").placement == dict.fromkeys(nodes[:2], 1) == world.placed("job")
    assert {pod["metadata"]["annotations"]["paceline/start"] for pod in world.pods("job")} == {"2 3"}
    if elastic:
        assert [pod["metadata"]["uid"] for pod in world.pods("job")] == [pod["metadata"]["uid"] for pod in pods[:2]]
        slices = {w["spec"]["podSets"][0]["count"] for w in world.store.list("workloads")}
        assert slices == {1, 2}  # of which the first was replaced
    world.executor.resize("job", dict.fromkeys(nodes[2:], 1))  # the first pod would move
    assert world.step()["job"].phase == "waiting" and not world.pods("job")
    world.step(4)
    assert world.placed("job") == dict.fromkeys(nodes[2:], 1)


def test_kueue_keeps_a_job_waiting_and_says_why(make_world: Make) -> None:
    world = make_world({"a": 4}, queue="team")
    world.queue({"any": 3}, cohort="everyone")  # the cohort might lend
    world.runs(job(world), {"a": 2})
    world.executor.submit(job(world, "next"), {"a": 2})
    seen = world.step(2)["next"]
    assert seen.phase == "waiting" and seen.reason.startswith("Kueue: couldn't assign flavors to pod set main: insufficient")
    assert seen.reason.endswith("unused quota for nvidia.com/gpu in flavor any, 1 more needed")
    world.executor.resize("next", {"a": 1})
    world.until("next", "running")
    world.executor.stop("job", 1.0)
    world.until("job", "stopped")
    assert [w["spec"]["active"] for w in world.store.list("workloads") if not w["status"].get("x")] == [False, True]
    world.runs(job(world), {"a": 2})


def test_ends_of_jobs(make_world: Make) -> None:
    world = make_world({"a": 2})
    for name, code in (("good", 0), ("bad", 3)):
        world.runs(script(world.base, "x", name, directory=str(world.base)), {"a": 1})
        world.kubelet.end(world.pods(name)[0], code)
    seen = world.step(2)
    assert seen["good"].phase == "done" and seen["good"].code == 0
    assert seen["bad"].phase == "failed" and "ended with code 3" in seen["bad"].reason
    since = seen["bad"].since
    for each in world.store.list("jobs"):
        world.store.delete("jobs", "default", each["metadata"]["name"])
    assert world.step(2)["bad"].since == since and world.step()["good"].phase == "done"  # no second failure
    world.runs(script(world.base, "x", "bad", directory=str(world.base)), {"a": 1})


def test_what_others_do_to_a_job(make_world: Make) -> None:
    """It is deleted, its pod is evicted, its node dies: each is said, and the job can start again."""
    world = make_world({"a": 1, "b": 1, "c": 1})
    for name, place in (("deleted", "a"), ("evicted", "b")):
        world.runs(job(world, name), {place: 1})
    (first,) = [j for j in world.store.list("jobs") if j["metadata"]["labels"]["paceline/job"] == "deleted"]
    world.store.delete("jobs", "default", first["metadata"]["name"])
    lost = condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
    world.kubelet.end(world.pods("evicted")[0], 137, conditions=[lost])
    seen = world.step(2)
    assert (seen["deleted"].phase, seen["deleted"].reason) == ("failed", "its Job was deleted from Kubernetes")
    assert (seen["evicted"].phase, seen["evicted"].reason) == (
        "stopped",
        "Kubernetes ended a pod of it: Eviction API: evicting",
    )
    for name, place in (("deleted", "a"), ("evicted", "b")):
        world.runs(job(world, name), {place: 1})


def test_refusals_are_said_in_our_words(make_world: Make) -> None:
    world = make_world({"a": 2})
    world.store.webhooks.append(lambda kind, new: "label `cost-center` is missing" if kind == "jobs" else "")
    with pytest.raises(UserError, match=r'create job job: admission webhook "policy.example" denied .* is missing; a rule of'):
        world.executor.submit(job(world), {"a": 1})
    assert world.step() == {}
    world.store.webhooks.clear()
    count = {"metadata": {"name": "team"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
    world.store.create("resourcequotas", "default", count)
    world.executor.submit(job(world), {"a": 1})  # a full quota is no failure of the job
    seen = world.step()["job"]
    assert seen.phase == "waiting" and "exceeded quota: team, requested: count/jobs.batch=1" in seen.reason
    world.store.patch(
        "resourcequotas", "default", "team", {"spec": {"hard": {"count/jobs.batch": "9", "requests.nvidia.com/gpu": "0"}}}
    )
    seen = world.step(2)["job"]
    assert seen.phase == "waiting" and "exceeded quota: team, requested: requests.nvidia.com/gpu=1" in seen.reason
    world.store.delete("resourcequotas", "default", "team")
    world.until("job", "running")
    world.server.forbidden = lambda user, verb, kind: kind == "jobs"
    with pytest.raises(UserError, match=r'User "admin" cannot list resource "jobs" .* docs/live.md'):
        world.executor.poll()


def test_no_answer_costs_no_job_and_no_secret(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world({"a": 2})
    world.runs(job(world), {"a": 1})
    uid = world.pods("job")[0]["metadata"]["uid"]
    world.server.fails = [Refusal(500, "InternalError", "etcdserver: request timed out")]
    with pytest.raises(Unavailable, match="list jobs: etcdserver: request timed out"):
        world.executor.poll()
    world.server.stop()
    with pytest.raises(Unavailable, match="list jobs: the API server does not answer") as caught:
        world.executor.poll()
    assert "token" not in str(caught.value)
    world.server.start()
    assert world.executor.poll()["job"].phase == "running"
    world.server.tokens = {"fresh": "admin"}  # the old token has expired
    with pytest.raises(Unavailable, match="refuses the credentials, so log in again"):
        world.executor.poll()
    world.server.kubeconfig(world.base / "kubeconfig", "fresh")
    assert world.executor.poll()["job"].phase == "running"
    again = world.again()  # a runner that was killed
    again.submit(job(world), {"a": 1})
    assert again.poll()["job"].phase == "running" and world.pods("job")[0]["metadata"]["uid"] == uid
    (record,) = (world.base / "jobs").glob("job.json")
    text = json.loads(record.read_text())
    record.write_text(json.dumps({**text, "handle": " ".join(text["handle"].split()[:2])}))  # killed after its request
    assert world.again().poll()["job"].phase == "running" and len(world.store.list("jobs")) == 1


def test_conflicts_are_tried_again(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world({"a": 1})
    world.runs(job(world), {"a": 1})
    patch, times = world.store.patch, []

    def busy(kind: str, namespace: str, name: str, body: Any, part: str = "") -> Any:
        if kind == "jobs" and part == "" and len(times) < 3:
            times.append(patch(kind, namespace, name, {"metadata": {"annotations": {"n": str(len(times))}}}))
        return patch(kind, namespace, name, body, part)

    monkeypatch.setattr(world.store, "patch", busy)
    world.executor.stop("job", 1.0)
    assert len(times) == 3 and world.store.list("jobs")[0]["spec"]["suspend"]


def test_a_wait_ends_with_a_change_or_with_an_expired_watch(make_world: Make) -> None:
    world = make_world({"a": 1})
    world.executor.submit(job(world), {"a": 1})
    world.executor.poll()
    world.controllers.settle()
    assert world.executor.wait(100.0)
    world.store.compact()
    world.executor._cluster._version = "1"
    assert world.executor.wait(100.0)  # 410 Gone: look again
    assert world.step(2)["job"].phase == "running"
    assert not world.executor.wait(1.0)


def test_progress_comes_from_the_log_where_the_volume_is_not_mounted(make_world: Make) -> None:
    world = make_world({"a": 1})
    world.runs(job(world), {"a": 1})
    world.server.logs = lambda pod: (
        'x\npaceline-progress {"step": 1}\npaceline-progress {"step": 7, "epoch": 2, "run": "a"}\ny\n'
    )
    assert world.step()["job"].progress == {"step": 7.0, "epoch": 2.0}
    world.executor.stop("job", 1.0)
    assert world.until("job", "stopped").progress == {"step": 7.0, "epoch": 2.0}


def test_an_old_server_is_refused_by_what_it_drops(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world({"a": 1})
    create = world.store.create

    def old(kind: str, namespace: str, body: Any) -> Any:
        if kind == "jobs":
            body = {**body, "spec": {k: v for k, v in body["spec"].items() if k not in ("suspend", "completionMode")}}
        return create(kind, namespace, body)

    monkeypatch.setattr(world.store, "create", old)
    with pytest.raises(UserError, match=r"has dropped completionMode; use Kubernetes 1.30 or later"):
        world.executor.submit(job(world), {"a": 1})
    assert world.store.list("jobs") == []
