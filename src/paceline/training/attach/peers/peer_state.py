"""State of a peer, which it saves for itself and from which it continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch

from paceline.errors import UserError
from paceline.strategy import GradientExchange, LocalSteps
from paceline.strategy.local_steps import EVERY_STEP
from paceline.training.attach.hooks.state import check_entries, check_same_exchange, settings
from paceline.training.attach.local.local_fragments import Fragment
from paceline.training.attach.local.worker_ranks import WorkerPlace
from paceline.training.attach.peers.peer_exchange import Residuals
from paceline.training.attach.peers.shared_weights import SharedWeights

PeerState = dict[str, Any]
_KINDS = {
    "step": int,
    "nonfinite_steps": int,
    "gradient_exchange": Mapping,
    "local": Mapping,
    "peer": Mapping,
    "feedback": Mapping,
}
_FIX = "give what state_dict() of local steps with peers returned"


class Peer(Protocol):
    """Attributes of ``PeerSync`` that make up its state."""

    gradient_exchange: GradientExchange
    local: LocalSteps
    step_number: int
    returned: int
    trained: bool
    fragment: Fragment
    shared: SharedWeights
    residuals: Residuals
    place: WorkerPlace

    def flat_buffers(self) -> torch.Tensor:
        """Return all averaged buffers."""

    def set_buffers(self, flat: torch.Tensor) -> None:
        """Set the averaged buffers."""


def state_of(peer: Peer) -> PeerState:
    """Return the state of a peer, with no memory shared with the model."""
    header, *parts = peer.shared.snapshot()
    return {
        "step": peer.step_number,
        "nonfinite_steps": peer.returned,
        "compression": peer.gradient_exchange.compression.name,
        "gradient_exchange": settings(peer.gradient_exchange),
        "local": asdict(peer.local),
        "feedback": {kind: {n: v.cpu().clone() for n, v in values.items()} for kind, values in peer.residuals.items()},
        "peer": {
            "header": header,
            "parts": parts,
            "weights": [w.cpu().clone() for w in peer.fragment.weights],
            "buffers": peer.flat_buffers().cpu().clone(),
            "trained": peer.trained,
            "place": asdict(peer.place),
        },
    }


def load(peer: Peer, state: PeerState) -> None:
    """Continue from a state of ``state_of``. Raises UserError for another state."""
    if isinstance(state, Mapping) and "peer" not in state:
        raise UserError("the state is not of a peer", _FIX)
    check_entries(state, _KINDS)
    check_same_exchange(state, peer.gradient_exchange)
    now, earlier = asdict(peer.local), {**asdict(EVERY_STEP), **state["local"]}
    differing = [f"{k} {earlier[k]}, here {v}" for k, v in now.items() if earlier[k] != v]
    if differing:
        raise UserError(f"the state is of other local steps: {'; '.join(differing)}", "go on with those of the run before")
    own = state["peer"]
    place = WorkerPlace(**own.get("place", {}))
    if (place.shard, place.shards) != (peer.place.shard, peer.place.shards):
        raise UserError(
            f"the state is of shard {place.shard} of {place.shards}; this rank has {peer.place.shard} of {peer.place.shards}",
            "give load_state_dict the state that the rank with this shard saved",
        )
    sizes = [part.numel() for part in peer.shared.parts()], [w.shape for w in peer.fragment.weights]
    if ([part.numel() for part in own["parts"]], [w.shape for w in own["weights"]]) != sizes:
        raise UserError("the state is of a model with other tensors", _FIX)
    peer.step_number, peer.returned, peer.trained = state["step"], state["nonfinite_steps"], own["trained"]
    peer.shared.adopt([own["header"], *own["parts"]])
    with torch.no_grad():
        for w, saved in zip(peer.fragment.weights, own["weights"], strict=True):
            w.copy_(saved)
    peer.set_buffers(own["buffers"].to(peer.shared.buffers))
    peer.residuals = state["feedback"]
