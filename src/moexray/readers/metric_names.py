"""Names of engine metrics by release, mapped to canonical ones, and what labels mean."""

from __future__ import annotations

from functools import lru_cache

from moexray.core.pattern import lazy

__all__ = ["canonical", "engine_of", "join_labels"]

# canonical name -> names without prefix and suffix, as engines have called it
NAMES: dict[str, tuple[str, ...]] = {
    "requests_running": (
        "num_requests_running", "num_running_reqs", "num_running_requests", "requests_running",
        "batch_current_size", "num_active_requests", "running_requests",
    ),
    "requests_waiting": (
        "num_requests_waiting", "num_queue_reqs", "num_queued_requests", "requests_waiting",
        "queue_size", "num_waiting_requests", "num_queue_requests", "num_requests_queued",
    ),
    "kv_usage": (
        "kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", "kv_cache_utilization",
        "kv_cache_usage", "gpu_cache_usage", "kv_usage",
    ),
    "preemptions": (
        "num_preemptions", "num_retracted_reqs", "num_retracted_requests", "num_preempted_requests",
        "preemptions",
    ),
    "generation_tokens": ("generation_tokens", "generated_tokens", "output_tokens", "completion_tokens"),
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "requests_done": ("request_success", "num_requests", "requests_finished"),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "ttft": ("time_to_first_token_seconds", "time_to_first_token"),
    "e2e": ("e2e_request_latency_seconds", "request_latency_seconds"),
    "queue_time": ("request_queue_time_seconds", "queue_time_seconds", "request_queue_duration_seconds"),
    "iteration_latency": ("iteration_latency_seconds", "step_duration_seconds"),
    "process_start": ("process_start_time_seconds",),
}
COUNTERS = frozenset(("preemptions", "generation_tokens", "prompt_tokens", "requests_done"))
_BY_NAME = {name: canon for canon, names in NAMES.items() for name in names}
_PREFIX = lazy(
    r"^(?:ray_)?(?:vllm|sglang|sgl|trtllm|trt_llm|tensorrt_llm|tgi|lmdeploy|nv_trt_llm|dynamo)_"
)
_SUFFIX = lazy(r"_(total|bucket|sum|count|created)$")
# Triton's backend keeps one family with the meaning in a label
_TRITON = {
    ("request_metrics", "active"): "requests_running",
    ("request_metrics", "waiting"): "requests_waiting",
    ("kv_cache_block_metrics", "fraction"): "kv_usage",
}
_ENGINE_LABELS = (
    "engine", "engine_id", "engine_index", "engine_idx", "dp_rank", "data_parallel_rank", "dp", "dp_id",
    "engine_rank",
)


@lru_cache(maxsize=65536)
def canonical(name: str, kind: str, meaning: str = "") -> str:
    """The canonical name of a sample, "" if there is none.

    Args:
        name: As scraped.
        kind: Type of the family if the page says so (gauge, counter, histogram, summary), else "".
        meaning: Value of a label that carries the meaning (request_type, kv_cache_block_type), or "".
    """
    plain = name.replace(":", "_")
    suffix = m[1] if (m := _SUFFIX.search(plain)) else ""
    plain = _SUFFIX.sub("", plain)
    own = _PREFIX.sub("", plain)
    if own == plain and ":" not in name and own != "process_start_time_seconds":
        return ""  # other programs have queues and requests, too
    found = _TRITON.get((own, meaning)) if meaning else None
    found = found or _BY_NAME.get(own)
    if found is None or suffix == "created":
        return ""
    if suffix in ("bucket", "sum", "count"):
        return f"{found}_{suffix}"
    counted = kind == "counter" or suffix == "total"
    if found in COUNTERS and not counted and kind != "":
        return ""  # a gauge of the same name counts something else (requests retracted just now)
    return found


def engine_of(labels: dict[str, str]) -> str:
    """The DP rank or engine index of the labels, "" if there is none."""
    return next((labels[k] for k in _ENGINE_LABELS if labels.get(k)), "")


def join_labels(labels: dict[str, str]) -> str:
    """Labels as one sorted text."""
    return ",".join(f"{k}={labels[k]}" for k in sorted(labels))
