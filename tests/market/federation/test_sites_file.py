"""Federations from files."""

import math
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.hardware.catalogue import device
from paceline.market.federation.sites_file import devices_for, files_of, read_sites
from paceline.scheduling.job import Job

JOBS = "name,arrival_s,duration_s,devices,model\n"


def write(directory: Path, text: str, **traces: str) -> Path:
    for name, rows in traces.items():
        (directory / f"{name}.csv").write_text(JOBS + rows)
    file = directory / "sites.toml"
    file.write_text(text)
    return file


A = '[[site]]\nname = "A"\nnodes = "2x8xV100"\ntrace = "a.csv"\n'


def test_everything_that_a_file_may_state(tmp_path: Path) -> None:
    text = f"""
currency = "$"
wan = "10Gb/s"
wan_price = 0.02
checkpoint = "10min"
save = "20s"
restart = "45s"
data = {{ net = "150GB", other = "1GB" }}
checkpoints = {{ net = "2GB" }}
speed.net = {{ V100 = 1.0, T4 = 0.4 }}
{A}
lends = 4
borrows = 6
notice = "60s"
waiting_price = 5
energy_price = 0.15
pue = 1.3
watts = 300
cloud_price = 2.5
cloud_after = "4h"
[[site]]
name = "B"
nodes = "1x4xT4"
arrivals = {{ per_hour = 10, duration = "1h", devices = 2, hours = 100, model = "net" }}
"""
    federation = read_sites(write(tmp_path, text, a="late,900,60,2,net\nearly,100,60,16,net\n"))
    a, b = federation.sites
    assert [job.name for job in a.jobs] == ["early", "late"]
    assert (a.lends, a.borrows, a.notice_s, a.waiting_price, a.energy_price, a.pue) == (4, 6, 60, 5, 0.15, 1.3)
    assert (a.cloud_price, a.cloud_after_s, a.fleet.groups[0].watts, a.fleet.devices) == (2.5, 14400, 300, 16)
    assert federation.currency == "$" and federation.wan_bytes_per_s == 1.25e9 and federation.wan_price == 0.02
    assert (federation.checkpoint_s, federation.save_s, federation.restart_s) == (600, 20, 45)
    assert federation.data_bytes == {"net": 150e9, "": 1e9}
    assert federation.checkpoint_bytes == {"net": 2e9}
    assert federation.speeds["net"] == {device("V100").name: 1.0, "T4": 0.4}
    assert 850 < len(b.jobs) < 1150 and 3000 < sum(job.duration_s for job in b.jobs) / len(b.jobs) < 4200
    assert all(one.arrival_s <= other.arrival_s for one, other in zip(b.jobs, b.jobs[1:], strict=False))
    assert min(a.jobs[0].arrival_s, b.jobs[0].arrival_s) == 0  # moments count from the first arrival of all
    again = read_sites(tmp_path / "sites.toml")
    assert again == federation


def test_nothing_but_jobs(tmp_path: Path) -> None:
    federation = read_sites(write(tmp_path, A, a="x,0,60,2,net\n"))
    site = federation.sites[0]
    assert federation.currency == "job-hours" and site.lends is None and math.isinf(site.notice_s)


def test_a_site_for_each_value_of_a_column(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(
        "job_id,submit_time_s,duration_s,num_gpus,cluster,model,batch_size,total_steps,deadline_s\n"
        "0,100,1000,8,east,net,1,1,\n1,200,1000,16,west,net,1,1,\n2,1100,2000,8,east,net,1,1,\n"
    )
    text = '[sites]\ntrace = "all.csv"\ncolumn = "cluster"\nnodes = "8xT4"\nload = 0.5\nlends = 8\n'
    federation = read_sites(write(tmp_path, text))
    assert federation.names == ("east", "west")
    assert [len(site.jobs) for site in federation.sites] == [2, 1]
    # East's mean load is 24 devices over the 1,000 s in which jobs came: 48 at half load. West's largest job is 16, at 32.
    assert [site.fleet.devices for site in federation.sites] == [48, 32]
    assert federation.sites[1].lends == 8


def test_sizes_are_whole_nodes() -> None:
    jobs = (Job(name="a", duration_s=100, devices=3),)
    assert devices_for(jobs, 100, 0.75, 8) == 8
    assert devices_for(jobs, 100, 0.3, 8) == 16
    assert devices_for((Job(name="a", duration_s=1, devices=20),), 1000, 0.75, 8) == 24


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"neither \[\[site\]\] nor \[sites\]"),
        ("site = 3", "site is no list of tables"),
        (A + "colour = 1", r"unknown key of sites.toml, site 1 'colour'"),
        ("monney = 1\n" + A, "unknown key of sites.toml 'monney'"),
        (A.replace('"A"', "3"), "site 1: name is 3"),
        (A.replace("name", "#"), "site 1 has no name"),
        (A + A, "two sites are named 'A'"),
        (A + "waiting_price = -1", "waiting price -1"),
        (A + 'notice = "soon"', r"site 1 \(A\): notice: 'soon' is not a"),
        (A + "energy_price = 0.1", "states prices and no currency"),
        (A + "lends = 1.5", "lends is 1.5; give a whole number"),
        (A + "watts = -4", "watts is -4"),
        (A.replace("V100", "V101"), r"site 1 \(A\): unknown device"),
        (A.replace("a.csv", "b.csv"), "b.csv"),
        (A + 'cloud_after = "1h"', "states cloud_after and no cloud_price; give both"),
        (A + "cloud_price = 2", "states cloud_price and no cloud_after; give both"),
        (
            A.replace('trace = "a.csv"', 'where = { a = "b" }\narrivals = { per_hour = 1, duration = "1h" }'),
            "where chooses rows of a trace, and there is none",
        ),
        (
            A.replace('trace = "a.csv"', 'arrivals = { per_hour = 1, duration = "1h", devices = 0 }'),
            "devices is 0; give a whole",
        ),
        ('currency = ""\n' + A, "currency is empty"),
        ("data = { other = 5 }\n" + A, 'sites.toml, data: other is 5; write it with its unit: other = "5GB"'),
        ("wan = 10\n" + A, 'sites.toml: wan is 10; write it with its unit: wan = "10Gb/s"'),
        (A.replace('name = "A"', 'name = "a\\nb"'), "has characters that cannot be printed"),
        (A.replace('name = "A"', 'name = "  "'), "a site without a name"),
        (A + "arrivals = {}", "give a trace or an arrivals model, one of them"),
        (A.replace('trace = "a.csv"', "arrivals = { per_hour = 0 }"), "give per_hour and duration"),
        (A.replace('trace = "a.csv"', "arrivals = 3"), "arrivals is 3; give a table"),
        (A.replace('trace = "a.csv"', 'arrivals = { per_hour = 1e9, duration = "1h" }'), "720,000,000,000 jobs; at most"),
        (A.replace('trace = "a.csv"', 'arrivals = { per_hour = 1, duration = "1h", seed = -1 }'), "seed is -1"),
        (
            A.replace('trace = "a.csv"', 'arrivals = { per_hour = nan, duration = "1h" }'),
            "per_hour is nan; give a number up to",
        ),
        (A + 'cloud_after = "1h"\ncloud_price = inf', "cloud_price is inf; give a number up to"),
        ('data = { net = "much" }\n' + A, "data: net: 'much'"),
        ('currency = "  "\n' + A, "the currency is empty"),
        ('currency = "a\\nb"\n' + A, r"the currency 'a\\nb'; give at most 20 letters"),
        ("speed.net = { V100 = 1, v100 = 2 }\n" + A, "V100 and v100 are one device type, V100.*; give its speed once"),
        (A.replace('"a.csv"', "3"), r"^sites.toml, site 1 \(A\): trace is 3; give text"),
        (A.replace('"2x8xV100"', "16"), r"^sites.toml, site 1 \(A\): nodes is 16; give text"),
        (A.replace("nodes", "#"), r"^sites.toml, site 1 \(A\) has no nodes"),
        (A + 'where = "a"', r"^sites.toml, site 1 \(A\): where is 'a'; give a table"),
        (A + 'where = { name = ["x"] }', r"where: name is \['x'\]; give one value"),
        (A.replace("a.csv", ""), "trace is ''; give a CSV file"),
        (A.replace("a.csv", "a\\u0000.csv"), r"cannot read '.*a\\x00.csv': embedded null byte"),
        (A.replace('"A"', f'"{"x" * 201}"'), "has 201 letters; give at most 200"),
        ('"' + "k" * 5000 + '" = 1\n' + A, r"unknown key of sites.toml 'k{197}\.\.\.'"),
        (
            A.replace('trace = "a.csv"', 'arrivals = { per_hour = 1, duration = "1h", hours = -1 }'),
            "hours is -1.0; give the hours in which jobs arrive",
        ),
        (
            A.replace('trace = "a.csv"', 'arrivals = { per_hour = 1e-9, duration = "1h", hours = 1 }'),
            "no job arrives in 1 hours at 1e-09 an hour",
        ),
        (
            A.replace('trace = "a.csv"', 'arrivals = { per_hour = 1, duration = "1e300s" }'),
            "^sites.toml, site 1 .*arrivals: job 'A-.*: duration .*e.*; give at most",
        ),
        ('[sites]\ncolumn = "name"\nnodes = "8xT4"', "^sites.toml, sites has no trace"),
        ('[sites]\ntrace = "a.csv"\ncolumn = "model"\nnodes = "8xT4"\nload = 1e-9', "load is 1e-09; give .* from 0.001"),
        ("speed.net = { V100 = 0 }\n" + A, "a speed of 0 or less"),
        ('[sites]\ntrace = "a.csv"\ncolumn = "cluster"\nnodes = "8xT4"', "unknown column 'cluster'"),
        ('[sites]\ntrace = "a.csv"\ncolumn = "name"\nnodes = "2x8xT4"', "give one node"),
        ('[sites]\ntrace = "a.csv"\ncolumn = "name"\nnodes = "8xT4"\nload = 2', "load is 2"),
        ("sites = 3", "sites is 3; give a table"),
        ("[[site", "is not TOML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_sites(write(tmp_path, text, a="x,0,60,2,net\n"))


def test_what_was_read_is_the_file_and_its_traces(tmp_path: Path) -> None:
    file = write(tmp_path, A + A.replace("a.csv", "b.csv") + A)
    assert files_of(file) == (file, tmp_path / "a.csv", tmp_path / "b.csv")
    assert files_of(write(tmp_path, '[sites]\ntrace = "a.csv"'))[1:] == (tmp_path / "a.csv",)


def test_nothing_is_legal_where_it_means_something(tmp_path: Path) -> None:
    top = 'save = "0s"\nrestart = "0s"\ndata = { other = "0GB" }\ncheckpoints = { other = "0 B" }\n'
    federation = read_sites(
        write(tmp_path, top + A + 'notice = "0s"\ncloud_after = "0min"\ncloud_price = 0', a="x,0,60,2,net\n")
    )
    assert (federation.save_s, federation.restart_s, federation.data_bytes[""]) == (0, 0, 0)
    assert (federation.sites[0].notice_s, federation.sites[0].cloud_after_s) == (0, 0)
    for zeros in ('save = "0ms"', 'restart = "0min 0s"', 'data = { other = "0MiB" }'):
        read_sites(write(tmp_path, f"{zeros}\n{A}", a="x,0,60,2,net\n"))
    with pytest.raises(UserError, match="data: other: '0s' is not a size"):
        read_sites(write(tmp_path, 'data = { other = "0s" }\n' + A, a="x,0,60,2,net\n"))
    with pytest.raises(UserError, match="checkpoint: '0s' is not a positive time"):
        read_sites(write(tmp_path, 'checkpoint = "0s"\n' + A, a="x,0,60,2,net\n"))


def test_columns_are_found_in_any_case(tmp_path: Path) -> None:
    text = '[sites]\ntrace = "a.csv"\ncolumn = "Model"\nwhere = { Devices = 2 }\nnodes = "8xT4"'
    assert read_sites(write(tmp_path, text, a="x,0,60,2,net\ny,1,60,3,net\nz,1,60,2,other\n")).names == ("net", "other")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x,0,60,2,net\ny,0,60,2,\n", r"^sites.toml, sites: a.csv, row 2 \(line 3\) names no model"),
        (
            "x,0,60,2,net\ny,1e300,60,2,net\n",
            "site .net.: a job arrives .* after the first of all sites; at most 1,000,000,000",
        ),
        ('x,0,60,2,net\n"y\nz",0,60,2,net\n', r"the name 'y\\nz' of a job at site 'net' has characters that cannot be printed"),
        (f"{'x' * 201},0,60,2,net\n", "of a job at site 'net' has 201 letters; give at most 200"),
    ],
)
def test_rows_of_no_use(tmp_path: Path, rows: str, message: str) -> None:
    text = '[sites]\ntrace = "a.csv"\ncolumn = "model"\nnodes = "8xT4"'
    with pytest.raises(UserError, match=message):
        read_sites(write(tmp_path, text, a=rows))


def test_a_trace_of_another_system_is_read(tmp_path: Path) -> None:
    rows = (JOBS + "x,0,60,2,net\n").replace("\n", "\r\n").encode()
    for data in (rows, b"\xef\xbb\xbf" + rows):
        file = write(tmp_path, A)
        (tmp_path / "a.csv").write_bytes(data)
        assert [job.name for job in read_sites(file).sites[0].jobs] == ["x"]


def test_no_file_and_no_jobs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_sites(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"no jobs|no rows"):
        read_sites(write(tmp_path, A, a=""))
