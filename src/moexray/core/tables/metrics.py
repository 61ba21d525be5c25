"""Tables of metrics pages.

Canonical names (column `metric`) are the same for every engine and release: `requests_running`,
`requests_waiting`, `kv_usage` (ratio), `preemptions`, `generation_tokens`, `prompt_tokens`,
`requests_done`, `process_start`; histograms and summaries `itl`, `ttft`, `e2e`, `queue_time`,
`iteration_latency` with `_sum`, `_count`, `_bucket`.
"""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = ["METRICS", "TABLES"]

METRICS = Table(
    "metrics",
    "Samples of a metrics page (Prometheus, OpenMetrics), one batch per scrape (arrays). Facts of the "
    "batch: scrape (its place in the file, from 0), t_s (epoch seconds of its samples, or null).",
    (
        Column("name", "str", "", "Name as scraped, with its suffix."),
        Column("metric", "str", "", "Canonical name; empty where there is none."),
        Column("engine", "str", "", "DP rank or engine index of the labels; empty where there is none."),
        Column("labels", "str", "", "All labels, sorted: `engine=0,model_name=M`."),
        Column("value", "float", "", "The sample; ratios as 0..1."),
    ),
)

TABLES: tuple[Table, ...] = (METRICS,)
