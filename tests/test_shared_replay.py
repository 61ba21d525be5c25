"""Every shared snapshot with a history replays exactly; and so does what is left without its front."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from moexray.algorithms.replay import Action, replay
from moexray.algorithms.simulate import prepare, simulate
from moexray.core.errors import UsageError
from moexray.readers.read_any import read_any
from moexray.whatif.allocator import recordings

SHARED = Path(__file__).resolve().parents[2] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data lie beside the checkout; not here")
FILES = sorted([*SHARED.glob("data/memory/*.pickle*"), *SHARED.glob("data/incidents/*/memory/*.pickle")])


def histories(path):
    try:
        return recordings(read_any([str(path)]))
    except UsageError as why:
        if "holds no allocation history" not in str(why):
            raise
        pytest.skip(str(why))


def test_most_files_hold_a_history():
    """A reader that lost histories would turn the test below into skips."""
    held = 0
    for path in FILES:
        with contextlib.suppress(UsageError):
            held += bool(recordings(read_any([str(path)])))
    assert held >= 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.parent.name}-{p.name}")
def test_a_shared_history_replays_exactly(path):
    for recording in histories(path):
        check = replay(recording.history)
        assert check.exact, check
        plan = prepare(recording.history)
        capacity = plan.capacity[0] if plan.capacity[1] is not None else None
        outcome = simulate(plan, recording.history.settings, capacity=capacity)
        assert outcome.reserved == plan.recorded_reserved
        assert outcome.peak_reserved == plan.capacity[0]
        segments = [e for e in recording.history.events if e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)]
        assert outcome.segment_operations == len(segments)
        for cut in (0.25, 0.5, 0.9):
            events = recording.history.events
            check = replay(replace(recording.history, events=events[int(cut * len(events)) :]))
            assert check.exact, check
