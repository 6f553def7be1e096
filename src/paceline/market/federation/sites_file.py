"""Read a federation from TOML: links between sites, and a table ``[[site]]`` per site or a trace of all sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import LARGEST_COUNT, UserError, known_name, shorten, shown
from paceline.market.federation.site import HOURS, Federation, Site
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import LONGEST_S, Job
from paceline.scheduling.traces.reader import read_trace
from paceline.scheduling.traces.type_names import on_types
from paceline.toml_file import read_toml
from paceline.units import parse_bandwidth, parse_bytes, parse_seconds

EXAMPLE = '[[site]] with name = "a", nodes = "16x8xV100" and trace = "a.csv"'
SHARED_KEYS = (
    *("currency", "wan", "wan_price", "data", "checkpoints", "speed", "checkpoint", "save", "restart"),
    *("site", "sites"),
)
PRICE_KEYS = ("waiting_price", "energy_price", "pue", "cloud_price", "cloud_after", "notice", "lends", "borrows", "watts")
SITE_KEYS = ("name", "nodes", "trace", "where", "arrivals", *PRICE_KEYS)
SITES_KEYS = ("trace", "column", "nodes", "load", "where", *PRICE_KEYS)
LARGEST = 1e12
MOST_ARRIVALS = 2_000_000
LEAST_LOAD = 0.001
_UNITS: Mapping[Callable[..., float], str] = {parse_seconds: "10min", parse_bytes: "5GB", parse_bandwidth: "10Gb/s"}
ARRIVAL_KEYS = ("per_hour", "duration", "devices", "model", "hours", "seed")


def read_sites(path: str | Path) -> Federation:
    """Read the federation of a file.

    Every ``[[site]]`` has a name, its nodes as ``paceline schedule`` takes them, and a ``trace`` (with ``where`` a part of one)
    or an ``arrivals`` model. A table ``[sites]`` makes one site of each value of a trace's ``column``. Its ``nodes`` is one
    node (``8xV100``). Each site has as many nodes as its mean ``load`` and its largest job need.

    Raises:
        UserError: a file that cannot be read; a key that is unknown; a value of another kind, with its site.
    """
    file = Path(path)
    data = read_toml(file, EXAMPLE)
    top = _TomlTable(data, file.name)
    top.check(SHARED_KEYS)
    tables, columns = data.get("site", []), data.get("sites")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{file.name}: site is no list of tables", EXAMPLE)
    if bool(tables) == (columns is not None):
        raise UserError(f"{file.name} has {'both [[site]] and' if tables else 'neither [[site]] nor'} [sites]", EXAMPLE)
    sites = (
        tuple(
            _site(_TomlTable(table, f"{file.name}, site {number}"), file.parent) for number, table in enumerate(tables, start=1)
        )
        if tables
        else _sites_of_column(_TomlTable(_table(columns, f"{file.name}: sites"), f"{file.name}, sites"), file.parent)
    )
    sites = _from_the_first_arrival(sites)
    priced = any(site.energy_price or site.cloud_price for site in sites) or "wan_price" in data
    if priced and "currency" not in data:
        raise UserError(f"{file.name} states prices and no currency", 'add currency = "$", in which waiting_price is too')
    return Federation(
        sites=sites,
        currency=top.text("currency", HOURS),
        wan_bytes_per_s=top.parsed("wan", parse_bandwidth, 0.0),
        wan_price=top.number("wan_price", 0.0),
        data_bytes=_bytes_by_model(data.get("data", {}), "data", file.name),
        checkpoint_bytes=_bytes_by_model(data.get("checkpoints", {}), "checkpoints", file.name),
        speeds=_speeds(data.get("speed", {}), file.name),
        checkpoint_s=top.parsed("checkpoint", parse_seconds, 1800.0),
        save_s=top.parsed("save", parse_seconds, 30.0, zero=True),
        restart_s=top.parsed("restart", parse_seconds, 60.0, zero=True),
    )


def files_of(path: str | Path) -> tuple[Path, ...]:
    """Return the file that ``read_sites`` takes and every trace that it names, in order."""
    file = Path(path)
    data = read_toml(file, EXAMPLE)
    tables = [*data.get("site", []), *([data["sites"]] if "sites" in data else [])]
    return (file, *(file.parent / trace for trace in dict.fromkeys(table["trace"] for table in tables if "trace" in table)))


@dataclass(frozen=True)
class _TomlTable:
    """A table of TOML with the place that errors name."""

    values: Mapping[str, Any]
    where: str

    def check(self, keys: tuple[str, ...]) -> None:
        for key in self.values:
            known_name(f"key of {self.where}", key, keys)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if value is None:
            raise UserError(f"{self.where} has no {key}", EXAMPLE)
        if not isinstance(value, str):
            raise UserError(f"{self.where}: {key} is {shown(value)}", f'give text: {key} = "..."')
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{self.where}: {key} is {shown(value)}", "give a number")
        if not abs(value) <= LARGEST:
            raise UserError(f"{self.where}: {key} is {shown(value)}", f"give a number up to {LARGEST:g}")
        return float(value)

    def count(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UserError(f"{self.where}: {key} is {shown(value)}", "give a whole number")
        if value is not None and abs(value) > LARGEST_COUNT:
            raise UserError(f"{self.where}: {key} is {shown(value)}", f"give a whole number up to {LARGEST_COUNT:,}")
        return value

    def parsed(self, key: str, parse: Callable[..., float], default: float, **legal: bool) -> float:
        """Parse a quantity with its unit. ``legal`` goes to the parser: ``zero=True``."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise UserError(f"{self.where}: {key} is {shown(value)}", f'write it with its unit: {key} = "{_UNITS[parse]}"')
        try:
            return parse(value, **legal)
        except UserError as error:
            raise UserError(f"{self.where}: {key}: {error.message}", error.fix) from None


def _table(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} is {shown(value)}", "give a table")
    return value


def _prices(table: _TomlTable) -> dict[str, Any]:
    """Return the values that both forms of a site may state."""
    for needed, other in (("cloud_price", "cloud_after"), ("cloud_after", "cloud_price")):
        if other in table.values and needed not in table.values:
            raise UserError(
                f"{table.where} states {other} and no {needed}",
                'give both: cloud_after = "12h", cloud_price = 2.5 (0: the cloud costs nothing)',
            )
    return {
        "lends": table.count("lends"),
        "borrows": table.count("borrows"),
        "notice_s": table.parsed("notice", parse_seconds, math.inf, zero=True),
        "waiting_price": table.number("waiting_price", 1.0),
        "energy_price": table.number("energy_price", 0.0),
        "pue": table.number("pue", 1.0),
        "cloud_price": table.number("cloud_price", 0.0),
        "cloud_after_s": table.parsed("cloud_after", parse_seconds, math.inf, zero=True),
    }


def _site(table: _TomlTable, base: Path) -> Site:
    table.check(SITE_KEYS)
    name = table.text("name")
    table = _TomlTable(table.values, f"{table.where} ({shorten(name, 40)})")
    if ("trace" in table.values) == ("arrivals" in table.values):
        raise UserError(f"{table.where}: give a trace or an arrivals model, one of them", EXAMPLE)
    if "where" in table.values and "trace" not in table.values:
        raise UserError(f"{table.where}: where chooses rows of a trace, and there is none", "leave out where, or give a trace")
    nodes = table.text("nodes")
    fleet = _with_watts(table, _placed(table, lambda: Fleet.named(nodes)))
    if "trace" in table.values:
        path, where = _trace(table, base), _where(table)
        jobs = _placed(table, lambda: on_types(read_trace(path, where), fleet.types).jobs)
    else:
        jobs = _arrivals(
            _TomlTable(_table(table.values["arrivals"], f"{table.where}: arrivals"), f"{table.where}, arrivals"), name
        )
    return Site(
        name=name, fleet=fleet, jobs=tuple(sorted(_timed(jobs, table), key=lambda job: job.arrival_s)), **_prices(table)
    )


def _placed(table: _TomlTable, make: Callable[[], Any]) -> Any:
    """Call ``make()``; its errors name the site."""
    try:
        return make()
    except UserError as error:
        raise UserError(f"{table.where}: {error.message}", error.fix) from None


def _with_watts(table: _TomlTable, fleet: Fleet) -> Fleet:
    """Set the power of a device, as stated or from the catalogue."""
    stated = table.number("watts", 0.0)
    if stated < 0:
        raise UserError(f"{table.where}: watts is {stated:g}", "give the power of a device under load")
    return replace(fleet, groups=tuple(replace(group, watts=stated or group.watts) for group in fleet.groups))


def _trace(table: _TomlTable, base: Path) -> Path:
    """Return the file of a trace, relative to the sites' file."""
    name = table.text("trace")
    if not name.strip():
        raise UserError(f"{table.where}: trace is {name!r}", "give a CSV file of jobs")
    return base / name


def _where(table: _TomlTable) -> Mapping[str, str]:
    where = _table(table.values.get("where", {}), f"{table.where}: where")
    for key, value in where.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(f"{table.where}: where: {shorten(key, 40)} is {shown(value)}", "give one value of the column")
    return {key: str(value) for key, value in where.items()}


def _timed(jobs: tuple[Job, ...], table: _TomlTable) -> tuple[Job, ...]:
    """Return the jobs. Raises UserError for a job without a duration."""
    unknown = next((job for job in jobs if not job.duration_s), None)
    if unknown is not None:
        raise UserError(
            f"{table.where}: job {shorten(unknown.name, 40)!r} states no duration",
            "a savings game needs how long each job runs",
        )
    return jobs


def _arrivals(table: _TomlTable, site: str) -> tuple[Job, ...]:
    """Draw jobs with Poisson arrivals and exponential durations."""
    table.check(ARRIVAL_KEYS)
    rate, hours = table.number("per_hour", 0.0), table.number("hours", 24.0 * 30)
    devices = table.count("devices")
    devices = 1 if devices is None else devices
    if devices < 1:
        raise UserError(f"{table.where}: devices is {devices}", "give a whole number from 1 up")
    mean_s = table.parsed("duration", parse_seconds, 0.0)
    if hours <= 0:
        raise UserError(f"{table.where}: hours is {shown(hours)}", "give the hours in which jobs arrive, above 0")
    if rate <= 0 or mean_s <= 0:
        raise UserError(
            f"{table.where}: give per_hour and duration", 'arrivals = { per_hour = 4, duration = "2h", devices = 8 }'
        )
    if rate * hours > MOST_ARRIVALS:
        raise UserError(
            f"{table.where}: {rate * hours:,.0f} jobs", f"at most {MOST_ARRIVALS:,} are simulated: a lower rate, fewer hours"
        )
    seed = table.count("seed") or 0
    if seed < 0:
        raise UserError(f"{table.where}: seed is {shown(seed)}", "give a whole number from 0 up")
    rng = np.random.default_rng((seed, *site.encode()))
    count = int(rng.poisson(rate * hours))
    if not count:
        raise UserError(
            f"{table.where}: no job arrives in {hours:g} hours at {rate:g} an hour", "give more hours, or a higher per_hour"
        )
    moments, durations = np.sort(rng.uniform(0, hours * 3600, count)), rng.exponential(mean_s, count)
    model = table.text("model", "")
    drawn = enumerate(zip(moments.tolist(), durations.tolist(), strict=True))
    return _placed(  # type: ignore[no-any-return]
        table,
        lambda: tuple(
            Job(name=f"{site}-{index}", arrival_s=at, duration_s=max(long, 1e-3), devices=devices, model=model)
            for index, (at, long) in drawn
        ),
    )


def _sites_of_column(table: _TomlTable, base: Path) -> tuple[Site, ...]:
    """Return one site for each value of a column."""
    table.check(SITES_KEYS)
    column, node, load = table.text("column"), table.text("nodes"), table.number("load", 0.75)
    if not LEAST_LOAD <= load <= 1:
        legal = f"give the mean part of the devices that work, from {LEAST_LOAD} up to 1"
        raise UserError(f"{table.where}: load is {load:g}", legal)
    one = _placed(table, lambda: Fleet.named(node))
    if len(one.groups) != 1 or one.groups[0].nodes != 1:
        raise UserError(f"{table.where}: nodes is {shorten(node)!r}", 'give one node, such as "8xV100"')
    path, where = _trace(table, base), _where(table)
    trace = _placed(table, lambda: read_trace(path, where))
    values = _column(path, column, len(trace.jobs), table)
    by_site: dict[str, list[Job]] = {}
    for job, value in zip(trace.jobs, values, strict=True):
        by_site.setdefault(value, []).append(job)
    horizon = max(job.arrival_s for job in trace.jobs) - min(job.arrival_s for job in trace.jobs)
    group = _with_watts(table, one).groups[0]
    sites = []
    for name in sorted(by_site):
        jobs = tuple(sorted(_timed(tuple(by_site[name]), table), key=lambda job: job.arrival_s))
        devices = devices_for(jobs, horizon, load, group.devices_per_node)
        fleet = Fleet((group.resized(devices // group.devices_per_node),))
        sites.append(Site(name=name, fleet=fleet, jobs=jobs, **_prices(table)))
    return tuple(sites)


def devices_for(jobs: tuple[Job, ...], horizon_s: float, load: float, node: int) -> int:
    """Return the devices at which the mean busy share is ``load``, in whole nodes rounded up, and enough for the largest job.

    Args:
        horizon_s: span of the arrivals. ``node``: devices per node.
    """
    mean = sum(job.devices * job.duration_s for job in jobs) / max(horizon_s, 1.0)
    largest = max(job.devices for job in jobs)
    return max(math.ceil(mean / load / node), math.ceil(largest / node)) * node


def _column(path: Path, column: str, jobs: int, table: _TomlTable) -> list[str]:
    from paceline.csv_rows import header, read

    names, delimiter = header(path)
    column = _placed(table, lambda: known_name("column", column, names))
    chosen = {known_name("column", key, names): value for key, value in _where(table).items()}
    rows = [row for row in read(path, (column,), delimiter) if all(row.text(key) == value for key, value in chosen.items())]
    if len(rows) != jobs:
        raise UserError(f"{table.where}: {path.name} has {len(rows)} rows and {jobs} jobs", "give a trace of one job a row")
    nameless = next((row for row in rows if not row.text(column)), None)
    if nameless is not None:
        raise UserError(f"{table.where}: {nameless.place} names no {column}", "each row needs the name of its site there")
    return [row.text(column) for row in rows]


def _from_the_first_arrival(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Shift arrivals so that the first one of all sites is at 0."""
    first, last = (end(job.arrival_s for site in sites for job in site.jobs) for end in (min, max))
    if last - first > LONGEST_S:
        late = max(sites, key=lambda site: site.jobs[-1].arrival_s).name
        raise UserError(
            f"site {shorten(late, 40)!r}: a job arrives {last - first:.3g} s after the first of all sites",
            f"at most {LONGEST_S:,.0f} s are simulated: count all arrivals from one moment",
        )
    if not first:
        return sites
    return tuple(
        replace(site, jobs=tuple(replace(job, arrival_s=job.arrival_s - first) for job in site.jobs)) for site in sites
    )


def _bytes_by_model(value: object, key: str, where: str) -> dict[str, float]:
    table = _TomlTable(_table(value, f"{where}: {key}"), f"{where}, {key}")
    return {"" if model == "other" else model: table.parsed(model, parse_bytes, 0.0, zero=True) for model in table.values}


def _speeds(value: object, where: str) -> dict[str, dict[str, float]]:
    from paceline.hardware.catalogue import device

    speeds = {}
    for model, types in _table(value, f"{where}: speed").items():
        table = _TomlTable(_table(types, f"{where}: speed.{model}"), f"{where}, speed.{model}")
        names = {name: _placed(table, lambda name=name: device(name).name) for name in table.values}  # type: ignore[misc]
        twice = next((name for name, known in names.items() if [*names.values()].count(known) > 1), None)
        if twice is not None:
            both = " and ".join(name for name, known in names.items() if known == names[twice])
            raise UserError(f"{table.where}: {both} are one device type, {names[twice]}", "give its speed once")
        speeds[model] = {known: table.number(name, 0.0) for name, known in names.items()}
        if min(speeds[model].values(), default=1.0) <= 0:
            raise UserError(f"{table.where}: a speed of 0 or less", "give work a second on each device type")
    return speeds
