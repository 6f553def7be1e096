"""The loop, on an executor that is played: no job lost, none twice, never more devices than there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.executors.executor import NodeDevices, Observed, Unavailable
from paceline.scheduling.launch import Launch
from paceline.scheduling.live.journal import Journal
from paceline.scheduling.live.policy import LiveAdapter, even
from paceline.scheduling.live.runner import Planner, Runner, Snapshot, Targets, check_start
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.policies.wrappers.early_stop import EarlyStop, stopping_early


class Played:
    """Jobs make one step a poll and a device; to stop takes a poll. It refuses what a real one would."""

    def __init__(self, nodes: Mapping[str, int], work: int = 8) -> None:
        self.up, self.work, self.now = dict(nodes), work, 0.0
        self.jobs: dict[str, tuple[Launch, Observed]] = {}
        self.submitted: list[tuple[str, NodeDevices]] = []
        self.mute = False
        self.fails: set[str] = set()

    def nodes(self) -> Sequence[tuple[str, int]]:
        self._answer()
        return tuple(self.up.items())

    def submit(self, job: Launch, placement: NodeDevices) -> None:
        self._answer()
        before = self.jobs.get(job.name)
        if before is not None:
            assert not before[1].holds_devices, f"{job.name} twice"
            assert before[1].phase != "done", f"{job.name} again"
        self._put(job, placement, before[1].progress if before else {})

    def _put(self, job: Launch, placement: NodeDevices, progress: Mapping[str, float]) -> None:
        assert self._has_room(job.name, placement), "no room"
        self.submitted.append((job.name, dict(placement)))
        self.jobs[job.name] = job, Observed(phase="running", placement=dict(placement), since=self.now, progress=progress)

    def _has_room(self, name: str, placement: NodeDevices) -> bool:
        left = dict(self.up)
        for other, (_, seen) in self.jobs.items():
            for node, devices in seen.placement.items() if seen.phase in ("running", "stopping") and other != name else ():
                left[node] = left.get(node, 0) - devices
        return all(left.get(node, 0) >= devices for node, devices in placement.items())

    def resize(self, name: str, placement: NodeDevices) -> None:
        self._answer()
        job, seen = self.jobs[name]
        self.jobs[name] = job, replace(seen, phase="stopping", target=dict(placement), since=self.now)

    def stop(self, name: str, grace_s: float) -> None:
        self._answer()
        job, seen = self.jobs[name]
        self.jobs[name] = job, replace(seen, phase="stopping", target=None, since=self.now)

    def poll(self) -> Mapping[str, Observed]:
        self._answer()
        for name, (job, seen) in list(self.jobs.items()):
            lost = any(node not in self.up for node in seen.placement)
            if seen.holds_devices and (lost or name in self.fails):
                seen = replace(seen, phase="failed", since=self.now, reason="died", target=None)
            elif seen.phase == "stopping" and seen.target is not None:
                seen = replace(seen, phase="waiting", placement=seen.target, target=None)
            elif seen.phase == "stopping":
                seen = replace(seen, phase="stopped", since=self.now)
            elif seen.phase == "running":
                devices = sum(seen.placement.values())
                step = seen.progress.get("step", 0.0) + devices
                seen = replace(seen, progress={"step": step, "samples_per_s": 10.0 * devices})
                if step >= self.work:
                    seen = replace(seen, phase="done", since=self.now, code=0)
            self.jobs[name] = job, seen
        for name, (job, seen) in list(self.jobs.items()):
            if seen.phase == "waiting" and self._has_room(name, seen.placement):
                self._put(job, seen.placement, seen.progress)
        return {name: seen for name, (_, seen) in self.jobs.items()}

    def _answer(self) -> None:
        if self.mute:
            raise Unavailable("no answer")


def runner(played: Played, journal: Journal, policy: Planner = even) -> Runner:
    def clock() -> float:
        played.now += 10.0
        return played.now

    return Runner(played, journal, policy, clock=clock)


def add(journal: Journal, base: Path, arrivals: Sequence[float], **more: object) -> None:
    for number, arrival in enumerate(arrivals):
        journal.add(training(base, f"j{number}", **more), arrival)  # type: ignore[arg-type]


class Learners(Played):
    """They report an accuracy that rises no more."""

    def poll(self) -> Mapping[str, Observed]:
        seen = super().poll()
        return {name: replace(one, progress={**one.progress, "accuracy": 0.9, "loss": 0.1}) for name, one in seen.items()}


def test_a_job_that_learns_no_more_is_ended_and_makes_room(tmp_path: Path) -> None:
    played = Learners({"h0": 1}, work=50)
    policy = LiveAdapter(stopping_early(fifo, EarlyStop(2)), 10.0)
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0, 0.0], max_devices=1)
        loop, rounds = runner(played, journal, policy), 0
        while loop.round():
            rounds += 1
            assert rounds < 30
        rows = journal.rows()
        assert all(row.is_removed and row.curve == (0.9,) * 4 for row in rows.values())
        assert "it no longer learned: its last 2 reports" in rows["j0"].reason
        assert rows["j0"].since <= journal.spans("j1")[0].start_s and None not in [span.end_s for span in journal.spans("j0")]
        assert journal.facts()["nodes"] == {"h0": 1} and journal.facts()["round_s"] == 10.0
    assert not any(seen.holds_devices for _, seen in played.jobs.values()), "the runner stays until they have stopped"


class Diverging(Played):
    """They report a loss alone, and it grows."""

    def poll(self) -> Mapping[str, Observed]:
        seen = super().poll()
        return {n: replace(o, progress={**o.progress, "loss": 1.0 + o.progress.get("step", 0.0)}) for n, o in seen.items()}


def test_a_job_whose_loss_grows_is_ended(tmp_path: Path) -> None:
    policy = LiveAdapter(stopping_early(fifo, EarlyStop(2)), 10.0)
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0], max_devices=1)
        loop = runner(Diverging({"h0": 1}, work=50), journal, policy)
        assert sum(1 for _ in iter(loop.round, False)) < 30
        (row,) = journal.rows().values()
        assert (
            row.is_removed and len(row.curve) == 4 and sorted(row.curve, reverse=True) == list(row.curve) and row.curve[0] < 0
        )


def test_the_first_report_that_tells_predicts_the_end(tmp_path: Path) -> None:
    """Ten samples a second; of each epoch it has told that it has ten steps of 64."""

    class Told(Played):
        def poll(self) -> Mapping[str, Observed]:
            seen = super().poll()
            told = {"epoch": 1.0, "step": 10.0}
            return {n: replace(o, progress={**o.progress, **told}) if o.progress else o for n, o in seen.items()}

    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0], max_devices=1)
        loop = runner(Told({"h0": 1}, work=1000), journal)
        for _ in range(4):
            loop.round()
        row = journal.rows()["j0"]
        assert row.expected_end_s == 20.0 + 5 * 10 * 64 / 10.0 == 20.0 + row.seconds_left(1)


def test_jobs_arrive_move_and_end(tmp_path: Path) -> None:
    played = Played({"h0": 2, "h1": 2}, work=20)
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0, 0.0, 45.0])
        loop = runner(played, journal)
        assert loop.round() and dict(played.submitted) == {"j0": {"h0": 2}, "j1": {"h1": 2}}
        while loop.round():
            assert played.now < 1000
        rows = journal.rows()
        assert {row.phase for row in rows.values()} == {"done"} and all(row.is_over for row in rows.values())
        spans = journal.spans("j1")  # it makes room for the third
        assert [span.placement for span in spans][:2] == [{"h1": 2}, {"h1": 1}] and len(spans) == rows["j1"].starts
        assert None not in [span.end_s for span in spans]
        words = [what for _, _, what in journal.events("j2")]
        assert words[0].startswith("to run on h") and words[-1].startswith("done on")


@pytest.mark.long
@given(
    arrivals=st.lists(st.floats(0, 200), min_size=1, max_size=6),
    events=st.lists(st.sampled_from(["mute", "speak", "h0", "h1", "crash", "", "", ""]), max_size=25),
)
def test_whatever_happens_no_job_is_lost_and_none_runs_twice(
    arrivals: list[float], events: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The executor does not answer, nodes go and come, the runner dies: ``Played`` refuses a second start and a full node."""
    base = tmp_path_factory.mktemp("run")
    played = Played({"h0": 2, "h1": 2}, work=12)
    journal = Journal(base / "state")
    add(journal, base, arrivals)
    loop = runner(played, journal)
    for event in [*events, "speak", "up"]:
        if event in ("mute", "speak"):
            played.mute = event == "mute"
        elif event == "up":
            played.up = {"h0": 2, "h1": 2}
        elif event == "crash":
            journal.close()
            journal = Journal(base / "state")
            loop = runner(played, journal)
        elif event in played.up:
            del played.up[event]
        elif event:
            played.up[event] = 2
        loop.round()
    while loop.round():
        assert played.now < 3000, journal.rows()
    assert {row.phase for row in journal.rows().values()} == {"done"}
    assert all(row.attained_s <= played.now * 4 for row in journal.rows().values())
    journal.close()


def test_a_job_that_fails_three_times_without_progress_is_over(tmp_path: Path) -> None:
    played = Played({"h0": 2})
    played.fails.add("j0")
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0, 0.0], max_devices=1)
        loop = runner(played, journal)
        while loop.round():
            assert played.now < 1000
        rows = journal.rows()
        assert (rows["j0"].phase, rows["j0"].failures, rows["j0"].reason) == ("failed", 3, "died") and rows[
            "j1"
        ].phase == "done"
        assert [name for name, _ in played.submitted].count("j0") == 3


def test_that_nodes_die_is_no_fault_of_a_job(tmp_path: Path) -> None:
    played = Played({"h0": 2, "h1": 2}, work=4)
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0], max_devices=1)
        loop = runner(played, journal)
        for _ in range(5):
            loop.round()
            (node,) = played.jobs["j0"][1].placement
            del played.up[node]
            loop.round()
            played.up = {"h0": 2, "h1": 2}
        assert journal.rows()["j0"].failures == 0 and "lost h0; died" in {what[-13:] for _, _, what in journal.events("j0")}
        while loop.round():
            assert played.now < 1000
        assert journal.rows()["j0"].phase == "done"


def test_a_policy_may_remove_a_job_for_good(tmp_path: Path) -> None:
    def policy(state: Snapshot) -> Targets:
        decision = even(state)
        return replace(decision, removed={"j0": "no deadline can be met"}) if state.now_s > 15.0 else decision

    played = Played({"h0": 2})
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0])
        loop = runner(played, journal, policy)
        while loop.round():
            assert played.now < 1000
        row = journal.rows()["j0"]
        assert (row.phase, row.reason) == ("failed", "removed: no deadline can be met")
        assert played.poll()["j0"].phase == "stopped"


def test_a_decision_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for placements, reason in (
        ({"j0": {"h0": 4}}, "gives j0 4 devices of h0"),
        ({"j0": {"h0": 2}, "j1": {"h0": 1}}, "gives j1 1 devices of h0"),
        ({"j0": {"h9": 1}}, "gives j0 1 devices of h9"),
    ):

        def policy(state: Snapshot, placements: Mapping[str, NodeDevices] = placements) -> Targets:
            return Targets(placements, {})

        with Journal(tmp_path / "state") as journal:
            add(journal, tmp_path, [0.0, 0.0])
            with pytest.raises(RuntimeError, match=reason):
                runner(Played({"h0": 2}), journal, policy).round()


def test_what_an_executor_refuses_ends_that_job_alone(tmp_path: Path) -> None:
    class Refusing(Played):
        def submit(self, job: Launch, placement: NodeDevices) -> None:
            if job.name == "j0":
                raise UserError("Slurm refuses j0", "see its file")
            super().submit(job, placement)

    with Journal(tmp_path / "state") as journal:
        journal.add(script(tmp_path, "true", "j0"), 0.0)
        journal.add(script(tmp_path, "true", "j1"), 0.0)
        loop = runner(Refusing({"h0": 2}), journal)
        while loop.round():
            pass
        rows = journal.rows()
        assert (rows["j0"].phase, rows["j0"].reason, rows["j1"].phase) == ("failed", "Slurm refuses j0", "done")


def test_what_can_never_start_is_refused_before_the_first_round(tmp_path: Path) -> None:
    played = Played({"h0": 2, "h1": 2})
    large = script(tmp_path, "true", "large", min_devices=5, max_devices=5)
    check_start(played, [script(tmp_path, "true", min_devices=4, max_devices=4), training(tmp_path, max_devices=64)])
    with pytest.raises(UserError, match="job large asks for 5 devices; the executor has 4 on 2 nodes"):
        check_start(played, [large])
    with pytest.raises(UserError, match=r"job job: no directory .*none"):
        check_start(played, [script(tmp_path, "true", directory=str(tmp_path / "none"))])
    played.mute = True
    with pytest.raises(UserError, match="the executor does not answer: no answer"):
        check_start(played, [])


def test_time_without_a_runner_counts(tmp_path: Path) -> None:
    played = Played({"h0": 1}, work=1000)
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0], max_devices=1)
        loop = runner(played, journal)
        for _ in range(3):
            loop.round()
    played.now += 500.0  # nobody looks
    with Journal(tmp_path / "state") as journal:
        runner(played, journal).round()
        (row,) = journal.rows().values()
        assert row.attained_s == row.run_s == sum(row.ran_on.values()) == played.now - 10.0, "it started at the first look"


class Brief(Played):
    """Jobs end before anybody looks at them."""

    def _put(self, job: Launch, placement: NodeDevices, progress: Mapping[str, float]) -> None:
        super()._put(job, placement, progress)
        seen = self.jobs[job.name][1]
        self.jobs[job.name] = job, replace(seen, phase="done", since=self.now + 4.0, code=0)


def test_a_job_that_comes_and_goes_between_two_looks_has_run(tmp_path: Path) -> None:
    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0], max_devices=1)
        loop = runner(Brief({"h0": 1}), journal)
        while loop.round():
            pass
        (row,) = journal.rows().values()
        (span,) = journal.spans("j0")
        assert (row.phase, row.run_s, span.start_s, span.end_s, dict(span.placement)) == ("done", 4.0, 10.0, 14.0, {"h0": 1})


def test_who_waits_for_devices_starts_before_the_next_decision(tmp_path: Path) -> None:
    """The policy gives the only slot to the other job; that is carried out within seconds, not after another minute."""
    played, decided = Played({"h0": 1}, work=1000), 0

    def swaps(state: Snapshot) -> Targets:
        nonlocal decided
        decided += 1
        if decided == 3:
            raise KeyboardInterrupt
        return Targets({f"j{decided - 1}": {"h0": 1}})

    def sleep(seconds: float) -> None:
        played.now += seconds

    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0, 0.0], max_devices=1)
        loop = Runner(played, journal, swaps, 60.0, clock=lambda: played.now, sleep=sleep)
        with pytest.raises(KeyboardInterrupt):
            loop.run()
        (first,), (second,) = journal.spans("j0"), journal.spans("j1")
        assert first.end_s is not None and second.start_s - first.end_s <= 2.0


def test_a_submission_that_is_refused_is_tried_again(tmp_path: Path) -> None:
    class Refusing(Played):
        refusals = 2

        def submit(self, job: Launch, placement: NodeDevices) -> None:
            if self.refusals:
                self.refusals -= 1
                raise UserError("the node went away")
            super().submit(job, placement)

    with Journal(tmp_path / "state") as journal:
        add(journal, tmp_path, [0.0], max_devices=1)
        loop = runner(Refusing({"h0": 1}, work=3), journal)
        while loop.round():
            pass
        assert journal.rows()["j0"].phase == "done"
