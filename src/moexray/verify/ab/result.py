"""The figures of a trial: outcomes over pairs, with and without marked windows, of A/B and of A/A."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.ab.outcome import Outcome, outcome
from moexray.verify.ab.stats import paired_means, paired_outcomes, too_few

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moexray.verify.ab.schedule import Turn
    from moexray.verify.ab.sequence import Decision
    from moexray.verify.ab.trial import Trial

__all__ = ["Result", "document", "result"]

MORE_IS_GOOD = {"largest_free_bytes"}  # of the gauges; the others are bad when they grow


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a trial.

    Args:
        outcomes: Without the marked windows.
        with_marked: The same with them.
        control: A against A, where the plan had such quads.
        marked: Windows of 100 ms that each kind of mark touches, per arm.
        notes: What to mind, one sentence each.
    """

    outcomes: tuple[Outcome, ...]
    with_marked: tuple[Outcome, ...]
    control: tuple[Outcome, ...]
    marked: Mapping[str, tuple[int, int]]
    notes: tuple[str, ...]


def result(trial: Trial) -> Result:
    """Makes the figures of a trial; wall-clock verdicts are withheld where the machine was noisy."""
    tests = [s for s in trial.turns if not s.place.control]
    controls = [s for s in trial.turns if s.place.control]
    outcomes = _outcomes(trial, tests, clean=True)
    with_marked = _outcomes(trial, tests, clean=False)
    marked = _marked(tests)
    return Result(
        outcomes=tuple(outcomes),
        with_marked=tuple(with_marked) if marked else (),
        control=tuple(_outcomes(trial, controls, clean=True)) if controls else (),
        marked=marked,
        notes=tuple(_notes(trial, outcomes, with_marked, marked)),
    )


def document(trial: Trial, figures: Result) -> dict[str, Any]:
    """The document `moexray.ab/1`."""
    plan = trial.plan
    return {
        "schema": "moexray.ab/1",
        "verdict": _verdict(trial),
        "decision": _decision(trial.decision),
        "outcomes": [o.to_json() for o in figures.outcomes],
        "with_marked": [o.to_json() for o in figures.with_marked],
        "control": {
            "decision": _decision(trial.control),
            "outcomes": [o.to_json() for o in figures.control],
        },
        "marked_windows": {k: {"A": a, "B": b} for k, (a, b) in figures.marked.items()},
        "rollback": None if trial.rollback is None else {
            "after_quads": trial.rollback.decision.quads, "figure": trial.rollback.decision.figure,
            "error": trial.rollback.error,
        },
        "noise": {**asdict(trial.noise), "refused": trial.noisy},
        "plan": {
            "quads": plan.quads, "margin": asdict(plan.margin), "alpha": plan.alpha,
            "figures": list(plan.figures), "control_every": plan.control_every, "seed": plan.seed,
        },
        "turns": len(trial.turns),
        "errors": {arm: sum(s.errors for s in trial.turns if s.place.arm == arm) for arm in "AB"},
        "stopped_early": trial.stopped,
        "notes": list(figures.notes),
    }  # fmt: skip


def _verdict(trial: Trial) -> str:
    """That of the sequential test; a fault of the instrument or the machine leaves "worse" only."""
    verdict = trial.decision.verdict
    if trial.control.verdict in ("better", "worse"):
        return "cannot tell"
    return "cannot tell" if trial.noisy and verdict != "worse" else verdict


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "verdict": decision.verdict, "figure": decision.figure, "quads": decision.quads,
        "intervals": {k: asdict(v) for k, v in decision.intervals.items()},
    }  # fmt: skip


def _outcomes(trial: Trial, turns: Sequence[Turn], *, clean: bool) -> list[Outcome]:
    pairs = _pairs(turns)
    sides: list[list[np.ndarray]] = [[], []]
    cpu: list[list[np.ndarray]] = [[], []]
    for pair in pairs:
        for i, turn in enumerate(pair):
            keep = turn.clean() if clean else np.ones(len(turn.value_s), bool)
            sides[i].append(turn.value_s[keep])
            if len(turn.cpu_s):
                cpu[i].append(turn.cpu_s[keep])
    plan = trial.plan
    out = paired_outcomes(*sides, margin=plan.margin, seed=plan.seed, missing=trial.noisy)
    if len(cpu[0]) == len(pairs) == len(cpu[1]) and pairs:
        out += paired_outcomes(*cpu, margin=plan.margin, seed=plan.seed, suffix="_cpu_s")
    return [*out, *_gauges(pairs, plan.seed)]


def _pairs(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """(A, B) of each two neighbours of a quad; what an interruption left half is left out."""
    out = []
    for i in range(0, len(turns) - 1, 2):
        pair = {s.place.arm: s for s in turns[i : i + 2]}
        if len(pair) == 2:
            out.append((pair["A"], pair["B"]))
    return out


def _gauges(pairs: Sequence[tuple[Turn, Turn]], seed: int) -> list[Outcome]:
    out = []
    for name in dict.fromkeys(n for pair in pairs for n, _ in pair[0].gauges):
        told = np.array([[dict(s.gauges).get(name, np.nan) for s in pair] for pair in pairs])
        known = told[np.isfinite(told).all(axis=1)]
        if not len(known):
            continue
        drawn = paired_means(*known.T, seed=seed)
        unit = "bytes" if name.endswith("_bytes") else ""
        few = too_few(drawn.pairs)
        higher = name in MORE_IS_GOOD
        out.append(
            outcome(name, drawn, better="higher" if higher else "lower", unit=unit, missing=few)
        )
    return out


def _marked(turns: Sequence[Turn]) -> dict[str, tuple[int, int]]:
    out: dict[str, list[int]] = {}
    for turn in turns:
        for what, windows in turn.marked().items():
            out.setdefault(what, [0, 0])["AB".index(turn.place.arm)] += windows
    return {k: (a, b) for k, (a, b) in out.items()}


def _notes(
    trial: Trial, outcomes: Sequence[Outcome], with_marked: Sequence[Outcome],
    marked: Mapping[str, tuple[int, int]],
) -> list[str]:  # fmt: skip
    out = [trial.noisy] if trial.noisy else []
    if trial.noisy and trial.decision.verdict == "worse":
        out.append(
            "that B is worse holds on a noisy machine, too: the coin lets the noise fall on both arms alike"
        )
    if trial.control.verdict in ("better", "worse"):
        out.append("A differs from A: the instrument is at fault, so nothing is said of B")
    if trial.stopped:
        out.append(
            "the trial ended early: the intervals of the outcomes hold for a fixed number of quads only, "
            "those of the decision at any moment"
        )
    for what, (a, b) in marked.items():
        if max(a, b) > 2 * min(a, b) + 5:
            out.append(
                f"windows with a {what}: {a} in A, {b} in B. If the setting causes them, setting them aside "
                "hides its cost: see the figures with marked windows"
            )
    for o, m in zip(outcomes, with_marked, strict=True):
        if o.verdict != m.verdict:
            out.append(f"{o.figure}: {o.verdict} without the marked windows, {m.verdict} with them")
    errors = {arm: sum(s.errors for s in trial.turns if s.place.arm == arm) for arm in "AB"}
    if any(errors.values()):
        out.append(f"failed requests: {errors['A']} in A, {errors['B']} in B; latencies are of the others")
    return out


