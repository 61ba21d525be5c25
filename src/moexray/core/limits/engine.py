"""Limits of the engine rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineLimits"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Each field: what it bounds, its unit, its source (verdict catalogue where none is named).

    Args:
        spike: x median of the series; a value above is a spike.
        compile_before_s: s; a compile line so long before a spike may cause it.
        compile_share: ratio; share of the spikes that must follow a compile line.
        beyond_chance: ratio; by so much the share of spikes that meet a happening must exceed the
            share of the time in which one would meet it by chance (ours: a log full of lines
            meets every spike).
        rearrange_share: ratio; share of the rearrangements that must stall decoding.
        rearrange_fill: ratio; share of such a rearrangement in which decoding must stall (ours: one that
            runs in the background meets stalls of other causes by chance, for a part of its time).
        snapshot_share: ratio; share of the spikes that must begin within one dump of a dump.
        stuck_lines: count of falling negative countdowns in a row.
        overshoot: ratio of the interval; a negative countdown beyond it is no slow move (ours).
        served_moves: count; rearrangements while serving that show that balancing is under way (ours).
        token_share: ratio; a layer with a smaller share of the tokens decides nothing (ours).
        own_compiles: count; compile lines while serving that may own a slowdown (ours).
        balance_apart: ratio; balancedness of two runs that differs by more is a difference of its own,
            beside the backend (ours).
        little_gain: ratio of MoE time; a ceiling below is little to gain.
        uneven: ratio; balancedness below means that balancing could help.
        measured_change: ratio; smaller changes of balancedness are no change (ours: the printed
            values scatter by about 0.003 from line to line).
        run_noise: ratio; runs that differ by less are equal, unless repeats say more.
        settled: ratio; runs within it of each other have settled (the run noise).
        cold_runs: count; a first run and two that agree show which one was held up (ours).
        cold: ratio of the settled throughput; a first run below was held up (ours).
        deepep_cpu_timeout_s: s; how long DeepEP's dispatch waits for its peers on the host before
            it gives up (DeepEP, NUM_CPU_TIMEOUT_SECS = 100).
        timeout_slack_s: s; stamps of whole seconds on two sides.
    """

    spike: float = 5.0
    compile_before_s: float = 2.0
    compile_share: float = 0.5
    beyond_chance: float = 0.3
    rearrange_share: float = 0.5
    rearrange_fill: float = 0.8
    snapshot_share: float = 0.8
    stuck_lines: int = 2
    overshoot: float = 0.1
    served_moves: int = 2
    token_share: float = 0.1
    own_compiles: int = 3
    balance_apart: float = 0.03
    little_gain: float = 0.05
    uneven: float = 0.80
    measured_change: float = 0.005
    run_noise: float = 0.03
    settled: float = 0.03
    cold_runs: int = 3
    cold: float = 0.9
    deepep_cpu_timeout_s: float = 100.0
    timeout_slack_s: float = 2.0
