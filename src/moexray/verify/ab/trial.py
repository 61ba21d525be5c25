"""A trial: switches between two settings, samples both, decides as it goes, and rolls back once.

The caller brings two callables: `switch(setting)` puts the live system into setting A or B, `sample(place)`
measures one turn under it. Whatever ends a trial, the system is left in A, or as the rollback leaves it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import numpy as np

from moexray.core.errors import UsageError
from moexray.core.limits.ab import AbLimits
from moexray.verify.ab.machine import PROC, moment, noise, refusal
from moexray.verify.ab.outcome import Margin
from moexray.verify.ab.schedule import Mark, Turn, places
from moexray.verify.ab.sequence import Decision, Watch, is_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from moexray.verify.ab.machine import Moment, Noise
    from moexray.verify.ab.schedule import Place

    Setting = Literal["A", "B"]
    Rollback = Callable[[Decision], object]

__all__ = ["Plan", "RolledBack", "Trial", "run_trial", "steps"]

LOOK_S = 0.5  # seconds over which steal and waiting are read before a trial


@dataclass(frozen=True, slots=True)
class Plan:
    """What a trial measures and when it stops.

    Args:
        quads: ABBA quads at most.
        margin: Difference that does not matter. Source of the default: mission, row S24.
        alpha: Chance that an identical B is called better or worse, looked at after each quad.
        figures: Figures of a turn that the sequential test watches.
        early: Whether "better" and "no change" end the trial, too; "worse" always does.
        control_every: One A/A quad after each so many quads; 0 for none.
        seed: Of the coins and of the bootstrap.
        noisy: What a noisy machine means for wall-clock latencies: "refuse" does not begin, "mark" measures
            and gives no verdict on them.
        limits: When a machine is noisy.

    Raises:
        UsageError: no quad, no figure or an unknown one, or a chance outside 0..1.
    """

    quads: int = 60
    margin: Margin = field(default_factory=lambda: Margin(0.005))
    alpha: float = 0.05
    figures: tuple[str, ...] = ("p50", "p99", "errors")
    early: bool = False
    control_every: int = 4
    seed: int = 0
    noisy: Literal["refuse", "mark"] = "refuse"
    limits: AbLimits = field(default_factory=AbLimits)

    def __post_init__(self) -> None:
        if self.quads < 1 or self.control_every < 0 or not 0 < self.alpha < 1:
            told = f"quads {self.quads}, control_every {self.control_every}, alpha {self.alpha}"
            hint = "quads 1 or more, control_every 0 or more, alpha between 0 and 1"
            raise UsageError(f"a plan of {told} is none", hint=hint)
        bad = [f for f in self.figures if not is_figure(f)]
        if bad or not self.figures:
            raise UsageError(f"a turn has no figure {', '.join(bad) or 'to watch'}",
                             hint="p50, p99, p99.9, ...; max, mean, errors")  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolledBack:
    """That the rollback was called: why, after how many quads, and what it raised if it failed."""

    decision: Decision
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured; `verify.ab.result` makes figures of it.

    Args:
        plan: As it was asked for.
        turns: All turns, in their order.
        decision: Of the sequential test of A against B.
        control: Of A against A; "better" and "worse" say that the instrument is at fault.
        noise: Of the machine during the trial.
        noisy: Why wall-clock latencies allow no verdict; empty where they do.
        rollback: None where it was not called.
        stopped: Whether it ended before the last quad of the plan.
    """

    plan: Plan
    turns: tuple[Turn, ...]
    decision: Decision
    control: Decision
    noise: Noise
    noisy: str
    rollback: RolledBack | None
    stopped: bool


class _Once:
    """Calls the rollback the first time only."""

    def __init__(self, call: Rollback) -> None:
        self._call = call
        self.done: RolledBack | None = None

    def __call__(self, decision: Decision) -> None:
        if self.done is not None:
            return
        self.done = RolledBack(decision, "it did not return")
        try:
            self._call(decision)
            self.done = RolledBack(decision)
        except Exception as why:  # noqa: BLE001 (the caller's code; the report tells)
            self.done = RolledBack(decision, f"{type(why).__name__}: {why}")


def run_trial(
    switch: Callable[[Setting], object], sample: Callable[[Place], Turn], plan: Plan, *,
    rollback: Rollback | None = None, watch: Callable[[Turn], None] | None = None, proc: Path = PROC,
    cores: int | None = None,
) -> Trial:
    """Runs a trial.

    Args:
        switch: Puts the system into setting "A" or "B"; called where the setting changes, and at the end.
        sample: Measures one turn.
        plan: What and how long.
        rollback: Called once, with the decision, where B is worse by more than the margin; `switch("A")`
            where None. If it raises, A is switched to and the error is in the result.
        watch: Told of each turn as it is done.
        proc: Where procfs is mounted.
        cores: Cores of the machine; as the system says where None.

    Raises:
        UsageError: the machine is too noisy and the plan says to refuse; `sample` gave no turn.
    """  # fmt: skip
    first = _quiet(plan, proc, cores)
    once = _Once(rollback or (lambda _: switch("A")))
    test, control = (Watch(plan.figures, plan.margin, plan.alpha) for _ in range(2))
    turns: list[Turn] = []
    setting: Setting | None = None
    try:
        for _, quad in groupby(places(plan.quads, plan.seed, plan.control_every), lambda p: p.quad):
            done: list[Turn] = []
            for place in quad:
                if place.setting != setting:
                    setting = place.setting  # before the switch: one that fails halfway is left, too
                    switch(place.setting)
                done.append(_turn(sample(place)))
                if watch:
                    watch(done[-1])
            turns += done
            if done[0].place.control:
                control.add(done)
                continue
            verdict = test.add(done)
            if verdict == "worse":
                once(test.decision())
            if verdict == "worse" or (plan.early and verdict != "cannot tell"):
                break
    finally:
        if (once.done is None or once.done.error) and setting is not None:
            _leave(switch, failed=once.done)
    seen = noise(first, moment(proc, cores))
    return Trial(
        plan=plan,
        turns=tuple(turns),
        decision=test.decision(),
        control=control.decision(),
        noise=seen,
        noisy=refusal(seen, plan.limits),
        rollback=once.done,
        stopped=max((s.place.quad for s in turns), default=-1) + 1 < _quads(plan),
    )


def steps(
    step: Callable[[], object], count: int, *, warm: int = 2, marks: Callable[[], Iterable[Mark]] = tuple,
    gauges: Callable[[], Sequence[tuple[str, float]]] = tuple,
) -> Callable[[Place], Turn]:
    """A sampler for a step that runs in this process.

    Args:
        step: One step.
        count: Steps of a turn.
        warm: Steps after a switch that are not counted.
        marks: What else happened since it was last asked, on time.perf_counter().
        gauges: Further numbers at the end of a turn.

    Raises:
        UsageError: a turn has no step.
    """  # fmt: skip
    if count < 1:
        raise UsageError(f"a turn of {count} steps measures nothing", hint="100 or more for a P99")

    def sample(place: Place) -> Turn:
        for _ in range(warm):
            step()
        tuple(marks())
        start = time.perf_counter()
        at, wall, cpu = np.empty(count), np.empty(count), np.empty(count)
        for i in range(count):
            wall[i], cpu[i] = time.perf_counter(), time.process_time()
            step()
            at[i] = time.perf_counter()
            cpu[i] = time.process_time() - cpu[i]
        return Turn(place, start, at, at - wall, cpu, tuple(marks()), gauges=tuple(gauges()))

    return sample


def _turn(given: object) -> Turn:
    if not isinstance(given, Turn):
        what = f"sample gave {type(given).__name__} and no Turn"
        raise UsageError(what, hint="return a Turn, or use steps(...)")
    return given


def _quiet(plan: Plan, proc: Path, cores: int | None) -> Moment:
    first = moment(proc, cores)
    if plan.noisy == "refuse":
        time.sleep(LOOK_S)
        if why := refusal(noise(first, moment(proc, cores)), plan.limits):
            raise UsageError(
                why, where="load, steal and waiting, read before the trial",
                hint="stop what else runs, take another machine, or measure without a verdict on wall-clock "
                'latency (Plan(noisy="mark"), --noisy)',
            )  # fmt: skip
    return first


def _leave(switch: Callable[[Setting], object], failed: RolledBack | None) -> None:
    """Back to A; after a failed rollback its error is the one to tell."""
    if failed is None:
        switch("A")
        return
    with suppress(Exception):
        switch("A")


def _quads(plan: Plan) -> int:
    return plan.quads + (plan.quads // plan.control_every if plan.control_every else 0)
