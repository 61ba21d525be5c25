"""Tables of latencies, benchmark results, requests and step logs.

Figures of `bench` are named `[stat_]quantity_unit`, always in base units:

- durations end in `_s` (lower is better): `ttft`, `tpot` (mean of one request's gaps), `itl` (gaps
  between tokens), `e2e`, `latency`, `step`, with a stat in front: `mean_`, `p50_` (median), `p90_`,
  `p95_`, `p99_`, `p99.9_`, `min_`, `max_`, `std_`; no stat where the file names none
  (`mean_ttft_s`, `p99_itl_s`, `p50_e2e_s`, `latency_s`, `step_s`); and `duration_s` of the whole run;
- rates end in `_per_s` (higher is better): `output_tokens_per_s`, `input_tokens_per_s`,
  `total_tokens_per_s`, `tokens_per_s` (the file does not say which), `requests_per_s`,
  `steps_per_s`, `items_per_s`;
- memory: `peak_memory_bytes`, `memory_total_bytes` (the card), `memory_free_bytes`;
- counts: `requests`, `failed_requests`, `input_tokens`, `output_tokens`.
"""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["BENCH", "GAPS", "ITERATIONS", "LATENCY", "REQUESTS", "STEPS", "TABLES"]

LATENCY = Table(
    "latency",
    "A series of step times, inter-token or request latencies, in the order of the file (arrays). Facts of "
    "the batch: what (itl, step, tpot, latency, ttft, e2e), clock (epoch, day, relative or none), rank.",
    (
        Column("t_s", "float", "s", "When it ended, on the clock of the file; NaN if unknown."),
        Column("step", "float", "", "Step or token index; NaN if unknown."),
        Column("value_s", "float", "s", "Duration."),
        Column("line", "int", "", "Line of the file."),
    ),
)

BENCH = Table(
    "bench",
    "Results of benchmark runs: one row per run, window or load level and per figure.",
    (
        Column("run", "str", "", "Arm, build or window as the file names it; null if there is one."),
        Column("level", "float", "", "Concurrency, batch or request rate; null if none."),
        Column("order", "int", "", "Position of the run or window in the file, from 0."),
        Column("setting", "str", "", "Further parameters of the row (`input_len=1024`); null if none."),
        Column("t_from_s", "float", "s", "Start of the window, if given."),
        Column("t_to_s", "float", "s", "End of the window, if given."),
        Column("figure", "str", "", "mean_ttft_s, p99_itl_s, output_tokens_per_s, ...; base units."),
        Column("value", "float", "", "The figure in base units (seconds, tokens per second)."),
    ),
)

REQUESTS = Table(
    "requests",
    "One row per request of a load test (arrays). Facts of the batch: statuses (counts of what is not ok). "
    "Only comparisons read it: averages of a request hide stalls, so it is kept apart from `gaps`.",
    (
        Column("arrival_s", "float", "s", "When it was sent, on the clock of the file; NaN if unknown."),
        Column("ttft_s", "float", "s", "Time to its first token."),
        Column("e2e_s", "float", "s", "Time to its last token."),
        Column("output_tokens", "float", "tokens", "Tokens that it got."),
        Column("itl_p50_s", "float", "s", "Median gap between its tokens. No rule reads it."),
        Column("itl_max_s", "float", "s", "Longest gap between its tokens. No rule reads it."),
        Column("tpot_s", "float", "s", "Mean gap between its tokens."),
    ),
)

GAPS = Table(
    "gaps",
    "Times between the tokens of single requests, request after request (arrays).",
    (
        Column("request", "int", "", "Index of the request in the file, from 0."),
        Column("t_s", "float", "s", "When the gap ended, on the clock of the file; NaN if unknown."),
        Column("gap_s", "float", "s", "Time since the token before."),
    ),
)

STEPS = Table(
    "steps",
    "A step log: one row per engine step (arrays). Fact of the batch: ranks (number of prefill columns).",
    (
        Column("step", "float", "", "Step as the file numbers it; its row where it does not."),
        Column("dur_s", "float", "s", "Duration of the step; NaN if unknown."),
        Column("prefill_tokens", "float", "tokens", "Prefill tokens of all ranks; NaN if not logged."),
        Column("prefill_ranks", "float", "", "Ranks that had any; NaN if not logged."),
        Column("seq_len", "float", "tokens", "Sequence length; NaN if not logged. No rule reads it."),
        Column("batch", "float", "", "Requests in the step; NaN if not logged."),
    ),
)

ITERATIONS = Table(
    "iterations",
    "Iteration statistics of TensorRT-LLM: one row per iteration and rank (arrays). Its latencies and "
    "prefills stand in `latency` and `steps`, too.",
    (
        Column("iteration", "float", "", "Counter of the engine; NaN if not given."),
        Column("t_s", "float", "s", "Time stamp of the record, epoch; NaN if unknown."),
        Column("rank", "float", "", "Rank of attention data parallelism; NaN: the engine as a whole."),
        Column("dur_s", "float", "s", "Latency of the iteration."),
        Column("running", "float", "", "Requests being served."),
        Column("waiting", "float", "", "Requests in the queue."),
        Column("paused", "float", "", "Requests that were paused for want of KV cache."),
        Column("kv_usage", "float", "ratio", "Share of the KV cache in use; NaN if unknown."),
        Column("reused_blocks", "float", "", "Blocks that were found in the prefix cache, over its life."),
        Column("missed_blocks", "float", "", "Blocks that were not, over its life."),
        Column("gpu_bytes", "float", "bytes", "Memory in use on the device. No rule reads it."),
        Column("draft_tokens", "float", "tokens", "Draft tokens of speculative decoding."),
        Column("accepted_tokens", "float", "tokens", "Draft tokens that were accepted."),
        Column("transfers", "float", "", "Requests whose KV cache came from another server."),
        Column("transfer_s", "float", "s", "Time of these transfers, summed."),
    ),
)

TABLES: tuple[Table, ...] = (LATENCY, BENCH, REQUESTS, GAPS, STEPS, ITERATIONS)
