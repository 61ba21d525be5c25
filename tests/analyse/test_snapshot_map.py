"""The memory map: kinds, call sites, and what thinning keeps."""

import numpy as np
import pytest
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


def test_small_runs_are_drawn_with_their_neighbours(monkeypatch):
    monkeypatch.setattr(snapshot_map, "MOST_RUNS", 5)
    monkeypatch.setattr(snapshot_map, "PIXELS", 8)
    # 160 MiB: cells of 20 MiB would leave 6 runs, cells of 40 leave 5
    blocks = [(50, "a"), (1, "f"), (2, "a"), (3, "f"), (60, "a"), (22, "f"), (18, "a"), (4, "f")]
    found = memory_map(shot_of(segment(BASE, [(n * MIB, s) for n, s in blocks])))
    assert runs_of(found) == [
        (0, 50, "live", 0), (0, 6, "stuck", -1), (0, 60, "live", 0), (0, 22, "stuck", -1), (0, 22, "live", -1),
    ]  # fmt: skip
    assert found.merged_below == 40 * MIB


def test_a_pattern_of_equal_blocks_stays_a_pattern():
    blocks = [(MIB, "a" if i // 100 % 2 else "f") for i in range(6_000)]
    blocks = [b if i % 2 else (MIB, "p" if b[1] == "a" else "f") for i, b in enumerate(blocks)]
    found = memory_map(shot_of(segment(BASE, blocks)))
    assert len(found.run_bytes) <= 3_000
    free = found.run_bytes[found.run_kind == KINDS.index("stuck")].sum()
    assert free == pytest.approx(3_000 * MIB, rel=0.05)


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
    assert len(found.run_bytes) <= 8 + len(layout)
