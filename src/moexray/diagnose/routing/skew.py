"""ep.skew and ep.drift: recomputed from counts, never from the engine's own figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.routing import loads, over_senders
from moexray.analyse.routing_drift import assumed_ranks, moved
from moexray.analyse.routing_figures import figures
from moexray.analyse.routing_ranks import ep_size, layer_balance, mean_and_time, to_ranks, whole_model
from moexray.analyse.routing_stats import cv, gini, top_share
from moexray.analyse.routing_windows import MOST, drift
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.routing.plan import logical_tokens, plan, skew_remedies

if TYPE_CHECKING:
    from moexray.algorithms.drift import Change
    from moexray.analyse.routing import Load
    from moexray.analyse.routing_drift import Moved
    from moexray.analyse.routing_figures import Figures
    from moexray.analyse.routing_ranks import LayerBalance, Ranks
    from moexray.analyse.routing_windows import Drift
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["Course", "balance", "courses", "skew_and_drift"]

SHOWN = 5  # layers quoted as evidence
MAX_CELLS = 20_000  # cells of one heat map


@dataclass(frozen=True, slots=True)
class Course:
    """A load, its figures, and how its mix of experts changed.

    Args:
        load: Senders summed.
        count: Its ranks; None where nothing that can be trusted says how many.
        figures: Over `count` ranks, else over as many as its experts divide into.
        drift: Changes of the mix.
    """

    load: Load
    count: int | None
    figures: Figures
    drift: Drift


def courses(run: Run, dummy_run: int) -> list[Course]:
    """Every load of a run that counts tokens on their way to the experts; for `Run.once`."""
    out = []
    for load in map(over_senders, loads(run, dummy_run, windows=MOST)[0]):
        shares = load.tokens.dtype.kind == "f" and load.tokens.max(initial=0) <= 1
        if load.what != "routed" or shares:
            continue  # results that came back; shares without a number of tokens
        count = None if load.attrs.get("doubtful") else ep_size(run, load)[0]
        seen = figures(run, load, count or assumed_ranks(load.tokens.shape[-1]))
        out.append(Course(load, count, seen, drift(seen)))
    return out


@dataclass(frozen=True, slots=True)
class _Skew:
    ranks: Ranks
    layers: list[LayerBalance]  # all layers with enough tokens
    worst: LayerBalance
    value: float
    moving: bool


def skew_and_drift(run: Run, limits: Limits) -> list[Finding]:
    """One finding per id: the worst load of the run."""
    skews: list[tuple[_Skew, Moved | None]] = []
    drifts: list[tuple[Ranks, list[Moved]]] = []
    mixed: list[tuple[Load, Drift, Change]] = []
    guesses: list[_Skew] = []
    for seen_load in run.once(courses, limits.routing.dummy_run):
        load, count, course = seen_load.load, seen_load.count, seen_load.drift
        ranks = seen_load.figures.ranks
        if ranks is None or ranks.tokens.shape[-1] < 2:
            continue
        lost = _lost(seen_load.figures, course, limits)
        if lost and count:
            drifts.append((ranks, lost))
        if not count and not load.attrs.get("doubtful"):
            most = [c for c in course.found if c.lasts and 2 * c.layers.sum() > len(c.layers)]
            mixed += [(load, course, c) for c in most]
        cut = ranks.part(slice(lost[0].at, lost[0].until)) if lost else ranks
        if skew := _skew(cut, limits):
            if count:
                skews.append((skew, lost[0] if lost else None))
            else:
                guesses.append(skew)
    said: list[Finding] = []
    if drifts:
        said.append(_drift_finding(*max(drifts, key=lambda d: d[1][0].before - d[1][0].after), limits))
    if skews:
        said.append(_skew_finding(*min(skews, key=lambda s: s[0].value), limits))
    if mixed and not drifts:
        said.append(_mix_finding(*max(mixed, key=lambda m: m[2].distance / max(m[2].quiet, 1e-9))))
    if guesses and not skews:
        said.append(_guess_finding(min(guesses, key=lambda s: s.value), limits))
    return said


def _lost(seen: Figures, course: Drift, limits: Limits) -> list[Moved]:
    """Changes that a placement that fitted did not survive, worst first."""
    r = limits.routing
    bad = [
        c for c in moved(seen, course)
        if c.before - c.after > r.drift_fall and c.before >= r.balancedness and c.chance > r.chance
    ]  # fmt: skip
    return sorted(bad, key=lambda c: c.after - c.before)


def _skew(ranks: Ranks, limits: Limits) -> _Skew | None:
    r = limits.routing
    layers = layer_balance(ranks, r.chance)
    sure = [b for b in layers if b.by_chance > r.chance]
    if not sure:
        if not layers:
            return None
        total = whole_model(ranks, r.chance)
        if total.by_chance > r.chance and total.balancedness < r.balancedness:
            return _Skew(ranks, [total], total, total.balancedness, moving=False)
        return None
    worst = min(sure, key=lambda b: b.balancedness)
    if worst.balancedness < r.balancedness:
        return _Skew(ranks, sure, worst, worst.balancedness, moving=False)
    moving = [b for b in sure if b.typical is not None and b.typical < r.balancedness]
    if moving:
        worst = min(moving, key=lambda b: b.typical or 1.0)
        return _Skew(ranks, sure, worst, float(worst.typical or 1.0), moving=True)
    return None


def _bad(skew: _Skew, limit: float) -> list[LayerBalance]:
    def value(b: LayerBalance) -> float:
        return (1.0 if b.typical is None else b.typical) if skew.moving else b.balancedness

    return sorted((b for b in skew.layers if value(b) < limit), key=value)


def _skew_finding(skew: _Skew, change: Moved | None, limits: Limits) -> Finding:
    r, worst, load = limits.routing, skew.worst, skew.ranks.load
    bad = _bad(skew, r.balancedness)
    time = mean_and_time(skew.layers)["of_time"]
    if skew.moving:
        time = float(np.mean([b.balancedness if b.typical is None else b.typical for b in skew.layers]))
    where = f"layer {worst.layer}" if worst.layer is not None else "all layers together"
    if worst.layer == -1:
        where = "the layer"
    since = ""
    if change:
        step = _step(skew.ranks, 0)
        since = f" from row {change.at} on" if step is None else f" from step {step} on"
    if skew.moving:
        claim = (
            f"In {where}{since} the busiest EP rank changes, but in a typical window it holds so much that "
            f"balancedness (mean/max over {len(worst.loads)} ranks) is {skew.value:.3f}; the sum hides it "
            f"({worst.balancedness:.3f})."
        )
    else:
        claim = (
            f"In {where}{since} EP rank {worst.hot} gets {worst.share:.1%} of the tokens (even share "
            f"{1 / len(worst.loads):.1%}): balancedness {skew.value:.3f} < {r.balancedness:.2f}."
        )
    claim += (
        f" {len(bad)} of {len(skew.layers)} layers lie below the limit; perfect balance would save at most "
        f"{1 - time:.0%} of the MoE compute time. How the ranks were counted: {skew.ranks.mapping}."
    )
    index = [int(np.flatnonzero(load.layers == b.layer)[0]) for b in bad if b.layer is not None]
    return Finding(
        "ep.skew", "warn", 0.95 if skew.ranks.given else 0.85, claim,
        Subject(rank=None if skew.moving else worst.hot, layer=_label(worst.layer),
                step_from=_step(skew.ranks, 0), step_to=_step(skew.ranks, -1)),
        skew.value, r.balancedness, "ratio",
        tuple(_layer_evidence(skew.ranks, b) for b in bad[:SHOWN]),
        implied_by=(*(("ep.drift",) if change else ()), *_wasted(skew)),
        remedies=skew_remedies(skew.ranks, index, skew.value),
    )  # fmt: skip


def _wasted(skew: _Skew) -> tuple[str, ...]:
    """The duplicate replica as a cause, if the busiest rank holds one."""
    slots, load = skew.ranks.slots, skew.ranks.load
    at = np.flatnonzero(load.layers == (-2 if skew.worst.layer is None else skew.worst.layer))
    if slots is None or not len(at):
        return ()
    mine = slots[int(at[0])].reshape(len(skew.worst.loads), -1)[skew.worst.hot]
    used = mine[mine >= 0]
    return ("ep.duplicate_replica",) if len(np.unique(used)) < len(used) else ()


def _label(layer: int | None) -> int | None:
    return None if layer is None or layer < 0 else layer


def _step(ranks: Ranks, at: int) -> int | None:
    """First step of the row at the front, last one of the row at the end; None where none is given."""
    load = ranks.load
    if not (load.attrs.get("labelled") or load.from_routes) or not load.ordered:
        return None
    before = int(load.attrs.get("span", 1)) - 1 if at >= 0 else 0
    return int(load.steps[at]) - before


def _layer_evidence(ranks: Ranks, b: LayerBalance) -> Evidence:
    load = ranks.load
    values: dict[str, Any] = {
        "layer": _label(b.layer),
        "rank": b.hot,
        "ranks": len(b.loads),
        "balancedness_ratio": b.balancedness,
        "typical_balancedness_ratio": b.typical,
        "by_chance_ratio": b.by_chance,
        "max_tokens": float(b.loads.max()),
        "mean_tokens": float(b.loads.mean()),
        "share_ratio": b.share,
        "ceiling_ratio": 1 - b.balancedness,
    }
    if load.axis == "logical" and b.layer is not None:
        per_expert = load.tokens[:, int(np.flatnonzero(load.layers == b.layer)[0])].sum(axis=0)
        values |= {
            "hottest_expert": int(per_expert.argmax()), "gini_ratio": gini(per_expert),
            "cv_ratio": cv(per_expert), "top3_share_ratio": top_share(per_expert, 3),
        }  # fmt: skip
    where = f"layer {b.layer}" if b.layer is not None and b.layer >= 0 else "all rows"
    notes = f" ({'; '.join(load.notes)})" if load.notes else ""
    return Evidence(load.source, f"{where}, sum of {len(load.steps)} steps", pairs(values) + notes)


def _drift_finding(ranks: Ranks, lost: list[Moved], limits: Limits) -> Finding:
    worst, load = lost[0], ranks.load
    after = ranks.part(slice(worst.at, worst.until))
    step = _step(after, 0)
    unit = "token" if load.from_routes else "step"
    place = f"{unit} {step}" if step is not None else f"row {worst.at}"
    tokens = logical_tokens(after)
    index = [int(np.flatnonzero(load.layers == c.layer)[0]) for c in lost]
    count = ranks.tokens.shape[-1]
    extra = -tokens.shape[2] % count if tokens is not None else 0
    made = plan(tokens, index, count, extra) if tokens is not None else None
    predicted = f"predicted balancedness {made.balancedness:.3f}" if made else "needs counts per expert"
    hot = int(after.tokens[:, index[0]].sum(axis=0).argmax())
    until = "" if worst.until >= len(load.steps) else f" until row {worst.until}"
    claim = (
        f"The routing changed at {place}: in layer {worst.layer} balancedness fell from {worst.before:.3f} "
        f"to {worst.after:.3f} and stayed there{until}; rank {hot} is now the busiest. {len(lost)} of "
        f"{len(load.layers)} layers are hit. The placement fitted the mix before, not the one after."
    )
    evidence = tuple(
        Evidence(
            load.source, f"layer {c.layer}, rows {c.at}-{c.until - 1}",
            pairs({"layer": c.layer, "step_from": _step(ranks.part(slice(c.at, c.until)), 0),
                   "before_ratio": c.before, "after_ratio": c.after, "js_distance": c.distance,
                   "js_quiet": c.quiet, "window_rows": c.window}),
        )
        for c in lost[:SHOWN]
    )  # fmt: skip
    return Finding(
        "ep.drift", "warn", 0.9 if ranks.given else 0.8, claim,
        Subject(layer=_label(worst.layer), rank=hot, step_from=step, step_to=_step(after, -1)),
        worst.before - worst.after, limits.routing.drift_fall, "ratio", evidence,
        remedies=(remedy("rebalance-now", step=place, predicted=predicted), remedy("rebalance-oftener"),
                  remedy("split-over-replicas")),
    )  # fmt: skip


def _mix_finding(load: Load, course: Drift, change: Change) -> Finding:
    """Most layers change their mix at one time, and no artefact tells what it does to the ranks."""
    step, count = int(course.steps[change.start]), int(change.layers.sum())
    numbers = pairs({"layers_changed": count, "layers": len(change.layers), "step_from": step,
                     "js_distance": change.distance, "js_quiet": change.quiet})  # fmt: skip
    claim = (
        f"The mix of experts changed at {'token' if load.from_routes else 'step'} {step} in {count} of "
        f"{len(change.layers)} layers (Jensen-Shannon distance {change.distance:.3f}, when quiet "
        f"{change.quiet:.3f}); without the EP size or the placement it cannot be said what that does to the "
        f"ranks."
    )
    return Finding(
        "ep.drift", "info", 0.45, claim, Subject(step_from=step), change.distance, change.quiet, "nats",
        (Evidence(load.source, f"{len(course.steps)} windows", numbers),),
        settle_with=("EP size (launch line or config)", "placement (physical_to_logical_map)"),
    )  # fmt: skip


def _guess_finding(skew: _Skew, limits: Limits) -> Finding:
    worst, count = skew.worst, len(skew.worst.loads)
    doubtful = bool(skew.ranks.load.attrs.get("doubtful"))
    claim = (
        f"The columns of {count} ranks are uneven (mean/max {skew.value:.3f}, most on rank {worst.hot}), but "
        f"nothing says that they hold tokens and not times or bytes."
    ) if doubtful else (
        f"Tokens per expert are uneven (layer {worst.layer}), but no artefact gives the EP size or the "
        f"placement; {count} ranks with contiguous experts would have a balancedness of {skew.value:.3f}."
    )
    return Finding(
        "ep.skew", "info", 0.4, claim, Subject(layer=_label(worst.layer)), skew.value,
        limits.routing.balancedness, "ratio", (_layer_evidence(skew.ranks, worst),),
        settle_with=("what the columns hold, in a header such as ep_rank0_tokens",) if doubtful else
        ("EP size (launch line or config)", "placement (physical_to_logical_map)"),
    )  # fmt: skip


def balance(run: Run) -> list[dict[str, Any]]:
    """Exhibit: one heat map per load, layers x ranks (experts where the EP size is unknown)."""
    rows: list[dict[str, Any]] = []
    for load in loads(run, dummy_run=32)[0][:8]:
        count, _ = ep_size(run, load)
        ranks = to_ranks(run, load, count) if count else None
        cells = (ranks.tokens if ranks else load.tokens).sum(axis=0)
        if cells.size > MAX_CELLS:
            cells = cells[: max(1, MAX_CELLS // cells.shape[1])]
        top = cells.max(axis=1)
        scores = np.where(top > 0, cells.mean(axis=1) / np.maximum(top, 1), np.nan)
        rows.append(
            {
                "source": load.source,
                "axis": "rank" if ranks else "expert",
                "unit": "tokens",
                "columns": list(range(cells.shape[1])),
                "layers": [int(y) for y in load.layers[: len(cells)]],
                "values": [[float(v) for v in line] for line in cells],
                "balancedness": [None if np.isnan(s) else round(float(s), 4) for s in scores],
            }
        )
    return rows
