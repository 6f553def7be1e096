"""The page over HTTP: whole without a script, permanent addresses, limits, and no state that breaks it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row

pytest.importorskip("starlette", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")
pytest.importorskip("httpx2", reason="needs httpx2: pip install httpx2")

from starlette.testclient import TestClient

from paceline.serve.app import application
from paceline.serve.configurations import MOST_BYTES
from paceline.serve.controls import controls

SMALL = {"workload": "lenet5", "device": "A100 SXM 80GB", "devices-per-node": "2", "global-batch": "64"}
CONFIG = {
    "model_type": "llama",
    **{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8},
    **{"num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 128},
}


def client() -> TestClient:
    return TestClient(application(), base_url="http://127.0.0.1:7223", raise_server_exceptions=False)


def alert(html: str) -> str:
    """What the page says of a mistake: a page that fails to say it shall not be compared letter by letter."""
    said = re.search(r'role="alert">(.*?)</p>', html)
    return said[1] if said else ""


@pytest.fixture(scope="module")
def page() -> Iterator[TestClient]:
    with client() as opened:
        yield opened


def test_the_first_visit_gets_an_address_that_says_everything(page: TestClient) -> None:
    reply = page.get("/", follow_redirects=False)
    assert reply.status_code == 307 and "workload=llama-3-8b" in reply.headers["location"]


def test_the_page_is_a_form_with_its_answer_in_it(page: TestClient) -> None:
    reply = page.get("/", params=SMALL)
    assert reply.status_code == 200
    for control in controls():
        assert f'name="{control.option}"' in reply.text and f'for="{control.option}"' in reply.text
    assert 'action="./" method="get"' in reply.text and 'value="lenet5"' in reply.text
    assert 'value="A100 SXM 80GB"' in reply.text and reply.text.index('class="verdict ok"') < reply.text.index("<h2")
    for heading in ("One step, bar by bar", "Memory of a device", "What if?", "How it scales", "Take it along"):
        assert f"<h2>{heading}</h2>" in reply.text
    assert "paceline predict lenet5 --device &#39;A100 SXM 80GB&#39;" in reply.text


def test_the_page_asks_nobody_else_and_has_nothing_inline(page: TestClient) -> None:
    text = page.get("/", params=SMALL).text + page.get("/search", params=SMALL).text
    places = re.findall(r'(?:src|href|action|srcset|data)="([^"]*)"', text)  # sources are named in the text, as text
    assert places and all(
        place.startswith(
            ("page.", "combobox.js", "figures.js", "serve.js", "./", "config", "data:,", "search?", "csv/", "#answer")
        )
        for place in places
    )
    assert "style=" not in text and "<style" not in text
    assert re.findall(r"<script[^>]*>", text) == [
        *(f'<script src="{name}.js" defer>' for name in ("page", "combobox", "figures", "serve")),
        '<script src="page.js" defer>',
    ]
    assert not re.findall(r"\son\w+=", text)
    scripts = [(f"{name}.js", "text/javascript") for name in ("page", "combobox", "figures", "serve")]
    for name, kind in [("page.css", "text/css"), *scripts]:
        assert page.get(f"/{name}").headers["content-type"].startswith(kind)


def test_the_part_is_what_the_page_has(page: TestClient) -> None:
    part = page.get("/answer", params=SMALL)
    assert part.status_code == 200 and part.text in page.get("/", params=SMALL).text


def test_the_search_says_what_to_do(page: TestClient) -> None:
    part = page.get("/search", params=SMALL, headers={"Sec-Fetch-Dest": "empty"})
    assert part.status_code == 200 and '<p class="advice">' in part.text and "<html" not in part.text
    assert '<a class="apply" href="./?workload=lenet5&amp;' in part.text
    whole = page.get("/search", params=SMALL)
    assert part.text in whole.text and "Back to the choices" in whole.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({**SMALL, "workload": "resnet-51"}, "unknown model &#39;resnet-51&#39;"),
        ({**SMALL, "workload": "os:getcwd"}, "unknown model"),
        ({**SMALL, "workload": "/etc/passwd"}, "unknown model"),
        ({**SMALL, "workload": "config.json"}, "unknown model"),
        ({**SMALL, "workload": "config:0123"}, "give the config.json to the page again"),
        ({**SMALL, "nodes": "0"}, "not a whole number from 1 up"),
        ({**SMALL, "nodes": "9" * 90, "network": "10Gb/s"}, "give at most"),
        ({**SMALL, "nodes": "²"}, "not a whole number"),
        ({**SMALL, "records": "runs"}, "unknown option &#39;records&#39;"),
        ({**SMALL, "precision": "fp61"}, "fp16"),
        ({**SMALL, "network": "x" * 101}, "101 characters"),
        ({"device": "A100"}, "no workload is given"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_next_step(page: TestClient, query: dict[str, str], said: str) -> None:
    for place in ("/", "/answer", "/search"):
        reply = page.get(place, params=query)
        assert reply.status_code == 400
        assert said in alert(reply.text)


def test_a_mistake_is_shown_at_its_control(page: TestClient) -> None:
    text = page.get("/", params={**SMALL, "nodes": "many"}).text
    assert 'id="nodes-wrong">nodes &#39;many&#39; is not a whole number' in text
    assert text.count('aria-invalid="true"') == 1 and 'data-option="nodes"' in text


def test_the_numbers_of_each_figure_are_a_csv(page: TestClient) -> None:
    for name, heads in (("scaling", "line,devices,samples_per_s"), ("step", "lane,name,start_s"), ("cost", "strategy,time_s")):
        reply = page.get(f"/csv/{name}.csv", params=SMALL)
        assert reply.status_code == 200 and reply.text.startswith(heads)
        assert reply.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
    assert page.get("/csv/other.csv", params=SMALL).status_code == 400


def test_the_verdict_is_first_with_what_would_fit(page: TestClient) -> None:
    text = page.get("/answer", params={**SMALL, "workload": "gpt2-xl", "device": "RTX 4090", "global-batch": "2"}).text
    assert text.index('class="verdict off">DOES NOT FIT') < text.index("What would fit") < text.index("one step")
    assert '<a class="apply" href="./?workload=gpt2-xl&amp;' in text


def test_an_option_is_given_once(page: TestClient) -> None:
    assert "nodes is given twice" in alert(page.get(f"/?{urlencode(SMALL)}&nodes=1&nodes=2").text)


def test_a_mistake_keeps_what_was_typed(page: TestClient) -> None:
    assert 'value="resnet-51"' in page.get("/", params={**SMALL, "workload": "resnet-51"}).text


VALUES = st.one_of(
    st.sampled_from(("", "1", "2", "7", "0", "-1", "1e9", "999999999999", "zero3", "fp8", "bf16", "terngrad", "dense")),
    st.sampled_from(("llama-3-8b", "resnet-50", "lenet5", "10Gb/s", "1e-9Gb/s", "8x InfiniBand HDR", "H100", "TPU v4")),
    st.text(max_size=12),
)
QUERIES = st.dictionaries(st.sampled_from([c.option for c in controls()]) | st.text(max_size=8), VALUES, max_size=6)


FUZZED = client()


@settings(max_examples=25)
@given(QUERIES)
def test_no_query_breaks_the_page(query: dict[str, str]) -> None:
    for asked in (query, {**SMALL, **query}):
        reply = FUZZED.get("/", params=asked, follow_redirects=False)
        assert reply.status_code in (200, 307, 400), asked


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_no_bytes_break_the_page(raw: bytes) -> None:
    query = "".join(f"%{byte:02x}" for byte in raw)
    for place in (f"/?workload={query}", f"/answer?{query}&device=A100"):
        assert FUZZED.get(place, follow_redirects=False).status_code in (200, 400), raw


def test_a_configuration_is_kept_by_its_contents(page: TestClient) -> None:
    body = json.dumps(CONFIG).encode()
    first, again = (page.post("/config", content=body) for _ in range(2))
    assert first.status_code == 200 and first.json() == again.json()
    asked = {**SMALL, **first.json(), "seq-len": "64"}
    reply = page.get("/", params=asked)
    assert reply.status_code == 200 and "64 tokens" in reply.text
    assert "paceline predict config.json" in reply.text and "Workload.from_config(&#39;config.json&#39;, 64)" in reply.text


def test_a_form_gives_a_configuration_without_a_script(page: TestClient) -> None:
    reply = page.post("/config", data={"config": json.dumps(CONFIG)}, follow_redirects=False)
    assert reply.status_code == 303 and "workload=config%3A" in reply.headers["location"]


@each_row(
    "body",
    [b"", b"[]", b"7", b"{", b"\xff", b'{"model_type": "none"}', b'{"model_type": 7}', b"[" * 100_000, b'{"a":' * 20_000]
    + [json.dumps({**CONFIG, name: value}).encode() for name in CONFIG for value in (None, -1, 0, 1e400, "x", [], {}, 10**40)],
)
def test_what_is_no_configuration_is_refused(page: TestClient, body: bytes) -> None:
    reply = page.post("/config", content=body)
    assert reply.status_code in (200, 400)
    if reply.status_code == 200:  # such as no heads for keys: as many as heads
        assert page.get("/", params={**SMALL, **reply.json()}).status_code in (200, 400)


def test_a_configuration_has_a_limit(page: TestClient) -> None:
    body = json.dumps({**CONFIG, "filling": "x" * MOST_BYTES}).encode()
    assert page.post("/config", content=body).status_code == 413
    assert page.post("/config", data={"config": body.decode()}).status_code == 400
    assert page.post("/config", data={"config": "x" * 4 * MOST_BYTES}).status_code == 413


def test_a_mistake_of_ours_is_not_told_to_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("paceline.serve.app.question", broken)
    with client() as page:
        reply = page.get("/", params=SMALL)
    assert reply.status_code == 500 and "secret" not in reply.text and "Traceback" not in reply.text
    assert "Content-Security-Policy" in reply.headers
