"""Laws of timelines: ranks may come in any order, clocks may be shifted, time bins add up."""

import json
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.timeline import Cover, profiles
from moexray.analyse.timeline_comm import match
from moexray.analyse.timeline_late import late_ranks, waited
from moexray.core.source import Source
from moexray.readers.read_any import read_sources
from moexray.readers.tolerant_json import parse
from trace_samples import Trace, pair_of_ranks


def collectives(traces):
    sources = [Source(f"{i}.json", content=t.text().encode()) for i, t in enumerate(traces)]
    return match(profiles(read_sources(sources)))


def verdict(c):
    return [
        (c.profiles[x.rank].rank, round(x.total_ns), len(x.columns), sorted(x.did))
        for x in late_ranks(c, 0.05, 5)
    ]


@given(order=st.permutations(range(4)), late=st.integers(0, 3), by=st.integers(0, 6000))
def test_permuting_the_ranks_permutes_the_answer(order, late, by):
    traces = pair_of_ranks(steps=6, ranks=4, late_us=float(by), late_rank=late)
    straight, mixed = collectives(traces), collectives([traces[i] for i in order])
    assert verdict(straight) == verdict(mixed)
    assert waited(straight) == waited(mixed)


@given(shift=st.integers(-10_000_000, 10_000_000))
def test_the_clock_of_a_rank_changes_no_lateness(shift):
    base = collectives(pair_of_ranks(steps=8, late_us=3000.0))
    moved = collectives(pair_of_ranks(steps=8, late_us=3000.0, shift_us=float(shift)))
    assert np.allclose(base.lateness, moved.lateness, atol=2)
    assert verdict(base)[0][0] == verdict(moved)[0][0] == 1
    assert abs(moved.offsets[0].offset_ns - shift * 1000) < 2


INTERVALS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100)), max_size=40)


@given(intervals=INTERVALS, cuts=st.lists(st.integers(0, 1200), max_size=10))
def test_time_bins_add_up_to_the_span(intervals, cuts):
    start = np.array([a for a, _ in intervals], np.int64)
    end = start + np.array([d for _, d in intervals], np.int64)
    cover = Cover(start, end)
    edges = np.array(sorted({0, 1200, *cuts}), np.int64)
    parts = cover.within(edges[:-1], edges[1:])
    covered = {t for a, b in zip(start.tolist(), end.tolist(), strict=True) for t in range(a, b)}
    assert parts.sum() == len(covered)
    assert (parts <= np.diff(edges)).all()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


@given(value=JSON)
def test_sound_json_comes_back_unchanged(value):
    document, repairs = parse(json.dumps({"d": value}))
    assert document == {"d": value}
    assert repairs.count == repairs.dropped == 0


@given(seed=st.integers(0, 10_000))
def test_mutated_traces_never_stop_the_reader(seed):
    rng = random.Random(seed)
    text = bytearray(Trace(0, 2).step(0, 0, 50).kernel(10, 20).collective(0, 35, 5).text().encode())
    for _ in range(rng.randint(1, 6)):
        text[rng.randrange(len(text))] = rng.randrange(256)
    run = read_sources([Source("t.json", content=bytes(text))])
    assert not [p for _, p in run.problems if p.id == "input.unreadable"]
    profiles(run)
