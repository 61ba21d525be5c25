"""A pool among hosts that ask in their own words, tracers, and short memory."""

from types import SimpleNamespace

import numpy as np
import pytest

from moexray.runtime import buffers
from moexray.runtime import guard as guards
from moexray.runtime.buffers import BufferPool


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


class Short:
    """Buffers in memory that has room for so many bytes; the pool's own idle ones count."""

    def __init__(self, monkeypatch, room):
        self.room, self.plain = room, buffers.Buffer
        monkeypatch.setattr(buffers, "Buffer", self)
        self.pool = BufferPool()

    def __call__(self, kind, size, device, alignment):
        if self.pool.figures().held_bytes + size > self.room:
            raise MemoryError(f"no room for {size}")
        return self.plain(kind, size, device, alignment)


def test_where_memory_is_short_what_lies_idle_goes_first(monkeypatch):
    pool = Short(monkeypatch, 3000).pool
    pool.empty(1024, np.uint8)  # idle at once
    busy = pool.empty(1000, np.uint8)
    del busy
    big = pool.empty(2560, np.uint8)
    assert big.shape == (2560,)
    assert pool.guard.figures().fallbacks == 0
    assert pool.figures().held_bytes == 2560


def test_memory_that_is_short_with_nothing_idle_is_the_originals_to_answer(monkeypatch):
    pool = Short(monkeypatch, 3000).pool
    busy = pool.empty(1024, np.uint8)
    with pytest.raises(MemoryError):
        pool.empty(2560, np.uint8)
    assert pool.guard.figures().fallbacks == 1
    assert pool.figures().held_bytes == len(busy)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def host(torch):
    """A module of a torch host; `asked` are the calls that came to its own function."""

    def empty(shape, dtype=None, device=None):
        module.asked.append(dtype)
        return torch.empty(shape, dtype=dtype, device=device)

    module = SimpleNamespace(empty=empty, asked=[])
    return module


@pytest.mark.parametrize("dtype", [None, float, int, bool])
def test_a_type_that_numpy_and_torch_both_know_is_the_hosts(torch, host, dtype):
    with BufferPool().replacing(host, "empty"):
        made = host.empty((2, 3), dtype=dtype)
        assert type(made) is torch.Tensor
        assert made.dtype == torch.empty(0, dtype=dtype).dtype
        assert host.asked == [dtype]
        assert type(host.empty((2, 3), dtype=torch.int8)) is torch.Tensor
        assert host.asked == [dtype]


def test_numpys_own_types_are_the_pools():
    class Host:
        @staticmethod
        def empty(shape, dtype):
            raise AssertionError(dtype)

    pool = BufferPool()
    with pool.replacing(Host, "empty"):
        for dtype in (np.float32, np.dtype("i4"), np.bool_):
            assert Host.empty(3, dtype=dtype).dtype == dtype
    assert pool.figures().made + pool.figures().reused == 3


def test_what_gets_no_buffer_is_answered_by_the_hosts_own_function(torch, host):
    pool = BufferPool(limit_bytes=1024)
    with pool.replacing(host, "empty"):
        host.empty(4096, dtype=torch.uint8)
        host.empty(16, dtype=torch.uint8, device="meta")
    assert host.asked == [torch.uint8, torch.uint8]
    assert pool.figures().plain == 2


def test_a_tracer_leaves_nothing_in_the_pool(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    class Host:
        empty = staticmethod(torch.empty)

    pool = BufferPool()

    def double(x):
        made = Host.empty(x.shape, dtype=x.dtype)
        made.copy_(x)
        return made * 2

    with pool.replacing(Host, "empty"):
        with FakeTensorMode():
            assert double(torch.ones(3)).shape == (3,)
        traced = make_fx(double)(torch.ones(3))
        assert pool.figures().made == 0
        for value in (1.0, 4.0):
            assert torch.equal(traced(torch.full((3,), value)), torch.full((3,), 2 * value))
    assert pool.guard.figures().fallbacks == 0
