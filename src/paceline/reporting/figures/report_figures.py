"""Figures of the report, drawn by matplotlib as inline SVG in the page's light or dark colours.

Every colour drawn is a stand-in for a CSS variable (``PALETTE``) and is replaced by it in the SVG text, so one
picture serves both schemes. Drawing is deterministic: fixed ids, no date.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# stand-in colours: odd values that matplotlib would not draw by itself
PALETTE = {
    "ink": "#010a01",
    "muted": "#020a02",
    "rule": "#030a03",
    "compute": "#040a04",
    "compute-soft": "#050a05",
    "codec": "#060a06",
    "codec-soft": "#070a07",
    "network": "#080a08",
    "network-soft": "#090a09",
    "other": "#0b0a0b",
    "other-soft": "#0c0a0c",
    **{f"run-{n}": f"#1{n}0a1{n}" for n in range(6)},
}
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), "-.", (0, (8, 2, 2, 2)), (0, (1, 1)))
"""One line style per run: runs are told apart without colour too."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paceline",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": PALETTE["ink"],
    "axes.edgecolor": PALETTE["rule"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.titlecolor": PALETTE["ink"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "none",
    "xtick.color": PALETTE["rule"],
    "ytick.color": PALETTE["rule"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "grid.color": PALETTE["rule"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


@contextmanager
def canvas(width: float, height: float, palette: Mapping[str, str] = PALETTE) -> Iterator[Figure]:
    """Return a figure of ``width`` x ``height`` inches in the report's style, which needs no display.

    Args:
        palette: colours by name; those of a page stay open until it is shown (``to_svg``), those of a file are ``light``.
    """
    import matplotlib
    from matplotlib.figure import Figure

    colours = {stand_in: palette[name] for name, stand_in in PALETTE.items()}
    with matplotlib.rc_context({name: colours.get(value, value) for name, value in _STYLE.items()}):
        yield Figure(figsize=(width, height), layout="constrained")


@cache
def light() -> Mapping[str, str]:
    """Return the colours of a page in a light browser, by name."""
    css = resources.files("paceline").joinpath("reporting/style.css.j2").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for name, colour in re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css):
        found.setdefault(name, colour)
    return {name: found[name] for name in PALETTE}


FORMATS = (".svg", ".png")
"""Formats of a picture in a file, by the end of its name."""


def save(figure: Figure, path: Path) -> None:
    """Write a figure of the ``light`` palette as SVG or PNG. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        undated = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, facecolor="white", metadata=undated)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", "choose another file for the picture") from error


def check_format(path: Path) -> None:
    """Raise UserError for a file name whose end is none of ``FORMATS``."""
    if path.suffix not in FORMATS:
        raise UserError(f"a picture in {path}", f"end its name in {' or '.join(FORMATS)}")


def to_svg(figure: Figure, name: str, label: str, tips: Mapping[str, str] | None = None) -> str:
    """Convert the figure to an ``<svg>`` element for a page.

    Args:
        name: prefix of every id in it, since several figures share one page.
        label: text for screen readers.
        tips: a tooltip for each artist that has this ``gid``.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # its global rule (*{...}) would reach the whole page; the page's own style has it for pictures only
    svg = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    for gid, tip in (tips or {}).items():
        svg = svg.replace(f'<g id="{gid}">', f'<g id="{gid}"><title>{_escape(tip)}</title>', 1)
    svg = re.sub(r'(?<= id=")', f"{name}-", svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{name}-', svg)
    for variable, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", svg)
    size = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg class="figure" role="img" aria-label="{_escape(label)}" {size[0] if size else ""}>'
    return re.sub(r"^<svg[^>]*>", lambda _: head, svg)


def _escape(text: str) -> str:
    from html import escape

    return escape(text, quote=True)


def curves(runs: Mapping[str, Sequence[tuple[float, float]]], name: str, label: str, ylabel: str, percent: bool = False) -> str:
    """Draw lines over epochs, one for each run, in the order of ``runs``; points are (epoch, value)."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with canvas(4.9, 3.1) as figure:
        axes = figure.add_subplot()
        for n, (run, points) in enumerate(runs.items()):
            xs, ys = [p[0] for p in points], [p[1] for p in points]
            colour = PALETTE[f"run-{n % 6}"]
            mark: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(points) <= 30 else {}
            axes.plot(xs, ys, color=colour, linestyle=DASHES[n % 6], linewidth=1.8, label=run, **mark)
        axes.grid(axis="y")
        axes.set_xlabel("epoch")
        axes.set_title(ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
        axes.tick_params(length=3)
        if all(len(points) == 1 for points in runs.values()):
            axes.set_xticks(sorted({points[0][0] for points in runs.values()}))
        axes.legend(handlelength=3)
        return to_svg(figure, name, label)


PANELS = {
    "original": "as computed",
    "clipped": "clipped at ±2.5 σ",
    "ternary": "−s, 0 or +s",
    "averaged": "averaged over workers",
}


def histogram(data: Mapping[str, Any], name: str, label: str) -> str:
    """Draw counts (logarithmic) of one layer's gradient values at each stage of the codec."""
    sigma, scale = float(data.get("sigma") or 0), float(data.get("scale") or 0)
    panels = data["panels"]
    top = max(1.0, *(float(c) for panel in panels.values() for c in panel["counts"]))
    shown = [p for p in PANELS if p in panels] + [p for p in panels if p not in PANELS]
    with canvas(9.8, 2.9) as figure:
        all_axes = figure.subplots(1, len(shown), sharey=False, squeeze=False)[0]
        for axes, panel in zip(all_axes, shown, strict=True):
            _panel(axes, panels[panel], panel, top)
            if axes is not all_axes[0]:
                axes.tick_params(labelleft=False)
            if sigma and panel in ("original", "clipped"):
                _marks(axes, 2.5 * sigma, "2.5σ", "codec")
            if scale and panel in ("ternary", "averaged"):
                _marks(axes, scale, "s", "network")
        all_axes[0].set_ylabel("values, log scale")
        figure.supxlabel("value of the gradient", fontsize=9, color=PALETTE["muted"])
        return to_svg(figure, name, label)


def _panel(axes: Axes, panel: Mapping[str, Sequence[float]], title: str, top: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    edges, counts = list(panel["edges"]), list(panel["counts"])
    # the edge has the colour of the filling, so that the two or three bars of a ternary gradient stay visible
    axes.stairs(counts, edges, fill=True, color=PALETTE["compute"], linewidth=1.2, baseline=0.5)
    axes.set_yscale("log", nonpositive="clip")
    # one decade of room above the bars, for the marks
    axes.set_ylim(0.5, 30 * top)
    axes.set_title(f"{title}\n", pad=2)
    axes.text(0, 1.03, PANELS.get(title, ""), transform=axes.transAxes, fontsize=8, color=PALETTE["muted"])
    axes.xaxis.set_major_locator(MaxNLocator(3, symmetric=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}".replace("-", "−")))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    axes.grid(axis="y")
    axes.tick_params(which="both", length=0)
    axes.spines["left"].set_visible(False)


def _power(value: float) -> str:
    """Format a power of ten as a count: ``1``, ``100``, ``10 k``, ``1 M``."""
    scale, prefix = next(((s, p) for s, p in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if value >= s), (1.0, ""))
    return f"{value / scale:g}{prefix}"


def _marks(axes: Axes, at: float, text: str, colour: str) -> None:
    """Draw dashed lines at plus and minus ``at`` with their name, inside the panel."""
    for sign, minus in ((-1, "−"), (1, "+")):
        axes.axvline(sign * at, color=PALETTE[colour], linestyle=(0, (3, 2)), linewidth=1.1, ymin=0.8)
        axes.annotate(
            f"{minus}{text}",
            (sign * at, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(sign * 3, -4),
            textcoords="offset points",
            fontsize=8,
            va="top",
            ha="right" if sign < 0 else "left",
        )
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -1.5 * at), max(high, 1.5 * at))
