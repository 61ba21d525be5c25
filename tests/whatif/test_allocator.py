from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from moexray.algorithms.blocks import Settings
from moexray.algorithms.replay import Action, Event, History, SegmentState
from moexray.core.errors import UsageError
from moexray.core.run import Run
from moexray.faces.cli.main import main
from moexray.whatif.allocator import Recording, advise, prepare_cases, recordings, search

MIB = 1 << 20
INCIDENT = "examples/incident"


def grown(steps=6):
    """A buffer that grows by 2 MiB a step and finds no hole: each step leaves a segment behind."""
    events, segments, at = [], [], 1 << 40
    for i in range(steps):
        size = (100 + 2 * i) * MIB
        events += [
            Event(Action.SEGMENT_ALLOC, at, size), Event(Action.ALLOC, at, size),
            Event(Action.FREE_REQUESTED, at, size), Event(Action.FREE_COMPLETED, at, size),
        ]  # fmt: skip
        segments.append(SegmentState(at, size, 0, blocks=((at, size, size, False),)))
        at += size + 64 * MIB
    return Recording("a.pickle", 0, 0, History(tuple(events), tuple(segments)), "")


def test_a_growing_buffer_is_mended():
    cases = prepare_cases([grown()], None)
    assert cases[0].check.exact
    trials = search(cases)
    assert trials[0].outcomes[0].peak_reserved == sum(100 + 2 * i for i in range(6)) * MIB
    advice = advise(cases, trials, {})
    assert advice.line.startswith("PYTORCH_ALLOC_CONF=")
    assert advice.trial.outcomes[0].peak_reserved <= 120 * MIB  # 110 MiB in whole pages of 20
    grow = next(t for t in trials if t.name == "expandable_segments:True")
    assert grow.outcomes[0].peak_reserved == 120 * MIB


def test_a_forbidden_setting_is_not_advised_and_the_reason_is_told():
    cases = prepare_cases([grown()], None)
    trials = search(cases)
    free = advise(cases, trials, {}).line.partition("=")[2].partition(":")[0]
    advice = advise(cases, trials, {free: "it is in use elsewhere"})
    assert free not in (advice.line or "")
    assert "it is in use elsewhere" in advice.blocked[0]


def test_nothing_is_advised_where_nothing_helps():
    segment = SegmentState(1 << 40, 100 * MIB, 0, blocks=((1 << 40, 100 * MIB, 100 * MIB, True),))
    events = (Event(Action.SEGMENT_ALLOC, 1 << 40, 100 * MIB), Event(Action.ALLOC, 1 << 40, 100 * MIB))
    cases = prepare_cases([Recording("a", 0, 0, History(events, (segment,)), "")], None)
    advice = advise(cases, search(cases), {})
    assert advice.line is None
    assert "0.0%" in advice.reason


def test_nothing_is_advised_on_an_inexact_replay():
    good = grown()
    wrong = good.history.events[1]._replace(address=5)
    history = History((good.history.events[0], wrong, *good.history.events[2:]), good.history.segments)
    cases = prepare_cases([Recording("a", 0, 0, history, "")], None)
    assert not cases[0].check.exact
    advice = advise(cases, search(cases), {})
    assert advice.line is None
    assert "placements" in advice.reason


def test_a_setting_must_not_fail_on_any_other_device():
    """What helps one rank but makes another run out of memory is not advised."""
    quiet = [Event(Action.SEGMENT_ALLOC, 1 << 40, 300 * MIB), Event(Action.ALLOC, 1 << 40, 300 * MIB)]
    segment = SegmentState(1 << 40, 300 * MIB, 0, blocks=((1 << 40, 300 * MIB, 300 * MIB, True),))
    other = Recording("b", 0, 1, History(tuple(quiet), (segment,)), "")
    cases = prepare_cases([grown(), other], 305 * MIB)
    trials = search(cases, extra=[Settings(roundup=(2,) * 16)])
    advice = advise(cases, trials, {"expandable_segments": "no"})
    assert advice.trial is None or advice.trial.outcomes[1].ooms == 0


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
    [case] = document["cases"]
    assert case["self_check"]["exact"]
    assert document["trials"][0]["cases"][0]["retries"] == 7
    blocked = CliRunner().invoke(main, ["whatif", "memory", INCIDENT, "--engine", "vllm", "--tp", "2"])
    assert "set: PYTORCH_ALLOC_CONF=max_split" in blocked.output
    assert "not used: expandable_segments" in blocked.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no/such"], "does not exist"),
        ([INCIDENT, "--capacity", "huge"], "no size"),
        ([INCIDENT, "--conf", "expandable_segments:yes"], "must be True or False"),
        (["README.md"], "no history to replay"),
    ],
)
def test_bad_usage_is_exit_2(args, words):
    result = CliRunner().invoke(main, ["whatif", "memory", *args])
    assert result.exit_code == 2
    assert words in result.output + result.stderr
