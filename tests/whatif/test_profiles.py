from pathlib import Path

import pytest

from moexray.algorithms.replay import Action, Event
from moexray.readers.read_any import read_any
from moexray.whatif.cases import prepare_cases
from moexray.whatif.profiles import paired
from moexray.whatif.recordings import collect
from moexray.whatif.search import measured

SHARED = Path(__file__).resolve().parents[3] / "shared/data/memory/cpu_moe_profile_memory.json.gz"
A, F = Action.ALLOC, Action.FREE_COMPLETED


@pytest.mark.parametrize(
    ("marks", "events", "older"),
    [
        ([(1, 8), (1, -8), (1, 4)], [Event(A, 1, 8), Event(F, 1, 8), Event(A, 1, 4)], 0),
        ([(1, 8), (2, -5), (1, -8)], [Event(A, -1, 5), Event(A, 1, 8), Event(F, -1, 5), Event(F, 1, 8)], 1),
        ([(1, 8), (1, 6), (1, -6)], [Event(A, 1, 8), Event(F, 1, 8), Event(A, 1, 6), Event(F, 1, 6)], 0),
        ([(2, -5), (2, -7)], [Event(A, -1, 5), Event(A, -2, 7), Event(F, -1, 5), Event(F, -2, 7)], 2),
        ([(3, 0)], [], 0),
    ],
)
def test_a_free_belongs_to_the_latest_allocation_at_its_address(marks, events, older):
    assert paired(marks) == (events, older)


@pytest.mark.skipif(not SHARED.is_file(), reason="the shared data lie beside the checkout; not here")
def test_the_live_peak_of_a_cpu_run_is_that_of_the_profiler():
    """Sizes as requested: the profiler's own running total peaks where ours does, before rounding."""
    run = read_any([str(SHARED)])
    [recording], _ = collect(run)
    [batch] = run.batches("trace_memory")
    live = peak = 0
    for e in recording.history.events:
        live += e.size if e.action == A else -e.size
        peak = max(peak, live)
    assert peak == max(batch.columns["allocated_bytes"])
    assert len(recording.history.events) == len(batch.columns["bytes"])
    cases, _ = prepare_cases([recording])
    [outcome] = measured(cases, "", None).outcomes
    assert outcome.peak_allocated >= peak
