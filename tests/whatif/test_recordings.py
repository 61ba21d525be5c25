import pytest

from made_histories import Heap, growing, pinned
from moexray.algorithms.blocks import Settings
from moexray.readers.read_any import read_any
from moexray.whatif import recordings as module
from moexray.whatif.allocator import Use, study
from moexray.whatif.cases import Memory, prepare_cases
from moexray.whatif.recordings import collect, logged_capacity, total_memory
from moexray.whatif.search import measured
from snapshot_samples import BASE, GIB, MIB, document, event, segment, temporary, write


def collected(tmp_path, doc):
    return collect(read_any([write(tmp_path / "made.pickle", doc)]))


def test_what_a_program_set_at_run_time_counts(tmp_path):
    doc = growing()
    table = {str(1 << i): 4 for i in range(16)}
    doc["allocator_settings"] |= {"max_split_size": 64 * MIB, "roundup_power2_divisions": table}
    [recording], _ = collected(tmp_path, doc)
    assert recording.history.settings == Settings(max_split=64 * MIB, roundup=(4,) * 16)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "another allocator"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1"}, "max_split_size_mb"),
    ],
)
def test_settings_that_cannot_be_replayed_are_told(tmp_path, change, why):
    doc = growing()
    doc["allocator_settings"] |= change
    found, [left] = collected(tmp_path, doc)
    assert not found
    assert why in left.reason


def test_settings_of_pytorch_do_not_apply_to_the_history_of_another_allocator(tmp_path):
    doc = growing()
    doc["allocator_settings"] = {"allocator": "an.arena", "policy": "first-fit"}
    run = read_any([write(tmp_path / "made.pickle", doc)])
    assert [r.owner for r in collect(run)[0]] == ["an.arena"]
    found = study(run, Memory(), Use())
    assert [x.reason for x in found.left_out] == ["an.arena made it: no setting of PyTorch's allocator applies to it"]
    assert not found.trials


def test_a_history_without_completed_frees_is_told(tmp_path):
    events = [e for e in temporary(BASE, 4 * MIB, 1) if e["action"] != "free_completed"]
    found, [left] = collected(tmp_path, document([segment(BASE, [(20 * MIB, "f")])], events))
    assert not found
    assert "free_completed" in left.reason


def test_two_files_of_one_content_are_two_recordings(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.pickle", growing())
    found, _ = collect(read_any([str(tmp_path)]))
    assert sorted(r.source.rpartition("/")[2] for r in found) == ["a.pickle", "b.pickle"]


def test_expandable_segments_are_replayed(tmp_path):
    events = [event("segment_map", BASE, 20 * MIB), event("alloc", BASE, 12 * MIB)]
    parts = [(12 * MIB, "a"), (8 * MIB, "f")]
    doc = document([segment(BASE, parts, expandable=True)], events, settings={"expandable_segments": True})
    found, _ = collected(tmp_path, doc)
    [case], _ = prepare_cases(found)
    assert case.check.exact
    assert measured([case], "", None).outcomes[0].peak_reserved == 20 * MIB


def test_the_capacity_is_what_a_failed_request_shows(tmp_path):
    [recording], _ = collected(tmp_path, pinned(capacity=900))
    [case], _ = prepare_cases([recording])
    assert case.capacity == 900 * MIB
    [case], _ = prepare_cases([recording], Memory(capacity=1 << 30))
    assert case.capacity == 1 << 30


def test_a_recording_that_begins_midway_is_also_replayed_from_a_restart(tmp_path):
    """A tensor of 12 MiB lies in a segment of 512 that was there before; after a restart it has its own."""
    parts = [(12 * MIB, "a"), (500 * MIB, "f")]
    doc = document([segment(BASE, parts)], temporary(BASE + 12 * MIB, 500 * MIB, 1))
    found, _ = collected(tmp_path, doc)
    [case], _ = prepare_cases(found)
    assert case.midway
    trial = measured([case], "", None)
    assert trial.outcomes[0].peak_reserved == 512 * MIB
    assert trial.restarted[0].peak_reserved == (12 + 500) * MIB
    assert (trial.outcomes[0].stuck, trial.restarted[0].stuck) == (500 * MIB, 0)


def test_a_recording_from_the_start_has_one_replay(tmp_path):
    found, _ = collected(tmp_path, growing())
    [case], _ = prepare_cases(found)
    assert not case.midway


def test_of_a_long_history_the_end_is_replayed(tmp_path, monkeypatch):
    """The end state is known, so what is left without the front is exact."""
    monkeypatch.setattr(module, "MOST_EVENTS", 10)
    [recording], _ = collected(tmp_path, growing())
    assert len(recording.history.events) == 10
    assert "only its last 10 events" in recording.notes[0]
    [case], _ = prepare_cases([recording])
    assert case.check.exact


def test_the_memory_that_others_took_before_the_failure_is_not_counted(tmp_path):
    """700 MiB were reserved once; when the request failed, the device had 512 + 60 left for PyTorch."""
    heap = Heap(700)
    heap.give(heap.take(700))
    heap.give(heap.take(1))
    heap.allocator.release_cached()
    heap.take(512)
    heap.device.capacity = 572 * MIB
    assert heap.take(100) is None
    [recording], _ = collected(tmp_path, heap.document())
    [case], _ = prepare_cases([recording])
    assert case.check.exact
    assert case.capacity == 700 * MIB  # what was live at once must have fitted
    later = heap.document()
    later["device_traces"][0] = later["device_traces"][0][-3:]
    [recording], _ = collected(tmp_path, later)
    [case], _ = prepare_cases([recording])
    assert case.capacity == 572 * MIB


def test_failures_that_the_recording_did_not_have_are_told(tmp_path):
    """505 MiB beside a pinned segment of 512 fitted once; others then took memory, and 100 beside 500 failed."""
    heap = Heap(1100)
    heap.give(heap.take(512))
    pin = heap.take(12)
    heap.give(heap.take(505))
    heap.give(pin)
    heap.allocator.release_cached()
    heap.take(500)
    heap.device.capacity = 530 * MIB
    assert heap.take(100) is None
    found = study(read_any([write(tmp_path / "a.pickle", heap.document())]), Memory(), Use())
    assert found.recorded.outcomes[0].ooms == 2
    assert any("may be spurious" in c for c in found.advice.caveats)


def test_the_capacity_of_a_log_is_used_where_the_history_shows_none(tmp_path):
    write(tmp_path / "snap.pickle", growing())
    (tmp_path / "engine.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.11 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in "
        "use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but "
        "unallocated.\n"
    )
    run = read_any([str(tmp_path)])
    assert total_memory(run) == pytest.approx(79.11 * GIB, rel=1e-3)
    found, _ = collect(run)
    [case], _ = prepare_cases(found, Memory(logged=logged_capacity(run)))
    assert case.capacity == pytest.approx(77 * GIB, rel=1e-3)
