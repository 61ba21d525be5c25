"""Each placement policy against its twin (tests/policy_twins.py), and the laws of each policy."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.algorithms.policies import POLICIES
from moexray.core.errors import UsageError
from policy_twins import TWINS

OPTIONS = {"segregated": {"slab": 32}, "scope": {"chunk": 32}}
SIZES = st.one_of(st.integers(1, 12), st.integers(1, 90), st.sampled_from([16, 32, 64]))
# ("a", size, alignment), ("f", which one of the live blocks), ("s", end of a scope)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("a"), SIZES, st.sampled_from([1, 1, 1, 4, 16])),
        st.tuples(st.just("f"), st.integers(0, 1 << 16), st.just(0)),
        st.tuples(st.just("s"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=120,
)
CAPACITIES = st.sampled_from([None, None, 100, 333, 512])


def drive(policy, steps, after=None, twin=None):
    live = []
    for kind, value, alignment in steps:
        if kind == "a":
            largest = policy.largest_free()
            size = largest if value % 7 == 0 and 0 < largest < 512 else value
            at = policy.allocate(size, alignment)
            if twin is not None:
                assert at == twin.allocate(size, alignment)
            if alignment == 1 and at is None:  # exactly the largest free block is served
                assert size != largest or policy.name in ("tlsf", "scope")
            if at is not None:
                assert at % alignment == 0
                live.append((at, size))
        elif kind == "f" and live:
            at, _ = live.pop(value % len(live))
            policy.free(at)
            if twin is not None:
                twin.free(at)
        elif kind == "s":
            for one in (policy, twin):
                if hasattr(one, "end_scope"):
                    one.end_scope()
        if after:
            after(policy, live)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, capacity=CAPACITIES)
def test_every_placement_is_the_twin_s(name, steps, capacity):
    if name == "buddy" and capacity is None:
        capacity = 1 << 14
    drive(POLICIES[name](capacity, 1, **OPTIONS.get(name, {})), steps, twin=TWINS[name](capacity))


def tiles(policy, live):
    """Blocks in use and free blocks do not overlap, stay below the high water and miss nothing."""
    rows = sorted([*policy.used.items(), *policy.free_blocks()])
    assert all(size > 0 for _, size in rows)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(rows))
    assert sum(size for _, size in rows) == policy.high_water
    assert {at for at, _ in live} == set(policy.used)
    assert all(policy.used[at] >= size for at, size in live)
    assert policy.given == sum(policy.used.values())


def merged(policy, live):
    free = policy.free_blocks()
    assert all(a + n < b for (a, n), (b, _) in pairwise(free))


def buddies(policy, live):
    for at, size in policy.used.items():
        assert size & (size - 1) == 0
        assert at % size == 0
    for order, row in policy._free.items():
        assert row == sorted(row)
        assert not {at ^ (1 << order) for at in row} & set(row)  # two free buddies are one block
        assert all(at % (1 << order) == 0 for at in row)
        assert bool(row) == bool(policy._orders >> order & 1)
    assert all(policy.used[at] < 2 * size for at, size in live)  # alignment 1 only


def bitmaps(policy, live):
    for (level, at), blocks in policy._lists.items():
        assert bool(blocks) == bool(policy._second.get(level, 0) >> at & 1)
    for level in range(40):
        assert bool(policy._second.get(level, 0)) == bool(policy._first >> level & 1)
    listed = sorted(start for row in policy._lists.values() for start in row)
    assert listed == [start for start, _ in policy.free_blocks()]


def slabs(policy, live):
    for slab in policy._slabs.values():
        assert len(slab.free) < slab.cells  # an empty slab has been given back
    assert all(policy.used[at] * 4 <= size * 5 + 3 for at, size in live)  # 4 classes per power of two


LAWS = {
    "first-fit": (merged,), "next-fit": (merged,), "best-fit": (merged,), "worst-fit": (merged,),
    "first-fit-naive": (), "buddy": (buddies,), "tlsf": (merged, bitmaps), "segregated": (slabs,), "scope": (),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, capacity=CAPACITIES)
def test_laws(name, steps, capacity):
    steps = [(kind, value, min(alignment, 1)) for kind, value, alignment in steps]

    def after(policy, live):
        for law in (tiles, *LAWS[name]):
            law(policy, live)

    drive(POLICIES[name](capacity, 1, **OPTIONS.get(name, {})), steps, after)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, log_classes=st.integers(1, 5))
def test_tlsf_passes_over_no_block_that_is_a_class_larger(steps, log_classes):
    policy = POLICIES["tlsf"](512, 1, log_classes=log_classes)
    live = []
    for kind, value, _ in steps:
        if kind == "a":
            sizes = [n for _, n in policy.free_blocks()]
            at = policy.allocate(value)
            if at is None:
                assert all(n < value * (1 + 2**-log_classes) for n in sizes)
            else:
                live.append(at)
        elif kind == "f" and live:
            policy.free(live.pop(value % len(live)))


@settings(max_examples=60, deadline=None)
@given(scopes=st.lists(st.lists(SIZES, min_size=1, max_size=8), min_size=1, max_size=12))
def test_nested_scopes_never_fall_back_and_leave_nothing(scopes):
    policy = POLICIES["scope"](None, 1, chunk=1024)
    for sizes in scopes:
        blocks = [policy.allocate(n) for n in sizes]
        assert blocks == [sum(sizes[:i]) for i in range(len(sizes))]
        for at in blocks:  # any order: the scope is over when all are dead
            policy.free(at)
        policy.end_scope()
    assert policy.fallbacks == 0
    assert policy.high_water == 1024


@pytest.mark.parametrize("name", [n for n in POLICIES if n not in ("first-fit-naive", "scope")])
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, more=STEPS, capacity=CAPACITIES, dice=st.randoms(use_true_random=False))
def test_blocks_claimed_at_their_places_are_the_same_space(name, steps, more, capacity, dice):
    old, new = (POLICIES[name](capacity, 1, **OPTIONS.get(name, {})) for _ in range(2))
    drive(old, steps)
    blocks = list(old.used.items())
    dice.shuffle(blocks)
    for at, size in blocks:
        new.claim(at, size)
        for taken in {at, at + size - 1}:
            with pytest.raises(UsageError):
                new.claim(taken, 1)
    assert new.used == old.used
    assert new.given == old.given
    assert new.high_water == max((at + size for at, size in blocks), default=0)
    live = [(at, 1) for at in new.used]
    for law in (tiles, *[law for law in LAWS[name] if law in (merged, bitmaps)]):
        law(new, live)
    for at, _ in blocks[::2]:
        new.free(at)
    drive(new, more, lambda policy, _: tiles(policy, [(at, 1) for at in policy.used]))
    for at in list(new.used):
        new.free(at)
    assert new.given == 0
    if capacity is not None and name != "segregated":
        assert new.largest_free() == (1 << capacity.bit_length() - 1 if name == "buddy" else capacity)


@pytest.mark.parametrize("name", ["first-fit-naive", "scope"])
def test_policies_that_cannot_choose_places_say_so(name):
    with pytest.raises(UsageError, match=f"cannot be claimed of {name}"):
        POLICIES[name](1 << 20, 1).claim(0, 16)
