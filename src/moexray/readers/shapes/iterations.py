"""Iteration statistics of TensorRT-LLM: the JSON of `/metrics`, or one object a line as clients store it.

They become `iterations`, and what other engines print in a step log, too: `steps` and `latency`. Names of the
fields: TensorRT-LLM's documentation of `trtllm-serve` and `enable_iter_perf_stats`.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moexray.core.tables.bench import ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["iteration_json"]

NAN = float("nan")
MOST = 1e18
TIMES = ("%m-%d-%Y %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f")
BATCHING = ("inflightBatchingStats", "staticBatchingStats")
SPECULATION = ("specDecodingStats", "specDecStats")
# column -> (where it may stand, its name there)
FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "running": (("",), ("numActiveRequests",)),
    "waiting": (("",), ("numQueuedRequests",)),
    "scheduled": (BATCHING, ("numScheduledRequests",)),
    "context_requests": (BATCHING, ("numContextRequests",)),
    "paused": (BATCHING, ("numPausedRequests",)),
    "context_tokens": (BATCHING, ("numCtxTokens",)),
    "kv_blocks": (("kvCacheStats",), ("maxNumBlocks",)),
    "kv_used": (("kvCacheStats",), ("usedNumBlocks",)),
    "reused_blocks": (("kvCacheStats",), ("reusedBlocks",)),
    "missed_blocks": (("kvCacheStats",), ("missedBlocks",)),
    "gpu_bytes": (("",), ("gpuMemUsage",)),
    "draft_tokens": (SPECULATION, ("numDraftTokens",)),
    "accepted_tokens": (SPECULATION, ("numAcceptedTokens",)),
}


def iteration_json(document: Any, source: Source, out: Reading) -> bool:
    """Objects with an iteration's latency, in a list, lists of lists (several polls), or alone."""
    found = list(_records(document))
    if not found:
        return False
    rows: list[dict[str, float]] = []
    seen: set[tuple[float, ...]] = set()
    bad = 0
    for record in found:
        row = _row(record)
        if row["dur_s"] != row["dur_s"] or row["dur_s"] < 0:
            bad += 1
            continue
        key = (row["rank"], row["iteration"], row["t_s"], row["dur_s"])
        if row["iteration"] == row["iteration"] and key in seen:
            continue  # polls that overlap
        seen.add(key)
        rows.append(row)
    if not rows:
        return False
    if bad:
        text = f"{bad} of {len(found)} iterations have no possible latency; they were left out"
        out.problem("input.dirty_table", text, lost=bad, values={"iterations": bad})
    table = {name: [row[name] for row in rows] for name in rows[0] if name in ITERATIONS.names}
    out.add_columns("iterations", table, source=source.path, rows=len(rows))
    _steps(rows, source, out)
    return True


def _records(document: Any, depth: int = 2) -> Iterator[dict[str, Any]]:
    """The objects of a document that are iterations."""
    if isinstance(document, dict):
        if "iterLatencyMS" in document:
            yield document
        return
    if isinstance(document, list) and depth:
        for part in document:
            yield from _records(part, depth - 1)


def _row(record: dict[str, Any]) -> dict[str, float]:
    parts = {key: value for key, value in record.items() if isinstance(value, dict)}

    def value(places: tuple[str, ...], names: tuple[str, ...]) -> float:
        holders = (record if not place else parts.get(place, {}) for place in places)
        return next((n for h in holders for name in names if (n := _number(h.get(name))) == n), NAN)

    row = {column: value(*at) for column, at in FIELDS.items()}
    row["iteration"] = _number(record.get("iter"))
    row["rank"] = value(("",), ("attentionDpRank", "rank"))
    row["t_s"] = _time(record.get("timestamp"))
    row["dur_s"] = _number(record.get("iterLatencyMS")) / 1e3
    used, blocks = row["kv_used"], row["kv_blocks"]
    row["kv_usage"] = used / blocks if blocks > 0 and 0 <= used <= blocks else NAN
    transfers = [t for t in _transfers(record.get("requestStats")) if t > 0]
    row["transfers"], row["transfer_s"] = float(len(transfers)), math.fsum(transfers) / 1e3
    return row


def _transfers(requests: Any) -> Iterator[float]:
    """Milliseconds that requests of a disaggregated server waited for their KV cache."""
    for request in requests if isinstance(requests, list) else []:
        stats = request.get("disServingStats") if isinstance(request, dict) else None
        if isinstance(stats, dict) and (ms := _number(stats.get("kvCacheTransferMS"))) == ms:
            yield ms


def _number(value: Any) -> float:
    """A number that a measure can have; NaN for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NAN
    return float(value) if abs(value) < MOST else NAN


def _time(text: Any) -> float:
    """Epoch seconds of a time stamp, which names no zone; NaN if there is none."""
    for form in TIMES if isinstance(text, str) and len(text) < 40 else ():
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return NAN


def _steps(rows: list[dict[str, float]], source: Source, out: Reading) -> None:
    """The same as other engines log it: a row a step, ranks joined (the slowest sets the pace)."""
    from moexray.readers.shapes.step_log import join_ranks

    ranks = {row["rank"] for row in rows if row["rank"] == row["rank"]}
    numbered = all(row["iteration"] == row["iteration"] for row in rows)
    table = {
        "step": [row["iteration"] if numbered else float(i) for i, row in enumerate(rows)],
        "dur_s": [row["dur_s"] for row in rows],
        "prefill_tokens": [row["context_tokens"] for row in rows],
        "prefill_ranks": [
            float(row["context_requests"] > 0) if row["context_requests"] == row["context_requests"] else NAN
            for row in rows
        ],
        "seq_len": [NAN] * len(rows),
        "batch": [row["running" if math.isnan(row["scheduled"]) else "scheduled"] for row in rows],
        "t_s": [row["t_s"] for row in rows],
    }
    if len(ranks) > 1:
        table = join_ranks(table)
    times = table.pop("t_s")
    out.add_columns("steps", table, source=source.path, rows=0, ranks=len(ranks) or None)
    out.add_columns(
        "latency",
        {"t_s": times, "step": table["step"], "value_s": table["dur_s"], "line": [0] * len(times)},
        source=source.path,
        rows=0,
        what="step",
        clock="none" if any(map(math.isnan, times)) else "epoch",
        rank=None,
    )
