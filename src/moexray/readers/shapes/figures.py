"""Names of benchmark figures, whoever wrote them, as the figures of the table `bench`.

Glossary: a *stat* is mean, p50, p99, ...; a *quantity* is what was timed or counted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.cells import BASE, split_unit, word_set, words

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Figure", "figure_of", "is_level", "is_run", "scale_of", "stat_of"]

Figure = tuple[str, float | None]

STATS = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "med": "p50", "max": "max",
    "maximum": "max", "worst": "max", "peak": "max", "min": "min", "minimum": "min", "best": "min",
    "std": "std", "stdev": "std", "stddev": "std", "sd": "std", "std_dev": "std",
}
PERCENTILE = lazy(r"(?:^|_)(?:p|pct|perc|percentile|q)_?(\d{1,2}(?:\.\d+)?|99\d{1,2}|0\.\d+)(?=_|$)")
ORDINAL = lazy(r"(?:^|_)(\d{1,2}(?:\.\d+)?)(?:th|st|nd|rd)?_?(?:percentile|pct|perc|th)(?=_|$)")
STAT_WORD = lazy(r"(?:^|_)(" + "|".join(STATS) + r")(?=_|$)")
DURATIONS = (
    ("ttft", lazy(r"ttft|time_?to_?first_?(?:output_)?token|first_token(?:_latency|_time)?")),
    ("tpot", lazy(r"tpot|time_per_(?:output_)?token|per_token(?:_latency)?")),
    ("itl", lazy(r"itl|tbt|inter_?token(?:_latency)?|time_between_tokens|(?:token|decode)_latency")),
    ("e2e", lazy(r"e2el?(?:_latency|_time)?|end_?to_?end(?:_latency|_time)?|request_latency")),
    ("step", lazy(
        r"(?:engine_|decode_|forward_)?(?:step|iter|iteration)(?:_time|_latency|_duration|_dur)?"
        r"|time_per_(?:step|iter|iteration)")),
    ("duration", lazy(
        r"(?:benchmark_|bench_|total_)?(?:duration|elapsed|runtime|wall|wall_time|run_time)(?:_time)?"
        r"|total_time|benchmark_time")),
    ("latency", lazy(r"(?:kernel_|op_)?(?:latency|lat|response_time|rt|time|dur|runtime)")),
)
_TOKENS = r"_?(?:tok|toks|token|tokens)?_?(?:throughput|tps)?"
RATES = (
    ("requests", lazy(r"req|reqs|request|requests|request_throughput|rps|qps|request_rate")),
    ("output_tokens", lazy(r"(?:output|out|generation|generated|gen|decode|completion)" + _TOKENS)),
    ("input_tokens", lazy(r"(?:input|in|prompt|prefill)" + _TOKENS)),
    ("total_tokens", lazy(r"(?:total|overall|all)" + _TOKENS)),
    ("tokens", lazy(r"(?:tok|toks|token|tokens)(?:_throughput)?|throughput|tps")),
    ("steps", lazy(r"steps?|it|its|iters?|iterations?")),
    ("items", lazy(r"img|imgs|images|samples?|items?|examples?")),
)
COUNTS = {
    "successful_requests": "requests", "completed": "requests", "completed_requests": "requests",
    "num_requests": "requests", "request_count": "requests", "failed_requests": "failed_requests",
    "failed": "failed_requests", "error_requests": "failed_requests", "errored": "failed_requests",
    "total_input_tokens": "input_tokens", "total_input": "input_tokens", "input_tokens": "input_tokens",
    "total_output_tokens": "output_tokens", "total_generated_tokens": "output_tokens",
    "total_output": "output_tokens", "output_tokens": "output_tokens",
}
MEMORY = lazy(r"(?:^|_)(?:mem|memory|vram|hbm|fb|allocated|reserved|used|card|capacity)(?=_|$)")
LEVELS = word_set(
    "concurrency max_concurrency concurrent concurrent_requests batch batch_size bs bsz batchsize conc "
    "request_rate rate target_rate qps_target users clients streams parallelism level load num_concurrent "
    "max_num_seqs num_seqs n_users virtual_users request_concurrency global_batch_size m num_tokens tokens"
)
LEVEL_ORDER = ("concurrency", "max_concurrency", "batch_size", "batch", "bs", "request_rate")
RUNS = word_set(
    "run arm build mode version variant backend config configuration commit engine branch label name tag "
    "case experiment release side group series setup moe_backend kernel impl implementation policy phase "
    "scenario trial attention_backend strategy before_after test system"
)


@lru_cache(maxsize=4096)
def stat_of(name: str) -> tuple[str, str]:
    """Splits words into (stat, rest): "p99_itl" -> ("p99", "itl"); the stat is "" if there is none."""
    for pattern in (PERCENTILE, ORDINAL):
        if m := pattern.search(name):
            digits = m[1]
            if len(digits) > 2 and "." not in digits:
                digits = f"{digits[:2]}.{digits[2:]}"  # p999
            elif digits.startswith("0."):
                digits = f"{float(digits) * 100:g}"
            return f"p{digits}", _without(name, m)
    if m := STAT_WORD.search(name):
        return STATS[m[1]], _without(name, m)
    return "", name


def _without(name: str, m: re.Match[str]) -> str:
    return re.sub(r"_+", "_", f"{name[: m.start()]}_{name[m.end() :]}").strip("_")


@lru_cache(maxsize=4096)
def figure_of(name: str, unit: str | None = None) -> Figure | None:
    """The figure of `bench` that a name stands for.

    Args:
        name: As written: "Mean TTFT (ms)", "p99_itl_ms", "output_throughput", "tok_s".
        unit: Its unit where it stands elsewhere ("ms", "tokens/sec").

    Returns:
        (figure, factor to the base unit); the factor is None where a duration has no unit, and the
        whole is None where the name is no figure.
    """
    plain, own = split_unit(name)
    given = (unit or own).lower()
    given = given if given in BASE else own
    kind, factor = BASE.get(given, ("", 1.0))
    if plain in COUNTS and not kind:
        return COUNTS[plain], 1.0
    stat, rest = stat_of(plain)
    if kind in ("per_s", "") and (rate := _rate(rest, sure=kind == "per_s")):
        return (f"{stat}_{rate}" if stat and stat != "mean" else rate), 1.0
    if kind == "bytes":
        return _memory(plain, stat, factor) if stat in ("", "max") else None
    if kind == "s" and stat and not rest:
        return f"{stat}_latency_s", factor  # "p99_us": of whatever the row names
    if kind == "s" or (not kind and rest not in ("time", "rt", "lat", "dur", "runtime")):
        for quantity, pattern in DURATIONS:
            if pattern.fullmatch(rest):
                if not kind and quantity in ("step", "duration") and rest != "duration":
                    return None
                scale = factor if kind else 1.0 if quantity == "duration" else None
                return (f"{stat}_{quantity}_s" if stat else f"{quantity}_s"), scale
    return None


def _rate(name: str, *, sure: bool) -> str:
    """`output_tokens_per_s` and the like; without a unit only where the words say throughput."""
    if not sure and "throughput" not in name and name not in ("tps", "rps", "qps"):
        return ""
    name = name.removesuffix("_per_gpu").removesuffix("_per_user")
    plain = re.sub(r"_(?:tps|rps)$", "", name) or name
    short = re.sub(r"_?throughput_?", "_", plain).strip("_")
    for quantity, pattern in RATES:
        if pattern.fullmatch(plain) or pattern.fullmatch(short):
            return f"{quantity}_per_s"
    return ""


def _memory(name: str, stat: str, factor: float) -> Figure | None:
    if not MEMORY.search(name) and name not in ("peak", "max", "total"):
        return None
    parts = set(name.split("_"))
    if parts & {"total", "capacity", "card", "size", "limit", "available"}:
        return "memory_total_bytes", factor
    if "free" in parts:
        return "memory_free_bytes", factor
    if parts & {"peak", "used", "allocated", "usage", "reserved"} or stat == "max" or len(parts) <= 2:
        return "peak_memory_bytes", factor
    return None


def scale_of(factor: float | None, values: Sequence[float | None]) -> float:
    """The factor to seconds of durations without a unit: typical values of 5 and more are milliseconds."""
    known = [v for v in values if v is not None]
    if factor is not None:
        return factor
    return 1e-3 if known and median(known) >= 5 else 1.0


def is_level(name: str) -> bool:
    """Whether a column holds what load was applied."""
    return words(name) in LEVELS


def is_run(name: str) -> bool:
    """Whether a column names arms, builds or repeats."""
    w = words(name)
    return w in RUNS or w.removesuffix("_name").removesuffix("_id") in RUNS
