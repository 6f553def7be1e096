"""Small federations for tests."""

from __future__ import annotations

from paceline.market.federation.site import Federation, Site
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job


def job(name: str, arrival_s: float, duration_s: float, devices: int = 8, **more: object) -> Job:
    return Job(name=name, arrival_s=arrival_s, duration_s=duration_s, devices=devices, **more)  # type: ignore[arg-type]


def site(name: str, jobs: list[Job], nodes: str = "1x8xV100", **more: object) -> Site:
    return Site(name=name, fleet=Fleet.named(nodes), jobs=tuple(jobs), **more)  # type: ignore[arg-type]


def two_sites(**more: object) -> Federation:
    """A is busy while B is idle, and the other way round: each would wait 1,000 s alone, and nobody waits together."""
    a = site("A", [job("a1", 0, 1000), job("a2", 0, 1000), job("a3", 5000, 10)])
    b = site("B", [job("b1", 2000, 1000), job("b2", 2000, 1000)])
    return Federation(sites=(a, b), **more)  # type: ignore[arg-type]


def busy_and_idle() -> Federation:
    """The busy site's five jobs wait for its devices; the idle one has one job, much later."""
    busy = site("busy", [job(f"a{i}", 0, 3600) for i in range(5)], waiting_price=8.0)
    return Federation(sites=(busy, site("idle", [job("b", 10 * 3600, 60)])), currency="$")
