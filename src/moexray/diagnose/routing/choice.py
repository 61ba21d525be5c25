"""num.router_*: ties by rounding, two engines that differ, noise; results of experts that are lost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.routers import bf16, chosen, softmax
from moexray.analyse.router_choice import Flips, flips, moved_load, rounding
from moexray.analyse.routing import config, folder
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.analyse.routing import Load
    from moexray.core.limits import Limits
    from moexray.core.limits.routing import RoutingLimits
    from moexray.core.run import Batch, Run

__all__ = ["dropped_outputs", "router_choices", "router_ties"]

USUAL_K = ((32, 8), (16, 4), (0, 2))  # experts at least -> experts per token, where nothing says it
PAIRS = 6  # pairs of records compared


@dataclass(frozen=True, slots=True)
class _Pair:
    first: Batch
    second: Batch
    layer: np.ndarray
    found: Flips
    moved: float
    mask: np.ndarray


def router_ties(run: Run, limits: Limits) -> list[Finding]:
    """Rounding of the scores before top-k changes sets, and only those with tiny margins."""
    lim = limits.routing
    best: tuple[int, Finding] | None = None
    for batch in run.batches("logits"):
        values = np.asarray(batch.columns["values"])
        experts = values.shape[1]
        given = batch.attrs.get("top_k") or config(run, "top_k") or _chosen_k(run, batch)
        k = int(given or next(k for least, k in USUAL_K if experts >= least))
        if not 0 < k < experts or not len(values):
            continue
        scores = values if batch.attrs.get("kind") == "probs" else softmax(values)
        r = rounding(scores, k)
        if not r.changed or r.margin > lim.margin_steps or _chose_otherwise(run, batch, scores, k, lim):
            continue
        full = str(batch.attrs.get("precision")) in ("float32", "float64")
        claim = (
            f"{r.changed} of {r.tokens} tokens change their top-{k} set of {experts} experts when the "
            f"router's probabilities are rounded to BF16 before the choice (ties to the lowest index); "
            f"their margins are all below the rounding step."
        )
        if not given:
            claim += f" Top-{k} is assumed: the file does not give k."
        if not full:
            claim += f" The record is {batch.attrs.get('precision')}, so what the engine saw is open."
        numbers = {"tokens": r.tokens, "experts": experts, "topk": k, "tokens_changed_stable_ties": r.changed,
                   "ties_at_k": r.ties, "changed_ratio": r.changed / r.tokens,
                   "largest_margin_steps_ratio": r.margin, "first_changed_row": r.first}  # fmt: skip
        finding = Finding(
            "num.router_ties", "warn" if full else "info", 0.85 if full else 0.45, claim, Subject(),
            float(r.changed), 0.0, "tokens",
            (Evidence(batch.source, f"array {batch.attrs.get('name', 'logits')}", pairs(numbers)),),
            remedies=(remedy("route-in-fp32"),),
            settle_with=() if full else ("router logits in FP32, or the precision of the engine's router",),
        )  # fmt: skip
        if best is None or r.changed > best[0]:
            best = (r.changed, finding)
    return [best[1]] if best else []


def _chose_otherwise(run: Run, batch: Batch, scores: np.ndarray, k: int, lim: RoutingLimits) -> bool:
    """Whether the choices recorded beside the scores do not follow the rounded ones where it matters."""
    for made in run.batches("routes"):
        ids = np.asarray(made.columns["ids"])
        same = made.source == batch.source and made.attrs.get("arm") == batch.attrs.get("arm")
        if not same or ids.shape != (len(scores), k) or int(ids.max()) >= scores.shape[1]:
            continue
        full, low = chosen(scores, k), chosen(bf16(scores), k)
        at = np.flatnonzero((full != low).any(axis=1) & (ids >= 0).all(axis=1))
        if len(at):
            picked = np.zeros((len(at), scores.shape[1]), bool)
            picked[np.arange(len(at))[:, None], ids[at]] = True
            return bool((picked == low[at]).all(axis=1).mean() < lim.follows_rounding)
    return False


def _chosen_k(run: Run, batch: Batch) -> int | None:
    widths = {b.columns["ids"].shape[1] for b in run.batches("routes") if b.source == batch.source}
    return widths.pop() if len(widths) == 1 else None


def router_choices(run: Run, limits: Limits) -> list[Finding]:
    """Two records of the same tokens whose sets differ: divergence of engines, or noise."""
    for pair in _pairs(run, limits.routing):
        if pair.found.changed > 0 and (said := _judge(run, pair, limits)):
            return [said]
    return []


def _pairs(run: Run, lim: RoutingLimits) -> Iterator[_Pair]:
    """Records of equal layers and tokens that are mostly alike."""
    batches = run.batches("routes")
    for a, b in list(combinations(batches, 2))[: PAIRS * 10]:
        ids = [np.asarray(x.columns["ids"]) for x in (a, b)]
        same_rows = ids[0].shape == ids[1].shape and all(
            np.array_equal(a.columns[c], b.columns[c]) for c in ("layer", "token")
        )
        if not same_rows:
            continue
        layer = np.asarray(a.columns["layer"])
        found, mask = flips(layer, np.asarray(a.columns["token"]), ids[0], ids[1])
        if found.changed / max(found.rows, 1) <= lim.other_input or _same_logits(run, a, b, lim):
            yield _Pair(a, b, layer, found, moved_load(layer, ids[0], ids[1]), mask)


def _same_logits(run: Run, a: Batch, b: Batch, lim: RoutingLimits) -> bool:
    """Whether the scores recorded beside both choices are so near that the tokens are the same."""
    first, second = _logits_of(run, a), _logits_of(run, b)
    if first is None or second is None or first.shape != second.shape:
        return False
    return float(np.abs(first - second).mean()) < lim.same_tokens * float(first.std())


def _judge(run: Run, pair: _Pair, limits: Limits) -> Finding | None:
    """Noise where equal scores give other sets at large margins; divergence at small ones."""
    names = [str(b.attrs.get("engine") or b.attrs.get("arm") or "") for b in (pair.first, pair.second)]
    engines = [b.attrs.get("engine") for b in (pair.first, pair.second)]
    same_engine = engines[0] is not None and engines[0] == engines[1]
    difference, small = _scores(run, pair, limits.routing)
    if difference is not None and small is not None:
        if difference <= limits.routing.same_scores and small < limits.routing.small_share:
            return _noise(pair, difference, small)
        if same_engine:
            return None
        return _divergence(pair, names, difference, small, limits)
    if same_engine:
        return None
    return _divergence(pair, names, difference, small, limits)


def _scores(run: Run, pair: _Pair, lim: RoutingLimits) -> tuple[float | None, float | None]:
    """(largest typical difference of the recorded scores, share of flips at small margins)."""
    a, b = (_logits_of(run, x) for x in (pair.first, pair.second))
    k = pair.first.columns["ids"].shape[1]
    if a is not None and b is not None and len(a) == len(b) == len(pair.mask) and a.shape[1] > k:
        gap = np.abs(a - b).max(axis=1)
        typical = float(np.quantile(gap, 0.99))
        ranked = -np.partition(-a[pair.mask], [k - 1, k], axis=1)
        margins = ranked[:, k - 1] - ranked[:, k]
        near = margins <= np.maximum(lim.near_margin * gap[pair.mask], 2.0**-8 * np.abs(ranked[:, k - 1]))
        return typical, float(near.mean()) if len(near) else None
    first, second = pair.first.columns.get("scores"), pair.second.columns.get("scores")
    if first is None or second is None:
        return None, None
    return _chosen_scores(pair, np.asarray(first), np.asarray(second), lim)


def _chosen_scores(
    pair: _Pair, first: np.ndarray, second: np.ndarray, lim: RoutingLimits
) -> tuple[float | None, float | None]:
    """The same from the scores of the chosen experts only: a lost expert should be the weakest one."""
    ids = [np.asarray(x.columns["ids"]) for x in (pair.first, pair.second)]
    equal = ids[0][:, :, None] == ids[1][:, None, :]
    gaps = np.abs(first[:, :, None] - second[:, None, :])[equal]
    typical = float(np.quantile(gaps, 0.99)) if gaps.size else None
    lost = ~equal.any(axis=2)
    rows = pair.mask & (lost.sum(axis=1) > 0)
    weakest = first[rows].min(axis=1)
    spread = np.maximum(first[rows].max(axis=1) - weakest, 1e-12)
    above = np.where(lost[rows], first[rows], -np.inf).max(axis=1) - weakest
    near = above <= np.maximum(lim.near_spread * spread, lim.near_margin * (typical or 0.0))
    return typical, float(near.mean()) if len(near) else None


def _logits_of(run: Run, batch: Batch) -> np.ndarray | None:
    found = [x for x in run.batches("logits") if x.source == batch.source]
    arm = batch.attrs.get("arm")
    chosen = [x for x in found if x.attrs.get("arm") == arm] or (found if len(found) == 1 else [])
    return np.asarray(chosen[0].columns["values"]) if len(chosen) == 1 else None


def _numbers(pair: _Pair, difference: float | None, small: float | None) -> dict[str, object]:
    f = pair.found
    worst = max(f.per_layer, key=lambda y: f.per_layer[y])
    return {"sets": f.rows, "sets_changed": f.changed, "changed_ratio": f.changed / f.rows,
            "tokens": f.tokens,
            "tokens_changed": f.touched, "tokens_changed_ratio": f.touched / max(f.tokens, 1),
            "layers": len(f.per_layer), "worst_layer": worst, "worst_layer_ratio": f.per_layer[worst],
            "moved_load_ratio": pair.moved, "score_difference": difference,
            "flips_at_small_margin_ratio": small}  # fmt: skip


def _evidence(pair: _Pair, numbers: dict[str, object]) -> tuple[Evidence, ...]:
    per_layer = " ".join(f"{y}:{v:.3f}" for y, v in list(pair.found.per_layer.items())[:64])
    said = [Evidence(pair.first.source, "all rows", pairs(numbers))]
    said.append(Evidence(pair.second.source, "share of changed sets per layer", per_layer))
    return tuple(said)


def _noise(pair: _Pair, difference: float, small: float) -> Finding:
    f = pair.found
    numbers = _numbers(pair, difference, small)
    return Finding(
        "num.router_noise", "warn", 0.85,
        f"{f.changed / f.rows:.1%} of the top-k sets differ between two records although the recorded scores "
        f"are equal within {difference:.2g}; {1 - small:.0%} of the flips have large margins, so this is no "
        f"rounding: noise is added in the router.",
        Subject(), f.changed / f.rows, 0.0, "ratio", _evidence(pair, numbers),
        remedies=(remedy("router-noise-off"),),
    )  # fmt: skip


def _divergence(
    pair: _Pair, names: list[str], difference: float | None, small: float | None, limits: Limits
) -> Finding:
    f = pair.found
    known = names[0] != names[1] and all(names)
    near = small is not None and small >= limits.routing.small_share
    scored = near and bool(difference)  # equal scores diverge by no numbers
    sure = known or scored
    who = f"{names[0]} and {names[1]}" if known else "Two records"
    even = pair.moved <= limits.routing.moved_load
    claim = (
        f"{who} choose other experts for the same tokens: {f.changed / f.rows:.1%} of the top-k sets and "
        f"{f.touched / max(f.tokens, 1):.1%} of the tokens (any layer) differ, while the loads "
        f"{'are nearly equal' if even else 'differ by'} ({pair.moved:.1%} of the choices moved)."
    )
    if scored:
        claim += f" Scores differ by {difference:.2g}; {small:.0%} of the flips sit at small margins."
    elif not sure:
        claim += " Neither engine names nor scores are recorded, so the cause is open."
    return Finding(
        "num.router_divergence", "warn" if sure else "info",
        (0.85 if scored else 0.7) if sure else 0.4, claim, Subject(), f.changed / f.rows, 0.0, "ratio",
        _evidence(pair, _numbers(pair, difference, small)),
        remedies=(remedy("replay-routing"),),
        settle_with=() if sure else ("router scores of both records", "engine and settings of both records"),
    )  # fmt: skip


def dropped_outputs(every: list[Load], limits: Limits) -> list[Finding]:
    """An expert with routed tokens whose results never arrive, on every rank."""
    for sent in (x for x in every if x.what == "routed"):
        back = _partner(sent, every)
        if back is None:
            continue
        routed, combined = sent.tokens.sum(axis=0), back.tokens.sum(axis=0)
        ranks = sent.attrs.get("ep_size") == len(sent.layers) or sent.attrs.get("rows_are_ranks")
        ranks = ranks and len(sent.layers) > 1
        if ranks:  # rows are ranks: an expert counts only if it is lost on all of them
            everywhere = ((combined < routed) | (routed == 0)).all(axis=0)
            combined = np.where(everywhere, combined, routed).sum(axis=0, keepdims=True)
            routed = routed.sum(axis=0, keepdims=True)
        lost = (routed > 0) & (combined < routed)
        gone = (routed > 0) & (combined == 0)
        most = lost.sum() > limits.routing.lost_most * (routed > 0).sum()
        if not lost.any() or (most and not gone.any()):
            continue
        return [_dropped(sent, back, gone if gone.any() else lost, routed, combined)]
    return []


def _partner(sent: Load, every: list[Load]) -> Load | None:
    for load in every:
        near = load.source == sent.source or folder(load.source) == folder(sent.source)
        if load.what == "combined" and near and load.tokens.shape[1:] == sent.tokens.shape[1:]:
            return load
    return None


def _dropped(
    sent: Load, back: Load, mask: np.ndarray, routed: np.ndarray, combined: np.ndarray
) -> Finding:
    places = np.argwhere(mask)
    row, expert = (int(x) for x in max(places, key=lambda p: int(routed[p[0], p[1]] - combined[p[0], p[1]])))
    layer = int(sent.layers[row]) if len(routed) == len(sent.layers) else -1
    where = f"layer {layer}, expert {expert}" if layer >= 0 else f"expert {expert}"
    missing = int(routed[row, expert] - combined[row, expert])
    claim = (
        f"{where[0].upper()}{where[1:]} was sent {int(routed[row, expert])} tokens and "
        f"{int(combined[row, expert])} results came back: {missing} are lost, answers are wrong. "
        f"{len(places)} such expert"
        f"{'s' if len(places) > 1 else ''} in all; every other expert is complete or was cold."
    )
    evidence = tuple(
        Evidence(sent.source if i % 2 == 0 else back.source, f"row {int(r)}, expert {int(e)}",
                 pairs({"expert": int(e), "routed_tokens": int(routed[r, e]),
                        "combined_tokens": int(combined[r, e])}))
        for i, (r, e) in enumerate(places[:8])
    )  # fmt: skip
    return Finding(
        "num.expert_output_dropped", "error", 0.95 if combined[row, expert] == 0 else 0.8, claim,
        Subject(expert=expert, layer=layer if layer >= 0 else None), float(missing), 0.0, "tokens", evidence,
        remedies=(remedy("avoid-dropping-kernel", expert=expert),),
    )  # fmt: skip
