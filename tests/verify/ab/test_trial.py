"""A trial: the order of switches, one rollback, always back to A, marks, controls, refusals."""

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.core.limits.ab import AbLimits
from moexray.verify.ab import Margin, Mark, Plan, Turn, document, places, result, run_trial, steps

QUIET = Plan(quads=30, noisy="mark", limits=AbLimits(1e9, 1e9, 1e9))


class System:
    """A live system with two settings; B may be slower."""

    def __init__(self, slower=0.0, *, per_turn=40, control=0.0):
        self.rng = np.random.default_rng(5)
        self.setting, self.switches, self.turns = None, [], 0
        self.slower, self.per_turn, self.control = slower, per_turn, control

    def switch(self, setting):
        self.setting = setting
        self.switches.append(setting)

    def sample(self, place):
        self.turns += 1
        extra = self.slower * (self.setting == "B")
        extra += self.control * (place.control and place.arm == "B")
        value = self.rng.normal(0.05 + extra, 0.002, self.per_turn)
        start = float(self.turns)
        return Turn(place, start, start + np.linspace(0, 0.99, self.per_turn), value)


def _plan(**changes):
    base = {name: getattr(QUIET, name) for name in Plan.__slots__}
    return Plan(**{**base, **changes})


def test_quads_are_abba_or_baab_by_a_coin_that_the_seed_fixes():
    found = ["".join(p.arm for p in places(40, seed=3))[i : i + 4] for i in range(0, 160, 4)]
    assert set(found) == {"ABBA", "BAAB"}
    assert 10 < found.count("ABBA") < 30
    assert list(places(40, seed=3)) == list(places(40, seed=3))
    assert list(places(40, seed=3)) != list(places(40, seed=4))


def test_control_quads_stay_in_a():
    found = list(places(8, seed=0, control_every=4))
    assert len(found) == 4 * 10
    assert {p.setting for p in found if p.control} == {"A"}
    assert {p.arm for p in found if p.control} == {"A", "B"}


def test_a_slower_b_is_rolled_back_once_and_left_so():
    system, calls = System(0.010), []
    trial = run_trial(system.switch, system.sample, _plan(), rollback=calls.append)
    assert len(calls) == 1
    assert calls[0].verdict == "worse"
    assert trial.rollback.decision is calls[0]
    assert trial.rollback.error == ""
    assert trial.stopped
    assert trial.decision.verdict == "worse"
    # the callback owns the way back: nothing is switched after it
    assert len(trial.turns) < 4 * 30
    after = list(system.switches)
    assert document(trial, result(trial))["rollback"]["after_quads"] == calls[0].quads
    assert system.switches == after


def test_without_a_callback_the_way_back_is_a():
    system = System(0.010)
    trial = run_trial(system.switch, system.sample, _plan())
    assert trial.rollback is not None
    assert system.setting == "A"


def test_a_rollback_that_fails_is_told_and_not_repeated():
    system, calls = System(0.010), []

    def broken(decision):
        calls.append(decision)
        raise RuntimeError("the deployment API says no")

    trial = run_trial(system.switch, system.sample, _plan(), rollback=broken)
    assert len(calls) == 1
    assert trial.rollback.error == "RuntimeError: the deployment API says no"
    assert system.setting == "A"


def test_equal_arms_never_roll_back_and_end_in_a():
    system, calls = System(), []
    trial = run_trial(system.switch, system.sample, _plan(), rollback=calls.append)
    assert calls == []
    assert trial.rollback is None
    assert system.switches[-1] == "A"
    found = {o.figure: o.verdict for o in result(trial).outcomes}
    assert found["p99_s"] == "no change"
    assert trial.decision.verdict == "no change"
    assert trial.control.verdict in ("no change", "cannot tell")
    assert not trial.stopped


def test_early_stops_as_soon_as_nothing_changed_is_established():
    system = System()
    trial = run_trial(system.switch, system.sample, _plan(early=True))
    assert trial.stopped
    assert trial.decision.verdict == "no change"
    assert "ended early" in " ".join(result(trial).notes)


def test_an_error_in_the_middle_leaves_a():
    system = System()

    def sample(place):
        if system.turns == 9:
            raise OSError("connection refused")
        return system.sample(place)

    with pytest.raises(OSError, match="refused"):
        run_trial(system.switch, sample, _plan())
    assert system.setting == "A"


def test_a_differs_from_a_says_nothing_of_b():
    system = System(control=0.02)
    trial = run_trial(system.switch, system.sample, _plan(control_every=1))
    assert trial.control.verdict == "worse"
    told = document(trial, result(trial))
    assert told["verdict"] == "cannot tell"
    assert any("A differs from A" in note for note in told["notes"])


def test_a_loaded_machine_is_refused_before_anything_is_switched(tmp_path):
    (tmp_path / "loadavg").write_text("7.10 6.00 5.00 3/150 4242\n")
    system = System()
    with pytest.raises(UsageError, match=r"too noisy: load 7\.1 on 2 cores \(limit 3\.0\)"):
        run_trial(system.switch, system.sample, Plan(), proc=tmp_path, cores=2)
    assert system.switches == []


def test_on_a_noisy_machine_processor_time_still_decides(tmp_path):
    (tmp_path / "loadavg").write_text("7.10 6.00 5.00 3/150 4242\n")
    system = System()

    def sample(place):
        turn = system.sample(place)
        return Turn(place, turn.start_s, turn.at_s, turn.value_s, cpu_s=turn.value_s)

    trial = run_trial(system.switch, sample, Plan(quads=8, noisy="mark"), proc=tmp_path, cores=2)
    found = {o.figure: o for o in result(trial).outcomes}
    assert found["p50_s"].verdict == "cannot tell"
    assert "too noisy" in found["p50_s"].reason
    assert found["p50_cpu_s"].verdict == "no change"
    assert document(trial, result(trial))["verdict"] == "cannot tell"


def test_windows_with_a_mark_are_set_aside_and_counted():
    system = System()

    def sample(place):
        turn = system.sample(place)
        value = turn.value_s.copy()
        value[:4] += 0.2
        mark = Mark("compile", turn.start_s, turn.start_s + 0.05)
        marks = (mark,) if place.arm == "B" else ()
        return Turn(place, turn.start_s, turn.at_s, value if marks else turn.value_s, marks=marks)

    trial = run_trial(system.switch, sample, _plan())
    told = document(trial, result(trial))
    assert told["marked_windows"] == {"compile": {"A": 0, "B": 60}}
    clean, shown = ({o["figure"]: o for o in told[k]} for k in ("outcomes", "with_marked"))
    assert clean["p99_s"]["verdict"] == "no change"
    assert shown["p99_s"]["verdict"] == "worse"
    notes = " ".join(told["notes"])
    assert "0 in A, 60 in B" in notes
    assert "p99_s: no change without the marked windows, worse with them" in notes


def test_a_mark_touches_the_windows_it_overlaps():
    place = next(iter(places(1)))
    at = np.array([0.05, 0.15, 0.25, 0.35, 0.45])
    lasted = np.array([0.01, 0.01, 0.01, 0.01, 0.3])
    turn = Turn(place, 0.0, at, lasted, marks=(Mark("snapshot", 0.12, 0.21),))
    assert turn.clean().tolist() == [True, False, False, True, False]
    assert turn.marked() == {"snapshot": 2}


def test_gauges_compare_by_turn():
    system = System()

    def sample(place):
        turn = system.sample(place)
        free = 5e9 if system.setting == "B" else 1e9
        return Turn(place, turn.start_s, turn.at_s, turn.value_s, gauges=(("largest_free_bytes", free),))

    found = {o.figure: o for o in result(run_trial(system.switch, sample, _plan())).outcomes}
    assert found["largest_free_bytes"].verdict == "better"
    assert found["largest_free_bytes"].ratio.value == 5.0


def test_turns_without_a_gauge_say_nothing_of_it():
    system = System()

    def sample(place):
        turn = system.sample(place)
        gauges = (("skew", 0.5), ("never", np.nan)) if system.turns % 3 else ()
        return Turn(place, turn.start_s, turn.at_s, turn.value_s, gauges=gauges)

    found = {o.figure: o for o in result(run_trial(system.switch, sample, _plan())).outcomes}
    assert found["skew"].before.value == found["skew"].after.value == 0.5
    assert found["skew"].verdict == "cannot tell"
    assert "never" not in found


def test_steps_of_this_process_have_wall_and_processor_time():
    seen = []
    sample = steps(lambda: seen.append(sum(range(2000))), 12, warm=3, gauges=lambda: [("skew", 0.2)])
    turn = sample(next(iter(places(1))))
    assert len(seen) == 15
    assert len(turn.value_s) == len(turn.cpu_s) == 12
    assert (turn.value_s > 0).all()
    assert (turn.at_s >= turn.start_s).all()
    assert turn.gauges == (("skew", 0.2),)


def test_a_margin_as_a_share_reaches_the_outcomes():
    system = System()
    plan = _plan(margin=Margin(0.05, is_share=True))
    [p50, *_] = result(run_trial(system.switch, system.sample, plan)).outcomes
    assert p50.margin == pytest.approx(0.05 * p50.before.value)
    assert p50.verdict == "no change"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_switch_that_fails_halfway_is_left_for_a(seed, error):
    switches = []

    def switch(setting):
        switches.append(setting)
        if setting == "B":
            raise error("half of the setting is in force")

    with pytest.raises(error, match="half"):
        run_trial(switch, System().sample, _plan(seed=seed))
    assert switches[-1] == "A"


@pytest.mark.parametrize(
    "given",
    [
        lambda p: None,
        lambda p: Turn(p, 0.0, np.zeros(2), np.array([0.1, np.nan])),
        lambda p: Turn(p, 0.0, np.zeros(2), np.array([0.1, np.inf])),
        lambda p: Turn(p, 0.0, np.zeros(2), np.array([0.1, -0.1])),  # a clock that was set back
        lambda p: Turn(p, 0.0, np.array([0.0, np.nan]), np.ones(2)),
        lambda p: Turn(p, 0.0, np.zeros(3), np.ones(2)),
        lambda p: Turn(p, 0.0, np.zeros(2), np.ones(2), cpu_s=np.ones(3)),
    ],
)
def test_what_is_no_turn_ends_the_trial_in_a(given):
    system = System()
    with pytest.raises(UsageError, match=r"no Turn|latencies of a turn"):
        run_trial(system.switch, given, _plan())
    assert system.setting == "A"


def test_a_figure_of_zero_has_no_ratio_and_no_say():
    zero = lambda p: Turn(p, 0.0, np.zeros(40), np.zeros(40))  # noqa: E731
    trial = run_trial(lambda _: None, zero, _plan(margin=Margin(0.05, is_share=True)))
    assert document(trial, result(trial))["verdict"] == "cannot tell"


@pytest.mark.parametrize(
    "changes",
    [{"quads": 0}, {"control_every": -1}, {"alpha": 0}, {"alpha": 1}, {"figures": ()}, {"figures": ("p100",)},
     {"figures": ("p0",)}, {"figures": ("p50", "ttft")}],
)  # fmt: skip
def test_a_plan_that_is_none(changes):
    with pytest.raises(UsageError):
        _plan(**changes)


def test_a_turn_without_steps_is_refused():
    with pytest.raises(UsageError, match="measures nothing"):
        steps(lambda: None, 0)
