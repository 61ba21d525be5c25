"""The stuck line: hand-worked where segments overlap in address over time."""

from moexray.analyse.snapshot import shots
from moexray.analyse.snapshot_stuck import stuck_line
from moexray.core.run import Reading, build_run
from moexray.core.source import Source
from moexray.readers.shapes import snapshot as shape
from snapshot_samples import BASE, MIB, document, event, segment


def line_of(segments, trace):
    out = Reading("pickle")
    shape.shape(document(segments, trace), Source("s.pickle", content=b"x"), out)
    (shot,) = shots(build_run([("s.pickle", out)], []))
    found = stuck_line(shot)
    return None if found is None else [v // MIB for v in found.tolist()]


def test_a_place_that_is_taken_again_in_another_size():
    trace = [
        event("segment_alloc", BASE, 20 * MIB),
        event("alloc", BASE, 5 * MIB),  # 15 stuck
        event("alloc", BASE + 5 * MIB, 5 * MIB),  # 10
        event("free_completed", BASE, 5 * MIB),  # 15
        event("free_completed", BASE + 5 * MIB, 5 * MIB),  # 0: whole again
        event("segment_free", BASE, 20 * MIB),
        event("segment_alloc", BASE, 40 * MIB),
        event("alloc", BASE + 10 * MIB, 10 * MIB),  # 30 stuck
        event("segment_alloc", BASE + 60 * MIB, 20 * MIB),
        event("alloc", BASE + 60 * MIB, 20 * MIB),  # nothing more
    ]
    end = [
        segment(BASE, [(10 * MIB, "f"), (10 * MIB, "a"), (20 * MIB, "f")]),
        segment(BASE + 60 * MIB, [(20 * MIB, "a")]),
    ]
    assert line_of(end, trace) == [0, 15, 10, 15, 0, 0, 0, 30, 30, 30]


def test_what_was_there_before_the_history_counts():
    end = [segment(BASE, [(10 * MIB, "a"), (30 * MIB, "f")]), segment(BASE + 100 * MIB, [(8 * MIB, "a"), (2 * MIB, "f")])]
    trace = [event("alloc", BASE + 10 * MIB, 5 * MIB), event("free_completed", BASE + 10 * MIB, 5 * MIB)]
    assert line_of(end, trace) == [27, 32]


def test_expandable_segments_have_no_line():
    assert line_of([segment(BASE, [(20 * MIB, "a")], expandable=True)], [event("segment_map", BASE, 20 * MIB)]) is None
