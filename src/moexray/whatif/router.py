"""What another router would have done with the recorded scores: load, flips, change of the output.

Source of the policies: algorithms/routers.py. Where choices were recorded beside the scores, the plain
top-k must reproduce them; if it does not, the engine routes by groups or a bias, and nothing is said
from these scores (unless the groups are stated).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.algorithms import routers
from moexray.algorithms.packing import rank_loads
from moexray.algorithms.placement import place, trivial
from moexray.algorithms.policy_text import split_policy
from moexray.algorithms.replication import token_costs
from moexray.analyse.routing import config
from moexray.core.errors import LimitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.algorithms.placement import Shape
    from moexray.algorithms.routers import Choice
    from moexray.core.run import Batch, Run

__all__ = [
    "DEFAULTS", "POLICIES", "Effect", "Groups", "Policy", "Scores", "parse_policy", "recorded_scores",
    "try_policy",
]  # fmt: skip

AGREE = 0.99  # of recorded choices that the plain top-k must give: rounding flips a few
MOST = 1 << 26  # scores in memory at once, 4 bytes each; a layer is copied about four times in a policy
COMPILED_FROM = 4_000  # tokens x layers above which compiling pays
SMALL, CLEAR = 0.01, 0.10  # relative change of the load's standard deviation: below is none, small, clear


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its options, as asked for."""

    text: str
    run: Callable[..., Choice]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Groups:
    """Group-limited routing: `count` groups, a token uses `used` of them, scored by the `best` highest."""

    count: int
    used: int
    best: int = 2


@dataclass(frozen=True, slots=True)
class Scores:
    """Recorded scores made ready.

    Args:
        source: File.
        layers: [layers] labels.
        logits: One [tokens, experts] array per layer, groups masked.
        k: Experts per token.
        k_from: Where k stands.
        agree: Share of recorded choices that the plain top-k reproduces; None where none are recorded.
        precision: Of the recording.
        choices_only: No scores were recorded: experts that were not chosen have -inf.
    """

    source: str
    layers: tuple[int, ...]
    logits: tuple[np.ndarray, ...]
    k: int
    k_from: str
    agree: float | None
    precision: str
    choices_only: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What a policy does; means over layers.

    Args:
        load_std_before: Population standard deviation of the choices per expert.
        load_std_after: The same under the policy.
        balancedness_before: mean / max over ranks, over experts where no ranks are stated.
        balancedness_after: The same under the policy.
        flipped_share: Choices that go to another expert or are lost.
        dropped_share: Choices that are lost.
        ties_share: Tokens whose k-th and next score are equal (after the policy's rounding).
        output_change: Half the L1 distance of the gate weights of a token, mean: 0 equal, 1 disjoint.
        effect: none, small or clear, by the change of the load's standard deviation.
    """

    load_std_before: float
    load_std_after: float
    balancedness_before: float
    balancedness_after: float
    flipped_share: float
    dropped_share: float
    ties_share: float
    output_change: float
    effect: str


POLICIES: dict[str, tuple[Callable[..., Choice], str]] = {
    "plain": (routers.plain, "the k highest scores"),
    "salted": (routers.salted, "seeded noise of salt x scale on the scores, or ties_only"),
    "temperature": (routers.temperature, "scores divided by value: same experts, other weights"),
    "soft-mask": (routers.soft_mask, "scores cut at mean + cap standard deviations, noise of sigma"),
    "bias": (routers.biased, "a bias per expert on the selection follows the load (loss-free balancing)"),
    "capacity": (routers.capacity, "at most factor x the even load per expert; mode drop, spill or reroute"),
    "sticky": (routers.sticky, "experts of the token before stay if within margin"),
}
DEFAULTS = (
    "salted",
    "salted:ties_only=true",
    "salted:precision=e4m3",
    "temperature:value=2",
    "soft-mask:cap=1",
    "capacity:factor=1.25,mode=drop",
    "capacity:factor=1.25,mode=spill",
    "capacity:factor=1.25,mode=reroute",
    "bias",
    "sticky",
)


def parse_policy(text: str) -> Policy:
    """NAME[:key=value,...] as a policy.

    Raises:
        UsageError: unknown name or option, or a value that does not fit; the message lists what does.
    """
    name, options = split_policy(text, {name: run for name, (run, _) in POLICIES.items()})
    return Policy(text, POLICIES[name][0], options)


def recorded_scores(run: Run, top_k: int | None, groups: Groups | None) -> list[Scores]:
    """The recorded scores of a run, file by file, checked against recorded choices; else the choices.

    Raises:
        UsageError: neither, k unknown, or choices that the scores do not explain.
    """
    batches = run.batches("logits")
    if batches:
        return [_scores(run, batch, top_k, groups) for batch in batches]
    made = [b for b in run.batches("routes") if not b.attrs.get("physical")]
    if not made:
        raise UsageError(
            "no router scores or choices to try policies on",
            where=run.nothing_found(),
            hint="record router logits (transformers: output_router_logits=True); see docs/capture.md",
        )
    return [_choices(batch) for batch in made]


def _choices(batch: Batch) -> Scores:
    """Choices as scores: the order in which they stand, or their weights; all other experts -inf."""
    layer, ids = np.asarray(batch.columns["layer"]), np.asarray(batch.columns["ids"])
    experts = max(int(batch.attrs.get("num_experts") or 0), int(ids.max()) + 1)
    rows = max(len(ids), 4 * int(np.unique(layer, return_counts=True)[1].max()))
    if rows * experts > MOST:
        raise LimitError(
            f"{len(ids):,} rows of choices among {experts:,} experts are too many to try policies on",
            where=batch.source,
            hint="check the largest id; else give fewer tokens",
        )
    given = batch.columns.get("scores")
    ranked = -np.arange(ids.shape[1], dtype=np.float32) + np.zeros(ids.shape, np.float32)
    worth = ranked if given is None else np.log(np.maximum(np.asarray(given, np.float32), 1e-30))
    values = np.full((len(ids), experts), -np.inf, np.float32)
    token, place = np.nonzero(ids >= 0)
    values[token, ids[token, place]] = worth[token, place]
    sound = np.isfinite(values).sum(axis=1) == ids.shape[1]
    labels, parts = _by_layer(batch, layer, values, sound)
    k = ids.shape[1]
    return Scores(batch.source, labels, parts, k, "the recorded choices", None, "", choices_only=True)


def _by_layer(
    batch: Batch, layer: np.ndarray, values: np.ndarray, sound: np.ndarray
) -> tuple[tuple[int, ...], tuple[np.ndarray, ...]]:
    """Labels and sound rows of the layers that have any.

    Raises:
        UsageError: there is no such layer.
    """
    labels = tuple(int(y) for y in np.unique(layer[sound]))
    if not labels:
        raise UsageError(
            "no token has usable scores or choices",
            where=batch.source,
            hint="NaN, inf and an expert chosen twice by one token cannot be tried; record again",
        )
    return labels, tuple(values[sound & (layer == y)] for y in labels)


def _scores(run: Run, batch: Batch, top_k: int | None, groups: Groups | None) -> Scores:
    layer, values = np.asarray(batch.columns["layer"]), np.asarray(batch.columns["values"], np.float32)
    made = _recorded(run, batch)
    k, where = _k(run, batch, top_k, made)
    if not 0 < k < values.shape[1]:
        experts = values.shape[1]
        raise UsageError(f"top-{k} of {experts} experts", where=batch.source, hint="--top-k below them")
    if batch.attrs.get("kind") == "probs":  # logits up to a constant per token, which no policy sees
        values = np.log(np.maximum(values, 1e-30))
    if groups is not None:
        try:
            values = routers.grouped(values, k, groups.count, groups.used, groups.best)
        except ValueError as why:
            hint = "n_group and topk_group of config.json"
            raise UsageError(str(why), where=batch.source, hint=hint) from why
    agree = None
    if made is not None:
        same = np.sort(made, axis=1)[:, :k] == routers.top_k(values, k)
        agree = float(same.all(axis=1).mean())
        if agree < AGREE:
            raise UsageError(
                f"the plain top-{k} of the recorded scores gives {agree:.1%} of the recorded choices",
                where=batch.source,
                hint="the engine routes by groups or a bias: state --groups and --topk-groups, or record the "
                "scores that it selects by",
            )
    labels, parts = _by_layer(batch, layer, values, np.ones(len(layer), dtype=bool))
    return Scores(batch.source, labels, parts, k, where, agree, str(batch.attrs.get("precision", "")))


def _recorded(run: Run, batch: Batch) -> np.ndarray | None:
    """Choices recorded beside the scores, row by row."""
    for made in run.batches("routes"):
        ids = np.asarray(made.columns["ids"])
        same = made.source == batch.source and made.attrs.get("arm") == batch.attrs.get("arm")
        whole = len(ids) == len(batch.columns["layer"]) and not made.attrs.get("physical")
        if same and whole and (ids >= 0).all():
            return ids
    return None


def _k(run: Run, batch: Batch, stated: int | None, made: np.ndarray | None) -> tuple[int, str]:
    known = (
        (stated, "--top-k"),
        (batch.attrs.get("top_k"), "the file"),
        (None if made is None else made.shape[1], "the recorded choices"),
        (config(run, "top_k"), "configuration"),
    )
    for value, where in known:
        if value:
            return int(value), where
    raise UsageError("the file does not tell how many experts a token gets", where=batch.source,
                     hint="--top-k N (num_experts_per_tok in config.json)")  # fmt: skip


def try_policy(scores: Scores, policy: Policy, shape: Shape | None) -> Effect:
    """Runs a policy on every layer.

    Args:
        scores: Recorded scores.
        policy: From `parse_policy`.
        shape: How the experts lie on GPUs: planned on the plain load where there are redundant slots,
            else in order; None: balancedness is over experts.

    Raises:
        UsageError: the policy needs scores and only choices were recorded.
    """
    drops = policy.run is routers.capacity and policy.options.get("mode", "drop") == "drop"
    if scores.choices_only and not drops and policy.run is not routers.plain:
        raise UsageError(
            f"{policy.text} needs router scores: choices do not tell which expert comes next",
            where=scores.source,
            hint="record router logits; on choices alone only capacity:mode=drop can be tried",
        )
    run = policy.run
    if sum(map(len, scores.logits)) >= COMPILED_FROM:
        run = _compiled(run)
    rows = []
    for logits in scores.logits:
        before = routers.plain(logits, scores.k)
        after = run(logits, scores.k, **policy.options)
        rows.append(_layer(logits, before, after, policy.options.get("precision", "fp32"), shape))
    means = dict(zip(rows[0], np.mean([list(r.values()) for r in rows], axis=0).tolist(), strict=True))
    change = abs(means["load_std_after"] / max(means["load_std_before"], 1e-30) - 1)
    effect = "none" if change < SMALL else "small" if change < CLEAR else "clear"
    return Effect(**means, effect=effect)


def _compiled(run: Callable[..., Choice]) -> Callable[..., Choice]:
    from moexray.kernels.routers import fill_batch, hold_rows

    if run is routers.capacity:
        return partial(run, fill=fill_batch)
    return partial(run, hold=hold_rows) if run is routers.sticky else run


def _layer(
    logits: np.ndarray, before: Choice, after: Choice, precision: str, shape: Shape | None
) -> dict[str, float]:
    experts, k = logits.shape[1], before.ids.shape[1]
    first, second = (np.bincount(c.ids[c.ids >= 0], minlength=experts).astype(float) for c in (before, after))
    slots = None if shape is None else _slots(first, shape)
    kept = (after.ids[:, :, None] == before.ids[:, None, :]).any(axis=2) & (after.ids >= 0)
    ranked = np.zeros((1, 2))
    if k < experts:
        ranked = -np.partition(-routers.rounded(logits, precision), [k - 1, k], axis=1)[:, k - 1 : k + 1]
    return {
        "load_std_before": float(first.std()),
        "load_std_after": float(second.std()),
        "balancedness_before": _even(first, slots, shape),
        "balancedness_after": _even(second, slots, shape),
        "flipped_share": float(1 - kept.mean()),
        "dropped_share": float((after.ids < 0).mean()),
        "ties_share": float((ranked[:, 0] == ranked[:, 1]).mean()) if k < experts else 0.0,
        "output_change": float(_moved_weight(before, after).mean()),
    }


def _slots(load: np.ndarray, shape: Shape) -> np.ndarray:
    return place(token_costs(load, shape.most), shape) if shape.slots > shape.experts else trivial(shape)


def _even(load: np.ndarray, slots: np.ndarray | None, shape: Shape | None) -> float:
    on = load if slots is None or shape is None else rank_loads(load, slots, shape.gpus)
    return float(on.mean() / on.max()) if on.max() > 0 else float("nan")


def _moved_weight(before: Choice, after: Choice) -> np.ndarray:
    """[tokens], half the L1 distance of the gate weights; what is dropped counts in full."""
    same = before.ids[:, :, None] == after.ids[:, None, :]
    shared = (np.minimum(before.weights[:, :, None], after.weights[:, None, :]) * same).sum(axis=(1, 2))
    return np.asarray(np.clip(1.0 - shared, 0.0, 1.0))
