"""TernGrad on a bucket of gradients: per-tensor scaler, clipping, scaler sharing, and the tensors that stay dense.

Wen et al. 2017, Algorithm 1 with section 3.2 (shared scalers, so that a sum of N has 2N+1 levels) and equation 11 (clipping).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from paceline.codecs import counter, ternary
from paceline.training.streams import Fp32Stream, Stream, TernaryStream
from paceline.training.wire import Wire

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A trained tensor of the attached model. ``offset`` is the index of its first element among all trained elements."""

    name: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Routed:
    """A stream and the gradients (views into the bucket) that its elements come from and go back to, in order."""

    stream: Stream
    targets: tuple[F32, ...]

    def scatter(self) -> None:
        """Write the mean back where the gradients were."""
        done = 0
        for target in self.targets:
            target[:] = self.stream.out[done : done + target.size]
            done += target.size


class TernGrad:
    """What TernGrad needs beside the codec. ``sample_name`` asks for the stages of one tensor, left in ``sample``."""

    def __init__(self, clip: float | None, dense: Mapping[str, str]) -> None:
        self.clip, self.dense = clip, dense
        self.sample_name = ""
        self.sample: dict[str, Any] = {}

    def streams(self, parts: Mapping[Tensor, F32], wire: Wire, seed: int, step: int) -> list[Routed] | None:
        """The bucket as a ternary and a dense stream; None when a gradient on any rank is NaN or infinite."""
        packed = {t: part for t, part in parts.items() if t.name not in self.dense}
        kept = tuple(part for t, part in parts.items() if t.name in self.dense)
        routed = [dense_stream(kept)] if kept else []
        if not packed:
            return routed

        with wire.meter.span("scale", "codec"):
            own = [ternary.moments(part) for part in packed.values()]
            finite = all(m.finite for m in own) and all(np.isfinite(part).all() for part in kept)
            bounds = [ternary.clip_bound(m, self.clip) if finite else np.float32(0) for m in own]
        shared = torch.tensor([*map(float, bounds), float(not finite)], dtype=torch.float32, device=wire.device)
        wire.all_reduce(shared, dist.ReduceOp.MAX, "scales")
        scales: F32 = shared.cpu().numpy()
        if scales[-1] > 0:
            return None

        with wire.meter.span("ternarize", "codec"):
            key = counter.key(seed, step, wire.rank)
            planes = [
                ternary.ternarize(part, bound, scale, key, t.offset)
                for (t, part), bound, scale in zip(packed.items(), bounds, scales[:-1], strict=True)
            ]
            both = (np.concatenate([p[0] for p in planes]), np.concatenate([p[1] for p in planes]))
            sizes = [part.size for part in packed.values()]
            stream = TernaryStream(both, scales[:-1], sizes, wire.world_size)
        for t, bound, scale, plane, m in zip(packed, bounds, scales[:-1], planes, own, strict=True):
            if t.name == self.sample_name:
                self._keep(t, packed[t], float(bound), float(scale), plane, float(m.sigma), step)
        return [Routed(stream, tuple(packed.values())), *routed]

    def after_mean(self) -> None:
        """The gradients now hold the mean over the workers: the last stage of a sample."""
        if "live" in self.sample:
            self.sample["averaged"] = self.sample.pop("live").copy()

    def _keep(self, t: Tensor, part: F32, bound: float, scale: float, plane: tuple[Any, Any], sigma: float, step: int) -> None:
        codes = plane[0].astype(np.float32) * np.where(plane[1], -scale, scale)
        self.sample = {
            "layer": t.name,
            "step": step,
            "sigma": sigma,
            "scale": scale,
            "original": part.copy(),
            "clipped": np.clip(part, -bound, bound),
            "ternary": codes,
            "live": part,
        }


def dense_stream(parts: tuple[F32, ...]) -> Routed:
    """Gradients that travel as fp32."""
    return Routed(Fp32Stream(np.concatenate(parts)), parts)
