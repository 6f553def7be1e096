"""Screens of several sites: the fastest method by their number and bandwidth, and all methods at one place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from paceline.planning.compare.site_map import SiteMap
from paceline.planning.compare.site_methods import SiteMethod
from paceline.planning.compare.site_table import LAWS, Further, SiteTable, TokensOfLaws
from paceline.planning.search.ranking import TIE
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading, item
from paceline.reporting.values import count, number, seconds, size
from paceline.units import format_bandwidth

SHOWN = 7
"""Most bandwidths in the columns of a map."""
MEANING = (
    f"The method to take is within {TIE:.0%} of the fastest and changes training least. "
    "Time computing is the step of a site alone over the step with the others. Each site keeps its batch. The rest of the "
    "time it waits. Rates count samples, whatever they teach."
)
WINS = (
    "Local steps win below this bandwidth: to an equal loss, with the most further tokens of the published laws. With ? no law "
    "covers so many sites, and they win for equal samples alone."
)
UNKNOWN_LOSS = "Further tokens of local steps to an equal loss: unknown here, not zero (published: docs/local-sgd.md)."
NOT_MEASURED = (
    "The laws are those of DiLoCo with dense pseudo-gradients. Compressed ones, fragments and delays are said to lose no more "
    "(arXiv:2501.18512, 2508.15706, 2505.23725); how much they lose on this network was not measured."
)


def map_screen(answer: SiteMap, further: Further) -> Screen:
    """Return the screen of a map. ``further``: further tokens of local steps by number of sites."""
    best = [answer.methods[k] for k in sorted({*answer.best.ravel().tolist()})]
    site, first = f"{answer.site.world_size} {answer.site.device.name}", answer.sites[0]
    fastest = answer.methods[answer.best[0, 0]].name
    where = f"{answer.workload} on {first} sites of {site} with {format_bandwidth(answer.bandwidths[0])}"
    share, when = f"{answer.computing[0, 0]:.0%}", wins(answer, first, further[first])
    brief = f"{where}: {fastest} computes {share} of the time; local steps win: {when}"
    return Screen(
        title=f"{answer.workload} on sites of {site}, batch {answer.site_batch:,} a site, {answer.sync_every} local steps",
        answer=(
            heading("Method to take, and its share of time computing, by bandwidth of a site:"),
            _map_table(answer, further),
            GAP,
            *(Paragraph(f"{m.letter}  {m.name}: {m.title}", hang=3) for m in best),
            GAP,
            Paragraph(WINS),
            *_loss(any(known is not None for known in further.values())),
            *_left_out(answer.impossible, [m for m in answer.methods if not answer.fits[m.name]]),
        ),
        brief=brief,
        why=(Paragraph(MEANING), *_sources(answer.methods)),
        why_holds="the meaning of the figures, sources",
    )


def _map_table(answer: SiteMap, further: Further) -> Table:
    columns = _shown(len(answer.bandwidths))
    speeds = [format_bandwidth(answer.bandwidths[j]).replace(" ", "\n") for j in columns]
    head = ("sites", *speeds, "further\ntokens", "local steps\nwin")
    rows = []
    for i, sites in enumerate(answer.sites):
        cells = [f"{answer.methods[answer.best[i, j]].letter} {answer.computing[i, j]:.0%}" for j in columns]
        rows.append((str(sites), *cells, _further(further[sites]), wins(answer, sites, further[sites])))
    return Table(head, rows)


def _shown(total: int) -> Sequence[int]:
    """Return the indices of the bandwidths that a table shows: the ends, and some between them at equal distances."""
    return range(total) if total <= SHOWN else sorted({round(k * (total - 1) / (SHOWN - 1)) for k in range(SHOWN)})


def wins(answer: SiteMap, sites: int, known: TokensOfLaws | None) -> str:
    """Return where local steps are faster to an equal loss, with the most further tokens; ``?``: for equal samples."""
    if known is not None and math.isinf(known.high):
        return "unknown"
    below, mark = answer.local_below(sites, known.high if known else 1.0), "" if known else "?"
    if math.isinf(below):
        return f"on all{mark}"
    return f"<{format_bandwidth(below)}{mark}" if below else f"nowhere{mark}"


def _further(known: TokensOfLaws | None) -> str:
    if known is None:
        return "unknown"
    most = "any" if math.isinf(known.high) else f"{known.high - 1:.0%}"
    return f"{known.low - 1:.0%} to {most}"


def table_screen(answer: SiteTable) -> Screen:
    """Return the screen of all methods at one place."""
    best, alone = answer.outcomes[0], answer.alone
    where = f"{count(answer.sites, 'site')} with {format_bandwidth(answer.bandwidth)}"
    others = [o for o in answer.outcomes if not o.method.local and o is not best]
    figures = "; ".join(
        f"{o.method.name} {seconds(o.prediction.step_time_s)} a step, {o.computing:.0%} of it computing, {size(o.site_bytes)}"
        for o in (best, *others)
    )
    further = f"; further tokens to an equal loss: {_further(answer.further)}" if best.method.local else ""
    brief = f"{alone.workload} on {where}: {figures}{further}"
    failing = not all(math.isnan(o.goodput) for o in answer.outcomes)
    head = ("method", "a step", "computing", "samples/s", "bytes a step", *(("goodput",) if failing else ()))
    rows = [
        (
            o.method.name,
            seconds(o.prediction.step_time_s),
            f"{o.computing:.1%}",
            number(o.prediction.samples_per_s),
            size(o.site_bytes),
            *((f"{o.goodput:.1%}",) if failing else ()),
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
            *(Paragraph(f"{o.method.name}: {o.method.title}", hang=2) for o in answer.outcomes),
            GAP,
            *([Paragraph(answer.further.sentence())] if answer.further else []),
            *_loss(answer.further is not None),
            *_left_out(answer.impossible, [o.method for o in answer.outcomes if o.prediction.fit == "does not fit"]),
        ),
        brief=brief,
        why=(Paragraph(MEANING), *_sources([o.method for o in answer.outcomes])),
        why_holds="the meaning of the figures, sources",
    )


def _loss(known: bool) -> Iterator[Block]:
    yield Paragraph(NOT_MEASURED if known else UNKNOWN_LOSS)


def _left_out(impossible: Mapping[str, str], unfit: Sequence[SiteMethod]) -> Iterator[Block]:
    yield from (Paragraph(f"Not possible here: {name}: {why}") for name, why in impossible.items())
    if unfit:
        yield Paragraph(f"Does not fit the memory of a device: {', '.join(method.name for method in unfit)}.", "warning")


def _sources(methods: Sequence[SiteMethod]) -> Iterator[Block]:
    yield from (item(f"{method.name}: {method.source}") for method in methods if method.source)
    yield from (item(f"loss by tokens: {source}") for source in LAWS())
