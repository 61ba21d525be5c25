"""Limits of the routing rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RoutingLimits"]


@dataclass(frozen=True, slots=True)
class RoutingLimits:
    """Each field: what it bounds, its unit, its source."""

    # mean/max of tokens over EP ranks below which a layer is called skewed; ratio; verdict catalogue.
    balancedness: float = 0.80
    # Balancedness that chance alone must exceed before a statement is made; ratio; verdict catalogue.
    chance: float = 0.95
    # Fall of balancedness after a change of the routing that counts as drift; ratio; verdict catalogue.
    drift_fall: float = 0.10
    # Logged balancedness "fits" the mean/max over layers within this; ratio; verdict catalogue.
    axis_fits: float = 0.01
    # ... and "misses" that over ranks by more than this; ratio; verdict catalogue.
    axis_misses: float = 0.05
    # Identical rows of router choices in a row that are no traffic; count; dumps of engines hold
    # thousands of equal warm-up rows, longest run in real traffic of a small model was 8.
    dummy_run: int = 32
    # Share of changed sets above which two records are not of the same tokens; ratio; judgement: other tokens
    # change nearly all of them.
    other_input: float = 0.95
    # ... unless their scores differ, on average, by less than this of the scores' spread; ratio; judgement.
    same_tokens: float = 0.1
    # Share of the changed rows whose recorded choice must be that of the rounded scores; ratio; judgement.
    follows_rounding: float = 0.8
    # Largest margin of a set that rounding changes; steps of BF16; two scores round by half a step each,
    # and the step doubles where the exponent changes.
    margin_steps: float = 2.0
    # A margin counts as small up to this many differences between the records; factor; judgement.
    near_margin: float = 4.0
    # ... or up to this share of the spread of the chosen scores, where only those are recorded; ratio;
    # judgement.
    near_spread: float = 0.05
    # Share of the flips at small margins from which numbers explain them, below it noise does; ratio;
    # judgement (the larger part).
    small_share: float = 0.5
    # Share of the experts with incomplete results above which the two tables count other things; ratio;
    # judgement.
    lost_most: float = 0.5
    # Scores of two runs count as equal within this, absolute; verdict catalogue.
    same_scores: float = 1e-3
    # Logged figures needed before their median counts; lines; judgement.
    log_lines: int = 10
    # Load histograms are nearly equal below this share of moved choices; ratio; judgement.
    moved_load: float = 0.05
