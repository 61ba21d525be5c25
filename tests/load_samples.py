"""Metrics pages and files made in memory, and what moexray says about them."""

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources

VLLM = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
    "preempted": "vllm:num_preemptions_total",
    "tokens": "vllm:generation_tokens_total",
    "itl": "vllm:inter_token_latency_seconds",
}
SGLANG = {
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "kv": "sglang:token_usage",
    "preempted": "sglang:num_retracted_requests_total",
    "tokens": "sglang:generation_tokens_total",
    "itl": "sglang:inter_token_latency_seconds",
}
KINDS = {"running": "gauge", "waiting": "gauge", "kv": "gauge", "preempted": "counter", "tokens": "counter"}


def page(engines, names=VLLM, label="engine", stamp=None):
    """A scrape: {engine: {"running": 3, ..., "itl": (sum, count)}}; the key None has no engine label."""
    end = f" {stamp}" if stamp else ""
    lines = []
    for what, kind in KINDS.items():
        rows = [(e, v[what]) for e, v in engines.items() if what in v]
        if rows:
            lines.append(f"# TYPE {names[what]} {kind}")
            lines += [f"{names[what]}{_labels(e, label)} {v}{end}" for e, v in rows]
    rows = [(e, v["itl"]) for e, v in engines.items() if "itl" in v]
    if rows:
        lines.append(f"# TYPE {names['itl']} histogram")
    for e, (total, count) in rows:
        lines.append(f"{names['itl']}_bucket{_labels(e, label, le='+Inf')} {count}{end}")
        lines.append(f"{names['itl']}_sum{_labels(e, label)} {total}{end}")
        lines.append(f"{names['itl']}_count{_labels(e, label)} {count}{end}")
    return "\n".join(lines) + "\n"


def _labels(engine, label, **more):
    pairs = {**({label: engine} if engine is not None else {}), "model_name": "M", **more}
    return "{" + ",".join(f'{k}="{v}"' for k, v in pairs.items()) + "}"


def read(files):
    """A Run of {name: text or bytes}."""
    contents = {n: c if isinstance(c, bytes) else c.encode() for n, c in files.items()}
    return read_sources([Source(n, content=c) for n, c in contents.items()])


def said(files):
    """{id: finding} of everything found."""
    return {f.id: f for f in diagnose(read(files)).findings}


def ruled_out(files):
    """Ids that were ruled out."""
    return [f.id for f in diagnose(read(files)).ruled_out]
