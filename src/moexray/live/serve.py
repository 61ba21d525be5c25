"""A small HTTP server for one handler: loopback without a token, any other address only with one.

Bounded: connections at a time, size of a body, time of a whole request. No web page can speak to a server on
loopback: what a browser sends from another page (header Origin) is refused, and so is, without a token, a
request for any other name than loopback's (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message

__all__ = ["Reply", "Request", "Server", "check_address", "is_loopback", "is_loopback_name", "parse_address"]

CONNECTIONS = 16  # at a time; a scraper keeps one open
MAX_BODY = 1 << 20  # bytes; an alert has a few kilobytes
# Of a request, from the last answer (or the connection) to the next: a scraper that keeps its connection
# comes back sooner or reconnects, and one that sends or reads byte by byte must not hold a place.
TIMEOUT_S = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked."""

    method: str
    path: str
    headers: Message
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered."""

    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_address(listen: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9464`, `[::1]:9464` or `:9464` (loopback).

    Raises:
        UsageError: it is none of these.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{listen} is no address to listen on", hint="HOST:PORT, e.g. 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_address(listen: str, token: str) -> tuple[str, int]:
    """Host and port, refused where other machines could ask without a token.

    Raises:
        UsageError: no address, or one beyond loopback without a token.
    """
    host, port = parse_address(listen)
    if not token and not is_loopback(host):
        raise UsageError(f"{listen} can be reached from other machines and there is no token",
                         hint="listen on 127.0.0.1, or give --token-file")  # fmt: skip
    return host, port


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_name(host: str) -> bool:
    """Whether a header Host, with or without a port, names this machine."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


class Server:
    """Answers requests in threads until `close`.

    Args:
        listen: HOST:PORT; port 0 takes a free one, `url` tells which.
        handle: Called for each request, by several threads.
        token: What `Authorization: Bearer` must carry; empty for none.

    Raises:
        UsageError: the address is not loopback and there is no token, or it cannot be bound.
    """

    def __init__(self, listen: str, handle: Callable[[Request], Reply], token: str = "") -> None:
        host, port = check_address(listen, token)
        kind = type("Handler", (_Handler,), {"handle_request": staticmethod(handle), "token": token})
        try:
            self._http = (_Six if ":" in host else _Bounded)((host, port), kind)
        except OSError as why:
            raise UsageError(f"cannot listen on {listen} ({why.strerror or why})",
                             hint="another program may have it: take another port") from why  # fmt: skip
        bound = self._http.server_address[1]
        self.url = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stops answering; open connections end with their request."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Bounded(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self.since: dict[Any, float] = {}  # connection -> when its request began
        super().__init__(*args)

    def service_actions(self) -> None:
        """Several times a second: ends the connections whose request takes too long."""
        late = time.monotonic() - TIMEOUT_S
        for connection in [c for c, began in self.since.copy().items() if began < late]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self.since[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.since.pop(request, None)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        _log.debug("a connection broke", exc_info=True)


class _Six(_Bounded):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    server_version = "moexray"
    sys_version = ""
    token = ""
    handle_request: Callable[[Request], Reply]
    wbufsize = -1  # headers and body leave in one write

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        is_number = size.isascii() and size.isdigit()
        if not is_number or len(size) > len(str(MAX_BODY)) or int(size) > MAX_BODY:
            self.close_connection = True
            self._send(Reply(413 if is_number else 411, b"a body of at most 1 MiB, with its length\n"))
            return
        self._answer(self.rfile.read(int(size)))

    def _answer(self, body: bytes) -> None:
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if self.token and not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            self._send(Reply(401, b"a bearer token is needed\n", headers={"WWW-Authenticate": "Bearer"}))
            return
        if "Origin" in self.headers:
            self._send(Reply(403, b"not for web pages\n"))
            return
        if not self.token and not is_loopback_name(self.headers.get("Host", "localhost")):
            self._send(Reply(403, b"only for this machine: without a token, ask for 127.0.0.1\n"))
            return
        try:
            path = self.path.partition("?")[0]
            reply = self.handle_request(Request(self.command, path, self.headers, body))
        except Exception:  # noqa: BLE001  # the server outlives any request
            _log.exception("a request failed")
            reply = Reply(500, b"internal error; see the log\n")
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Type": reply.kind, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)
        if isinstance(self.server, _Bounded):
            self.server.since[self.connection] = time.monotonic()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
