"""The network block of conftest.py does block, and lets loopback through."""

import socket

import pytest


@pytest.mark.parametrize("address", ["192.0.2.1", "8.8.8.8", "example.org"])
def test_other_hosts_are_refused(address):
    with socket.socket() as s, pytest.raises(RuntimeError, match="tests stay on loopback"):
        s.connect((address, 80))


def test_look_ups_are_refused():
    with pytest.raises(RuntimeError, match="tests stay on loopback"):
        socket.getaddrinfo("example.org", 80)


def test_loopback_works():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()
