"""Limits of the timeline rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TimelineLimits"]


@dataclass(frozen=True, slots=True)
class TimelineLimits:
    """Each field: what it bounds, its unit, its source."""

    alloc_ratio: float = 0.05
    """Device allocator time / time of the steps that have it; catalogue of verdicts."""
    empty_cache_ratio: float = 0.5
    """Share of the steps with an empty_cache frame; catalogue of verdicts."""
    lateness_ratio: float = 0.05
    """Median lateness of a collective / step from which waiting is told; catalogue of verdicts."""
    burst_steps: float = 5.0
    """Lateness in one step / median step that makes a burst; silences of a host likewise. Catalogue."""
    transfer_factor: float = 2.0
    """Transfer of a collective / median of the same operation and size elsewhere; catalogue."""
    transfer_lateness_ratio: float = 0.05
    """Lateness / duration below which all ranks count as arrived; catalogue of verdicts."""
    slow_matches: int = 3
    """Slow collectives that must be seen, and as many normal ones; own choice against flukes."""
    skew_factor: float = 10.0
    """Clock offset / residual after alignment that counts as a skew; own choice ("much larger")."""
    skew_least_ns: int = 100_000
    """Offsets below are within what profilers resolve (old traces count whole microseconds); own choice."""
    skew_material_ratio: float = 0.05
    """Clock offset / median collective from which it would mislead; own choice, as lateness_ratio."""
    exposed_ratio: float = 0.25
    """Communication without compute / step on a single rank that is worth a question; own choice: real
    healthy traces show 3-21 % of their span."""
    lone_factor: float = 4.0
    """How much stricter the lateness is judged at a place that was seen once or twice; own choice."""
    silence_share: float = 0.5
    """Share of a silence that a record must cover to explain it; own choice (the larger part)."""
    gc_log_slack_s: float = 0.5
    """Distance of a collector's log line from the end of the silence, seconds; own choice: a line is
    written when the collection ends, stamps and clocks of one node differ by some milliseconds."""
    line_slack_s: float = 0.1
    """Distance of another line (compilation, move of experts, snapshot) from the silence that it
    explains, seconds; own choice: such a line carries no end that could be compared, so it has to lie
    in the silence or at its edge, up to the delay of the logging thread."""
    move_most: float = 1.3
    """Longest move of experts that a line states / silence that it explains; own choice: a move that
    lasts longer than nothing ran went on in the background."""
    move_share: float = 0.5
    """Share of the moves of experts that stalls must meet; catalogue of verdicts."""
    still_share: float = 0.5
    """Share of a silence that others waited for from which it is told; own choice (the larger part)."""
    compile_share: float = 0.5
    """Share of the spikes that compilation must fill; catalogue of verdicts."""
    longer_ratio: float = 1.15
    """Call of a kernel on the late rank / median of the other ranks from which it takes longer; own choice:
    ranks with even loads differ by 1-5 % in the incidents that were made."""
    alike_ratio: float = 1.08
    """The same below which it takes as long; own choice, between the noise and `longer_ratio`."""
    kernel_share: float = 0.05
    """Share of a rank's compute time from which a kernel is compared; catalogue (kernel.bank_conflict)."""
    often: int = 3
    """Long waits from which they count though each is below a burst; own choice against flukes."""
    compile_spikes: int = 2
    """Spikes with compiler frames from which they count as the hot path; own choice: one is a first use."""
