"""Server of the page on an address of this machine, until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.serve.hosts import LOOPBACK, is_loopback

if TYPE_CHECKING:
    from paceline.scheduling.starts.start_answer import StartAnswer

PORT = 7223
"""Default port: ``PACE`` on the keys of a telephone."""
ANY = ("0.0.0.0", "::")
AskedQueue = tuple[Callable[[], "StartAnswer"], str]


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address. Port 0 is any free one. Raises UserError if the address is not available."""
    if not 0 <= port <= 65535:
        raise UserError(f"port {port}", "give a number from 0 to 65535; 0 takes a free one")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise UserError(
            f"no address is known of host {host!r}", "leave `host` out, or give an address of this machine"
        ) from None
    bound_to = socket.socket(family, kind)
    try:
        bound_to.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_to.bind(address)
        bound_to.listen(64)
    except OSError as error:
        bound_to.close()
        if isinstance(error, PermissionError):
            raise UserError(f"port {port} needs more rights", "choose one above 1023, or `port` 0 for a free one") from None
        instead = "choose another `port`; 0 takes a free one"
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror or error}", instead) from None
    return bound_to


def address(host: str, port: int, token: str = "") -> str:
    """Return the address of the page for a browser."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/{f'{token}/' if token else ''}"


def run(
    host: str, port: int, say: Callable[[str], None], schedule: Path | None = None, queue: AskedQueue | None = None
) -> None:
    """Serve the page until a signal ends it.

    Args:
        say: receives the address when the page is available.
        schedule: journal of a live schedule, which is shown at ``schedule`` below the address.
        queue: forecast of a live queue and its name, which is shown at ``queue``, and at ``metrics`` for Prometheus.

    On addresses that other machines reach, every request needs the token in its path. Raises UserError.
    """
    try:
        import uvicorn

        from paceline.serve.app import application
        from paceline.serve.live_queue import LiveQueue
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette"):
            raise
        raise UserError("the page needs starlette and uvicorn", "install them: pip install 'paceline[serve]'") from None
    local = is_loopback(host)
    token = "" if local else token_urlsafe(16)
    shown = socket.gethostname() if host in ANY else host
    names = LOOPBACK | ({host} if local else {host.casefold(), shown.casefold(), *_own_addresses()})
    with closing(bound(host, port)) as listening:
        config = uvicorn.Config(
            application(names, token, schedule, LiveQueue(*queue) if queue else None),
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        say(address(shown, listening.getsockname()[1], token))
        with suppress(KeyboardInterrupt):  # uvicorn shuts down in order, then raises the interrupt again
            uvicorn.Server(config).run(sockets=[listening])


def _own_addresses() -> set[str]:
    """Return the addresses of this machine's own host name."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return set()
