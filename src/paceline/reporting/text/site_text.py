"""Screens of several sites: the fastest method by their number and bandwidth, and all methods at one place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from paceline.planning.compare.site_map import SiteMap
from paceline.planning.compare.site_methods import SiteMethod
from paceline.planning.compare.site_table import LAW_RANGE, LAWS, Further, MethodOutcome, SiteTable, TokensOfLaws
from paceline.planning.search.ranking import TIE
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading, item
from paceline.reporting.values import count, number, seconds, size
from paceline.units import format_bandwidth

SHOWN = 7
"""Most bandwidths in the columns of a map."""
MEANING = (
    f"The map names the method that changes training least among those within {TIE:.0%} of the fastest. "
    "Time computing is the step of a site alone over the step with the others. Each site keeps its batch. The rest of the "
    "time it waits. Rates count samples, whatever they teach."
)
WINS = (
    "Below the bandwidth of the last column DiLoCo reaches an equal loss sooner than gradients in every step. This counts the "
    "most further tokens that published laws give. A ? means that no law holds for so many sites: the fastest local steps then "
    "win for equal samples, and the loss is unknown."
)
ORDER = "The order is that of equal samples. Further tokens to an equal loss are {known}. {lost}"
LOST = "Short runs of a small network lost by local steps (docs/local-sgd.md)."
BY_LAWS = "known for DiLoCo alone, by published laws, and unknown, not zero, for the other local steps"
UNKNOWN = "unknown here, not zero, for all local steps: no published law holds"


def map_screen(answer: SiteMap, further: Further) -> Screen:
    """Return the screen of a map. ``further``: further tokens by number of sites and method."""
    best = [answer.methods[k] for k in sorted({*answer.best.ravel().tolist()})]
    site, first = f"{answer.site.world_size} {answer.site.device.name}", answer.sites[0]
    fastest = answer.methods[answer.best[0, 0]].name
    where = f"{answer.workload} on {first} sites of {site} with {format_bandwidth(answer.bandwidths[0])}"
    share, when = f"{answer.computing[0, 0]:.0%}", wins(answer, first, further[first])
    winner = "local steps win for equal samples" if when.endswith("?") else "DiLoCo wins to an equal loss"
    brief = f"{where}: for equal samples {fastest} computes {share} of the time; {winner}: {when.rstrip('?')}"
    return Screen(
        title=f"{answer.workload} on sites of {site}, batch {answer.site_batch:,} a site, {answer.sync_every} local steps",
        answer=(
            heading("Method to take for equal samples, and its share of time computing, by bandwidth of a site:"),
            _map_table(answer, further),
            GAP,
            *(Paragraph(f"{m.letter}  {m.name}: {m.title}", hang=3) for m in best),
            GAP,
            Paragraph(WINS),
            _order(any(further.values())),
            *([Paragraph(f"The laws hold for {LAW_RANGE()}.")] if any(further.values()) else []),
            *_left_out(answer.impossible, [m for m in answer.methods if not answer.fits[m.name]]),
        ),
        brief=brief,
        why=(Paragraph(MEANING), *_sources(answer.methods)),
        why_holds="the meaning of the figures, sources",
    )


def _map_table(answer: SiteMap, further: Further) -> Table:
    columns = _shown(len(answer.bandwidths))
    speeds = [format_bandwidth(answer.bandwidths[j]).replace(" ", "\n") for j in columns]
    head = ("sites", *speeds, "DiLoCo's\nfurther\ntokens", "local\nsteps win")
    rows = []
    for i, sites in enumerate(answer.sites):
        cells = [f"{answer.methods[answer.best[i, j]].letter} {answer.computing[i, j]:.0%}" for j in columns]
        rows.append((str(sites), *cells, _of_diloco(further[sites]), wins(answer, sites, further[sites])))
    return Table(head, rows)


def _shown(total: int) -> Sequence[int]:
    """Return the indices of the bandwidths that a table shows: the ends, and some between them at equal distances."""
    return range(total) if total <= SHOWN else sorted({round(k * (total - 1) / (SHOWN - 1)) for k in range(SHOWN)})


def wins(answer: SiteMap, sites: int, known: Mapping[str, TokensOfLaws]) -> str:
    """Return where methods with a law are faster to an equal loss, with the most further tokens; ``?``: for equal samples."""
    if known and all(math.isinf(law.high) for law in known.values()):
        return "unknown"
    factors = {name: law.high for name, law in known.items()} if known else None
    below, mark = answer.local_below(sites, factors), "" if known else "?"
    if math.isinf(below):
        return f"on all{mark}"
    return f"<{format_bandwidth(below)}{mark}" if below else f"nowhere{mark}"


def _of_diloco(known: Mapping[str, TokensOfLaws]) -> str:
    return next((law.words for law in known.values()), "unknown")


def _further(outcome: MethodOutcome) -> str:
    """Return the further tokens of a method in a few words; empty for gradients in every step."""
    if not outcome.method.local:
        return ""
    return outcome.further.words if outcome.further else "unknown"


def _loss(outcome: MethodOutcome) -> str:
    """Return what is known on the further tokens of a method, in one clause."""
    name, law, finding = outcome.method.name, outcome.further, outcome.finding
    if law is not None:
        words = f"no more than dense by published laws ({LAW_RANGE()})" if law.none else f"{law.words} by published laws"
        return f"further tokens of {name} to an equal loss: {words}"
    published = f" ({finding.brief})" if finding else ""
    return f"further tokens of {name} to an equal loss: unknown{published}"


def _order(known: bool) -> Paragraph:
    return Paragraph(ORDER.format(known=BY_LAWS if known else UNKNOWN, lost=LOST))


def _method(outcome: MethodOutcome) -> Paragraph:
    """Return a method in words, with what its authors found on its loss where no law holds."""
    found = f". {outcome.finding.said}" if outcome.finding and outcome.further is None else ""
    return Paragraph(f"{outcome.method.name}: {outcome.method.title}{found}", hang=2)


def table_screen(answer: SiteTable) -> Screen:
    """Return the screen of all methods at one place."""
    best, alone = answer.outcomes[0], answer.alone
    where = f"{count(answer.sites, 'site')} with {format_bandwidth(answer.bandwidth)}"
    others = [o for o in answer.outcomes if not o.method.local and o is not best]
    figures = "; ".join(
        f"{o.method.name} {seconds(o.prediction.step_time_s)} a step, {o.computing:.0%} of it computing, {size(o.site_bytes)}"
        for o in (best, *others)
    )
    further = f"; {_loss(best)}" if best.method.local else ""
    brief = f"{alone.workload} on {where}: {figures}{further}"
    failing = not all(math.isnan(o.goodput) for o in answer.outcomes)
    head = ("method", "a step", "computing", "samples/s", "bytes a step", *(("goodput",) if failing else ()), "further\ntokens")
    rows = [
        (
            o.method.name,
            seconds(o.prediction.step_time_s),
            f"{o.computing:.1%}",
            number(o.prediction.samples_per_s),
            size(o.site_bytes),
            *((f"{o.goodput:.1%}",) if failing else ()),
            _further(o),
        )
        for o in answer.outcomes
    ]
    return Screen(
        title=f"{alone.workload} on {where}, {answer.sync_every} local steps",
        answer=(
            Paragraph(f"A site alone takes {seconds(alone.step_time_s)} a step. Bytes are those that a site sends."),
            GAP,
            Table(head, rows),
            GAP,
            *(_method(o) for o in answer.outcomes),
            GAP,
            *(Paragraph(o.further.sentence()) for o in answer.outcomes if o.further),
            _order(any(o.further for o in answer.outcomes)),
            *_left_out(answer.impossible, [o.method for o in answer.outcomes if o.prediction.fit == "does not fit"]),
        ),
        brief=brief,
        why=(
            Paragraph(MEANING),
            *_sources([o.method for o in answer.outcomes]),
            *(item(f"{o.method.name}, loss: {o.finding.source}") for o in answer.outcomes if o.finding and o.further is None),
        ),
        why_holds="the meaning of the figures, sources",
    )


def _left_out(impossible: Mapping[str, str], unfit: Sequence[SiteMethod]) -> Iterator[Block]:
    yield from (Paragraph(f"Not possible here: {name}: {why}") for name, why in impossible.items())
    if unfit:
        yield Paragraph(f"Does not fit the memory of a device: {', '.join(method.name for method in unfit)}.", "warning")


def _sources(methods: Sequence[SiteMethod]) -> Iterator[Block]:
    yield from (item(f"{method.name}: {method.source}") for method in methods if method.source)
    yield from (item(f"loss by tokens: {source}") for source in LAWS())
