"""One POST, and all who send by it: what is no clear yes is none, whatever the other side answers."""

import contextlib
import logging
import socket
import struct
import threading
from pathlib import Path

import pytest

from moexray.core.errors import MoexrayError
from moexray.live import logs
from moexray.live.alerts import AlertState
from moexray.live.jobs import make_job
from moexray.live.logs import Logs, loki_sender, otlp_sender
from moexray.live.page import Page
from moexray.live.post import post
from moexray.live.remote_write import RemoteWrite, Settings
from moexray.live.runs import Argo, Grafana, RetryError

JOB = make_job("ab", "2026-01-02T03:04:05.678Z", {})
TOKEN = "a-token-of-ours"


class Raw:
    """A server that answers with the given bytes, whatever is asked; None: it resets the connection."""

    def __init__(self, reply):
        self.reply, self.seen, self.came = reply, [], threading.Condition()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(5)
                    with self.came:
                        self.seen.append(self.request(connection))
                        self.came.notify_all()
                    if self.reply is None:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    else:
                        connection.sendall(self.reply(self.url) if callable(self.reply) else self.reply)

    def wait(self, requests):
        with self.came:
            assert self.came.wait_for(lambda: len(self.seen) >= requests, 20)

    @staticmethod
    def request(connection):
        """Headers and the whole body."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(1 << 16)
        head, _, body = data.partition(b"\r\n\r\n")
        sizes = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length")]
        while sizes and len(body) < int(sizes[0]):
            body += connection.recv(1 << 16)
        return head.decode("latin-1")


@pytest.fixture
def raw():
    made = []

    def make(reply):
        made.append(Raw(reply))
        return made[-1]

    yield make
    for one in made:
        one.listening.shutdown(socket.SHUT_RDWR)
        one.listening.close()
        one.thread.join()


def to_a_login(url):
    return f"HTTP/1.1 302 Found\r\nLocation: {url}/login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


def status(code, headers="", body="why"):
    return f"HTTP/1.1 {code} X\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode("latin-1")


@pytest.mark.parametrize(
    ("reply", "fires"),
    [(status(200, body="[{}]"), True), (status(200, body="[]"), False), (status(200, body='{"status": "error"}'), False),
     (status(200, body="<html>"), False), (status(500, body="[{}]"), False), (b"\0\xff no HTTP\r\n\r\n", False), (b"", False), (None, False),
     (b"HTTP/1.1 200 X\r\nContent-Length: 900\r\n\r\n[{}", False), (status(200, body="[" * 100_000), False)],
)  # fmt: skip
def test_only_a_list_of_alerts_says_that_one_fires(raw, reply, fires):
    state = AlertState(raw(reply).url)
    state.active = True
    state.update()
    assert state.answered(20)
    assert state() is fires


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (to_a_login, (302, 0.0)), (status(308, "Location: /x\r\n"), (308, 0.0)), (None, (0, 0.0)), (b"", (0, 0.0)),
        (b"\0\xff no HTTP\r\n\r\n", (0, 0.0)), (status(503, "Retry-After: 7\r\n"), (503, 7.0)),
        (status(503, "Retry-After: \xb2\r\n"), (503, 0.0)), (status(429, f"Retry-After: {'9' * 400}\r\n"), (429, 0.0)),
        (status(429, "Retry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\n"), (429, 0.0)),
        (b"HTTP/1.1 500 X\r\nContent-Length: 900\r\n\r\nbroken off", (500, 0.0)),
        (b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", (500, 0.0)),
    ],
)  # fmt: skip
def test_every_answer_is_an_answer(raw, reply, says):
    to = raw(reply)
    answer = post(to.url, b"x", {"Content-Type": "text/plain"}, token=TOKEN, timeout_s=5)
    assert ((answer.status, answer.after_s), answer.is_taken) == (says, False)
    assert [head.split()[0] for head in to.seen] == ["POST"]  # nobody else was asked, nor shown the token


def test_what_never_ends_is_given_up(raw):
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        answer = post(f"http://127.0.0.1:{silent.getsockname()[1]}", b"x", {}, timeout_s=0.1)
    assert (answer.status, answer.may_pass_later) == (0, True)


def test_a_redirect_is_no_yes_to_anyone_who_sends(raw, tmp_path: Path, monkeypatch, caplog):
    """A proxy that wants a login answers so: nothing was taken, and the login page is not shown the token."""
    monkeypatch.setattr(logs, "FIRST_PAUSE_S", 0.001)
    to, page = raw(to_a_login), Page()
    remote = RemoteWrite(page, Settings(to.url, interval_s=3600, first_pause_s=0.01, token=TOKEN))
    remote.start()
    remote.sample()
    remote.close(wait_s=20)
    assert (remote.sent, page.value("moex_exporter_dropped_total", "samples", "refused") > 0) == (0, True)
    assert not loki_sender(to.url, "s", TOKEN)([Logs({})("x")])
    assert not otlp_sender(to.url, "s", TOKEN)([Logs({})("x")])
    with pytest.raises(MoexrayError, match="answers 302") as why:
        Argo(to.url, "ns", "t", TOKEN)(JOB, tmp_path)
    assert not isinstance(why.value, RetryError)
    with caplog.at_level(logging.WARNING):
        Grafana(to.url, TOKEN)(JOB)
    assert "no annotation" in caplog.text
    assert len(to.seen) == 5
    assert all(head.startswith("POST") for head in to.seen)


@pytest.mark.parametrize("reply", [None, b"\0no HTTP\r\n\r\n", status(503, "Retry-After: \xb2\r\n"), b""])
def test_no_answer_ends_the_sending(raw, reply):
    """Whatever a receiver answers, what comes later is sent as soon as it is well again."""
    to, page = raw(reply), Page()
    remote = RemoteWrite(page, Settings(to.url, interval_s=3600, first_pause_s=0.01, longest_pause_s=0.02))
    remote.start()
    remote.sample()
    to.wait(2)
    to.reply = status(204, body="")
    remote.close(wait_s=20)
    assert remote.sent > 0
