"""What may still be taken is asked before it is touched: too much would kill, not fail."""

import pytest

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime import host_memory
from moexray.runtime.arena import Arena, Memory
from moexray.runtime.zero_copy import Parcel

GIB = 1 << 30


def test_control_groups_bound_what_is_available(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4096 kB\n",
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/memory.max": "3000000",
        "/sys/fs/cgroup/a/memory.current": "2900000",
        "/sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 1000\n",
        "/sys/fs/cgroup/a/b/memory.max": "max",
    }
    monkeypatch.setattr(host_memory, "_read", lambda path: files.get(str(path), ""))
    assert host_memory.available_bytes() == 101_000
    del files["/proc/self/cgroup"]
    assert host_memory.available_bytes() == 4096 * 1024
    files.clear()
    assert host_memory.available_bytes() > 1 << 60


@pytest.fixture
def _two_gib(monkeypatch):
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2 * GIB)


@pytest.mark.usefixtures("_two_gib")
def test_more_than_there_is_is_refused_before_a_page_is_touched():
    with pytest.raises(ExchangeError, match="a parcel of 3221225472 bytes: memory is short: 2147483648 bytes"):
        Parcel.make(3 * GIB)
    with pytest.raises(UsageError, match="an arena of 2147483648 bytes: memory is short"):
        Arena(2 * GIB)  # nothing would be spared
    with pytest.raises(UsageError, match="memory is short"):
        Memory.take(3 * GIB)


@pytest.mark.usefixtures("_two_gib")
def test_plain_memory_of_an_arena_is_asked_for_too():
    arena = Arena(1 << 20)
    with pytest.raises(UsageError, match="memory is short"):
        arena.allocate(3 * GIB)
    assert arena.figures().plain == 0
    assert Arena(1 << 20, spill=False).allocate(3 * GIB) is None


@pytest.mark.usefixtures("_two_gib")
def test_plain_memory_of_an_arena_of_tensors_is_asked_for_too():
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="memory is short"):
        Arena(Memory.take(1 << 20, device="cpu")).allocate(3 * GIB)


def test_little_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 0)
    assert host_memory.shortage(1 << 20) == ""
    assert "0 bytes available" in host_memory.shortage(GIB)
