"""The rescheduler: three samples and pending work, never a spike, never a swing, within its rate."""

import random
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.core.errors import UsageError
from moexray.runtime import guard as guards
from moexray.runtime.rescheduler import Movable, Options, Rescheduler


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


class Memory:
    """1000 bytes; blocks of 50 that were last used at time 0."""

    def __init__(self, options=None, blocks=15, **more):
        self.blocks = {i: Movable(i, 50, 0.0, priority=i % 2) for i in range(blocks)}
        self.moved = []
        self.control = Rescheduler(1000, self.move, options or Options(bytes_per_s=1e9), **more)

    def move(self, key):
        self.moved.append(key)
        del self.blocks[key]
        return True

    def look(self, now, used, pending=True):
        return self.control.look(now, used, pending=pending, blocks=self.blocks.values())


def test_three_samples_move_down_to_low_and_not_further():
    memory = Memory()
    assert [memory.look(100 + t, 930) for t in range(3)] == [0, 0, 100]
    assert memory.moved == [0, 2]  # the lower priority first
    assert not memory.control.armed
    figures = memory.control.figures()
    assert (figures.looks, figures.armings, figures.moves, figures.moved_bytes) == (3, 1, 2, 100)


@pytest.mark.parametrize("uses", [[999], [930, 999], [930, 930, 910, 930, 930, 920, 999], [999, 0] * 50, [920] * 9])
def test_a_spike_or_two_samples_never_trigger(uses):
    memory = Memory()
    assert [memory.look(100 + t, used) for t, used in enumerate(uses)] == [0] * len(uses)


def test_nothing_moves_without_pending_work():
    memory = Memory()
    for t in range(10):
        assert memory.look(100 + t, 999, pending=False) == 0
    assert memory.look(110, 999) > 0  # the samples before it count


def test_hot_blocks_stay_and_the_coldest_of_a_priority_go_first():
    memory = Memory(Options(cold_s=10, bytes_per_s=1e9), blocks=0)
    for key, used_s, priority in ((1, 30, 0), (2, 20, 0), (3, 95, 0), (4, 1, 1)):
        memory.blocks[key] = Movable(key, 50, used_s, priority)
    for t in range(3):
        memory.look(100 + t, 950)
    assert memory.moved == [2, 1]
    memory.look(103, 960)
    for t in range(20, 30):
        memory.look(100 + t, 960)
    assert memory.moved[2:4] == [3, 4]  # by then 3 is cold, too
    assert memory.control.figures().short > 0


def test_the_rate_holds():
    memory = Memory(Options(high=0.5, low=0.1, bytes_per_s=20), blocks=20)
    used, total = 900, 0
    for t in range(200):
        freed = memory.look(100 + t / 10, used)
        used -= freed
        total += freed
        assert total <= 20 * (t / 10) + 50  # a block may be begun with little budget left
    assert total > 300


def test_it_rests_after_it_stopped():
    memory = Memory(Options(rest_s=10, bytes_per_s=1e9))
    times = [t for t in range(30) if memory.look(100 + t, 930)]
    assert times == [2, 12, 22]


def test_a_move_that_fails_is_not_counted_as_freed():
    memory = Memory()
    memory.control._move = lambda key: False
    assert [memory.look(100 + t, 930) for t in range(3)] == [0, 0, 0]
    figures = memory.control.figures()
    assert figures.refused == 15
    assert figures.moves == 0
    assert figures.short == 1


def test_a_move_that_raises_never_reaches_the_host(monkeypatch):
    memory = Memory()
    memory.control._move = lambda key: 1 // 0
    for t in range(30):
        assert memory.look(100 + t, 999) == 0
    assert memory.control.guard.figures().fallbacks == 8
    assert not memory.control.armed
    monkeypatch.setenv(guards.VARIABLE, "rescheduler")
    assert [Memory().look(100 + t, 999) for t in range(5)] == [0] * 5


def test_one_block_that_raises_does_not_end_the_remedy():
    memory = Memory(Options(bytes_per_s=1e9, rest_s=0))
    move = memory.control._move
    memory.control._move = lambda key: move(key) if key else 1 // 0
    for t in range(9):
        assert memory.look(100 + t, 930) == (100 if t % 3 == 2 else 0)  # and what was freed is told
    assert memory.moved == [2, 4, 6, 8, 10, 12]
    figures = memory.control.figures()
    assert (figures.refused, figures.moves, figures.moved_bytes) == (1, 6, 300)
    assert memory.control.guard.figures().fallbacks == 1
    del memory.blocks[0]
    memory.look(109, 930)  # a block of that key that comes later is another one
    assert memory.control.guard.on


def test_a_switch_breaks_the_row_of_samples():
    memory = Memory(Options(bytes_per_s=20))
    for uses in ([999, 999], [999, 999, 999]):  # two samples; armed
        for t, used in enumerate(uses):
            memory.look(100 + t, used)
        moved = list(memory.moved)
        guards.switch("rescheduler", on=False)
        for t in range(30):
            assert memory.look(110 + t, 100) == 0
        guards.switch("rescheduler", on=True)
        assert not memory.control.armed
        assert memory.look(140, 999) == 0  # a single spike
        assert memory.look(141, 0) == 0
        assert memory.moved == moved
    assert moved


def test_within_one_time_of_use_the_largest_goes_first():
    memory = Memory(blocks=0)
    memory.blocks = {"small": Movable("small", 1, 0.0), "large": Movable("large", 80, 0.0)}
    for t in range(3):
        memory.look(100 + t, 930)
    assert memory.moved == ["large"]


def test_what_cannot_be_is_refused():
    for options in (Options(low=0.95), Options(high=1.0), Options(samples=0), Options(bytes_per_s=0)):
        with pytest.raises(UsageError):
            Rescheduler(1000, bool, options)
    with pytest.raises(UsageError, match="0 bytes"):
        Rescheduler(0, bool)


@settings(max_examples=150, deadline=None)
@given(
    uses=st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=80),
    high=st.sampled_from([0.7, 0.92]),
    samples=st.integers(1, 4),
)
def test_it_never_moves_without_its_row_of_samples(uses, high, samples):
    memory = Memory(Options(high=high, low=high - 0.1, samples=samples, bytes_per_s=1e9, rest_s=2))
    row = 0
    for t, (used, pending) in enumerate(uses):
        was_armed = memory.control.armed
        row = row + 1 if used > high * 1000 else 0
        freed = memory.look(100 + t, used, pending)
        if freed and not was_armed:
            assert row >= samples
            assert pending
        if freed:
            assert used > (high - 0.1) * 1000
            assert freed < used - (high - 0.1) * 1000 + 50  # not a block more than needed


def day(seed, looks, *, moving=True):
    """A day of load in `looks` samples: slow tide, noise, spikes; blocks come, cool down and come back.

    Returns (use at each look, bytes moved at each look, the controller).
    """
    dice = random.Random(seed)
    step = 86_400 / looks
    options = Options(cold_s=10 * step, rest_s=10 * step, bytes_per_s=200 / step)
    blocks, out, moved = {}, [], []

    def move(key):
        del blocks[key]
        return True

    control = Rescheduler(1000, move, options)
    tide, number = 500.0, 0
    for look in range(looks):
        now = look * step
        tide += dice.gauss(0, 4) + 0.02 * (700 - tide)
        if dice.random() < 0.3:
            number += 1
            blocks[number] = Movable(number, 10, now)
        for key in list(blocks):
            if dice.random() < 0.01:
                blocks[key] = Movable(key, 10, now)  # used again
            elif dice.random() < 0.004:
                del blocks[key]
        spike = 300 if dice.random() < 0.02 else 0
        used = min(int(tide) + spike + sum(b.size for b in blocks.values()), 1000)
        out.append(used)
        moved.append(control.look(now, used, pending=used > 900, blocks=blocks.values()) if moving else 0)
    return out, moved, control


def rows_above_high(uses):
    """How often the load crossed `high` and stayed above it for three looks or more."""
    return sum(above and len(list(row)) >= 3 for above, row in groupby(uses, lambda used: used > 920))


@pytest.mark.parametrize("seed", range(3))
def test_no_swing_over_a_day(seed):
    looks = 2880
    uses, moved, control = day(seed, looks)
    armings = control.figures().armings
    assert 0 < armings <= rows_above_high(uses)  # the load is high enough to need it
    starts = [t for t in range(1, looks) if moved[t] and not moved[t - 1]]
    assert all(uses[t] > 850 for t in range(looks) if moved[t])
    assert len(starts) <= 2 * armings
    plain, _, _ = day(seed, looks, moving=False)
    assert sum(u >= 1000 for u in uses) < sum(u >= 1000 for u in plain)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_no_swing_over_a_finely_sampled_day(seed):
    uses, moved, control = day(seed, 86_400)
    assert 0 < control.figures().armings <= rows_above_high(uses)
    assert all(uses[t] > 850 for t in range(len(uses)) if moved[t])


NAN = float("nan")


@pytest.mark.parametrize(
    "options",
    [{"high": NAN}, {"low": NAN}, {"samples": NAN}, {"samples": 1.5}, {"cold_s": NAN}, {"rest_s": NAN},
     {"bytes_per_s": NAN}, {"cold_s": float("inf")}],
)  # fmt: skip
def test_options_that_are_no_numbers(options):
    with pytest.raises(UsageError):
        Rescheduler(1000, bool, Options(**options))
    with pytest.raises(UsageError):
        Rescheduler(NAN, bool)


def test_samples_and_blocks_that_are_no_numbers_move_nothing():
    moved = []
    control = Rescheduler(100, lambda key: not moved.append(key), Options(cold_s=0, samples=1))
    blocks = [Movable("no size", NAN, 0.0), Movable("negative", -5, 0.0), Movable("no time", 5, NAN)]
    for t in range(5):
        assert control.look(float(t), 99, pending=True, blocks=blocks) == 0
    assert control.look(NAN, 99, pending=True, blocks=[Movable("a", 5, 0.0)]) == 0
    assert control.look(6.0, NAN, pending=True, blocks=[Movable("a", 5, 0.0)]) == 0
    assert moved == []
    assert control.guard.figures().fallbacks == 2  # the looks at no time, and at no use
