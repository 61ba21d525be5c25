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
    # A distance counts as change above this many sampling floors (E-1)/8 * (1/n + 1/m); factor; tokens
    # of one text are correlated: measured distances were up to 10 floors, quiet medians about 2.
    floor_factor: float = 4.0
    # ... and above this many medians of the distance between neighbouring windows; factor; judgement.
    quiet_factor: float = 3.0
    # Logged balancedness "fits" the mean/max over layers within this; ratio; verdict catalogue.
    axis_fits: float = 0.01
    # ... and "misses" that over ranks by more than this; ratio; verdict catalogue.
    axis_misses: float = 0.05
    # Identical rows of router choices in a row that are no traffic; count; dumps of engines hold
    # thousands of equal warm-up rows, longest run in real traffic of a small model was 8.
    dummy_run: int = 32
    # Scores of two runs count as equal within this, absolute; verdict catalogue.
    same_scores: float = 1e-3
    # Logged figures needed before their median counts; lines; judgement.
    log_lines: int = 10
    # Load histograms are nearly equal below this share of moved choices; ratio; judgement.
    moved_load: float = 0.05
