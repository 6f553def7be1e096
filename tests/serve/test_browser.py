"""The page and the reports in Chromium: on a desk and on a phone, light and dark, by keyboard, and for screen readers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs playwright: pip install playwright")
pytest.importorskip("uvicorn", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")

import uvicorn
from playwright import sync_api

import paceline
import samples
from live_journal import written
from paceline.reporting import render_report
from paceline.reporting.pages import answer_page
from paceline.rundir import RunDirContents
from paceline.scheduling.live.journal import Journal
from paceline.serve.app import application
from paceline.serve.guard import Guard
from paceline.serve.server import bound

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="needs chromium: apt-get install chromium"),
]
FLAGS = [
    *("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]
SMALL = "?workload=gpt2&device=A100+SXM+80GB&devices-per-node=4&nodes=2&network=100Gb/s&precision=bf16&sharding=zero2"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LARGE = SMALL.replace("gpt2", "llama-3-8b").replace("A100+SXM+80GB", "H100+SXM").replace("zero2", "zero3")
NARROW = {"width": 360, "height": 780}
ALL = ("minor", "moderate", "serious", "critical")
"""Impacts of findings of axe-core."""
STRAY = """() => [...document.querySelectorAll('body *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest('.scroll, pre, figure.wide, svg, option, datalist');
}).map(e => e.outerHTML.slice(0, 120))"""
"""What leaves the screen and does not lie in a box that scrolls by itself."""


@contextmanager
def served(page: Guard) -> Iterator[str]:
    """A server of the page in a thread."""
    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(page, log_level="error", lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(application()) as place:
        yield place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def problems() -> list[str]:
    """What the browser complained about."""
    return []


def is_elsewhere(url: str) -> bool:
    """Whether a request leaves this machine."""
    return url.startswith(("http", "ws")) and not url.startswith("http://127.0.0.1:")


def visit(browser: Any, place: str, problems: list[str], size: Any = None, scheme: str = "light", **options: Any) -> Any:
    context = browser.new_context(viewport=size or DESK, color_scheme=scheme, **options)
    page = context.new_page()
    page.set_default_timeout(100_000)
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if is_elsewhere(request.url) else None)
    page.goto(place)
    return page


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        pytest.param(size, scheme, id=f"{name}-{scheme}", marks=[pytest.mark.full] if full else [])
        for name, size, scheme, full in (
            ("desk", DESK, "dark", False),
            ("phone", NARROW, "light", False),
            ("desk", DESK, "light", True),
            ("phone", NARROW, "dark", True),
        )
    ],
)
def test_it_fits_the_screen_and_has_no_serious_barrier(
    browser: Any, address: str, problems: list[str], size: Any, scheme: str
) -> None:
    page = visit(browser, address + (LARGE if size is NARROW else SMALL), problems, size, scheme)
    page.wait_for_selector("#advice .advice")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and page.evaluate(STRAY) == []
    page.wait_for_selector("#search[aria-busy=false] .offers")
    assert page.locator("svg.plot").count() >= 4
    sizes = page.evaluate("[...document.querySelectorAll('svg.plot text')].map(text => getComputedStyle(text).fontSize)")
    assert set(sizes) == {"12px"}
    assert barriers(page, ALL) == [] and problems == []
    page.context.close()


def barriers(page: Any, least: tuple[str, ...] = ("serious", "critical")) -> list[str]:
    """Findings of axe-core of these impacts; of all by ``ALL``."""
    package = find_spec("axe_playwright_python")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs axe: pip install axe-playwright-python")
    page.evaluate((Path(package.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8"))
    violations = page.evaluate("async () => (await axe.run()).violations")
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in violations if v["impact"] in least]


def test_a_slider_by_keyboard_moves_the_address_and_the_answer(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    before = page.locator(".card .step").first.text_content()
    page.keyboard.press("Tab")
    for _ in range(40):
        if page.evaluate("document.activeElement.dataset.for") == "nodes":
            break
        page.keyboard.press("Tab")
    else:
        raise AssertionError("the slider cannot be reached with the keyboard")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    with page.expect_response(lambda reply: "/answer?" in reply.url):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("before => document.querySelector('.card .step').textContent !== before", arg=before)
    assert "nodes=4" in page.url and page.locator("#nodes").input_value() == "4"
    shown = page.locator(".card .step").first.text_content()
    assert shown in page.locator("#status").text_content()
    page.reload()
    assert page.locator(".card .step").first.text_content() == shown and problems == []
    page.context.close()


def test_a_bar_says_its_times_by_touch_and_by_keys(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems, PHONE, has_touch=True)
    figure = page.locator("figure").first
    widest = """figure => {
      const bars = [...figure.querySelectorAll('svg.plot g rect')];
      const box = bars.reduce((a, b) => b.getBoundingClientRect().width > a.getBoundingClientRect().width ? b : a);
      box.scrollIntoView({block: 'center'});
      const {x, y, width, height} = box.getBoundingClientRect();
      return [x + width / 2, y + height / 2];
    }"""
    page.touchscreen.tap(*figure.evaluate(widest))
    tip = figure.locator(".tip")
    first = tip.text_content()
    assert ", from " in first
    figure.focus()
    page.keyboard.press("ArrowRight")
    assert tip.text_content() != first and problems == []
    page.context.close()


def test_without_a_script_the_form_answers(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems, java_script_enabled=False)
    page.locator("#nodes").fill("3")
    page.get_by_role("button", name="Show").click()
    assert "nodes=3" in page.url and "3 x 4 A100" in page.locator("h2.first").text_content()
    page.get_by_role("link", name="What to do").click()
    assert page.locator(".advice").text_content() and problems == []
    page.context.close()


def test_a_configuration_that_is_chosen_is_asked_about(browser: Any, address: str, problems: list[str], tmp_path: Path) -> None:
    config = {
        **{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2},
        **{"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 128},
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    page = visit(browser, address + SMALL, problems)
    page.get_by_text("A model of your own").click()
    with page.expect_response(lambda reply: "/answer?workload=config" in reply.url) as reply:
        page.locator("#file").set_input_files(tmp_path / "config.json")
    assert reply.value.status == 200 and "workload=config%3A" in page.url
    page.wait_for_function("() => document.querySelector('#answer h2').textContent.startsWith('llama on')")
    assert problems == []
    page.context.close()


def test_a_drag_ends_with_the_last_place(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    page.evaluate("""() => {
      const slider = document.querySelector('[data-for="nodes"]');
      for (const value of [2, 3, 4, 5, 4, 3, 2, 3]) {
        slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true}));
      }
    }""")
    page.wait_for_function("() => document.querySelector('h2.first').textContent.includes('8 x 4 A100')")
    time.sleep(0.1)
    assert "nodes=8" in page.url and "8 x 4 A100" in page.locator("h2.first").text_content() and problems == []
    page.context.close()


def heading(page: Any) -> str:
    return str(page.locator("#answer h2").filter(has_text=" on ").first.text_content())


def await_heading(page: Any, text: str) -> None:
    """Wait until the answer's title has this text."""
    page.wait_for_function("text => document.querySelector('#answer h2:not(.offers h2)').textContent.includes(text)", arg=text)


def slide(page: Any, option: str, place: int) -> None:
    """Move a slider as a drag does."""
    page.evaluate(
        """([option, place]) => {
          const slider = document.querySelector(`[data-for="${option}"]`);
          slider.value = place;
          slider.dispatchEvent(new Event('input', {bubbles: true}));
          slider.dispatchEvent(new Event('change', {bubbles: true}));
        }""",
        [option, place],
    )


@pytest.mark.parametrize(
    ("network", "before", "after"),
    [
        ("network=100Gb/s&transport=RoCE", "RoCE 100 Gb/s", "RoCE 200 Gb/s"),
        ("network=100Gb/s+RoCE", "RoCE 100 Gb/s", "RoCE 200 Gb/s"),
        ("network=InfiniBand+NDR", "4x InfiniBand NDR", "InfiniBand HDR"),
    ],
)
def test_the_transport_stays_when_the_speed_changes(
    browser: Any, address: str, problems: list[str], network: str, before: str, after: str
) -> None:
    page = visit(browser, address + SMALL.replace("network=100Gb/s", network).replace("A100+SXM+80GB", "H100+SXM"), problems)
    assert heading(page).endswith(before)
    slide(page, "network", 6)
    await_heading(page, f", {after}")
    assert page.locator("#network").input_value() == "200Gb/s" and page.locator("#transport").input_value() == after.split()[0]
    page.locator("#transport").select_option("TCP")
    await_heading(page, ", TCP 200 Gb/s")
    assert problems == []
    page.context.close()


def test_folded_choices_that_are_applied_are_seen(browser: Any, address: str, problems: list[str]) -> None:
    place = address + SMALL.replace("gpt2", "llama-3-8b").replace("zero2", "ddp")
    page = visit(browser, place, problems)
    assert page.locator("#tensor").is_hidden()
    page.locator("a.apply").filter(has_text="Use it").nth(1).click()
    page.wait_for_selector(".verdict.ok")
    assert page.locator("#tensor").is_visible() and page.locator("#tensor").input_value() == "4" and problems == []
    page.context.close()


def test_what_would_fit_is_applied_by_a_button_and_back_undoes_it(browser: Any, address: str, problems: list[str]) -> None:
    place = address + SMALL.replace("gpt2", "llama-3-8b").replace("zero2", "ddp")
    page = visit(browser, place, problems)
    first = page.locator("#answer p").first
    assert first.text_content().startswith("DOES NOT FIT") and first.get_attribute("class") == "verdict off"
    assert "$" not in page.locator(".cards").text_content()
    page.get_by_role("link", name="Use: sharding zero2, recomputation full, global batch 16").click()
    page.wait_for_selector(".verdict.ok")
    assert "sharding=zero2" in page.url and page.locator("#sharding").input_value() == "zero2"
    assert page.locator("#recompute").input_value() == "full"
    assert page.evaluate("document.activeElement.id") == "verdict"
    page.go_back()
    page.wait_for_selector(".verdict.off")
    assert page.url == place.replace("Gb/s", "Gb%2Fs") or "sharding=ddp" in page.url
    assert page.locator("#sharding").input_value() == "ddp" and barriers(page, ALL) == [] and problems == []
    page.context.close()


def test_typing_asks_once_and_a_mistake_stays_at_its_control(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/answer?" in request.url else None)
    before = page.locator(".card .step").first.text_content()
    page.locator("#global-batch").press_sequentially("1001", delay=30)
    page.wait_for_selector("#global-batch-wrong:not([hidden])")
    assert len(asked) == 1 and "global-batch=1001" in asked[0]
    assert page.locator("#global-batch").get_attribute("aria-invalid") == "true" and "nearest legal" in page.inner_text(
        "#controls"
    )
    assert page.locator(".problem").count() == 0 and page.locator(".card .step").first.text_content() == before
    assert page.locator("#answer").get_attribute("aria-busy") == "false"
    page.locator("#global-batch").fill("1024")
    page.wait_for_function("() => !document.querySelector('[aria-invalid]')")
    assert len(asked) == 2 and page.locator("#answer.stale").count() == 0
    problems[:] = [text for text in problems if "400" not in text]  # the console names the refused request
    assert problems == []
    page.context.close()


def test_back_undoes_one_change_after_another(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    slide(page, "nodes", 2)
    await_heading(page, "4 x 4 A100")
    page.locator("#precision").select_option("fp32")
    page.wait_for_function("() => document.querySelector('#answer .muted').textContent.includes('fp32')")
    page.go_back()
    page.wait_for_function("() => document.querySelector('#answer .muted').textContent.includes('bf16')")
    assert page.locator("#precision").input_value() == "bf16" and "4 x 4" in heading(page)
    page.go_back()
    await_heading(page, "2 x 4 A100")
    assert page.locator("#nodes").input_value() == "2"
    page.go_forward()
    await_heading(page, "4 x 4 A100")
    address_now, figure = page.url, page.locator(".card .step").first.text_content()
    page.goto(address_now)
    assert page.locator(".card .step").first.text_content() == figure and problems == []
    page.context.close()


def test_a_device_is_found_in_groups_by_keyboard(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    device = page.get_by_role("combobox", name="Device", exact=True)
    device.click()
    assert (
        page.locator("#device-options [role=group]").count() > 8 and page.locator("#device-options [role=option]").count() > 100
    )
    assert barriers(page, ALL) == []
    device.press_sequentially("amd 192")
    assert [option.split()[0] for option in page.locator("#device-options [role=option]").all_text_contents()] == ["MI300X"]
    device.press("ArrowDown")
    assert device.get_attribute("aria-activedescendant") == "device-options-0"
    with page.expect_response(lambda reply: "device=MI300X" in reply.url):
        device.press("Enter")
    assert device.input_value() == "MI300X" and page.locator("#device-options").is_hidden()
    await_heading(page, "2 x 4 MI300X")
    assert problems == []
    page.context.close()


def test_a_figure_is_a_png_and_a_csv(browser: Any, address: str, problems: list[str], tmp_path: Path) -> None:
    from PIL import Image

    page = visit(browser, address + SMALL, problems)
    with page.expect_download() as saved:
        page.get_by_role("button", name="How it scales as PNG").click()
    saved.value.save_as(tmp_path / "scaling.png")
    with Image.open(tmp_path / "scaling.png") as picture:
        assert picture.width > 1000 and picture.height > 400 and len(picture.convert("RGB").getcolors(1 << 20) or ()) > 20
    with page.expect_download() as saved:
        page.get_by_role("link", name="How it scales as CSV").click()
    assert saved.value.suggested_filename == "scaling.csv"
    assert Path(saved.value.path()).read_text(encoding="utf-8").startswith("line,devices,samples_per_s")
    assert problems == []
    page.context.close()


def test_paper_has_the_answer_and_no_controls(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    page.wait_for_selector("#search[aria-busy=false] .offers")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    parts = "input, select, button, .downloads, #along, #advice, #search"
    assert page.evaluate("parts => [...document.querySelectorAll(parts)].filter(e => e.checkVisibility()).length", parts) == 0
    text = page.inner_text("body")
    for part in ("Fits: ", "gpt2 on 2 x 4 A100", "One step, bar by bar", "Memory of a device", "It rests on"):
        assert part in text
    assert "What else?" not in text and page.locator("svg.plot").first.is_visible() and problems == []
    page.context.close()


def test_other_forms_of_the_question_are_one_menu(browser: Any, address: str, problems: list[str]) -> None:
    page = visit(browser, address + SMALL, problems)
    menu = page.get_by_label("The same question as")
    assert page.locator("#along pre:visible").count() == 1 and "paceline predict gpt2" in page.inner_text("#along pre:visible")
    menu.select_option("deepspeed")
    assert "zero_optimization" in page.inner_text("#along pre:visible")
    slide(page, "nodes", 2)
    await_heading(page, "4 x 4 A100")
    assert page.get_by_label("The same question as").input_value() == "deepspeed" and problems == []
    page.context.close()


@pytest.mark.parametrize(
    ("size", "scheme"),
    [pytest.param(DESK, "dark", id="desk", marks=pytest.mark.full), pytest.param(NARROW, "light", id="phone")],
)
def test_a_live_schedule_is_seen_as_it_goes(browser: Any, problems: list[str], tmp_path: Path, size: Any, scheme: str) -> None:
    journal = written(tmp_path, time.time())
    with served(application(schedule=journal)) as place:
        page = visit(browser, f"{place}schedule", problems, size, scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and page.evaluate(STRAY) == []
        assert page.locator("svg.plot").count() == 2 and barriers(page) == []
        page.locator("figure").first.focus()
        with Journal(journal) as open_journal:
            open_journal.remember(policy="fifo")
        page.wait_for_function("() => document.querySelector('h2.first').textContent === '7 jobs under fifo'")
        assert page.evaluate("document.activeElement.tagName") == "FIGURE"  # the new one, so that arrow keys go on
        page.keyboard.press("ArrowRight")
        assert "digits: 2 device from" in page.locator("figure .tip").first.text_content()
        pause = page.get_by_role("button", name="Pause")
        pause.focus()
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name="Go on").is_visible() and problems == []
        page.context.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report and two pages of answers, as files."""
    folder = tmp_path_factory.mktemp("reports")
    labels = ("dense", "terngrad")
    records = {label: samples.record(label) for label in labels}
    run = RunDirContents(
        predictions={label: samples.metrics(label) for label in labels},
        records=records,
        predicted={label: samples.metrics(label).timeline for label in labels},
        measured={label: record.timeline for label, record in records.items()},
        clusters={label: {"nodes": 4} for label in labels},
    )
    plan = paceline.plan("resnet-50", "2x2 A100", network="100Gb/s", compressions=("dense",), batches=(256,))
    gained = paceline.whatif("gpt2", "2x8 A100", changes=["nodesx2", "network=400Gb/s"], network="100Gb/s", precision="bf16")
    pages = {
        "report": render_report(run),
        "plan": answer_page.render(answer_page.plan_page(plan)),
        "whatif": answer_page.render(answer_page.whatif_page(gained)),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.mark.parametrize(("name", "scheme"), [("report", "light"), ("plan", "dark"), ("whatif", "light"), ("report", "dark")])
def test_a_report_fits_a_phone(browser: Any, reports: dict[str, Path], problems: list[str], name: str, scheme: str) -> None:
    page = visit(browser, reports[name].as_uri(), problems, PHONE, scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and page.evaluate(STRAY) == []
    broken = page.evaluate("[...document.querySelectorAll('.n')].map(n => n.getClientRects().length).filter(n => n > 1)")
    assert broken == [] and barriers(page) == [] and problems == []
    page.context.close()


def test_a_plan_is_on_two_screens(browser: Any, reports: dict[str, Path], problems: list[str]) -> None:
    """The rest is folded, and opens."""
    page = visit(browser, reports["plan"].as_uri(), problems)
    folded = page.evaluate("document.documentElement.scrollHeight")
    assert folded < 2400 and problems == []
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert page.evaluate("document.documentElement.scrollHeight") > 1.5 * folded
    page.context.close()
