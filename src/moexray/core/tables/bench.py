"""Tables of latencies and benchmark results."""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["BENCH", "LATENCY", "TABLES"]

LATENCY = Table(
    "latency",
    "A series of step times, inter-token or request latencies, in the order of the file (arrays).",
    (
        Column("t_s", "float", "s", "When it ended, on the clock of the file; NaN if unknown."),
        Column("step", "float", "", "Step or token index; NaN if unknown."),
        Column("value_s", "float", "s", "Duration."),
    ),
)

BENCH = Table(
    "bench",
    "Results of benchmark runs: one row per run, window or load level and per figure.",
    (
        Column("run", "str", "", "Arm, build or window as the file names it; null if there is one."),
        Column("level", "float", "", "Concurrency, batch or request rate; null if none."),
        Column("order", "int", "", "Position in the file, from 0."),
        Column("t_from_s", "float", "s", "Start of the window, if given."),
        Column("t_to_s", "float", "s", "End of the window, if given."),
        Column("figure", "str", "", "mean_ttft_s, p99_itl_s, output_tokens_per_s, ...; base units."),
        Column("value", "float", "", "The figure in base units (seconds, tokens per second)."),
    ),
)

TABLES: tuple[Table, ...] = (LATENCY, BENCH)
