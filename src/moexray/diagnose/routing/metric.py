"""Numbers about routing that mislead: a logged balancedness over layers, multiplied counts, odd files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.routing import config
from moexray.analyse.routing_ranks import ep_size, to_ranks
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.routing.log import balance_lines, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.analyse.routing import Load, Mismatch
    from moexray.analyse.routing_ranks import Ranks
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["counts_multiplied", "files_of_ranks", "over_layers", "over_ranks", "wrong_axis"]

SHOWN = 3


def over_layers(cube: np.ndarray) -> tuple[float, ...]:
    """The wrong figure, as builds compute it: mean/max over layers, [layers, ranks] -> variants."""
    total = cube.sum(axis=1)
    by_rank = float(cube.mean(axis=0).sum() / max(float(cube.max(axis=0).sum()), 1e-9))
    return by_rank, float(total.mean() / max(float(total.max()), 1e-9))


def over_ranks(cube: np.ndarray) -> tuple[float, float]:
    """The right figure: sum(mean)/sum(max) over layers, and the mean over layers of mean/max."""
    used = cube[cube.sum(axis=1) > 0]
    top = used.max(axis=1)
    return float(used.mean(axis=1).sum() / top.sum()), float((used.mean(axis=1) / top).mean())


def wrong_axis(run: Run, every: list[Load], limits: Limits) -> list[Finding]:
    """ep.metric_wrong_axis: recomputed both ways, the logged value fits the layers and misses the ranks."""
    lines = balance_lines(run)
    for load in every:
        count, _ = ep_size(run, load)
        ranks = to_ranks(run, load, count) if count and load.what == "routed" else None
        if ranks is None or ranks.tokens.shape[1] < 2:
            continue
        if lines and (found := _compare(lines, ranks, limits)):
            return [found]
    return []


def _compare(lines: list[Row], ranks: Ranks, limits: Limits) -> Finding | None:
    r = limits.routing
    hits: list[tuple[float, Row, float, float]] = []
    judged = 0
    for row, cube in _windows(lines, ranks):
        logged = value_of(row, "balancedness") or 0.0
        layers = min(over_layers(cube), key=lambda v: abs(v - logged))
        true = min(over_ranks(cube), key=lambda v: abs(v - logged))
        judged += 1
        if abs(layers - logged) <= r.axis_fits and abs(true - logged) > r.axis_misses:
            hits.append((abs(true - logged), row, layers, over_ranks(cube)[0]))
    if not hits or len(hits) < judged / 2:
        return None
    miss, row, layers, true = max(hits, key=lambda h: h[0])
    logged = value_of(row, "balancedness") or 0.0
    way = "better" if logged > true else "worse"
    claim = (
        f"The logged balancedness {logged:.3f} is mean/max over layers, not over EP ranks: recomputed over "
        f"layers {layers:.3f}, over ranks {true:.3f}. The log shows the balance {way} than it is "
        f"({len(hits)} of {judged} lines); believe the counts."
    )
    numbers = {"logged_ratio": logged, "over_layers_ratio": layers, "true_ratio": true}
    evidence = [Evidence(row["source"], row["where"], row["text"]),
                Evidence(ranks.load.source, f"{ranks.tokens.shape[1]} layers x {ranks.tokens.shape[2]} ranks",
                         pairs(numbers))]  # fmt: skip
    return Finding("ep.metric_wrong_axis", "warn", 0.95, claim, Subject(), miss, r.axis_misses, "ratio",
                   tuple(evidence), remedies=(remedy("recompute-balance"),))  # fmt: skip


def _windows(lines: list[Row], ranks: Ranks) -> Iterator[tuple[Row, np.ndarray]]:
    """Each line with [layers, ranks] of the steps since the line before; all steps where none fit."""
    steps, before = ranks.load.steps, -1.0
    labelled = bool(ranks.load.attrs.get("labelled")) and len(steps) > 1
    for row in lines:
        step = value_of(row, "step")
        used = (steps > before) & (steps <= step) if labelled and step is not None else np.zeros(1, bool)
        before = step if step is not None else before
        cube = ranks.tokens[used].sum(axis=0) if used.any() else ranks.tokens.sum(axis=0)
        yield row, cube


def counts_multiplied(run: Run, every: list[Load]) -> list[Finding]:
    """ep.counts_multiplied: layer total / (tokens x top-k) is one integer >= 2 in every layer."""
    said = []
    for load in every:
        if load.what != "routed" or load.from_routes:
            continue
        top_k = load.attrs.get("top_k") or config(run, "top_k")
        per_layer = load.tokens.sum(axis=(0, 2))
        expected, whole = _expected(run, load)
        if not top_k or not expected or (per_layer <= 0).any():
            continue
        ratios = per_layer / (expected * float(top_k))
        sizes = _sizes(run, load)
        m = _integer(ratios, len(load.steps) if whole else 1, sizes)
        if m is None:
            continue
        said.append(_multiplied(load, m, sizes, expected * float(top_k), per_layer))
    return said[:1]


def _expected(run: Run, load: Load) -> tuple[float | None, bool]:
    """(tokens behind the counts, whether the number is one for all steps together)."""
    per_step = load.attrs.get("tokens_per_step") or config(run, "tokens_per_step")
    if per_step:
        return float(per_step) * len(load.steps), False
    tokens = load.attrs.get("tokens") or config(run, "tokens")
    return (float(tokens) if tokens and not load.set_aside else None), True


def _integer(ratios: np.ndarray, steps: int, sizes: dict[str, Any]) -> int | None:
    """The factor, if all layers have the same whole one; a number of tokens may be that of one step."""
    m = round(float(ratios[0]))
    if m < 2 or not np.allclose(ratios, m, rtol=0, atol=1e-3):
        return None
    if steps > 1 and m % steps == 0 and m not in {int(n) for n in sizes.values() if n}:
        m //= steps
    return m if m >= 2 else None


def _sizes(run: Run, load: Load) -> dict[str, Any]:
    """The parallel sizes that a configuration or a launch line gives."""
    sizes: dict[str, Any] = {
        key: load.attrs.get(f"{key}_size") or config(run, f"{key}_size")
        for key in ("dp", "tp", "ep")
    }
    for row in run.rows("launch"):
        for key, names in (("dp", ("data_parallel_size", "dp_size", "dp")),
                           ("tp", ("tensor_parallel_size", "tp_size", "tp"))):  # fmt: skip
            if row["key"] in names and str(row["value"]).isdigit():
                sizes[key] = sizes[key] or float(row["value"])
    return sizes


def _multiplied(
    load: Load, m: int, sizes: dict[str, Any], expected: float, per_layer: np.ndarray
) -> Finding:
    suspects = [f"{key.upper()} size {int(n)}" for key, n in sizes.items() if n and int(n) == m]
    why = f"that is the {' or the '.join(suspects)}" if suspects else "no parallel size of it is known"
    claim = (
        f"Every layer's total is {m} times tokens x top-k ({per_layer[0]:.0f} against {expected:.0f}): the "
        f"counts are multiplied, {why}. Ratios between experts or ranks stay valid."
    )
    text = pairs({"factor": m, "layer_tokens": float(per_layer[0]), "expected_tokens": expected,
                  "layers": len(per_layer), **{f"{k}_size": v for k, v in sizes.items()}})  # fmt: skip
    return Finding(
        "ep.counts_multiplied", "warn", 0.95 if suspects else 0.9, claim, Subject(), float(m), 2.0, "count",
        (Evidence(load.source, f"{len(per_layer)} layers", text),),
        remedies=(remedy("divide-counts", m=m, suspects=" or ".join(suspects) or "a parallel size"),),
    )  # fmt: skip


def files_of_ranks(mismatches: list[Mismatch]) -> list[Finding]:
    """input.shape_mismatch and input.rank_set of per-rank counts."""
    said = []
    for mismatch in mismatches:
        shape = mismatch.id == "input.shape_mismatch"
        odd = ", ".join(mismatch.odd[:4])
        shown = (mismatch.odd or mismatch.sources)[:SHOWN]
        what = f"do not fit together and were not merged; odd: {odd}" if shape else "are no complete set"
        said.append(
            Finding(
                mismatch.id, "error" if shape else "warn", 0.95,
                f"The counts of {len(mismatch.sources)} ranks {what}. {mismatch.text}.",
                Subject(), float(len(mismatch.odd) or 1), None, "count",
                tuple(Evidence(s, "all rows", mismatch.text) for s in shown),
                settle_with=() if shape else ("the files of the missing ranks",),
            )
        )  # fmt: skip
    return said
