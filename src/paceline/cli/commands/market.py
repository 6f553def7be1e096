"""``paceline market``: sharing between sites, its value to each, and its stability."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.parser import BRIEF, Answer, Parser

if TYPE_CHECKING:
    from paceline.market.federation.demand import Speed
    from paceline.market.federation.federation_answer import FederationAnswer
    from paceline.market.federation.site import Federation

EXAMPLE = """example:
  paceline market sites.toml
  paceline market gain sites.toml --site A
  paceline market stable sites.toml --rule shapley"""
ALL = "example:\n  paceline market all sites.toml --rule shapley --out runs/market"
GAIN = "example:\n  paceline market gain sites.toml --site A"
EMIT = "example:\n  paceline market emit sites.toml --for slurm --out build/federation"
AUDIT = "example:\n  paceline market audit lenders.csv"
EQUILIBRIUM = "example:\n  paceline market equilibrium sites.toml --price 1.5"
STABLE = "example:\n  paceline market stable sites.toml --rule shapley"
RULE = "credits"
FEWEST_DRAWS, MOST_DRAWS, MOST_PRICE = 10, 10_000, 1e12
LEDGER = "ledger.sqlite"


def add(parser: Parser) -> None:
    """Add the actions of ``paceline market``."""
    action = parser.group(EXAMPLE, usual="all")
    whole = action("all", "the whole answer for a federation; this is meant where no action is named")
    whole.runs(_all, ALL, shapes=BRIEF)
    _federation(whole)
    _rule(whole)
    whole.add_argument(
        "--out", metavar="DIR", type=_directory, help="write report.html there, and the ledger of who lent to whom"
    )
    gain = action("gain", "what a site gains by joining, with a range, and what it depends on")
    gain.runs(_gain, GAIN, shapes=BRIEF)
    _federation(gain)
    gain.add_argument("--site", metavar="NAME", required=True, help="the site that asks")
    _rule(gain)
    gain.add_argument(
        "--draws", metavar="N", type=int, default=40, help="draws of the trace's weeks for the range (default 40)"
    )
    audit = action("audit", "which lender delivers less than predicted, beyond chance")
    audit.runs(_audit, AUDIT, shapes=BRIEF)
    columns = "a job a row: job, model, lender, achieved_per_s, predicted_per_s, and sigma where it is known"
    audit.add_argument("speeds", metavar="SPEEDS.csv", help=columns)
    audit.add_argument(
        "--k", metavar="K", type=float, help="standard errors (default: 1 %% false alarms for all lenders together)"
    )
    sigma = "standard error of log predicted throughput, where no column has it (default 0.13, measured)"
    audit.add_argument("--sigma", metavar="S", type=float, default=0.13, help=sigma)
    alone = action("equilibrium", "what each lends where each decides for itself, at a price inside, and what that loses")
    alone.runs(_equilibrium, EQUILIBRIUM, shapes=BRIEF)
    _federation(alone)
    alone.add_argument("--price", metavar="P", type=float, required=True, help="of a device and hour, in the sites' currency")
    gamma = "0: only cost counts; 1: saving a unit of extra use of the own devices (default 0)"
    alone.add_argument("--gamma", metavar="G", type=float, default=0.0, help=gamma)
    alpha = "fairness of the welfare: 0 the sum, 1 proportional, inf the least (default 0)"
    alone.add_argument("--alpha", metavar="A", type=float, default=0.0, help=alpha)
    choices = "numbers of devices that a site chooses from, 0 and all among them; beyond 16 by tabu search (default 9)"
    alone.add_argument("--choices", metavar="N", type=int, default=9, help=choices)
    dynamic = "also the price at which sites would rent devices for the whole trace, by a price that follows demand"
    alone.add_argument("--dynamic", action="store_true", help=f"{dynamic}; for one device type")
    emit = action("emit", "the sites' limits as files of what executes them: Kueue's cohort, or Slurm's federation")
    emit.runs(_emit, EMIT, shapes=BRIEF)
    _federation(emit)
    emit.add_argument("--for", dest="target", metavar="TARGET", required=True, help="kueue or slurm")
    emit.add_argument("--name", metavar="NAME", default="paceline", help="of the cohort or the federation (default paceline)")
    emit.add_argument("--out", metavar="DIR", type=_directory, help="write the files there (default: print them)")
    stable = action("stable", "who would leave, with whom, and what division would keep everyone")
    stable.runs(_stable, STABLE, shapes=BRIEF)
    _federation(stable)
    _rule(stable)


def _directory(text: str) -> Path:
    from paceline.errors import UserError

    if not text.strip() or not text.isprintable():
        raise UserError(f"--out {text!r} names no directory", "give one, such as --out runs/market")
    return Path(text)


def _federation(parser: Parser) -> None:
    parser.add_argument("sites", metavar="SITES.toml", help="the sites: their nodes, jobs, prices and limits")


def _rule(parser: Parser) -> None:
    rules = "who is served first and who pays whom: credits, prices, shapley, auction or least-core"
    parser.add_argument("--rule", metavar="R", default=RULE, help=f"{rules} (default {RULE})")


def _read(o: argparse.Namespace) -> tuple[Federation, Speed]:
    from paceline.market.federation.affinity import predicted_speed
    from paceline.market.federation.sites_file import read_sites

    federation = read_sites(o.sites)
    return federation, predicted_speed()


def _progress(o: argparse.Namespace, what: str) -> Callable[[int, int], None]:
    return lambda done, of: o.say(f"{done:,} of {of:,} {what}")


def _answered(o: argparse.Namespace) -> FederationAnswer:
    from paceline.market.federation.federation_answer import answer

    federation, speed = _read(o)
    return answer(federation, o.rule, speed, _progress(o, "coalitions"))


def _all(o: argparse.Namespace) -> Answer:
    from paceline.reporting.text.market_text import market_screen

    found = _answered(o)
    data = found.to_json()
    screen = market_screen(data)
    if o.out is None:
        return data, screen
    data["report"], data["ledger"] = (str(path) for path in _write(o, found))
    return data, screen.writing(f"report: {data['report']}", f"ledger: {data['ledger']}")


def _write(o: argparse.Namespace, found: FederationAnswer) -> tuple[Path, Path]:
    """Write the page and the ledger. Raises UserError if another federation's ledger exists there."""
    from paceline import __version__
    from paceline.errors import UserError
    from paceline.market.federation.sites_file import files_of
    from paceline.market.ledger.ledger import Ledger, Origin
    from paceline.market.ledger.posting import entries_of
    from paceline.reporting.pages.answer_page import write
    from paceline.reporting.pages.market_page import market_page

    path = o.out / LEDGER
    try:
        o.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {o.out}: {error.strerror or error}", "choose another place with `out`") from error
    ledger = Ledger(path, Origin.of_files(files_of(o.sites), found.rule, 0, __version__))
    entries = list(entries_of(found.savings, found.settlement))
    if len(ledger):  # ledger of an earlier run: same entries, or another federation's
        difference = ledger.reproduces(entries)
        if difference is not None:
            raise UserError(f"{path} holds other entries: {difference}", "give another `out`")
    else:
        ledger.append(entries)
    return write(market_page(found), str(o.out)), path  # after the check of the ledger, which may be another run's


def _gain(o: argparse.Namespace) -> Answer:
    from paceline.errors import UserError, known_name, shown
    from paceline.market.federation.gain import gain_of
    from paceline.market.game.settlement import RULES, savings_under
    from paceline.reporting.text.market_text import gain_screen

    if not FEWEST_DRAWS <= o.draws <= MOST_DRAWS:
        legal = f"give a whole number from {FEWEST_DRAWS} (fewer have no 80 % range) to {MOST_DRAWS:,}"
        raise UserError(f"{shown(o.draws)} draws", legal)
    rule = known_name("rule", o.rule, RULES)
    federation, speed = _read(o)
    gain = gain_of(savings_under(federation, rule, speed), o.site, rule, o.draws, progress=_progress(o, "simulations"))
    data = {**asdict(gain), "gain": gain.gain}
    return data, gain_screen(data)


def _audit(o: argparse.Namespace) -> Answer:
    from paceline.errors import UserError
    from paceline.market.ledger.audit import LEAST_SIGMA, MOST_SIGMA, audit
    from paceline.market.ledger.speeds_file import read_speeds
    from paceline.reporting.text.market_text import audit_screen

    if not LEAST_SIGMA <= o.sigma <= MOST_SIGMA:
        raise UserError(f"--sigma {o.sigma:g}", f"give a number from {LEAST_SIGMA:g} to {MOST_SIGMA:g}")
    found = audit(read_speeds(o.speeds, o.sigma), o.k)
    data = {**asdict(found), "throttling": list(found.throttling), "judged": found.judged, "words": str(found).splitlines()}
    return data, audit_screen(data)


def _emit(o: argparse.Namespace) -> Answer:
    from paceline.errors import UserError
    from paceline.market.federation.rendering import render
    from paceline.market.federation.sites_file import read_sites
    from paceline.reporting.text.screen import Screen

    rendered = render(read_sites(o.sites), o.target, o.name)
    data = {"target": o.target, "files": dict(rendered.files), "remarks": list(rendered.remarks)}
    if o.out is None:
        text = "\n".join(f"# {name}\n{content}" for name, content in rendered.files.items())
        return data, Screen.verbatim(text.rstrip("\n"), f"{len(rendered.files)} files for {o.target}")
    try:
        for name, content in rendered.files.items():
            path = o.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write into {o.out}: {error.strerror or error}", "choose another place with --out") from error
    screen = Screen.plain(*rendered.remarks)
    return data, screen.writing(*(f"{name}: {o.out / name}" for name in rendered.files))


def _equilibrium(o: argparse.Namespace) -> Answer:
    from paceline.errors import UserError
    from paceline.market.game.settlement import savings_under
    from paceline.market.prices.dynamic_price import dynamic_price
    from paceline.market.sharing.simulated_game import decide
    from paceline.reporting.text.market_text import equilibrium_screen

    if not 0 <= o.price <= MOST_PRICE:
        raise UserError(f"a price of {o.price:g}", f"give the price of a device and hour, from 0 to {MOST_PRICE:g}")
    federation, speed = _read(o)
    savings = savings_under(federation, "prices", speed)
    dynamic = {"dynamic_price": dynamic_price(savings).to_json()} if o.dynamic else {}
    data = {**decide(savings, o.price, o.gamma, o.alpha, o.choices).to_json(), **dynamic}
    return data, equilibrium_screen(data)


def _stable(o: argparse.Namespace) -> Answer:
    from paceline.reporting.text.market_text import stability_screen

    found = _answered(o)
    data = {**found.to_json(), "least_core": found.verdict.least.shares.tolist()}
    return data, stability_screen(data)
