"""Asking for alerts of stand-ins that do not answer as Alertmanager does; the real one: test_servers.py."""

import socket
import threading
import time

import pytest

from moexray.live.alerts import AlertState
from moexray.live.serve import Reply, Server


@pytest.fixture
def stand_in():
    bodies = [b'[{"labels": {}}]']
    server = Server("127.0.0.1:0", lambda _: Reply(200, bodies[0]))
    server.start()
    yield server.url, bodies
    server.close()


@pytest.mark.parametrize("body", [b"", b"no json", b"[" * 100_000, b"\xff", b"[]"])
def test_what_is_no_list_of_alerts_counts_as_quiet(stand_in, body):
    url, bodies = stand_in
    state = AlertState(url)
    state.update()
    assert state.answered(20)
    assert state()
    bodies[0] = body
    state.update()
    assert state.answered(20)
    assert not state()


@pytest.mark.parametrize("words", [b"\0no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n[{", b""])
def test_an_answer_that_breaks_off_counts_as_quiet(words):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        state = AlertState(f"http://127.0.0.1:{listening.getsockname()[1]}")
        state.active = True

        def once():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(words)

        thread = threading.Thread(target=once)
        thread.start()
        state.update()
        assert state.answered(20)
        thread.join()
        assert not state()


def test_an_answer_that_never_ends_holds_up_nobody():
    """The rings are read by the same thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        state = AlertState(f"http://127.0.0.1:{listening.getsockname()[1]}")
        state.active = True
        before = time.monotonic()
        state.update()
        state.update()
        assert time.monotonic() - before < 1.0  # one step of the connection may take 2 s
        assert not state()
        assert state.answered(20)
