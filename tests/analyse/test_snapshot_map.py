"""The memory map: kinds, call sites, and what thinning keeps."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.analyse import snapshot_map
from moexray.analyse.snapshot import shots
from moexray.analyse.snapshot_map import KINDS, memory_map
from moexray.core.run import Reading, build_run
from moexray.core.source import Source
from moexray.readers.shapes import snapshot as shape
from snapshot_samples import BASE, MIB, document, frames, segment

GAP = 1 << 32


def shot_of(*segments):
    out = Reading("pickle")
    shape.shape(document(list(segments)), Source("s.pickle", content=b"x"), out)
    (shot,) = shots(build_run([("s.pickle", out)], []))
    return shot


def runs_of(found):
    kinds = [KINDS[k] for k in found.run_kind.tolist()]
    sizes = [b // MIB for b in found.run_bytes.tolist()]
    return list(zip(found.run_segment.tolist(), sizes, kinds, found.run_site.tolist(), strict=True))


def test_kinds_sites_and_order():
    first = segment(BASE, [(2 * MIB, "a"), (3 * MIB, "a"), (5 * MIB, "f"), (4 * MIB, "p")])
    first["blocks"][3]["frames"] = frames(9)
    second = segment(BASE + GAP, [(20 * MIB, "f")])
    small = segment(BASE - GAP, [(2 * MIB, "f")], kind="small")
    found = memory_map(shot_of(first, second, small))
    # neighbours of one site are one run; small segments come last though their address is lowest
    assert runs_of(found) == [
        (0, 5, "live", 0), (0, 5, "stuck", -1), (0, 4, "pending", 1), (1, 20, "cached", -1), (2, 2, "cached", -1),
    ]  # fmt: skip
    assert found.sites == ("srv/app/model.py:1 run", "srv/app/model.py:9 run")
    assert found.site_bytes == (5 * MIB, 4 * MIB)
    assert found.held_by == ("srv/app/model.py:9 run", "", "")
    assert (found.blocks, found.merged_below) == (6, 0)


def test_free_pages_of_expandable_segments_are_cached():
    found = memory_map(shot_of(segment(BASE, [(20 * MIB, "a"), (100 * MIB, "f")], expandable=True)))
    assert [k for _, _, k, _ in runs_of(found)] == ["live", "cached"]


def test_small_runs_are_joined_by_kind_within_a_cell(monkeypatch):
    monkeypatch.setattr(snapshot_map, "MOST_RUNS", 6)
    monkeypatch.setattr(snapshot_map, "PIXELS", 8)
    # 160 MiB: cells of 20 MiB leave 8 runs (50; 2 live, 4 free; 60; 22; 14; 2 live, 6 free), cells of 40 leave 7
    blocks = [(50, "a"), (1, "f"), (2, "a"), (3, "f"), (60, "a"), (22, "f"), (14, "a"), (2, "f"), (2, "a"), (4, "f")]
    found = memory_map(shot_of(segment(BASE, [(n * MIB, s) for n, s in blocks])))
    assert found.merged_below == 80 * MIB
    # all are small now: one cell from 0 on, one from 80 on
    assert runs_of(found) == [(0, 112, "live", 0), (0, 4, "stuck", -1), (0, 16, "live", 0), (0, 28, "stuck", -1)]


def test_the_bytes_of_each_kind_stay_exact():
    blocks = [(MIB, "a" if i % 3 else "f") for i in range(9_000)]
    found = memory_map(shot_of(segment(BASE, blocks)))
    assert len(found.run_bytes) <= 3_000
    held = np.bincount(found.run_kind, weights=found.run_bytes, minlength=4)
    assert held.tolist() == [6_000 * MIB, 0, 3_000 * MIB, 0]


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("afp")), min_size=1, max_size=30), min_size=1, max_size=6))
def test_no_byte_is_lost(layout):
    shot = shot_of(*(segment(BASE + i * GAP, [(n * 512, s) for n, s in blocks]) for i, blocks in enumerate(layout)))
    before = snapshot_map.MOST_RUNS
    snapshot_map.MOST_RUNS = 8
    try:
        found = memory_map(shot)
    finally:
        snapshot_map.MOST_RUNS = before
    drawn = np.bincount(found.run_segment, weights=found.run_bytes, minlength=len(found.segments))
    assert drawn.tolist() == shot.segments["total_bytes"][found.segments].tolist()
    assert len(found.run_bytes) <= 8 + len(KINDS) * len(layout)
