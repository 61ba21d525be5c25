"""The compiled allocator against the plain one: every counter, the reserved curve, every block at the end."""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.algorithms import device
from moexray.algorithms import simulate as plain
from moexray.algorithms.allocator import CachingAllocator
from moexray.algorithms.blocks import Settings
from moexray.algorithms.device import ORDERS
from moexray.algorithms.history import SegmentState
from moexray.algorithms.simulate import Plan, prepare
from moexray.core.errors import UsageError
from moexray.kernels import allocator as compiled
from moexray.kernels import allocator_arena as arena
from moexray.kernels import allocator_memory as cells
from moexray.kernels.allocator_memory import listed
from moexray.readers.read_any import read_any
from moexray.whatif.recordings import recordings

MIB = 1 << 20
SHARED = Path(__file__).resolve().parents[3] / "shared"
POOLS = ((0, 0), (0, 0), (0, 0), (0, 1), (3, 0))
# Few sizes, so that equal blocks compete; the limits of the pools and of splitting; and any size.
SIZES = (
    1, 512, 513, 1200, 5000, 300_000, MIB, MIB + 1, 2 * MIB, 3 * MIB, 9 * MIB, 10 * MIB, 10 * MIB + 1, 14 * MIB,
    20 * MIB, 21 * MIB, 33 * MIB, 64 * MIB, 70 * MIB, 150 * MIB,
)  # fmt: skip
VA = 1 << 33
# Where a recording had segments, for the order of addresses "recorded".
SPARE = tuple(((1 << 45) + i * 256 * MIB, n * MIB) for i, n in enumerate([20, 2, 20, 64, 2, 20, 34, 2, 2, 20]))

allocator_settings = st.builds(
    Settings,
    max_split=st.none() | st.sampled_from([20, 32, 64, 100]).map(lambda n: n * MIB),
    max_non_split_rounding=st.sampled_from([20, 30, 64]).map(lambda n: n * MIB),
    roundup=st.sampled_from([0, 2, 4, 8]).map(lambda d: (d,) * 16) | st.tuples(*[st.sampled_from([0, 1, 2, 16])] * 16),
    gc_threshold=st.sampled_from([0.0, 0.3, 0.8]),
    limit=st.none() | st.integers(100, 900).map(lambda n: n * MIB),
    expandable=st.booleans(),
    large_segment=st.sampled_from([20, 12, 40]).map(lambda n: n * MIB),
    throw_on_oom=st.booleans(),
)
flags = st.fixed_dictionaries(
    {
        "capacity": st.none() | st.integers(50, 900).map(lambda n: n * MIB),
        "search_after_release": st.booleans(),
        "order": st.sampled_from(ORDERS),
    }
)


class Kept(CachingAllocator):
    """The plain allocator; it can tell its blocks."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []
        Kept.last = self

    def malloc(self, *args):
        self.seen.append(super().malloc(*args))
        return self.seen[-1]

    def adopt(self, *args):
        blocks = super().adopt(*args)
        self.seen += blocks
        return blocks

    def state(self):
        used = {id(b): b for b in self.seen if b.used}.values()
        holes = [b for free in self._lists.values() for b in free.holes.values()]
        return sorted((b.address, b.size, b.used, b.mapped) for b in [*used, *self.all_free(), *holes])


def program(seed, length, streams=(0, 0, 7)):
    """Steps of a plan at random: requests, frees and deferred ones, all that a history can hold."""
    dice = random.Random(seed)
    live, late, steps = [], [], []
    often, few = dice.choice([0.3, 0.48, 0.55]), dice.sample(SIZES, 4)
    for place in range(1 << 40, (1 << 40) + 1024 * length, 1024):
        what = dice.random()
        if what < 0.02:
            kind = dice.choice([plain.EMPTY_CACHE, plain.EMPTY_CACHE, plain.FREEABLE])
            steps.append((kind, 0, 0, 0, dice.choice(POOLS)))
        elif late and what < 0.07:
            steps.append((plain.FREE, late.pop(dice.randrange(len(late))), 0, 0, (0, 0)))
        elif live and what < often:
            at = live.pop(dice.randrange(len(live)))
            deferred = dice.random() < 0.1
            late += [at] * deferred
            steps.append((plain.DEFER if deferred else plain.FREE, at, 0, 0, (0, 0)))
        else:
            size = dice.choice(few if dice.random() < 0.6 else SIZES)
            size = size if dice.random() < 0.8 else dice.randrange(1, 2 * size + 1)
            kind = plain.TRY if dice.random() < 0.02 else plain.ALLOC
            # A retry may complete a deferred free early: its place is given anew before its own end is seen.
            at = late.pop(0) if late and dice.random() < 0.05 else place
            live += [at] * (kind == plain.ALLOC)
            steps.append((kind, at, size, dice.choice(streams), dice.choice(POOLS)))
            steps += [(plain.FREE, at, 0, 0, (0, 0))] * (at != place)
    return tuple(steps)


def started(seed, length):
    """A plan whose first third has run already: its segments are the start state."""
    dice = random.Random(seed)
    before = [s for s in program(seed, length // 3) if s[0] in (plain.ALLOC, plain.FREE)]
    driver = plain.Device()
    if dice.random() < 0.7:  # else the replay must find its own places around the start
        driver._next, driver._space = 1 << 47, 1 << 50
    allocator = Kept(Settings(expandable=dice.random() < 0.5), driver, va_bytes=VA)
    tenants = {}
    for kind, at, size, stream, pool in before:
        allocator.settings = replace(allocator.settings, expandable=dice.random() < 0.5)
        if at in tenants:
            allocator.free(tenants.pop(at))
        if kind == plain.ALLOC:
            tenants[at] = allocator.malloc(size, stream, pool)
    blocks = {}
    for b in [*tenants.values(), *allocator.all_free()]:
        blocks.setdefault(b.segment.address, []).append((b.address, b.size, b.size, b.used))
    start = tuple(
        SegmentState(
            s.address, s.size, s.stream, s.small, s.pool, tuple(sorted(blocks.get(a, ()))), s.expandable, s.page
        )
        for a, s in sorted(allocator.segments.items())
    )  # fmt: skip
    frees = [(plain.FREE, b.address, 0, 0, (0, 0)) for b in tenants.values()]
    steps = list(program(seed + 1, length))
    for step in frees:
        steps.insert(dice.randrange(len(steps) + 1), step)
    places = tuple((a, s.size) for a, s in allocator.segments.items() if not s.expandable)
    return Plan(start, 0, tuple(steps), (0, None), (), (*places, *places, *SPARE), space(seed))


def fresh(seed, length):
    """A plan that starts with an empty device."""
    return Plan((), 0, program(seed, length), (0, None), (), SPARE, space(seed))


def space(seed):
    """Address space of an expandable segment; now and then less than the largest request."""
    return 100 * MIB if seed % 4 == 0 else VA


def kernel_state(m):
    """All blocks of the arena: (address, size, used, mapped) in order, and what the laws ask of them."""
    tenants = m[m[arena.TENANTS] : m[arena.TICKETS]]
    pointers = listed.py_func(m, 0, 2 * m[arena.LISTS] + 1).tolist()
    todo = [*(int(b) for b in tenants if b >= 0), *pointers]
    seen = set()
    while todo:
        b = todo.pop()
        if b not in seen:
            seen.add(b)
            todo += [int(x) for x in (m[b + cells.PREV], m[b + cells.NEXT]) if x >= 0]
    out = []
    for b in seen:
        after, state = m[b + cells.NEXT], m[b + cells.STATE]
        used = bool(state & cells.USED)
        assert used or m[b + cells.HOME] >= 0, "what is not in use stands in the index"
        if after >= 0:
            assert m[after + cells.ADDRESS] == m[b + cells.ADDRESS] + m[b + cells.SIZE]
            assert used or m[after + cells.STATE] != state, "two free neighbours of one mapping"
        out.append((int(m[b + cells.ADDRESS]), int(m[b + cells.SIZE]), used, bool(state & cells.MAPPED)))
    return sorted(out)


def outcome(arrays, chosen, **flags):
    """The compiled twin's outcome, as the plain one gives it."""
    figures, curve = compiled.simulate(arrays, chosen, **flags)
    return plain.Outcome(**figures, reserved=tuple(curve.tolist()))


def compare(plan, chosen, monkeypatch, **flags):
    """Both twins on one plan."""
    monkeypatch.setattr(plain, "CachingAllocator", Kept)
    want = plain.simulate(plan, chosen, **flags)
    arrays = compiled.arrays(plan)
    assert outcome(arrays, chosen, **flags) == want
    m, _ = compiled.simulated(arrays, chosen, **flags)
    c = Kept.last.counters
    names = (arena.ALLOCATED, arena.ALLOCS, arena.FREES, arena.MAPS, arena.UNMAPS)
    assert [m[i] for i in names] == [c.allocated, c.device_allocs, c.device_frees, c.maps, c.unmaps]
    state = kernel_state(m)
    assert state == Kept.last.state()
    deferred = sum(b.size for b in Kept.last.pending.values())
    assert sum(size for _, size, used, _ in state if used) == c.allocated + deferred <= c.reserved
    assert all(a[0] + a[1] <= b[0] for a, b in pairwise(state)), "overlap"
    return want


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 300), allocator_settings, flags)
def test_the_twins_agree(seed, length, chosen, flags):
    with pytest.MonkeyPatch.context() as patch:
        compare(fresh(seed, length), chosen, patch, **flags)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(30, 300), allocator_settings, flags)
def test_the_twins_agree_from_a_start_state(seed, length, chosen, flags):
    with pytest.MonkeyPatch.context() as patch:
        compare(started(seed, length), chosen, patch, **flags)


@pytest.mark.soak
@settings(max_examples=6000, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 900), allocator_settings, flags, st.booleans())
def test_the_twins_agree_on_thousands(seed, length, chosen, flags, begun):
    with pytest.MonkeyPatch.context() as patch:
        compare(started(seed, length) if begun else fresh(seed, length), chosen, patch, **flags)


def test_the_twins_mean_the_same_by_their_numbers():
    names = ("ALLOC", "DEFER", "FREE", "TRY", "EMPTY_CACHE", "FREEABLE", "DEFAULT_POOL")
    assert [getattr(compiled, n) for n in names] == [getattr(plain, n) for n in names]
    places = ("ABOVE", "BELOW", "SPACE")
    assert [getattr(arena, n) for n in places] == [getattr(device, n) for n in places]


def test_the_random_programs_reach_every_rule():
    seen = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for seed in range(40):
            tight = Settings(max_split=32 * MIB, gc_threshold=0.3, limit=700 * MIB, expandable=seed % 2 == 0)
            seen_here = compare(started(seed, 300), tight, patch, capacity=600 * MIB)
            seen.update(ooms=seen_here.ooms, retries=seen_here.retries, unmaps=Kept.last.counters.unmaps)
            seen.update(frees=Kept.last.counters.device_frees, stuck=seen_here.stuck)
    assert set(+seen) == {"ooms", "retries", "unmaps", "frees", "stuck"}


@pytest.mark.parametrize("equal", [True, False])
def test_a_free_list_of_thousands_keeps_its_order(equal):
    dice = random.Random(5)
    sizes = [(2 if equal else dice.randrange(2, 60)) * MIB for _ in range(3000)]
    steps = [(0, i, n, 0, (0, 0)) for i, n in enumerate(sizes)]
    gone = dice.sample(range(3000), 2400)
    steps += [(2, i, 0, 0, (0, 0)) for i in gone]
    again = dice.sample(gone, 2000)
    steps += [(0, i, sizes[i] - (i % 3) * MIB, 0, (0, 0)) for i in again]
    steps += [(2, i, 0, 0, (0, 0)) for i in range(3000)]
    with pytest.MonkeyPatch.context() as patch:
        compare(Plan((), 0, tuple(steps), (0, None), ()), Settings(max_split=20 * MIB), patch)


def test_what_no_device_gives_is_left_to_the_plain_twin():
    assert compiled.arrays(Plan((), 0, ((0, 1, 1 << 50, 0, (0, 0)),), (0, None), ())) is None
    assert compiled.arrays(Plan((), 0, ((0, 1, -5, 0, (0, 0)),), (0, None), ())) is None
    torn = SegmentState(1 << 40, 20 * MIB, 0, blocks=((1 << 40, 5, 5, True),))
    assert compiled.arrays(Plan((torn,), 0, (), (0, None), ())) is None


def test_an_address_given_twice_and_an_empty_plan_are_no_matter():
    twice = ((0, 1, MIB, 0, (0, 0)), (0, 1, MIB, 0, (0, 0)), (2, 1, MIB, 0, (0, 0)), (2, 1, MIB, 0, (0, 0)))
    for steps in ((), twice):
        plan = Plan((), 0, steps, (0, None), ())
        assert outcome(compiled.arrays(plan), Settings()) == plain.simulate(plan, Settings())


def histories(path):
    try:
        return recordings(read_any([str(path)]))
    except UsageError as why:
        if "holds no allocation history" not in str(why):
            raise
        pytest.skip(str(why))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data lie beside the checkout; not here")
@pytest.mark.parametrize("path", sorted(SHARED.glob("data/memory/*.pickle*")), ids=lambda p: p.name)
def test_the_twins_agree_on_recorded_histories(path, monkeypatch):
    for recording in histories(path):
        plan, own = prepare(recording.history), recording.history.settings
        for chosen in (own, replace(own, expandable=True), replace(own, max_split=64 * MIB, roundup=(4,) * 16)):
            for order in ORDERS:
                compare(plan, chosen, monkeypatch, capacity=plan.capacity[0] * 98 // 100, order=order)
        assert compare(plan, own, monkeypatch).reserved == plan.recorded_reserved
