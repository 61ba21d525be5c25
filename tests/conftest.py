"""For all tests: no network beyond loopback, and property tests that repeat themselves."""

import ipaddress
import socket

import pytest
from hypothesis import settings

# Fixed seeds; no deadline, because a busy machine is not a failed law.
settings.register_profile("moexray", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("moexray")


class NetworkBlockedError(RuntimeError):
    """A test tried to leave this machine."""


def _is_local(host):
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def _no_network():
    """Sockets reach loopback and Unix addresses only."""
    patch = pytest.MonkeyPatch()

    def guard(name):
        plain = getattr(socket.socket, name)

        def guarded(self, *args):
            address = args[-1]
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
                raise NetworkBlockedError(f"{name} to {address[0]!r}: tests stay on loopback")
            return plain(self, *args)

        patch.setattr(socket.socket, name, guarded)

    for name in ("connect", "connect_ex", "sendto"):
        guard(name)

    lookup = socket.getaddrinfo

    def local_lookup(host, *args, **kwargs):
        if not _is_local(host):
            raise NetworkBlockedError(f"look-up of {host!r}: tests stay on loopback")
        return lookup(host, *args, **kwargs)

    patch.setattr(socket, "getaddrinfo", local_lookup)
    yield
    patch.undo()
