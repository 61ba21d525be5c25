"""Slots for experts: the one not used for longest goes, kept and leased ones stay, nothing is allocated."""

import gc
import threading
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.core.errors import UsageError
from moexray.runtime import guard as guards
from moexray.runtime.arena import Arena, ExpertSlots
from steady import taken


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


def fill_with(key):
    def fill(view):
        view[:] = key % 251

    return fill


def use(slots, key):
    with slots.lease(key, fill_with(key)) as view:
        assert (np.asarray(view) == key % 251).all()
        return view


def make(slots=3, slot_bytes=1000, arena=None):
    return ExpertSlots(arena or Arena(1 << 16), slots=slots, slot_bytes=slot_bytes)


def test_slots_are_aligned_and_do_not_overlap():
    slots = make()
    addresses = sorted(use(slots, key).ctypes.data for key in range(3))
    assert all(a % 256 == 0 for a in addresses)
    assert [b - a for a, b in pairwise(addresses)] == [1024, 1024]


def test_the_longest_unused_goes():
    slots = make()
    for key in (1, 2, 3, 1, 4):
        use(slots, key)
    assert slots.resident() == (3, 1, 4)
    figures = slots.figures()
    assert (figures.hits, figures.misses, figures.evictions, figures.plain) == (1, 4, 1, 0)


def test_kept_experts_stay_and_evict_frees():
    slots = make()
    slots.keep(1)
    for key in (1, 2, 3, 4, 5):
        use(slots, key)
    assert 1 in slots.resident()
    assert slots.evict(1)
    assert not slots.evict(1)
    slots.unkeep(1)
    for key in (1, 2, 3, 4):
        use(slots, key)
    assert 1 not in slots.resident()


def test_leased_experts_stay_and_the_next_gets_plain_memory():
    slots = make(2)
    with slots.lease(1, fill_with(1)) as one, slots.lease(2, fill_with(2)):
        assert not slots.evict(1)
        with slots.lease(3, fill_with(3)) as three:
            assert (three == 3).all()
            assert three.ctypes.data % 256 == 0
        assert (one == 1).all()
        with pytest.raises(UsageError, match="still leased"):
            slots.close()
    assert slots.figures().plain == 1
    assert slots.resident() == (1, 2)


def test_a_fill_that_raises_is_the_hosts_own_and_costs_no_slot():
    slots = make(1)

    def broken(view):
        raise OSError("no such file")

    for _ in range(3):
        with pytest.raises(OSError, match="no such file"):
            slots.lease(1, broken)
    use(slots, 2)
    assert slots.resident() == (2,)
    assert slots.figures().plain == 0


def test_switched_off_every_lease_is_plain(monkeypatch):
    monkeypatch.setenv(guards.VARIABLE, "experts")
    slots = make()
    use(slots, 1)
    use(slots, 1)
    assert slots.figures().plain == 2
    assert slots.resident() == ()


def test_an_arena_too_small_is_told_and_left_as_it_was():
    arena = Arena(1 << 12)
    with pytest.raises(UsageError, match="5 slots of 1000 bytes do not fit"):
        make(5, arena=arena)
    assert arena.figures().used_bytes == 0
    slots = make(4, arena=arena)
    slots.close()
    slots.close()
    assert arena.figures().used_bytes == 0
    use(slots, 1)  # plain memory from then on
    assert slots.figures().plain == 1


def test_compaction_leaves_slots_alone():
    arena = Arena(1 << 14, policy="first-fit")
    before = arena.allocate(2048)
    slots = make(2, 2048, arena)
    address = use(slots, 1).ctypes.data
    arena.free(before)
    arena.compact()
    assert use(slots, 1).ctypes.data == address
    assert slots.figures().hits == 1


def test_threads_fill_an_expert_once():
    slots = make(4)
    fills = []
    barrier = threading.Barrier(4)

    def fill(view):
        fills.append(1)
        view[:] = 5

    def work():
        barrier.wait()
        with slots.lease(5, fill) as view:
            assert (view == 5).all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1


def test_ten_thousand_steady_steps_take_no_memory():
    slots = make(4)
    fills = [fill_with(key) for key in range(6)]

    def step(number):
        key = number * 7 % 6
        with slots.lease(key, fills[key]) as view:
            view[0] = 1

    for number in range(50):
        step(number)
    gc.collect()
    left, peak = taken(step)
    assert slots.figures().plain == 0
    assert left < 1024
    assert peak < 4096


@given(
    uses=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["use", "use", "use", "keep", "unkeep", "evict"]))),
    count=st.integers(1, 5),
)
@settings(max_examples=80, deadline=None)
def test_residency_is_that_of_a_plain_lru(uses, count):
    slots = make(count)
    plain, kept = OrderedDict(), set()
    for key, what in uses:
        if what == "use":
            use(slots, key)
            if key not in plain and len(plain) == count:
                victim = next((k for k in plain if k not in kept), None)
                if victim is None:
                    continue
                del plain[victim]
            plain[key] = True
            plain.move_to_end(key)
        elif what == "evict":
            assert slots.evict(key) == (plain.pop(key, None) is not None)
        else:
            {"keep": slots.keep, "unkeep": slots.unkeep}[what](key)
            {"keep": kept.add, "unkeep": kept.discard}[what](key)
        assert slots.resident() == tuple(plain)


@pytest.mark.parametrize("numbers", [(0, 10), (1, 0), (float("nan"), 10), (1, 1.5), (-1, 10), ("2", 10)])
def test_slots_that_cannot_be(numbers):
    arena = Arena(1 << 16)
    with pytest.raises(UsageError, match="whole numbers from 1"):
        ExpertSlots(arena, slots=numbers[0], slot_bytes=numbers[1])
    assert arena.figures().requests == 0


def test_a_fill_that_raises_is_called_once_and_is_no_fault_of_ours():
    slots, calls = ExpertSlots(Arena(1 << 16), slots=1, slot_bytes=10), []

    def broken(view):
        calls.append(len(view))
        raise ValueError("disk")

    for _ in range(20):
        with pytest.raises(ValueError, match="disk"):
            slots.lease("a", broken)
    assert calls == [10] * 20
    assert slots.guard.figures().fallbacks == 0
    assert slots.figures().misses == 0
    with slots.lease("a", lambda view: view.fill(1)) as view:
        assert view.tolist() == [1] * 10
    assert slots.evict("a")
    with slots.lease("a", lambda view: view.fill(2)) as view:
        assert view.tolist() == [2] * 10  # an evicted expert is filled anew


# ---- fills of several threads


class Filling:
    """A lease of a thread whose fill waits for `go`."""

    def __init__(self, slots, key, value, *, fails=False):
        self.begun, self.go = threading.Event(), threading.Event()
        self.slots, self.key, self.value, self.fails = slots, key, value, fails
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        assert self.begun.wait(30)

    def run(self):
        try:
            with self.slots.lease(self.key, self.fill):
                pass
        except ZeroDivisionError:
            pass

    def fill(self, view):
        self.begun.set()
        self.go.wait(30)
        view[:] = self.value
        if self.fails:
            raise ZeroDivisionError

    def end(self):
        self.go.set()
        self.thread.join()


def test_a_fill_lets_nobody_wait_but_who_wants_that_expert():
    slots = make()
    use(slots, 1)
    filling = Filling(slots, 2, 2)
    use(slots, 1)
    use(slots, 3)
    assert slots.resident() == (1, 3)
    assert not slots.evict(2)
    with pytest.raises(UsageError, match="still leased"):
        slots.close()
    got = []
    other = threading.Thread(target=lambda: got.append(use(slots, 2)))
    other.start()
    filling.end()
    other.join()
    assert len(got) == 1
    assert (slots.figures().misses, slots.figures().hits) == (3, 2)


def test_who_waited_for_a_fill_that_failed_fills_itself():
    slots = make()
    filling = Filling(slots, 2, 9, fails=True)
    got = []
    other = threading.Thread(target=lambda: got.append(use(slots, 2)))
    other.start()
    filling.end()
    other.join()
    assert len(got) == 1
    assert slots.figures().misses == 1
    for key in (3, 4):
        use(slots, key)
    assert slots.figures().evictions == 0  # no slot was lost


def test_a_fill_may_lease_and_two_such_do_not_wait_for_each_other():
    slots = make()

    def inner(view):
        use(slots, 1)  # another thread fills it
        use(slots, 2)  # this one does, further out
        view[:] = 2

    filling = Filling(slots, 1, 1)
    with slots.lease(2, inner) as view:
        assert (np.asarray(view) == 2).all()
    filling.end()
    assert slots.figures().plain == 2
    use(slots, 3)
    assert sorted(slots.resident()) == [1, 2, 3]
    slots.close()


def test_an_expert_whose_name_is_no_key_gets_plain_memory():
    slots = make()
    for key in ([1], ([1],)):
        with slots.lease(key, lambda view: view.fill(5)) as view:
            assert (np.asarray(view) == 5).all()
    assert slots.guard.figures().fallbacks == 2


def test_slots_that_do_not_fit_take_no_memory_first(monkeypatch):
    arena = Arena(1 << 16)

    def alike(size, alignment):
        raise AssertionError(size)

    monkeypatch.setattr(arena.memory, "alike", alike)
    with pytest.raises(UsageError, match="3 slots of 1048576 bytes do not fit into the arena"):
        make(slot_bytes=1 << 20, arena=arena)
