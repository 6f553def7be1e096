"""Local steps of a peer: it trains alone, and exchanges with the peers that are there at each of its rounds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import LostRank, UserError
from paceline.strategy import GradientExchange, LocalSteps
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.consistency import CODE, code_version
from paceline.training.attach.local.local_fragments import Fragment
from paceline.training.attach.local.worker_ranks import Seat, WorkerPlace, local_of, parts_of, reshard
from paceline.training.attach.peers.peer_exchange import NO_RESIDUALS, Mean, PeerChange, PeerExchange, Residuals
from paceline.training.attach.peers.peer_groups import PeerGroup
from paceline.training.attach.peers.peer_state import PeerState, load, state_of
from paceline.training.attach.peers.peer_store import POLL_S, PeerStore
from paceline.training.attach.peers.peers import Peers
from paceline.training.attach.peers.rounds import COMMITTED, Attempt, Rounds
from paceline.training.attach.peers.shared_weights import SharedWeights
from paceline.training.attach.peers.site import SiteRanks
from paceline.training.attach.peers.site_places import SitePlaces, dim_of, sharding_of
from paceline.training.attach.peers.transfer import PeerCall, fetch, serve
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.meter import Meter

_log = logging.getLogger("paceline")
SHARDS = "shards"
"""Name of a site's sharding among the settings that all sites share."""
FAILURES = 3
"""Failed attempts in a row, with every member alive, after which a peer gives up."""


class PeerSync:
    """Exchange of a peer's pseudo-gradients; call ``step`` after every step of the optimizer.

    A peer's model may be sharded over its ranks. Each rank then exchanges its shard with the ranks that have the same shard at
    the other peers, and the ranks decide as one (``site_places``).

    Args:
        site: all ranks of this peer. ``seat``: place of this rank among them.

    Attributes:
        gradient_exchange: compression and exchange; ``local``: how often and with which outer step.
        tensors: exchanged tensors, in ``named_parameters()`` order; ``dense``: names of those sent as fp32, with the reason.
        step_number: local steps so far. ``shared``: the shared weights. ``place``: which shard of the network this rank has.
        members: names of the peers of the last exchange. ``meter``: bytes and events of it.
        left_behind: how often the others' outer step came before this peer. ``dropped``: how often its change was lost by that.
        returned: how often this peer went back to the shared weights because its own change was NaN or infinite.
    """

    def __init__(
        self,
        model: nn.Module,
        gradient_exchange: GradientExchange,
        local: LocalSteps,
        tensors: Mapping[str, TensorSpec],
        options: AttachOptions,
        site: dist.ProcessGroup,
        seat: Seat,
        peers: Peers,
    ) -> None:
        self.gradient_exchange, self.local, self.options, self.peers = gradient_exchange, local, options, peers
        self.tensors, self.step_number, self.trained = list(tensors.values()), 0, False
        self.left_behind = self.dropped = self.returned = 0
        self.members: list[str] = []
        self.dense = dict(gradient_exchange.description.dense(self.tensors))
        self._model, self.place = model, seat.place
        longest = (FAILURES + 2) * options.timeout_s  # copies of a shard wait for a whole round
        self._site = SiteRanks(site, next(model.parameters()).device, seat, longest)
        self._site.spread(model)
        parameters = dict(model.named_parameters())
        parts = parts_of(parameters, self.tensors, WorkerPlace(self.place.shard, self.place.shards))
        exchanged = [part.shard for part in parts if part.shard.elements]
        weights = [local_of(parameters[t.name]) for t in self.tensors]
        self.fragment = Fragment([part.shard for part in parts], weights, Layout(exchanged, self.dense), local)
        self._sharding = sharding_of(self.place, parts, [dim_of(parameters[t.name]) for t in self.tensors])
        self.buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point()}
        self.shared = SharedWeights(self.fragment, self.flat_buffers(), local)
        self.residuals: Residuals = NO_RESIDUALS
        self.meter = Meter(0)
        self._exchange = PeerExchange(gradient_exchange, local, options, self.fragment)
        self._group: PeerGroup | None = None
        self._meeting: PeerStore | None = None
        self._rounds: Rounds | None = None
        self._places: SitePlaces | None = None
        self._joined = self._over = False

    def __str__(self) -> str:
        described = self.gradient_exchange.description
        late = self.local.round_deadline_s
        waits = "waits for every live peer" if late is None else f"waits {late:g} s for late peers"
        return f"{self.local.title}; {described.title} over {self.gradient_exchange.exchange}; {waits}"

    @property
    def outer_step(self) -> int:
        """Number of the outer step whose result this peer has."""
        return self.shared.outer_step

    def join(self) -> None:
        """Meet the others, and take their shared weights unless this peer has them. The first ``step`` does it too.

        Raises:
            UserError: the store does not answer; the others have other settings; the state loaded here is newer than theirs.
            LostRank: too few peers come in time; the store or all peers are lost.
        """
        if self._joined or self._over:
            return
        self._joined = True
        if self._site.together(self._join, self.shared):
            self._take()

    def step(self) -> bool:
        """Count a step of the optimizer. After ``sync_every`` of them exchange with the peers that are there.

        Returns:
            True if this peer took part in an outer step.

        Raises:
            LostRank: the store does not answer, too few peers come, or exchanges fail though all peers are alive.
        """
        self._refuse_finished()
        self.join()
        self.step_number += 1
        self.trained = True
        if self.step_number % self.local.sync_every:
            return False
        return self._take_outer_step()

    def finish(self) -> None:
        """Exchange what was learned since the last exchange, and leave. The model has the shared weights then."""
        if self._over:
            return
        self.join()
        if self.trained:
            self._take_outer_step()
        self._take()
        meeting, rounds, places = self._meeting, self._rounds, self._places
        if (
            meeting is not None and rounds is not None and places is not None
        ):  # only the first copy of each shard has met others
            with meeting.answering():
                digest = " ".join(places.everyone(self.shared.digest()))
                places.decide(partial(rounds.end, self.outer_step, digest))
        self.leave()

    def leave(self) -> None:
        """Leave the run, so that the others no longer wait for this peer. If only it has the newest shared weights, it first
        waits for another that fetches them."""
        if self._over:
            return
        self._over = True
        if self._meeting is None or self._rounds is None or self._places is None:
            return
        meeting, rounds, step = self._meeting, self._rounds, self.outer_step

        def give() -> None:
            meeting.wait_until(
                lambda: not meeting.expected() - {meeting.number} or rounds.newest(step) > step or rounds.holders(step),
                self.options.timeout_s,
            )
            meeting.leave()

        with meeting.answering():
            self._places.decide(give)
        if self.place.shard:
            meeting.leave()
        self._group = None

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Give the model the shared weights and buffers of the last outer step within the block."""
        reshard(self._model)
        own, buffers = [w.clone() for w in self.fragment.weights], self.flat_buffers()
        self._take()
        try:
            yield
        finally:
            reshard(self._model)
            with torch.no_grad():
                for w, before in zip(self.fragment.weights, own, strict=True):
                    w.copy_(before)
            self.set_buffers(buffers)

    def state_dict(self) -> PeerState:
        """Return the state of this rank for resumption. Each peer saves its own, with its optimizer's; of a sharded model each
        rank does."""
        reshard(self._model)
        return state_of(self)

    def load_state_dict(self, state: PeerState) -> None:
        """Continue from a state of ``state_dict``, before the first ``step``. It sets the model's weights and buffers.

        Raises:
            UserError: not such a state, or the state has other settings or tensors; this peer has joined already.
        """
        if self._joined:
            raise UserError("this peer has joined already", "call load_state_dict before join() and the first step()")
        reshard(self._model)
        load(self, state)

    # A round.

    def _take_outer_step(self) -> bool:
        reshard(self._model)
        if self.place.shards > 1:  # ranks of other shards see other samples
            self.set_buffers(self._site.mean(self.flat_buffers()))
        took = self._site.together(self._round, self.shared)
        self.trained = False
        self._take()
        return took

    def _round(self) -> bool:
        """Contribute to the next outer step. Returns False if the others' steps have left this peer's change too old."""
        assert self._meeting is not None and self._rounds is not None and self._places is not None
        meeting, rounds, places, base, failures = self._meeting, self._rounds, self._places, self.shared.outer_step, 0
        with meeting.answering():
            change = self._change()
            while True:
                newest = places.decide(partial(rounds.newest, self.shared.outer_step))
                if newest > self.shared.outer_step:
                    self.left_behind += 1
                    if self.local.max_age:
                        places.decide(partial(rounds.announce, newest + 1))
                    self._catch_up(newest)
                    continue
                if self.shared.outer_step - base > self.local.max_age:
                    self.dropped += change.contributes
                    self.members = []
                    if self.local.max_age:
                        places.decide(partial(rounds.withdraw, self.shared.outer_step + 1))
                    return False
                known = ("", ()) if self._group is None else (self._group.key, self._group.members)
                gather = partial(rounds.gather, self.shared.outer_step + 1, change.contributes, known)
                attempt = Attempt.read(places.decide(lambda call=gather: call().written()))  # type: ignore[misc]
                mean = self._attempt(attempt, change)
                if mean is not None:
                    self._apply(attempt, mean)
                    return True
                failures = places.decide(partial(self._failures, failures, attempt))

    def _failures(self, before: int, attempt: Attempt) -> int:
        """Return the number of failed attempts. Raises LostRank after ``FAILURES`` of them."""
        assert self._meeting is not None and self._rounds is not None
        meeting = self._meeting
        failures = before + (meeting.number in attempt.members and all(map(meeting.lives, attempt.members)))
        if failures >= FAILURES:
            raise LostRank(
                f"{failures} exchanges failed though every peer is alive: a link between two of them is cut or too "
                f"slow for timeout_s; the last one {self._rounds.verdict(attempt)}"
            )
        return failures

    def _change(self) -> PeerChange:
        """Return this rank's change since the peer's last exchange; zeros on all its ranks if one is NaN or infinite."""
        assert self._places is not None
        difference = self.fragment.difference(torch.empty_like(self.fragment.anchor)).cpu()
        buffers = self.flat_buffers().cpu()
        finite = all(self._places.everyone(is_finite(difference) and is_finite(buffers)))
        if self.trained and not finite:
            self.returned += 1
            _log.warning(
                "step %d: this peer's change is NaN or infinite; the others go on without it, and it returns to the shared "
                "weights. Your optimizer's own state may hold such values: reset it",
                self.step_number,
            )
        if not finite:
            difference, buffers = torch.zeros_like(difference), torch.zeros_like(buffers)
        contributes = self.trained and finite
        return PeerChange(difference=difference, buffers=buffers, residuals=self.residuals, contributes=contributes)

    def _attempt(self, attempt: Attempt, change: PeerChange) -> Mean | None:
        """Exchange in an attempt, if this peer is one of its members. Returns None if it failed, or took place without it."""
        assert self._meeting is not None and self._rounds is not None and self._places is not None
        meeting, rounds, places, own = self._meeting, self._rounds, self._places, self._places.number
        task: PeerCall | None = None
        if own in attempt.members:
            task = PeerCall(partial(self._exchange, attempt, own, change, self._group, places.store()))
        told = task is None
        while not (verdict := rounds.verdict(attempt)):
            if not told and task is not None and not task.is_alive():
                told = True
                if task.error is None:
                    rounds.succeed(attempt)
                else:
                    rounds.fail(attempt, f"{type(task.error).__name__}: {task.error}".splitlines()[0][:150])
                continue
            meeting.check()
            time.sleep(POLL_S)
        if verdict == COMMITTED:
            if rounds.commit(attempt) and task is not None:
                result: Mean = task.result
                return result
            return None
        self._group = None
        if task is not None:
            _log.warning("outer step %d: an exchange %s; those that are there try again", attempt.outer_step, verdict)
            error = task.error
            grave = error is not None and not isinstance(error, LostRank) and type(error) is not RuntimeError
            others = places.everyone(str(error) if grave else "")
            if error is not None and grave:
                raise error
            if any(others):
                raise LostRank(f"another rank of this site could not exchange: {next(filter(None, others))}")
        return None

    def _apply(self, attempt: Attempt, mean: Mean) -> None:
        """Take the outer step of a committed attempt. All members have the same mean."""
        assert self._meeting is not None and self._places is not None
        self._group, self.meter, self.residuals = mean.group, mean.meter, mean.residuals
        self.members = [self._meeting.named([n]) for n in attempt.members]
        self.meter.nonfinite_steps = self.returned
        finite = all(self._places.everyone(mean.finite))
        if not attempt.contributors or not finite:
            self.shared.give_up()
            return
        device = self.fragment.anchor.device
        buffers = mean.buffers.to(device)
        self.shared.move(mean.difference.to(device), buffers, attempt.contributors, attempt.peers)

    def _catch_up(self, newest: int) -> None:
        """Take the newest shared weights that a live peer has. If this one has them, they become those of a new outer step."""
        assert self._rounds is not None and self._places is not None
        rounds, places = self._rounds, self._places
        until = time.monotonic() + self.options.timeout_s
        while not self._fetch_newest(newest):
            if self.shared.outer_step >= 0:
                if places.decide(partial(rounds.claim, newest + 1)):  # one taken for lost may still come with the old number
                    steps = self.shared.outer_step + 1, newest
                    _log.warning("outer steps %d to %d are lost with all peers that had them", *steps)
                    self.shared.relabel(newest + 1)
                return
            if places.decide(partial(rounds.has_ended, newest)):
                raise UserError(
                    f"this run has ended after {newest} outer steps",
                    "start a new store, or give load_state_dict the state that was saved at its end",
                )
            if places.decide(lambda: time.monotonic() >= until):
                raise LostRank("no live peer has the shared weights: start all peers again with their saved states")
            time.sleep(POLL_S)  # a peer whose heartbeat is late is not lost
            newest = places.decide(partial(rounds.newest, newest))

    def _fetch_newest(self, newest: int) -> bool:
        """Take the newest shared weights that a live peer has. Returns False if no other has newer weights."""
        assert self._rounds is not None and self._places is not None
        rounds, places = self._rounds, self._places
        for step in range(newest, self.shared.outer_step, -1):
            for holder in places.decide(partial(rounds.holders, step)):
                if self._fetch(holder):
                    places.decide(partial(rounds.hold, self.shared.outer_step))
                    return True
        return False

    def _fetch(self, holder: int) -> bool:
        """Take the shared weights of another peer, on all ranks of one outer step. Returns False if that peer is lost."""
        assert self._meeting is not None and self._places is not None
        meeting, places = self._meeting, self._places
        while True:  # the other peer may take an outer step between the requests of two ranks
            snapshot: list[torch.Tensor] = []
            try:
                snapshot = fetch(meeting, places.counterpart(holder), self.shared, self.options.timeout_s)
            except LostRank as lost:
                meeting.check()
                _log.warning("%s; another one is asked", lost)
            steps = places.everyone(int(snapshot[0][0]) if snapshot else None)
            if None in steps:
                return False
            if len(set(steps)) == 1:
                self.shared.adopt(snapshot)
                return True

    # Joining.

    def _join(self) -> bool:
        """Meet the others. Returns True if the shared weights are others' than before."""
        meeting = self._meeting = PeerStore(self.peers, self.options.timeout_s)
        given = self.peers.min_peers, self.local.round_deadline_s, self.options.timeout_s, self.place.shards
        rounds = self._rounds = Rounds(meeting, *given)
        serve(meeting, self.shared, self.options.timeout_s)
        with meeting.answering():
            places = self._places = SitePlaces(meeting, self.place, self._site.token, self.options.timeout_s)
            every = places.everyone([self.shared.outer_step, self.shared.digest()])
            if len({step for step, _ in every}) > 1:
                raise UserError(
                    f"the ranks of this site begin with outer steps {', '.join(str(step) for step, _ in every)}",
                    "load the states that they saved at the same step",
                )
            digest = " ".join(of_shard for _, of_shard in every)
            begun, newest, same = places.decide(partial(self._begin, self.shared.outer_step, digest))
            if not same:
                self.shared.relabel(-1)
                places.decide(partial(self._hold_first, begun))
                self._catch_up(newest)
            else:
                places.decide(partial(rounds.hold, newest))
            places.decide(meeting.activate)
        return not same

    def _begin(self, loaded: int, digest: str) -> tuple[dict[str, Any], int, bool]:
        """Register this peer. Returns whose shared weights the run began with, the newest outer step, and whether this peer has
        its shared weights."""
        assert self._meeting is not None and self._rounds is not None
        meeting = self._meeting
        self._refuse_other_settings(meeting)
        meeting.note("registered", json.dumps([meeting.number, loaded, digest]))
        first = meeting.wait_until(partial(_beginning, meeting, self.peers.min_peers), self.options.timeout_s)
        if not first:
            raise LostRank(
                f"fewer than min_peers {self.peers.min_peers} peers came within {self.options.timeout_s:g} s: start them"
            )
        begun = json.loads(first)
        newest = self._rounds.newest(begun["outer_step"])
        if loaded > newest:
            raise UserError(
                f"the state loaded here is of outer step {loaded}, the peers are at {newest}",
                "leave the state out, or start all peers again with their states",
            )
        same = loaded == newest == begun["outer_step"] and digest == begun["digest"]
        if not same and begun["holder"] == meeting.number:
            same = newest == loaded
        same = same or (loaded == newest and self._rounds.has_ended(loaded, digest))
        return begun, newest, same

    def _hold_first(self, begun: Mapping[str, Any]) -> None:
        """Wait until the peer that began the run has told that it holds its shared weights."""
        assert self._meeting is not None
        meeting, key = self._meeting, f"holders/{begun['outer_step']}"
        meeting.wait_until(lambda: meeting.lines(key) or not meeting.lives(begun["holder"]), self.options.timeout_s)

    def _refuse_other_settings(self, meeting: PeerStore) -> None:
        """Raise UserError if this peer has other settings than the first one."""
        layout = [[t.name, list(t.shape)] for t in self.tensors]
        own = {
            "exchange": self.gradient_exchange.to_json(),
            "local steps": asdict(self.local),
            "seed": self.options.seed,
            "check_every": self.options.check_every,
            "tensors": layout,
            SHARDS: self._sharding,
            CODE: code_version(),
        }
        theirs = json.loads(meeting.first("settings", json.dumps(own)))
        own = json.loads(json.dumps(own))
        if own[SHARDS] != theirs.get(SHARDS):
            raise UserError(
                f"this site's model is {own[SHARDS]}, those of the run's other sites are {theirs.get(SHARDS)}",
                "call fully_shard with as many shards as the other sites (further ranks may hold copies: HSDP)",
            )
        differing = [name for name in own if own[name] != theirs.get(name)]
        if differing:
            shown = (name if name == "tensors" else f"{name} {own[name]}, theirs {theirs.get(name)}" for name in differing)
            raise UserError(f"this peer has other settings than the run: {'; '.join(shown)}", "start all peers with the same")

    def _refuse_finished(self) -> None:
        if self._over:
            raise UserError("this peer has left the run", "call step() before finish() and leave()")

    # Weights.

    def _take(self) -> None:
        reshard(self._model)
        self.fragment.take()
        self.set_buffers(self.shared.buffers)

    def flat_buffers(self) -> torch.Tensor:
        """Return all averaged buffers as one fp32 tensor."""
        flat = [b.detach().reshape(-1).float() for b in self.buffers.values()]
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float32)

    @torch.no_grad()
    def set_buffers(self, flat: torch.Tensor) -> None:
        """Set the averaged buffers."""
        for buffer, part in zip(self.buffers.values(), flat.split([b.numel() for b in self.buffers.values()]), strict=True):
            buffer.copy_(part.view(buffer.shape))


def _beginning(meeting: PeerStore, min_peers: int) -> str:
    """Return whose shared weights the run begins with: the newest of the peers that came first. Empty if too few have come."""
    begun = meeting.value("begun")
    if begun:
        return begun
    came = [json.loads(line) for line in meeting.lines("registered")]
    live = [item for item in came if meeting.lives(item[0])]
    if len(live) < min_peers:
        return ""
    number, step, digest = min(live, key=lambda item: (-item[1], item[0]))
    return meeting.first("begun", json.dumps({"holder": number, "outer_step": step, "digest": digest}))
