"""The API over HTTP: paths, answers, watches, tokens and rights ("Kubernetes API Concepts", "Authenticating", RBAC)."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes_fake.store import KINDS, OF_CLUSTER, Object, Refusal, Store

TOKEN = "token-of-a-test"
_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>status|log))?"
)
ADMIN = "admin"


class FakeServer:
    """A server of a store on a free port of this machine.

    ``tokens`` has the user of each token, ``forbidden`` tests a user, verb and kind. ``stop`` and ``start`` again on the same
    port are a server that dies and comes back.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self.tokens = {TOKEN: ADMIN}
        self.forbidden: Callable[[str, str, str], bool] = lambda user, verb, kind: False
        self.groups = {"batch": ["v1"], "kueue.x-k8s.io": ["v1beta1"]}
        self.logs: Callable[[str], str] = lambda pod: ""
        self.fails: list[Refusal] = []
        self.asked: list[tuple[str, str]] = []
        self.port = 0
        self._http: ThreadingHTTPServer | None = None
        self._sockets: set[Any] = set()

    def start(self) -> FakeServer:
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = _Threads(("127.0.0.1", self.port), handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Die: open connections break."""
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()
        self._http = None
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self.store.changed:
            self.store.changed.notify_all()

    @property
    def is_up(self) -> bool:
        return self._http is not None

    def kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        cluster = {"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "default"}}
        user = {"name": "me", "user": {"token": token}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "fake", "clusters": [cluster]}
        path.write_text(json.dumps({**config, "contexts": [context], "users": [user]}))
        return path


class _Threads(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *words: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.fake._sockets.add(self.connection)

    def finish(self) -> None:
        self.fake._sockets.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        self._answer("get")

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _answer(self, _: str) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if length else {}
        try:
            self.fake.asked.append((self.command, url.path))
            found = self._do(url.path, query, body)
            if isinstance(found, str):
                self._send(200, found.encode(), "text/plain")
            elif found is not None:
                self._send(201 if self.command == "POST" else 200, json.dumps(found).encode())
        except Refusal as refusal:
            self._send(refusal.code, json.dumps(refusal.status).encode())
        except (BrokenPipeError, ConnectionError, ValueError, OSError):
            self.close_connection = True

    def _send(self, code: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _do(self, path: str, query: dict[str, str], body: Any) -> Object | str | None:
        store = self.fake.store
        user = self.fake.tokens.get((self.headers.get("Authorization") or "").removeprefix("Bearer "), "")
        if not user:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if self.fake.fails:
            raise self.fake.fails.pop(0)
        if path.rstrip("/") == "/apis":
            versions = {
                name: [{"groupVersion": f"{name}/{v}", "version": v} for v in vs] for name, vs in self.fake.groups.items()
            }
            groups = [{"name": n, "versions": vs, "preferredVersion": vs[0]} for n, vs in versions.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        at = _PATH.fullmatch(path)
        kind = at["kind"] if at else ""
        if at is None or kind not in KINDS or KINDS[kind][0] != (at["core"] or f"{at['group']}/{at['version']}"):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if at["group"] and at["version"] not in self.fake.groups.get(at["group"], []):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        namespace, name = at["namespace"] or "", at["name"] or ""
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(self.command, "get" if name else "list")
        if self.fake.forbidden(user, verb, kind):
            group, where = KINDS[kind][2], f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            what = f'User "{user}" cannot {verb} resource "{kind}" in API group "{group}" {where}'
            raise Refusal(403, "Forbidden", f"{kind}{'.' + group if group else ''} is forbidden: {what}")
        assert bool(namespace) != (kind in OF_CLUSTER) or verb == "list", path
        if self.command == "POST":
            return store.create(kind, namespace, body)
        if self.command == "PATCH":
            if self.headers["Content-Type"] != "application/merge-patch+json":
                raise Refusal(415, "UnsupportedMediaType", "only merge patches are played")
            return store.patch(kind, namespace, name, body, at["part"] or "")
        if self.command == "DELETE":
            grace = query.get("gracePeriodSeconds")
            store.delete(kind, namespace, name, None if grace is None else int(grace))
            return {"kind": "Status", "status": "Success"}
        if at["part"] == "log":
            store.read(kind, namespace, name)
            return self.fake.logs(name)
        if name:
            return store.read(kind, namespace, name)
        wanted = _selection(query)
        if query.get("watch") in ("true", "True", "1"):
            return self._watch(kind, namespace, query, wanted)
        return self._list(kind, namespace, query, wanted)

    def _list(self, kind: str, namespace: str, query: dict[str, str], wanted: Callable[[Object], bool]) -> Object:
        store = self.fake.store
        with store.changed:
            found = sorted(store.list(kind, namespace, wanted), key=lambda o: o["metadata"]["name"])
            first, version = 0, store.version
            if query.get("continue"):
                first, version = map(int, query["continue"].split(":"))
                if version < store.oldest:
                    said = "The provided continue parameter is too old to display a consistent list result."
                    raise Refusal(410, "Expired", said)
            limit = int(query.get("limit") or 0)
            head: Object = {"resourceVersion": str(version)}
            if limit and first + limit < len(found):
                head["continue"] = f"{first + limit}:{version}"
            items = found[first : first + limit] if limit else found
            return {"kind": f"{KINDS[kind][1]}List", "apiVersion": KINDS[kind][0], "metadata": head, "items": items}

    def _watch(self, kind: str, namespace: str, query: dict[str, str], wanted: Callable[[Object], bool]) -> None:
        store, until = self.fake.store, time.monotonic() + int(query.get("timeoutSeconds") or 30)
        seen = int(query.get("resourceVersion") or 0)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        while self.fake.is_up and (left := until - time.monotonic()) > 0:
            with store.changed:
                if seen < store.oldest:
                    said = Refusal(410, "Expired", f"too old resource version: {seen} ({store.oldest})")
                    self._chunk({"type": "ERROR", "object": said.status})
                    break
                events = [each for each in store.history if each[0] > seen]
                if not events:
                    store.changed.wait(left)
                    continue
            for version, event, (of, where, _), found in events:
                seen = version
                if of == kind and namespace in ("", where) and wanted(found):
                    self._chunk({"type": event, "object": found})
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _chunk(self, event: Object) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _selection(query: dict[str, str]) -> Callable[[Object], bool]:
    """Test of the label and field selectors of a query."""
    tests = []
    for text, of in ((query.get("labelSelector"), "labels"), (query.get("fieldSelector"), "fields")):
        for term in text.split(",") if text else []:
            name, differs, value = re.fullmatch(r"([^!=]+)(!?)==?(.*)", term).groups()  # type: ignore[union-attr]
            tests.append((of, name, bool(differs), value))

    def wanted(found: Object) -> bool:
        for of, name, differs, value in tests:
            place: Any = (found["metadata"].get("labels") or {}).get(name, "") if of == "labels" else found
            for part in name.split(".") if of == "fields" else ():
                place = place.get(part, "") if isinstance(place, dict) else ""
            if (str(place) == value) == differs:
                return False
        return True

    return wanted
