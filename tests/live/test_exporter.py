"""The server of the page: formats, tokens, bounds."""

import contextlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from moexray.core.errors import UsageError
from moexray.live import serve
from moexray.live.exporter import Exporter
from moexray.live.page import OPENMETRICS, TEXT, Page
from moexray.live.serve import Reply, Server, parse_address


class Counting:
    every_s = 0.01

    def __init__(self, page, fail=0):
        self.page, self.fail, self.calls = page, fail, 0

    def update(self):
        self.calls += 1
        if self.calls <= self.fail:
            raise RuntimeError("not yet")
        self.page.scope().add("moex_spike_total", 1, "unknown")


@pytest.fixture
def served():
    made = []

    def make(sources=(), token="", page=None):
        made.append(Exporter(page or Page(), list(sources), listen="127.0.0.1:0", token=token))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def get(exporter, path="/metrics", method="GET", body=None, **headers):
    request = urllib.request.Request(exporter.server.url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as why:
        with why:
            return why.code, why.headers["Content-Type"], why.read().decode()


def test_the_scraper_gets_the_format_that_it_asks_for(served):
    exporter = served()
    status, kind, text = get(exporter)
    assert (status, kind) == (200, TEXT)
    assert "# EOF" not in text
    status, kind, text = get(exporter, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert (status, kind) == (200, OPENMETRICS)
    assert text.endswith("# EOF\n")


def test_other_paths_and_methods(served):
    exporter = served()
    assert get(exporter, "/")[0] == 200
    assert get(exporter, "/metrics?x=1")[0] == 200
    assert get(exporter, "/etc/passwd")[0] == 404
    assert get(exporter, method="POST", body=b"x")[0] == 404


def test_a_token_is_asked_for(served):
    exporter = served(token="right")
    assert get(exporter)[0] == 401
    assert get(exporter, Authorization="Bearer wrong")[0] == 401
    assert get(exporter, Authorization="Bearer right")[0] == 200


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "host.example:0"])
def test_beyond_loopback_a_token_is_a_must(listen):
    with pytest.raises(UsageError, match="no token"):
        Server(listen, lambda request: Reply(200))


@pytest.mark.parametrize(
    ("listen", "address"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:1", ("::1", 1)), (":80", ("127.0.0.1", 80))],
)
def test_addresses(listen, address):
    assert parse_address(listen) == address


@pytest.mark.parametrize("listen", ["9464", "host", "host:http", "host:99999", ""])
def test_what_is_no_address_is_told(listen):
    with pytest.raises(UsageError, match="no address"):
        parse_address(listen)


def test_a_port_in_use_is_told(served):
    taken = served().server.url.removeprefix("http://")
    with pytest.raises(UsageError, match="cannot listen"):
        Server(taken, lambda request: Reply(200))


def test_web_pages_are_refused(served):
    assert get(served(), Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    ("host", "token", "status"),
    [("evil.example:9464", "", 403), ("127.0.0.1.evil.example", "", 403), ("", "", 403), ("[", "", 403), ("0.0.0.0:1", "", 403),
     ("localhost:9464", "", 200), ("127.0.0.1", "", 200), ("[::1]:9464", "", 200), ("metrics.example", "secret", 200)],
)  # fmt: skip
def test_without_a_token_no_other_name_than_loopbacks_is_answered(served, host, token, status):
    """A page of a name that was made to lead here is of the same origin, and a browser sends no Origin."""
    told = {"Authorization": f"Bearer {token}"} if token else {}
    assert get(served(token=token), Host=host, **told)[0] == status


def test_bodies_are_bounded(served):
    exporter = served()
    host = exporter.server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.putrequest("POST", "/metrics")
    connection.putheader("Content-Length", str(serve.MAX_BODY + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_idle_connections_do_not_take_all_places(served, monkeypatch):
    exporter = served()
    host, port = exporter.server.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(serve.CONNECTIONS)]
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        get(exporter)
    for one in idle:
        one.close()
    for _ in range(200):  # the places come free as the server sees the ends
        try:
            assert get(exporter)[0] == 200
            break
        except (urllib.error.URLError, ConnectionError):
            continue
    else:
        pytest.fail("no place came free")


@pytest.mark.parametrize("size", ["\xb2", "9" * 5000, "-1", "1e3", "0x5", ""])
def test_a_length_that_is_none_is_told(served, size):
    host, port = served().server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as one:
        one.sendall(f"POST /metrics HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode("latin-1"))
        assert one.recv(1000).split()[1] in (b"411", b"413")


@pytest.mark.parametrize("how", ["headers", "body", "reader"])
def test_who_sends_or_reads_byte_by_byte_holds_no_place(monkeypatch, how):
    """Each byte comes in time; only the request as a whole does not."""
    monkeypatch.setattr(serve, "TIMEOUT_S", 1.0)
    server = serve.Server("127.0.0.1:0", lambda _: Reply(200, bytes(1 << 24)))
    server.start()
    place = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    head = {"headers": b"GET / HTTP/1.1\r\n", "body": b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n",
            "reader": b"GET / HTTP/1.1\r\n\r\n"}[how]  # fmt: skip
    slow = [socket.create_connection(place, timeout=10) for _ in range(serve.CONNECTIONS)]
    for one in slow:
        one.sendall(head)
    over = threading.Event()

    def drip():
        while not over.wait(0.1):
            for one in slow:
                with contextlib.suppress(OSError):
                    one.recv(1) if how == "reader" else one.sendall(b"a")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(server.url, timeout=10) as answer:
                    assert len(answer.read()) == 1 << 24
                    break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline
    finally:
        over.set()
        thread.join()
        for one in slow:
            one.close()
        server.close()


def test_a_source_that_fails_again_and_again_is_told_once(caplog):
    """Several times a second: the log must stay one that can be read."""
    page = Page()
    exporter = Exporter(page, [Counting(page, fail=50)], listen=None)
    for _ in range(50):
        exporter._due = [0.0]
        exporter.update()
    assert page.value("moex_exporter_dropped_total", "updates", "failed") == 50
    assert len(caplog.records) == 1


def test_a_source_that_fails_is_counted_and_asked_again():
    page = Page()
    source = Counting(page, fail=1)
    exporter = Exporter(page, [source], listen=None)
    exporter.update()
    assert page.value("moex_exporter_dropped_total", "updates", "failed") == 1
    exporter._due = [0.0]
    exporter.update()
    exporter.update()  # not due yet
    assert (source.calls, page.value("moex_spike_total", "", "", "", "unknown")) == (2, 1)
