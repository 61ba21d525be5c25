"""The vectorised figures of a snapshot against a deliberately naive twin that simulates every event."""

import json
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.analyse.snapshot import pools, shots
from moexray.analyse.snapshot_history import history
from moexray.analyse.snapshot_sites import hot_zones
from moexray.analyse.snapshot_stuck import stuck_line
from moexray.core.run import Reading, build_run
from moexray.core.source import Source
from moexray.readers.shapes import snapshot as shape
from snapshot_samples import BASE, MIB, document, event, segment

UNIT = 2 * MIB


def read(doc):
    out = Reading("pickle")
    assert shape.shape(doc, Source("s.pickle", content=b"x"), out)
    return shots(build_run([("s.pickle", out)], []))


class Naive:
    """Segments of 8 units; first fit; remembers what is live after every event."""

    def __init__(self):
        self.segments, self.trace = {}, []
        self.active, self.reserved, self.stuck_line = [0], [0], [0]
        self.allocs = self.frees = 0

    def note(self, action, addr, size, d_active=0, d_reserved=0):
        self.trace.append(event(action, addr, size, len(self.trace)))
        self.active.append(self.active[-1] + d_active)
        self.reserved.append(self.reserved[-1] + d_reserved)
        self.stuck_line.append(self.stuck_line[-1] if action == "free_requested" else self.stuck())

    def alloc(self, units, slack):
        for base, slots in self.segments.items():
            for at in range(8 - units + 1):
                if not any(slots[at : at + units]):
                    return self.place(base, at, units, slack)
        base = BASE + 16 * UNIT * len(self.trace)
        self.segments[base] = [None] * 8
        self.note("segment_alloc", base, 8 * UNIT, d_reserved=8 * UNIT)
        return self.place(base, 0, units, slack)

    def place(self, base, at, units, slack):
        size = units * UNIT - slack
        self.segments[base][at : at + units] = [(at, units, size)] * units
        self.note("alloc", base + at * UNIT, size, d_active=size)
        self.allocs += 1

    def live(self):
        return sorted({(base, *slot) for base, slots in self.segments.items() for slot in slots if slot})

    def free(self, index):
        if not self.live():
            return
        base, at, units, size = self.live()[index % len(self.live())]
        self.segments[base][at : at + units] = [None] * units
        self.note("free_requested", base + at * UNIT, size)
        self.note("free_completed", base + at * UNIT, size, d_active=-size)
        self.frees += 1

    def empty_cache(self):
        for base in [b for b, slots in self.segments.items() if not any(slots)]:
            del self.segments[base]
            self.note("segment_free", base, 8 * UNIT, d_reserved=-8 * UNIT)

    def document(self, cut, flag):
        made = []
        for base, slots in self.segments.items():
            blocks, at = [], 0
            while at < 8:
                if slots[at]:
                    blocks.append((slots[at][1] * UNIT, "a", slots[at][2]))
                    at += slots[at][1]
                else:
                    end = next((i for i in range(at, 8) if slots[i]), 8)
                    blocks.append(((end - at) * UNIT, "f"))
                    at = end
            made.append(segment(base, blocks))
        return document(made, self.trace[cut:], overflowed=flag)

    def stuck(self):
        return sum(slots.count(None) * UNIT for slots in self.segments.values() if any(slots))


moves = st.lists(st.tuples(st.sampled_from("aaaffe"), st.integers(1, 5), st.integers(0, 400)), min_size=1, max_size=60)


@settings(max_examples=80)
@given(moves, st.integers(0, 40))
def test_timeline_and_stuck_bytes(script, cut):
    naive = Naive()
    for move, units, slack in script:
        if move == "a":
            naive.alloc(units, slack)
        elif move == "f":
            naive.free(units + slack)
        else:
            naive.empty_cache()
    cut = min(cut, len(naive.trace))
    found = read(naive.document(cut, flag=None))
    if not found:
        return
    (shot,) = found
    assert shot.faults == ()
    (pool,) = pools(shot) or (SimpleNamespace(stuck_bytes=0, reserved_bytes=0),)
    assert (pool.stuck_bytes, pool.reserved_bytes) == (naive.stuck(), naive.reserved[-1])
    h = history(shot)
    if h.line is not None:
        assert np.array_equal(h.line.active, naive.active[cut:])
        assert np.array_equal(h.line.reserved, naive.reserved[cut:])
        assert np.array_equal(stuck_line(shot), naive.stuck_line[cut + 1 :])
        # the events begin at nothing exactly if no live thing lacks its birth
        assert (h.kind == "complete") == (h.live_without_alloc == h.frees_without_alloc == h.segments_without_alloc == 0)
    if cut == 0:
        zones = hot_zones(shot, 1 << 40)
        assert sum(z.allocs for z in zones) == naive.allocs
        assert sum(z.frees for z in zones) == naive.frees
        assert sum(z.live_blocks for z in zones) == len(naive.live())


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3) | st.just("alloc") | st.just("inactive"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("name", "rank", "device", "addr")), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=150)
@given(st.data())
def test_nonsense_anywhere_never_breaks_a_reader_a_rule_or_the_x_ray(data):
    """Each run puts nonsense in place of one to three values of a sound snapshot."""
    from moexray.core.limits.snapshot import SnapshotLimits
    from moexray.diagnose.engine import diagnose
    from moexray.faces.cli import memory_document, memory_tensors
    from moexray.faces.report import render

    doc = document(
        [segment(BASE, [(UNIT, "a"), (UNIT, "f")]), segment(BASE + 8 * UNIT, [(UNIT, "p")], pool=(0, 1))],
        [event("segment_alloc", BASE, 2 * UNIT, 5), event("alloc", BASE, UNIT, 6), event("oom", 0, 9, 7)],
        marks=[{"name": "step 1", "stage": s, "time_us": 5, "device": 0} for s in ("START", "END")],
        trace_alloc_max_entries=[9],
    )
    for _ in range(data.draw(st.integers(1, 3))):
        holder = doc
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(holder[key], (dict, list)) and data.draw(st.booleans()):
                holder = holder[key]
                continue
            holder[key] = data.draw(junk)
            break
    out = Reading("pickle")
    if shape.shape(doc, Source("s.pickle", content=b"x"), out):
        run = build_run([("s.pickle", out)], [])
        result = diagnose(run)
        assert result.failures == ()
        assert render(result.to_json())
        json.dumps(memory_document.document(shots(run), (), SnapshotLimits(), memory_tensors.rows(run)), allow_nan=False)
