"""A forked child never waits for a thread that it does not have: every lock of the remedies is made anew."""

import gc
import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from moexray.runtime import guard as guards
from moexray.runtime import handle as handles
from moexray.runtime.arena import Arena, ExpertSlots
from moexray.runtime.buffers import BufferPool
from moexray.runtime.guard import Guard, say_once, switch
from moexray.runtime.handle import Handle

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


@contextmanager
def held(lock):
    """Another thread has it."""
    has, go = threading.Event(), threading.Event()

    def hold():
        with lock:
            has.set()
            go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(30)
    yield
    go.set()
    thread.join()


def in_child(action):
    """Whether a forked child does it, and at once.

    What other tests left of OpenTelemetry goes before: its providers start threads in a child, inside `fork`.
    """
    gc.collect()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            os._exit(0 if action() else 1)
        finally:
            os._exit(2)
    until = time.monotonic() + 60
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:  # it hangs inside `fork`, before its alarm
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1]) == 0


def test_a_guard_answers():
    guard = Guard("router")
    with held(guard._tally.lock):
        assert in_child(lambda: guard.run(lambda: 3, lambda: 4) == 3)


def test_switches_and_messages_go_on():
    with held(guards._lock):
        assert in_child(lambda: (switch("router", on=False), say_once("x"), not Guard("router").on)[-1])


def test_handles_are_attached_and_detached():
    class Host:
        name = 1

    handle = Handle("host", lambda h: h.replace(Host, "name", 2))

    def both():
        handle.attach()
        was, _ = Host.name, handle.detach()
        return (was, Host.name) == (2, 1)

    with held(handles._lock):
        assert in_child(both)


def test_a_pool_gives_buffers():
    pool = BufferPool()
    with held(pool._lock):
        assert in_child(lambda: pool.empty(5, np.float32).shape == (5,))


def test_an_arena_that_was_at_rest_goes_on():
    arena = Arena(1 << 16)
    assert in_child(lambda: arena.allocate(100).offset == 0)


def test_an_arena_that_another_thread_was_changing_is_out_of_use_and_still_serves():
    arena = Arena(1 << 16)
    kept = arena.allocate(100)

    def use():
        block = arena.allocate(100)
        with block as view, kept as old:
            return block.offset is None and len(view) == len(old) == 100 and "forked" in arena.fault

    with held(arena.lock):
        assert in_child(use)
    assert arena.fault == ""
    assert arena.allocate(100).offset == 256


def test_an_expert_that_another_thread_was_filling_is_filled_again():
    slots = ExpertSlots(Arena(1 << 16), slots=2, slot_bytes=16)
    begun, go = threading.Event(), threading.Event()

    def slow(view):
        begun.set()
        go.wait(30)
        view[:] = 1

    thread = threading.Thread(target=lambda: slots.lease("a", slow).__exit__(None, None, None))
    thread.start()
    assert begun.wait(30)

    def again():
        with slots.lease("a", lambda view: view.fill(7)) as view:
            return view.tolist() == [7] * 16 and slots.figures().resident == 1

    with held(slots.turn):
        assert in_child(again)
    go.set()
    thread.join()
    with slots.lease("a", lambda _: 1 // 0) as view:
        assert view.tolist() == [1] * 16
