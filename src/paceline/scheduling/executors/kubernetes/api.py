"""Requests to a Kubernetes API server by the official Python client, as plain dicts. Needs ``kubernetes``.

Errors become ``Unavailable`` if the same request may succeed later, else ``UserError``. Only the message of a ``Status`` object
is shown. Headers, bodies and credentials never are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from paceline.errors import UserError, shorten, unknown
from paceline.scheduling.executors.executor import Unavailable

Object = dict[str, Any]
ANSWER_S = (5.0, 30.0)
"""Seconds to connect and to wait for an answer."""
PAGE = 500
"""Objects per answer of a list."""
MOST_TRIES = 5
"""Tries of a change that other clients make at the same time."""
MERGE = "application/merge-patch+json"
RIGHTS = "see the rights that the executor needs in docs/live.md"


class Conflict(Exception):
    """Error of a change to an object that another client has changed since it was read."""


class Exists(Exception):
    """Error of a creation: an object of this name exists."""


class Gone(Exception):
    """Error of a list or watch: the server has forgotten this version (410), so list again."""


class Invalid(UserError):
    """Error of a change that the server refuses, for example of an immutable field (422)."""


class QuotaExceeded(UserError):
    """Error of a creation that exceeds a ResourceQuota of the namespace."""


class Api:
    """API server of a context of the kubeconfig, or of the cluster that this process runs in.

    Args:
        context: context of the kubeconfig; empty: the current one.
        namespace: namespace of all requests; empty: the one of the context.

    Raises:
        UserError: the client is not installed, or there is no such context.
    """

    def __init__(self, context: str = "", namespace: str = "") -> None:
        try:
            self._client: Any = import_module("kubernetes.client")
            self._config: Any = import_module("kubernetes.config")
            self._watch: Any = import_module("kubernetes.watch")
            self._http: Any = import_module("urllib3.exceptions")
        except ModuleNotFoundError:
            raise UserError(
                "the kubernetes executor needs Kubernetes' client", "install it: pip install 'paceline[kubernetes]'"
            ) from None
        self._context = context
        self.namespace = namespace or "default"
        self._connection: Any = None
        self._log_in(namespace)

    def _log_in(self, namespace: str = "") -> None:
        """Read the credentials again: the kubeconfig with its login command, or the token of the pod."""
        settings = self._client.Configuration()
        error_type = self._config.ConfigException
        try:
            self._config.load_kube_config(context=self._context or None, client_configuration=settings)
            contexts, active = self._config.list_kube_config_contexts()
            chosen = next((each for each in contexts if each["name"] == self._context), active) or {}
            self.namespace = namespace or chosen.get("context", {}).get("namespace") or self.namespace
        except (error_type, OSError, KeyError, TypeError) as error:
            self._check_context()
            try:
                self._config.load_incluster_config(client_configuration=settings)
            except error_type:
                raise UserError(
                    f"no Kubernetes cluster: the kubeconfig cannot be used ({type(error).__name__})",
                    "try kubectl get nodes, set KUBECONFIG, or give `context`",
                ) from None
        settings.retries = False
        if self._connection is not None:
            with suppress(Exception):
                self._connection.close()
        self._connection = self._client.ApiClient(configuration=settings)

    def _check_context(self) -> None:
        """Raise UserError if the kubeconfig can be read and has no such context."""
        with suppress(self._config.ConfigException, OSError, TypeError):
            names = [each["name"] for each in self._config.list_kube_config_contexts()[0]]
            if self._context and self._context not in names:
                raise unknown("context", self._context, names)

    def call(self, doing: str, group: str, method: str, *args: Any, **options: Any) -> Object | None:
        """Return the answer to a request; None if there is no such object.

        Args:
            doing: words for errors, such as ``create job digits``.
            group: API class of the client, such as ``BatchV1Api``. ``method``: its method.

        Raises:
            Conflict, Exists, Gone, Invalid, QuotaExceeded: by the kind of refusal.
            UserError: any other refusal. Unavailable: no answer, or an answer that asks to try again.
        """
        body = self._answer(doing, group, method, *args, **options)
        return None if body is None else _parsed(body)

    def text(self, doing: str, group: str, method: str, *args: Any, **options: Any) -> str:
        """Return the text of an answer, such as a log; empty if there is none yet. Raises as ``call``."""
        try:
            body = self._answer(doing, group, method, *args, **options)
        except UserError:  # the container has not started
            return ""
        return (body or b"").decode("utf-8", "replace") if isinstance(body, bytes | None) else str(body)

    def _answer(self, doing: str, group: str, method: str, *args: Any, **options: Any) -> Any:
        status, body = self._ask(doing, group, method, *args, **options)
        if status == 401:  # an expired token
            self._log_in()
            status, body = self._ask(doing, group, method, *args, **options)
        if 200 <= status < 300:
            return body
        if status == 404:
            return None
        raise _error(doing, status, _parsed(body))

    def _ask(self, doing: str, group: str, method: str, *args: Any, **options: Any) -> tuple[int, Any]:
        request = getattr(getattr(self._client, group)(self._connection), method)
        try:
            answer = request(*args, _preload_content=False, _request_timeout=ANSWER_S, **options)
            return answer.status, answer.data
        except self._client.ApiException as error:
            if not error.status:
                raise Unavailable(f"{doing}: no secure connection to the API server") from None
            return error.status, error.body
        except (self._http.HTTPError, OSError) as error:
            raise Unavailable(f"{doing}: the API server does not answer ({type(error).__name__})") from None

    def list(self, doing: str, group: str, method: str, *args: Any, **options: Any) -> tuple[list[Object], str] | None:
        """Return all objects of a list and the version of the list; None if the server has no such kind.

        Long lists come in pages. If the first version expires meanwhile, the list begins again.
        """
        for _ in range(MOST_TRIES):
            items: list[Object] = []
            more: dict[str, Any] = {}
            with suppress(Gone):
                while True:
                    page = self.call(doing, group, method, *args, limit=PAGE, **more, **options)
                    if page is None:
                        return None
                    items += page.get("items") or []
                    head = page.get("metadata") or {}
                    if not head.get("continue"):
                        return items, str(head.get("resourceVersion", ""))
                    more = {"_continue": head["continue"]}
        raise Unavailable(f"{doing}: the list expires before it ends")

    def change(self, doing: str, read: Callable[[], Object | None], write: Callable[[Object], Object | None]) -> Object | None:
        """Read an object and change it, again after each conflict. Return the changed object; None if it is missing.

        Args:
            write: function that sends the change of the object it is given, with its version.
        """
        for number in range(MOST_TRIES):
            found = read()
            if found is None:
                return None
            try:
                return write(found)
            except Conflict:
                time.sleep(0.02 * 2**number)
        raise Unavailable(f"{doing}: others change it all the time")

    def changes(self, version: str, seconds: float, group: str, method: str, *args: Any, **options: Any) -> str | None:
        """Wait for a change after a version of a list. Return its version; empty: list again; None: no change in this time."""
        request = getattr(getattr(self._client, group)(self._connection), method)
        options |= {"resource_version": version, "timeout_seconds": max(int(seconds), 1), "allow_watch_bookmarks": True}
        options["_request_timeout"] = (ANSWER_S[0], seconds + 5)
        began_s = time.monotonic()
        watch = self._watch.Watch(return_type="object")
        try:
            for event in watch.stream(request, *args, **options):
                found = (event or {}).get("raw_object") or {}
                if event and event.get("type") != "BOOKMARK":
                    return str((found.get("metadata") or {}).get("resourceVersion", ""))
        except self._client.ApiException as error:
            if error.status == 410:
                return ""
        except (self._http.HTTPError, OSError, ValueError):
            pass  # the next poll says so
        else:
            return None
        time.sleep(max(min(seconds - (time.monotonic() - began_s), seconds), 0.0))
        return None


def _parsed(body: Any) -> Object:
    """Return the dict of an answer; empty if it is none."""
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _error(doing: str, status: int, answer: Mapping[str, Any]) -> Exception:
    """Return the exception of a refusal. Reasons are those of ``Status`` (Kubernetes API conventions)."""
    reason, message = str(answer.get("reason", "")), shorten(" ".join(str(answer.get("message", "")).split()), 400)
    said = message or reason or f"code {status}"
    refusal = f"Kubernetes refuses to {doing}: {said}"
    if status == 409:
        return Exists(said) if reason == "AlreadyExists" else Conflict(said)
    if status == 410:
        return Gone(said)
    if status == 401:
        return Unavailable(f"{doing}: the API server refuses the credentials, so log in again")
    if "denied the request" in message or "denied request" in message:  # a webhook or a ValidatingAdmissionPolicy
        return UserError(refusal, "a rule of the cluster forbids it: change what it names, or ask the owner of the cluster")
    if status in (408, 429) or status >= 500:
        return Unavailable(f"{doing}: {said}")
    if "exceeded quota" in message:
        return QuotaExceeded(refusal, "ask for fewer devices, or have the ResourceQuota of the namespace raised")
    if status == 403:
        return UserError(refusal, RIGHTS)
    if status == 422:
        return Invalid(refusal, "change the field that it names")
    return UserError(refusal, "change what it names")
