from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from made_histories import Heap, growing, pinned
from moexray.algorithms.replay import Action, Event, History, SegmentState
from moexray.core.errors import UsageError
from moexray.core.run import Run
from moexray.faces.cli.main import main
from moexray.readers.read_any import read_any
from moexray.whatif.allocator import Recording, advise, recordings
from moexray.whatif.cases import Memory, prepare_cases
from moexray.whatif.conflicts import Conflict
from moexray.whatif.search import measured, named, search
from snapshot_samples import write

MIB = 1 << 20
INCIDENT = "examples/incident"
NO_GROWING = Conflict("cuda_ipc", "expandable_segments", "it is in use elsewhere")


def cases_of(*histories, capacity=None):
    recorded = [Recording(f"rank{i}.pickle", 0, i, h, "") for i, h in enumerate(histories)]
    cases, left = prepare_cases(recorded, Memory(capacity=capacity))
    assert not left
    return cases


def read(tmp_path, doc):
    [recording] = recordings(read_any([write(tmp_path / "made.pickle", doc)]))
    return recording.history


def quiet(mib):
    """One tensor that fills its segment."""
    place = (1 << 40, mib * MIB)
    segment = SegmentState(*place, 0, blocks=((*place, mib * MIB, True),))
    return History((Event(Action.SEGMENT_ALLOC, *place), Event(Action.ALLOC, *place)), (segment,))


def test_a_growing_buffer_is_mended(tmp_path):
    cases = cases_of(read(tmp_path, growing()))
    assert cases[0].check.exact
    recorded, trials, cut = search(cases)
    assert not cut
    assert recorded.outcomes[0].peak_reserved == sum(100 + 2 * i for i in range(6)) * MIB
    advice = advise(cases, recorded, trials)
    assert advice.line == f"PYTORCH_ALLOC_CONF={advice.conf}"
    assert advice.trial.outcomes[0].peak_reserved <= 120 * MIB  # 110 MiB in whole pages of 20
    grow = next(t for t in trials if t.name == "expandable_segments:True")
    assert grow.outcomes[0].peak_reserved == 120 * MIB


def test_a_forbidden_setting_is_not_advised_and_the_reason_is_told(tmp_path):
    cases = cases_of(read(tmp_path, pinned()))
    advice = advise(cases, *search(cases)[:2], [NO_GROWING])
    assert "expandable_segments" not in advice.conf
    assert advice.blocked == (NO_GROWING,)


def test_nothing_is_advised_where_nothing_helps():
    cases = cases_of(quiet(100))
    advice = advise(cases, *search(cases)[:2])
    assert advice.conf is None
    assert "0.0%" in advice.reason


def test_less_stuck_memory_is_not_worth_a_higher_peak(tmp_path):
    """A split limit leaves nothing stuck, at the price of a segment more."""
    heap = Heap()
    heap.give(heap.take(512))
    heap.take(18)
    cases = cases_of(read(tmp_path, heap.document()))
    recorded = measured(cases, "", None)
    trial = measured(cases, "max_split_size_mb:64", named("max_split_size_mb:64"))
    assert (recorded.outcomes[0].stuck, trial.outcomes[0].stuck) == (494 * MIB, 0)
    assert trial.outcomes[0].peak_reserved == (512 + 18) * MIB
    assert advise(cases, recorded, [trial]).conf is None


def test_a_setting_must_not_fail_on_any_other_device(tmp_path):
    """What helps one rank but makes another run out of memory is not advised."""
    cases = cases_of(read(tmp_path, growing()), quiet(301), capacity=305 * MIB)
    recorded = measured(cases, "", None)
    trial = measured(cases, "roundup_power2_divisions:2", named("roundup_power2_divisions:2"))
    assert trial.outcomes[1].ooms == 1  # 384 MiB
    assert advise(cases, recorded, [trial]).conf is None


def test_fewer_failures_are_no_cure(tmp_path):
    cases = cases_of(read(tmp_path, pinned()), capacity=600 * MIB)
    recorded, trials, _ = search(cases)
    assert recorded.outcomes[0].ooms == 1
    advice = advise(cases, recorded, trials)
    assert advice.conf is None
    assert "12.0 MiB more than there is" in advice.reason


def test_fragments_from_before_the_recording_are_told(tmp_path):
    """What pins the segment was allocated before: no setting moves it, and a restart would not bring it back."""
    heap = Heap(900)
    heap.give(heap.take(512))
    heap.take(12)
    heap.device.events.clear()
    heap.give(heap.take(0.5))
    heap.take(600)
    cases = cases_of(read(tmp_path, heap.document()))
    assert cases[0].midway
    recorded, trials, _ = search(cases)
    assert (recorded.outcomes[0].ooms, recorded.restarted[0].ooms) == (1, 0)
    advice = advise(cases, recorded, trials)
    assert advice.conf is None
    assert "made before the recording began" in advice.reason


def test_options_that_do_not_move_memory_stay_in_the_line(tmp_path):
    doc = growing()
    doc["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "pinned_use_background_threads:True"
    [recording] = recordings(read_any([write(tmp_path / "pinned.pickle", doc)]))
    cases, _ = prepare_cases([recording])
    advice = advise(cases, *search(cases)[:2])
    assert advice.conf.startswith("pinned_use_background_threads:True,")


def test_without_a_history_the_error_says_what_is_missing():
    with pytest.raises(UsageError, match="no history") as why:
        recordings(Run())
    assert "no allocator snapshot" in why.value.where


def test_the_command_on_the_bundled_incident():
    result = CliRunner().invoke(main, ["whatif", "memory", INCIDENT])
    assert result.exit_code == 0, result.output
    assert "103/103 placements" in result.output
    assert "set: PYTORCH_ALLOC_CONF=" in result.output
    document = json.loads(CliRunner().invoke(main, ["whatif", "memory", INCIDENT, "--format", "json"]).output)
    assert document["self_check"]["exact"]
    assert document["settings"][0]["retries"] == 7
    blocked = CliRunner().invoke(main, ["whatif", "memory", INCIDENT, "--engine", "vllm", "--tp", "2"])
    assert "set: PYTORCH_ALLOC_CONF=max_split" in blocked.output
    assert "not used: expandable_segments" in blocked.output
