"""Who gets an answer: only who names this server, comes from its page and has its token; and what every answer says."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn: pip install 'paceline[serve]'")
pytest.importorskip("httpx2", reason="needs httpx2: pip install httpx2")

from starlette.testclient import TestClient

from paceline.serve.app import application

SMALL = "?workload=lenet5&device=A100&global-batch=64"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost:7223", "[::1]:7223", "LOCALHOST"])
def test_this_machine_is_answered(host: str) -> None:
    with TestClient(application(), base_url="http://127.0.0.1") as page:
        assert page.get("/page.css", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7223", "[", "a@localhost:1:2"]
)
def test_a_name_that_is_not_this_server_is_refused(host: str) -> None:
    with TestClient(application(), base_url="http://127.0.0.1") as page:
        reply = page.get(f"/{SMALL}", headers={"Host": host})
    assert reply.status_code == 421 and "lenet5" not in reply.text


def test_a_page_elsewhere_may_not_ask() -> None:
    with TestClient(application(), base_url="http://127.0.0.1:7223") as page:
        for origin, code in (("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:7223", 400)):
            assert page.post("/config", content=b"{}", headers={"Origin": origin}).status_code == code


def test_without_its_token_nothing_is_answered() -> None:
    with TestClient(application({"lab"}, "a-token"), base_url="http://lab") as page:
        for place in (
            "/",
            f"/{SMALL}",
            "/page.css",
            "/a-toke/page.css",
            "/a-tokenx/page.css",
            "/x/a-token/page.css",
            "/%C3%A9/",
        ):
            assert page.get(place, follow_redirects=False).status_code == 404
        assert page.get("/a-token/page.css").status_code == 200
        assert page.get(f"/a-token/{SMALL}").status_code == 200
        assert page.get("/a-token/", follow_redirects=False).headers["location"].startswith("?workload=")


def test_every_answer_says_what_it_may_do() -> None:
    with TestClient(application(), base_url="http://127.0.0.1") as page:
        replies = [
            page.get(place, headers=headers) for place, headers in ((f"/{SMALL}", {}), ("/none", {}), ("/", {"Host": "x"}))
        ]
    assert [reply.status_code for reply in replies] == [200, 404, 421]
    for reply in replies:
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff" and reply.headers["Referrer-Policy"] == "no-referrer"
