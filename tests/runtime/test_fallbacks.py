"""Every remedy that raises inside a thread of the host: the original path answers, counted, told once.

Each case gives a call, made three times with the remedy broken: what it must answer, and the guard.
"""

import contextlib
import gc
import logging
import threading
import types

import numpy as np
import pytest

from moexray.core.errors import ExchangeError
from moexray.runtime import guard as guards
from moexray.runtime.arena import Arena, ExpertSlots
from moexray.runtime.buffers import BufferPool
from moexray.runtime.gc_window import GcWindow
from moexray.runtime.rescheduler import Movable, Options, Rescheduler
from moexray.runtime.zero_copy import Parcel, Port


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


def broken(*args, **kwargs):
    raise RuntimeError("a fault of ours")


@contextlib.contextmanager
def router(patch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from moexray.runtime import policies
    from moexray.runtime.router import attach
    from tiny_models import tiny, tokens

    model, batch = tiny("mixtral"), tokens()
    forward = torch.inference_mode()(lambda: model(batch).logits)
    expected = forward()
    patch.setattr(policies.Salted, "choose", broken)
    with attach(model, "salted:salt=1e5") as handle:
        layers = len(handle.effects())
        handle.guard.patience = 3 * layers + 1
        yield lambda: torch.equal(forward(), expected), handle.guard, 3 * layers


@contextlib.contextmanager
def buffers(patch):
    host = types.SimpleNamespace(empty=lambda shape, *, dtype: ("the host's own", shape))
    pool = BufferPool()
    patch.setattr(pool, "_find", broken)
    with pool.replacing(host, "empty"):
        yield lambda: host.empty(3, dtype=np.uint8) == ("the host's own", 3), pool.guard, 3


@contextlib.contextmanager
def pooled(patch):
    pool = BufferPool()
    patch.setattr(pool, "_make", broken)
    yield lambda: pool.empty((2, 3), np.float32).shape == (2, 3), pool.guard, 3


@contextlib.contextmanager
def arena(patch):
    taken = Arena(1 << 16)
    patch.setattr(type(taken._policy), "allocate", broken)  # of the class: a fault makes a new policy

    def call():
        block = taken.allocate(100)
        with block as view:
            view[:] = 7
            return block.offset is None and view.tolist() == [7] * 100

    yield call, taken.guard, 3


@contextlib.contextmanager
def experts(patch):
    slots = ExpertSlots(Arena(1 << 16), slots=2, slot_bytes=100)
    patch.setattr(slots, "_slot", broken)

    def call():
        with slots.lease("expert", lambda view: view.fill(5)) as view:
            return view.tolist() == [5] * 100

    yield call, slots.guard, 3


@contextlib.contextmanager
def rescheduler(patch):
    control = Rescheduler(1000, broken, Options(cold_s=0, samples=1))
    control.look(0.0, 0, pending=False, blocks=())  # what may be moved a second begins to add up
    times = iter(range(1, 99))

    def call():
        now = next(times)
        return control.look(now, 990, pending=True, blocks=[Movable(now, 500, 0.0)]) == 0

    yield call, control.guard, 3


@contextlib.contextmanager
def window(patch):
    with GcWindow() as opened:
        patch.setattr(gc, "collect", broken)
        yield lambda: opened.between(idle=True) == 0, opened.guard, 3
        patch.undo()


@contextlib.contextmanager
def parcels(patch):
    ours, theirs = Port.pair()
    theirs.close()
    parcel = Parcel.make(4096)
    parcel.view[:] = 9

    def call():
        with pytest.raises(ExchangeError, match="it is still ours"):
            ours.send(parcel)
        return parcel.view.tolist() == [9] * 4096  # the host copies it as before

    with ours, parcel:
        yield call, ours.guard, 3


@pytest.mark.parametrize(
    "case", [router, buffers, pooled, arena, experts, rescheduler, window, parcels], ids=lambda case: case.__name__
)
def test_the_host_carries_on(monkeypatch, caplog, case):
    answers = []
    with caplog.at_level(logging.WARNING), case(monkeypatch) as (call, guard, fallbacks):
        thread = threading.Thread(target=lambda: answers.extend(call() for _ in range(3)))
        thread.start()
        thread.join()
        figures = guard.figures()
        assert answers == [True] * 3
        assert figures.fallbacks == fallbacks
        [record] = caplog.records
        assert record.message.startswith(f"remedy {guard.name} raised ")
        assert f"MOEXRAY_OFF={guard.name}" in record.message
        guards.switch(guard.name, on=False)
        assert not guard.on


def test_an_exchange_goes_down_its_ladder_instead(monkeypatch, caplog):
    """Its original path is the group's own collective; whoever fails, all ranks take the next rung."""
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    from moexray.runtime.exchange import Options, attach

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        from torch.distributed import distributed_c10d

        with attach(options=Options(rungs=("gloo", "shm"), timeout_s=20.0)) as handle:
            monkeypatch.setattr(distributed_c10d, "all_to_all_single", broken)
            answers = []

            def engine():
                for _ in range(3):
                    out = torch.zeros(4)
                    dist.all_to_all_single(out, torch.ones(4))
                    answers.append(out.tolist())

            thread = threading.Thread(target=engine)
            with caplog.at_level(logging.WARNING):
                thread.start()
                thread.join()
            assert answers == [[1.0] * 4] * 3
            assert handle.rung == "shm"
            assert len(handle.counters().fallbacks) == 1
            assert len(caplog.records) == 1
    finally:
        dist.destroy_process_group()
