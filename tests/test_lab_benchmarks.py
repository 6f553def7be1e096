"""Benchmarks of the lab: gradients that are replayed, compute that is paced, a short form of each script."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import warm_python
from page_figures import says

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")

import inceptionn_lab  # noqa: E402
import lab_cases  # noqa: E402
import lab_tables  # noqa: E402
import paced  # noqa: E402
import recorded_gradients  # noqa: E402
from recorded_gradients import Recording  # noqa: E402

from paceline.workload import Workload  # noqa: E402

TABLE_II = {"alexnet": 0.757, "hdc": 0.802, "resnet-50": 0.802, "vgg-16": 0.709}
"""Li et al. 2018, Table II: what communication takes of a step of WA. HDC's seconds are printed to two digits: 1.36 of 1.7."""


def run(script: str, *arguments: str) -> str:
    command = [warm_python.executable(), str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=warm_python.ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HDC's gradients on digits, of two workers, after six steps."""
    folder = tmp_path_factory.mktemp("gradients")
    run("recorded_gradients.py", "--networks", "hdc", "--ranks", "2", "--steps", "6", "--batch", "64", "--out", str(folder))
    return folder


@pytest.mark.parametrize("net", TABLE_II)
@pytest.mark.parametrize("exchange_s", [0.3, 25.0])
def test_compute_is_scaled_so_that_communication_has_the_share_of_table_ii(net: str, exchange_s: float) -> None:
    facts = tomllib.loads(inceptionn_lab.PUBLISHED.read_text())["nets"][net]["seconds"]
    seconds = {name: value / 100 for name, value in facts.items()}
    spec = inceptionn_lab.paced(seconds, inceptionn_lab.scale(seconds, exchange_s))
    compute = spec["forward_s"] + sum(spec["backward_s"]) + spec["update_s"]
    assert exchange_s / (exchange_s + compute) == pytest.approx(TABLE_II[net], abs=0.003)
    parts = (spec["forward_s"], spec["backward_s"][0], spec["update_s"])
    named = (facts["forward"], facts["backward"] + facts["copy"], facts["update"])
    assert [part / compute for part in parts] == pytest.approx([value / sum(named) for value in named])


@pytest.mark.parametrize(
    ("link", "asked", "steps"), [("100Mb/s", 3, 20), ("10Mb/s", 30, 30), ("1Gb/s", 3, 3), ("101Mb/s", 3, 3), ("loopback", 1, 1)]
)
def test_slow_links_have_twenty_steps_at_least(link: str, asked: int, steps: int) -> None:
    assert lab_cases.enough(link, asked) == steps


def test_a_large_tensor_keeps_whole_rows_of_all_of_it() -> None:
    small = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(recorded_gradients.kept(small), small.flatten())
    large = torch.arange(5000.0)[:, None].expand(5000, 1000)
    found = recorded_gradients.kept(large)
    assert found.numel() == (1 << 20) // 1000 * 1000
    rows = found.reshape(-1, 1000)
    assert bool((rows == rows[:, :1]).all()) and rows[0, 0] == 0 and rows[-1, 0] == 4999
    assert set(rows[:, 0].diff().tolist()) <= {4.0, 5.0}


def test_recorded_gradients_are_those_of_the_network_in_training(recordings: Path) -> None:
    """The same steps by hand: the weights' gradients of both workers, each with samples of its own."""
    from paceline import models
    from paceline.training.runs.data import load

    recording = Recording(recordings / "hdc")
    data = load("digits")
    torch.manual_seed(0)
    network = models.build("hdc")
    for module in network.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            last = module
    torch.nn.init.normal_(last.weight, std=0.01)
    order = torch.randperm(len(data.train_y))
    optimizer = torch.optim.SGD(network.parameters(), 0.0025, 0.9)
    seen = []
    for number in range(8):
        chosen = order[64 * number : 64 * number + 64]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(data.train_x[chosen]), data.train_y[chosen]).backward()
        if number < 6:
            optimizer.step()
        else:
            seen.append([p.grad.clone().flatten() for p in network.parameters() if p.grad is not None])
    for rank in (0, 1):
        for mine, theirs in zip(recording.of(rank), seen[rank], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)
    assert not torch.equal(recording.of(0)[0], recording.of(1)[0])
    assert recording.said.startswith("recorded in training") and "scikit-learn's digits, batch 64" in recording.said
    assert 2 < recording.ratio("inceptionn", 2.0**-10) < 16
    with pytest.raises(SystemExit, match="hdc does not learn: its loss went from"):
        recorded_gradients.record("hdc", data, recordings / "untrained", ranks=1, steps=0, batch=8)
    with pytest.raises(SystemExit, match="gradients of 2 workers: --ranks 3"):
        recording.of(2)
    with pytest.raises(SystemExit, match=r"recorded_gradients.py writes them"):
        Recording(recordings / "vgg-a")


def test_a_rank_hands_over_what_was_recorded(recordings: Path) -> None:
    """As the gradient, in the parameter's shape; what is larger than what was kept repeats it."""
    spec, said = lab_cases.gradients(recordings, "hdc", "made up", {"shares": [1]})
    values = paced.gradients(spec, 1)
    shapes = json.loads((recordings / "hdc" / "about.json").read_text())["shapes"]
    model = paced.Paced(shapes, [0.0], 0.0, values)
    model(torch.zeros(1, requires_grad=True)).backward(torch.ones(1))
    for p, own in zip(model.parameters(), Recording(recordings / "hdc").of(1), strict=True):
        assert p.grad is not None and torch.equal(p.grad.flatten(), own)
    twice = paced.Paced([[2 * len(values[0])], [3]], [0.0], 0.0, [values[0], values[1][:3]])
    assert torch.equal(next(twice.parameters()).detach(), values[0].repeat(2))
    assert said == Recording(recordings / "hdc").said
    assert lab_cases.gradients(None, "hdc", "made up", {"shares": [1]}) == ({"shares": [1]}, "made up")


def test_rows_of_different_gradients_are_not_called_alike() -> None:
    assert lab_cases.named([{"gradients": "a"}, {"gradients": "b"}, {}], "drawn") == "a or b or drawn"
    assert lab_cases.named([{}, {"gradients": ""}], "drawn") == "drawn"


@pytest.mark.long
def test_figure_12_in_both_conditions_short(tmp_path: Path, recordings: Path) -> None:
    few = ("--hosts", "2", "--steps", "5", "--gradients", str(recordings))
    out, picture = tmp_path / "i.csv", tmp_path / "i.svg"
    text = run("inceptionn_lab.py", "--networks", "hdc", *few, "--out", str(out), "--picture", str(picture))
    found = {(row["condition"], row["system"]): row for row in rows(out)}
    systems = ["WA", "WA + C", "WA + C both ways", "INC", "INC + C"]
    assert list(found) == [(condition, name) for condition in ("seconds", "shares") for name in systems]
    assert text.count("the ring's") == 2
    for condition in ("seconds", "shares"):
        coded, dense = found[condition, "INC + C"], found[condition, "INC"]
        assert float(coded["socket_mb"]) < 0.6 * float(dense["socket_mb"])
    seconds, shares = found["seconds", "WA"], found["shares", "WA"]
    assert float(seconds["compute_s"]) == pytest.approx(0.0024) and float(shares["compute_s"]) > 0.0024
    assert float(shares["comm_share"]) < float(seconds["comm_share"])
    assert {row["gradients"] for row in rows(out)} == {Recording(recordings / "hdc").said}
    drawn = texts(picture)
    assert "gradients are recorded in training" in drawn and drawn.count("communication has Table II's share") >= 1


@pytest.mark.full
def test_speed_up_in_the_lab_short(tmp_path: Path) -> None:
    out, picture = tmp_path / "s.csv", tmp_path / "s.svg"
    few = ("--networks", "googlenet", "--links", "10Gb/s", "--hosts", "2", "--steps", "1")
    run("speedup_lab.py", *few, "--out", str(out), "--picture", str(picture))
    assert [row["compression"] for row in rows(out)] == ["dense", "terngrad"] and "<svg" in picture.read_text()
    assert {row["gradients"] for row in rows(out)} == {"made up (Student-t noise)"}
    run("speedup_lab.py", *few, "--out", str(out))
    assert len(rows(out)) == 2
    out.write_text(out.read_text().replace("made up", "recorded"))
    run("speedup_lab.py", *few, "--out", str(out))
    assert len(rows(out)) == 4, "rows of other gradients are other cases"


@pytest.mark.full
def test_predictions_and_hooks_in_the_lab_short(tmp_path: Path) -> None:
    few = ("--hosts", "2", "--steps", "1")
    picture = tmp_path / "p.svg"
    text = run(
        "predict_lab.py",
        "--links",
        "10Gb/s",
        "--methods",
        "dense",
        "terngrad",
        *few,
        "--out",
        str(tmp_path / "p.csv"),
        "--picture",
        str(picture),
    )
    assert [row["method"] for row in rows(tmp_path / "p.csv")] == ["dense", "terngrad"] and "<svg" in picture.read_text()
    assert all(abs(float(row["error"])) < 0.5 for row in rows(tmp_path / "p.csv")) and "MAPE" in text

    picture = tmp_path / "h.svg"
    run(
        "against_hooks.py",
        "--network",
        "googlenet",
        *few,
        "--warm",
        "1",
        "--only",
        "int8",
        "PowerSGD rank 2",
        "--out",
        str(tmp_path / "h.csv"),
        "--picture",
        str(picture),
    )
    assert [row["label"] for row in rows(tmp_path / "h.csv")] == ["PowerSGD rank 2", "int8"]

    run(
        "step_processor.py",
        "--network",
        "googlenet",
        *few,
        "--rounds",
        "1",
        "--only",
        "DDP",
        "int4",
        "--out",
        str(tmp_path / "s.csv"),
    )
    assert [row["label"] for row in rows(tmp_path / "s.csv")] == ["DDP", "int4"]
    assert "<svg" in picture.read_text()


def texts(picture: Path) -> str:
    """What stands on a picture: matplotlib writes every line of a text beside its outlines, as a comment."""
    return " ".join(" ".join(re.findall("<!--(.*?)-->", picture.read_text(), re.DOTALL)).split())


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("speedup_lab", lab_cases.NOISE),
        ("against_hooks", lab_cases.NOISE),
        ("inceptionn_lab", lab_cases.TABLE_III),
        ("predict_lab", lab_cases.TABLE_III),
        ("nic_networks", lab_cases.TABLE_III),
        ("async_lab", "of a quadratic function"),
    ],
)
def test_pictures_of_the_lab_say_what_the_gradients_of_their_rows_are(name: str, drawn: str) -> None:
    text = texts(RESULTS / f"{name}.svg")
    said = lab_cases.named(rows(RESULTS / f"{name}.csv"), drawn)
    assert f"gradients are {said}" in text and "exchange are real" not in text and "the rest is real" not in text


def test_the_tables_of_the_lab_are_those_of_the_results() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    found = lab_tables.tables()
    assert sum(map(len, found.values())) >= 20 + 27 + 14 + 8
    for heading, lines in found.items():
        assert lab_tables.put(page, heading, lines) == page, heading
    modelled, plain = (found[heading][-1].split("|")[-2].strip() for heading in (lab_tables.ERRORS, lab_tables.PLAIN))
    said = f"{modelled} % off with a model of this machine that only the benchmark has, {plain} % by `paceline predict`"
    page = " ".join(page.split())
    assert said in page and says(page, f"**{plain} %, within the target of 10**") and float(plain) < 10
    validation = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    rows_of = rows(RESULTS / "predict_lab.csv")
    fast = min(float(r["error"]) for r in rows_of if (r["method"], r["hosts"]) == ("inceptionn", "8"))
    worst = max(abs(float(r["error"])) for r in rows_of if r["hosts"] != "8")
    assert says(page, f"(predicted up to {-100 * fast:.0f} % too fast with the model)")
    without = max(abs(float(r["plain_error"])) for r in rows_of if r["hosts"] != "8")
    assert says(page, f"the worst error is {100 * worst:.0f} % with the model and {100 * without:.0f} % without")
    assert says(validation, f"| 10 | {plain}: met ({modelled} with the benchmark's model of the shared processors) |")


def test_what_the_page_says_of_figure_12_is_in_the_rows() -> None:
    page = " ".join((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").split())
    found = rows(RESULTS / "inceptionn_lab.csv")
    ends = [r for r in found if (r["condition"], r["system"]) == ("shares", "INC + C")]
    cuts, published = (
        sorted(100 * float(cut) for cut in column)
        for column in zip(*((r["step_cut"], 1 - float(r["published_normalised"])) for r in ends), strict=True)
    )
    assert len(ends) == 4 and len(found) == 40 and all(int(r["steps"]) >= 10 for r in found)
    assert says(page, f"cuts the step by {cuts[0]:.1f} to {cuts[-1]:.1f} %")
    assert f"Figure 12 {published[0]:.1f} to {published[-1]:.0f} %" in page
    published_shares = {"alexnet": 75.7, "hdc": 80.2, "resnet-50": 80.2, "vgg-16": 70.9}
    for r in found:
        if (r["condition"], r["system"]) == ("shares", "WA"):
            assert abs(100 * float(r["comm_share"]) - published_shares[r["network"]]) < 1
    outside = [r for r in found if not float(r["predicted_low_s"]) <= float(r["step_s"]) <= float(r["predicted_high_s"])]
    off = statistics.fmean(abs(float(r["predicted_s"]) / float(r["step_s"]) - 1) for r in found)
    assert says(page, f"{100 * off:.0f} % off in the mean; {len(outside)} of 40 steps")
    sent = {(r["network"], r["system"]): float(r["socket_mb"]) for r in found if r["condition"] == "shares"}
    fewer = [sent[net, "INC"] / sent[net, "INC + C"] for net in published_shares]
    said = "sends {:.1f} (AlexNet), {:.1f} (HDC), {:.1f} (ResNet-50) and {:.1f} times (VGG-16) fewer bytes than INC"
    assert said.format(*fewer) in page


def test_what_the_page_says_of_terngrads_speed_up_is_in_the_rows() -> None:
    page = " ".join((ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").split())
    found = rows(RESULTS / "speedup_lab.csv")
    assert all("recorded in training" in r["gradients"] and int(r["steps"]) >= 20 for r in found)
    for link in {r["link"] for r in found}:
        ups = [float(r["speed_up"]) for r in found if (r["link"], r["compression"]) == (link, "terngrad")]
        assert len(ups) == 9 and f"{min(ups):.1f} to {max(ups):.1f}" in page
    seen = [(float(r["step_s"]), float(r["predicted_low_s"]), float(r["predicted_high_s"])) for r in found]
    under = [step / low for step, low, _ in seen if step < low]
    over = [step / high for step, _, high in seen if step > high]
    assert says(page, f"{len(under) + len(over)} of {len(found)} steps lie outside their predicted range")
    assert len(under) == 6 and says(page, f"take up to {100 - 100 * min(under):.0f} % less")
    assert len(over) == 6 and says(page, f"up to {max(over):.1f} times its high end")


def test_slow_links_were_timed_for_twenty_steps_at_least() -> None:
    few = {
        (path.name, r["link"], r["steps"])
        for path in RESULTS.glob("*.csv")
        for r in rows(path)
        if r.get("steps") and r.get("link") and r["link"] != "loopback" and lab_cases.enough(r["link"], 1) > int(r["steps"])
    }
    assert not few


def test_what_the_page_says_of_processor_seconds_is_in_the_rows() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    step = {r["label"]: float(r["wall_s"]) for r in rows(RESULTS / "step_processor.csv")}
    dense, bf16 = step["DDP"], step["PyTorch bf16 hook"]
    assert all(dense / step[label] >= 4 and bf16 / step[label] >= 2 for label in ("int4", "TernGrad, sharded"))
    assert says(page, f"DDP takes {dense:.2f} s, of PyTorch's bf16 hook {bf16:.2f}")
    for label, unit in (("int4", ""), ("TernGrad, sharded", " s")):
        assert f"{step[label]:.2f}{unit} ({dense / step[label]:.1f} and {bf16 / step[label]:.1f}" in page


def test_the_lines_of_figure_12_by_hand() -> None:
    row = {
        "network": "hdc",
        "system": "INC + C",
        "normalised": 0.4,
        "published_normalised": 0.355,
        "comm_cut": 0.5,
        "step_cut": 0.6,
    }
    row |= {"step_s": 1.0, "step_low_s": 0.9, "step_high_s": 1.25, "predicted_s": 2.0, "predicted_low_s": 2.0}
    row |= {"predicted_high_s": 2.0, "condition": "shares", "comm_share": 0.802}
    (line,) = lab_tables.figure_12([row], "shares")
    assert line == "| hdc | INC + C | 80.2% | 1 (0.9-1.25) | 2 | 0.40 | 0.355 | 50.0% | 60.0% | 64.5% |"
    assert not list(lab_tables.figure_12([row], "seconds"))
    assert lab_tables.put("a\n| h |\n|---|\n| old |\n\nb", "| h |", ["| 1 |", "| 2 |"]) == "a\n| h |\n|---|\n| 1 |\n| 2 |\n\nb"
    with pytest.raises(SystemExit, match="no table"):
        lab_tables.put("a", "| h |", [])


def test_the_page_says_which_share_of_the_gradients_was_recorded() -> None:
    def share(network: str) -> float:
        sizes = [math.prod(p.shape) for p in Workload.named(network).parameters]
        return sum(min(size, recorded_gradients.MOST) for size in sizes) / sum(sizes)

    alexnet, vgg, resnet = (f"{100 * share(network):.0f} %" for network in ("alexnet", "vgg-16", "resnet-50"))
    said = f"{alexnet} of AlexNet's values, {vgg} of VGG-16's, {resnet} of ResNet-50's and all of HDC's"
    page = (ROOT / "benchmarks" / "README.md").read_text()
    told = f"{alexnet} of AlexNet's values and {100 * share('vgg-a'):.0f} % of VGG-A's, repeated, and all of GoogLeNet's"
    assert share("googlenet") == 1 and told in " ".join(page.split())
    assert share("hdc") == 1 and said in page and says(page, f"replayed in every step, {alexnet} of its values, repeated")
