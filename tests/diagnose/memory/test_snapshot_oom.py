"""Failed requests in the history of a snapshot go through the order of tests; numbers worked by hand."""

import pytest

from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any
from snapshot_samples import BASE, GIB, MIB, document, event, segment, whole, write

FRAGMENTED = [segment(BASE + i * GIB, [(60 * MIB, "a"), (40 * MIB, "f")]) for i in range(3)]  # 120 MiB free


def oom(size, free, time_us=None):
    out = event("oom", 0, size, time_us)
    del out["addr"]
    return {**out, "device_free": free}


def diagnosis(*paths):
    return diagnose(read_any([str(p) for p in paths]))


def top(tmp_path, doc):
    return diagnosis(write(tmp_path / "s.pickle", doc)).findings[0]


@pytest.mark.parametrize(
    ("request_mib", "free_mib", "verdict", "value"),
    [
        (100, 16, "mem.fragmentation", 120 * MIB),
        (130, 16, "mem.fragmentation_contributes", 114 * MIB),
        (200, 16, "mem.true_exhaustion", 136 * MIB),
        (100, 500, "mem.limit_below_free", 500 * MIB),
        (3, 16, "mem.fragmentation", 120 * MIB),  # the device is asked for 20 MiB: 16 MiB free are too few
    ],
)
def test_a_failed_request_is_judged(tmp_path, request_mib, free_mib, verdict, value):
    f = top(tmp_path, whole(FRAGMENTED, [oom(request_mib * MIB, free_mib * MIB)]))
    assert (f.id, f.severity, f.value, f.subject.device) == (verdict, "error", value, 0)
    assert f"action=oom size={request_mib * MIB} device_free={free_mib * MIB}" in f.evidence[0].text
    assert "fragments_bytes=125829120 reserved_bytes=314572800" in f.evidence[1].text


def test_the_largest_hole_is_told(tmp_path):
    f = top(tmp_path, whole(FRAGMENTED, [oom(100 * MIB, 16 * MIB)]))
    assert "The largest hole that the request could have had is 40.00 MiB" in f.claim
    assert not f.settle_with
    assert "snapshot-try-settings" in {r.id for r in f.remedies}


def test_the_moment_of_the_failure_counts_not_the_end_state(tmp_path):
    """After it a block of 90 MiB was freed, whose free bytes the request could not have had."""
    freed = [segment(BASE, [(10 * MIB, "a"), (90 * MIB, "f")])]
    gone = BASE + 10 * MIB
    after = [event("free_requested", gone, 90 * MIB), event("free_completed", gone, 90 * MIB)]
    history = [event("segment_alloc", BASE, 100 * MIB), event("alloc", BASE, 10 * MIB), event("alloc", gone, 90 * MIB)]
    f = top(tmp_path, document(freed, [*history, oom(50 * MIB, 16 * MIB), *after]))
    assert (f.id, f.value) == ("mem.true_exhaustion", 16 * MIB)
    assert "largest_free_block_bytes" not in f.evidence[1].text


def test_a_failure_that_was_survived_is_a_warning(tmp_path):
    served = event("alloc", FRAGMENTED[0]["address"], 60 * MIB)
    events = whole(FRAGMENTED)["device_traces"][0]
    events.remove(event("alloc", served["addr"], 60 * MIB, 0))
    f = top(tmp_path, document(FRAGMENTED, [*events, oom(50 * MIB, 16 * MIB), served]))
    assert (f.id, f.severity) == ("mem.fragmentation", "warn")
    assert "served later" in f.claim


def test_a_message_of_the_same_failure_is_not_doubled(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of "
        "1.00 GiB of which 16.00 MiB is free. Including non-PyTorch memory, this process has 1008.00 MiB memory in "
        "use. Of the allocated memory 180.00 MiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but "
        "unallocated.\n"
    )
    shot = write(tmp_path / "s.pickle", whole(FRAGMENTED, [oom(100 * MIB, 16 * MIB)]))
    found = [f for f in diagnosis(log, shot).findings if f.id == "mem.fragmentation"]
    assert [f.evidence[0].source for f in found] == [str(log)]


def test_a_history_that_contradicts_itself_leaves_fragments_unknown(tmp_path):
    lost = [event("segment_free", BASE + GIB, GIB), event("free_completed", BASE, 9 * GIB)]
    f = top(tmp_path, whole(FRAGMENTED, [oom(100 * MIB, 16 * MIB), *lost]))
    assert (f.id, f.confidence) == ("mem.true_exhaustion", 0.55)


def test_expandable_segments_are_not_offered_where_they_are_on(tmp_path):
    doc = whole(FRAGMENTED, [oom(100 * MIB, 16 * MIB)], settings={"expandable_segments": True})
    assert "expandable-segments" not in {r.id for r in top(tmp_path, doc).remedies}


def test_an_arena_of_the_engine_is_asked_for_what_the_request_needs(tmp_path):
    """PyTorch would ask the device for 20 MiB; an arena named in the settings asks nobody."""
    doc = whole([segment(BASE, [(60 * MIB, "a"), (2 * MIB, "f"), (30 * MIB, "a"), (8 * MIB, "f")])], [oom(9 * MIB, 0)])
    doc["allocator_settings"] = {"allocator": "engine.arena", "expandable_segments": False}
    f = top(tmp_path, doc)
    assert (f.id, f.value, f.limit) == ("mem.fragmentation", 10 * MIB, 9 * MIB)
    assert "while engine.arena held 10.00 MiB" in f.claim
    assert [r.id for r in f.remedies] == ["snapshot-move-pins"]
