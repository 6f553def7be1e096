"""Goodput of sites that fail at random: the share of all sites' time whose steps stay in the trained model.

Failures of a site follow a Poisson process while it is up. ``rejoin_s`` after a failure the site is ready again, with the state
of a peer. Three ways to train:

- All stop: every failure stops all sites, and all restart from the last checkpoint (``daly``).
- Peers: the other sites continue. The failed site loses its steps since the last exchange, and joins at the start of a round.
- Decoupled: no learner waits for others. The failed one loses its steps since the last exchange of each fragment, and starts
  again as soon as it is ready (Douillard et al. 2026, Decoupled DiLoCo, arXiv:2604.21428).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import UserError
from paceline.planning.failures.daly import best_interval, slowdown

_TURNS = 60
"""Most iterations for the mean length of a round, which waits lengthen. Each one removes most of the error."""
_MOST = 700.0
"""Rounds in the mean time between failures from which a learner keeps nothing: exp() ends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFailures:
    """Sites that fail, and the rounds in which they train.

    Attributes:
        sites: number of sites. ``mean_s``: mean seconds of one site from its start to its failure; inf: it never fails.
        round_s: seconds from one exchange to the next, the exchange included.
        rejoin_s: seconds from a failure of a site until it is ready to train.
        wait_s: seconds that the other sites wait at the end of a round for a site that failed in it: the deadline.
        fragments: parts of the network that are exchanged in turn.
        write_s: seconds in which a checkpoint stops all sites; only for ``all_stop``.

    Raises:
        UserError: numbers out of range.
    """

    sites: int
    mean_s: float
    round_s: float
    rejoin_s: float
    wait_s: float = 0.0
    fragments: int = 1
    write_s: float = 0.0

    def __post_init__(self) -> None:
        if self.sites < 1 or self.fragments < 1:
            raise UserError(f"{self.sites} sites with {self.fragments} fragments", "give at least one of each")
        for name in ("mean_s", "round_s"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name):g}", "give seconds above 0")
        for name in ("rejoin_s", "wait_s", "write_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name}={getattr(self, name):g}", "give seconds from 0 up")

    def all_stop(self) -> float:
        """Return the goodput if a failure of any site stops all of them; 0 if they reach no checkpoint."""
        if math.isinf(self.mean_s):
            return 1.0
        mean_s = self.mean_s / self.sites
        interval_s = best_interval(mean_s, self.write_s) if self.write_s else self.round_s
        return 1 / slowdown(mean_s, interval_s, self.write_s, self.rejoin_s)

    def peers(self) -> float:
        """Return the goodput if the others continue and a site joins at the start of a round.

        A site that starts a round completes it with probability p = exp(-round / mean). Otherwise K rounds pass until it starts
        again. So it completes ``p / (p + E[K; failure])`` of all rounds, and starts ``1 / (p + E[K; failure])`` of them. Sites
        are independent, so a round has no failure, and no wait, with probability ``(1 - starts (1 - p)) ^ sites``.
        """
        if math.isinf(self.mean_s):
            return 1.0
        stays = math.exp(-self.round_s / self.mean_s)
        length, starts = self.round_s, 1.0
        for _ in range(_TURNS):
            starts = 1 / (stays + self._rounds_lost(length))
            longer = self.round_s + self.wait_s * (1 - (1 - starts * (1 - stays)) ** self.sites)
            if math.isclose(longer, length, rel_tol=1e-12):
                break
            length = longer
        return starts * stays * self.round_s / length

    def _rounds_lost(self, length: float) -> float:
        """Return the expected rounds from the start of a failed one to the next start, counting 0 for a completed round.

        Args:
            length: mean seconds of a round with its wait.
        """
        fails = 1 - math.exp(-self.round_s / self.mean_s)
        late = self.rejoin_s - self.wait_s - self.round_s  # of a site that failed at the start of the round, after its end
        whole = math.floor(late / length) + 1 if late >= 0 else 0
        lost, begin = (1 + whole) * fails, whole * length - late
        while begin < self.round_s:  # one round more if the site fails after ``begin``
            lost += math.exp(-begin / self.mean_s) - math.exp(-self.round_s / self.mean_s)
            begin += length
        return lost

    def decoupled(self) -> float:
        """Return the goodput if no learner waits and a failed learner starts again as soon as it is ready.

        A learner trains for a time U, then is down for ``rejoin_s``. Fragment f of F is exchanged at f / F + n rounds, and all
        its steps up to the last exchange before U stay: in the mean ``exp(-o / mean) (o + round / (exp(round / mean) - 1))``
        seconds with o = f / F rounds. Each fragment counts 1 / F.
        """
        if math.isinf(self.mean_s):
            return 1.0
        if self.round_s / self.mean_s > _MOST:
            return 0.0
        later = self.round_s / math.expm1(self.round_s / self.mean_s)
        first = [self.round_s * f / self.fragments for f in range(1, self.fragments + 1)]
        kept = sum(math.exp(-o / self.mean_s) * (o + later) for o in first) / self.fragments
        return kept / (self.mean_s + self.rejoin_s)
