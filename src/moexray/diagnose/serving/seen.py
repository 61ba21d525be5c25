"""Seen, not judged: what a serving engine does that bears on latency and that no rule judges yet.

A disaggregated deployment, waits for the KV cache of another server, a fall of the prefix cache's hit rate or
of the acceptance of drafts; memory errors of a sanitizer. Each is told with its figures, beside the findings
and never as a cause: which of them explains a spike only its owner can tell. A setting in force or a
measured time is evidence, a word is none.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from moexray.analyse.metrics import scrapes, series
from moexray.core.finding import pairs
from moexray.core.limits import Limits
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moexray.analyse.metrics import Scrape
    from moexray.core.run import Run

__all__ = ["seen"]

CONNECTOR = lazy(r"[\"']?kv_connector[\"']?\s*[:=]\s*[\"']?(\w+)")
ROLE = lazy(r"[\"']?kv_role[\"']?\s*[:=]\s*[\"']?(kv_\w+)")
SHOWN = 4
APART = ("kv_producer", "kv_consumer")
# name of a metric (its prefix and suffix apart) -> part of a rate; or time and number of transfers
HITS = {"prefix_cache_hits": "of", "prefix_cache_queries": "all", "gpu_prefix_cache_hits": "of",
        "gpu_prefix_cache_queries": "all"}  # fmt: skip
DRAFTS = {"spec_decode_num_accepted_tokens": "of", "spec_decode_num_draft_tokens": "all"}
TRANSFERS = {"nixl_xfer_time_seconds_sum": "seconds", "nixl_xfer_time_seconds_count": "number"}
RATES = (
    ("prefix-cache hits", "the hit rate of the prefix cache", "hits"),
    ("speculative acceptance", "the share of draft tokens that are accepted", "accepted"),
)
Window = tuple[str, str, float]  # file, place, rate


def seen(run: Run) -> list[dict[str, Any]]:
    """One entry for each: what, text, evidence (source, where, text)."""
    limits = Limits()
    found = [*_deployment(run), *_transfers(run), *_memory_errors(run)]
    rates = {
        "hits": (*_hits_of_log(run), *_rates(run, HITS), *_hits_of_iterations(run)),
        "accepted": (*_drafts_of_log(run), *_rates(run, DRAFTS), *_drafts_of_iterations(run)),
    }
    for what, words, key in RATES:
        for windows in rates[key]:
            if (entry := _fall(what, words, windows, limits)) is not None:
                found.append(entry)
                break
    return found


def _entry(what: str, text: str, evidence: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "what": what,
        "text": text,
        "evidence": [{"source": s, "where": w, "text": t} for s, w, t in dict.fromkeys(evidence)],
    }


def _deployment(run: Run) -> list[dict[str, Any]]:
    """Settings in force that split prefill and decode, or share KV cache between servers."""
    said: dict[str, tuple[str, str, str]] = {}
    for row in run.rows("launch"):
        value = str(row["value"])
        if row["key"] == "kv_transfer_config" and (m := CONNECTOR.search(value)) is not None:
            role = ROLE.search(value)
            kind = "KV cache goes to other servers or tiers"
            if role is not None and role[1] in APART:
                kind = f"a disaggregated deployment: this server is its {role[1]}"
            facts = pairs({"kv_connector": m[1], "kv_role": role[1] if role else None})
            said.setdefault(f"{kind}, by {m[1]}", (row["source"], row["where"], facts))
        elif row["key"] == "disaggregation_mode" and value in ("prefill", "decode"):
            text = f"a disaggregated deployment: this server does {value} only"
            said.setdefault(text, (row["source"], row["where"], pairs({"disaggregation_mode": value})))
    return [_entry("disaggregation", text, [proof]) for text, proof in said.items()]


def _memory_errors(run: Run) -> list[dict[str, Any]]:
    """Records of compute-sanitizer: wrong accesses spoil results, not times."""
    rows = [r for r in run.rows("sanitizer") if r["count"] is None]
    if not rows:
        return []
    kernels = list(dict.fromkeys(str(r["kernel"]) for r in rows if r["kernel"]))
    among = f", in {', '.join(kernels[:SHOWN])}" if kernels else ""
    many = f"{len(rows)} wrong accesses" if len(rows) > 1 else "a wrong access"
    tool = next((f" ({r['tool']})" for r in rows if r["tool"]), "")
    text = f"compute-sanitizer{tool} reports {many} to GPU memory{among}: results may be wrong"
    words = [" ".join(filter(None, (r["what"], r["detail"]))) for r in rows[:SHOWN]]
    shown = [(r["source"], r["where"], said) for r, said in zip(rows, words, strict=False)]
    return [_entry("memory errors", text, shown)]


def _transfers(run: Run) -> list[dict[str, Any]]:
    """Measured waits for KV cache that comes from elsewhere."""
    number = seconds = 0.0
    shown: list[tuple[str, str, str]] = []
    for row in run.rows("log"):
        fields = row["fields"] or {}
        if row["kind"] == "kv.transfer" and fields.get("mean_ms"):
            count = float(fields.get("transfers", 1))
            number, seconds = number + count, seconds + count * float(fields["mean_ms"]) / 1e3
            shown.append((row["source"], row["where"], pairs(fields)))
    if not number:
        for scrape in _last_scrapes(run):
            values = _counted(scrape, TRANSFERS)
            if values.get("number", 0) > 0 and values.get("seconds", 0) > 0:
                number, seconds = number + values["number"], seconds + values["seconds"]
                facts = pairs({"transfers": values["number"], "sum_s": values["seconds"]})
                shown.append((scrape.source, scrape.where, facts))
    for batch in run.batches("iterations") if not number else ():
        arrived = [float(n) for n in batch.columns["transfers"] if n > 0]
        if arrived:
            took = float(sum(t for t in batch.columns["transfer_s"] if t > 0))
            number, seconds = number + sum(arrived), seconds + took
            facts = pairs({"transfers": sum(arrived), "sum_s": took})
            shown.append((batch.source, "all iterations", facts))
    queued = [r for r in run.rows("log") if r["kind"] == "batch" and (r["fields"] or {}).get("transferring")]
    out = []
    if number and seconds:
        many = "transfers" if number > 1 else "transfer"
        text = f"{number:.0f} {many} of KV cache took {seconds / number * 1e3:.3g} ms each on average, "
        out.append(_entry("KV-transfer waits", f"{text}{seconds:.3g} s in sum", [shown[0], shown[-1]]))
    if queued:
        most = max(queued, key=lambda r: r["fields"]["transferring"])
        text = (
            f"up to {most['fields']['transferring']} requests wait for a transfer of KV cache, in "
            f"{len(queued)} of the logged batches"
        )
        facts = pairs({"transferring": most["fields"]["transferring"], "batches": len(queued)})
        out.append(_entry("KV-transfer waits", text, [(most["source"], most["where"], facts)]))
    return out


def _counted(scrape: Scrape, names: dict[str, str]) -> dict[str, float]:
    """Sums of the counters of a scrape that are parts of a rate."""
    values: dict[str, float] = {}
    for name, value in scrape.counters.items():
        plain = name.partition(",")[0].rpartition(":")[2].removesuffix("_total")
        if (key := names.get(plain)) is not None and value == value:  # noqa: PLR0124  # NaN
            values[key] = values.get(key, 0.0) + value
    return values


def _last_scrapes(run: Run) -> list[Scrape]:
    """The last scrape of each server, whose counters are the totals."""
    every = scrapes(run)
    chains = series(every)
    last = {chain.scrapes[-1].target: chain.scrapes[-1] for chain in chains}
    return list({s.target: last.get(s.target, s) for s in every}.values())


def _rates(run: Run, names: dict[str, str]) -> Iterator[list[Window]]:
    """Rates between scrapes that follow each other; those of a counter that was reset are left out."""
    for chain in series(scrapes(run)):
        out: list[Window] = []
        counted = [_counted(s, names) for s in chain.scrapes]
        for scrape, before, after in zip(chain.scrapes[1:], counted, counted[1:], strict=False):
            part, whole = (after.get(k, 0.0) - before.get(k, 0.0) for k in ("of", "all"))
            if whole > 0 and 0 <= part <= whole:
                out.append((scrape.source, scrape.where, part / whole))
        yield out


def _hits_of_log(run: Run) -> Iterator[list[Window]]:
    """Hit rates as a server logs them while it serves."""
    for source, rows in run.by_source("log"):
        out: list[Window] = []
        for row in rows:
            f = row["fields"] or {}
            if row["kind"] == "stats" and f.get("hit_pct") is not None and f.get("running"):
                out.append((source, row["where"], float(f["hit_pct"]) / 100))
            elif row["kind"] == "batch" and f.get("what") == "prefill" and f.get("cached") is not None:
                tokens = float(f["cached"]) + float(f.get("new_tokens", 0))
                out += [(source, row["where"], float(f["cached"]) / tokens)] if tokens else []
        yield out


def _drafts_of_log(run: Run) -> Iterator[list[Window]]:
    """Accepted shares as a server logs them."""
    for source, rows in run.by_source("log"):
        out: list[Window] = []
        for row in rows:
            f = row["fields"] or {}
            if row["kind"] == "spec" and f.get("drafted"):
                out.append((source, row["where"], float(f.get("accepted", 0)) / float(f["drafted"])))
            elif row["kind"] == "batch" and f.get("accept_rate") is not None:
                out.append((source, row["where"], float(f["accept_rate"])))
        yield out


def _hits_of_iterations(run: Run) -> Iterator[list[Window]]:
    """Blocks found between iterations: the counters run over the life of the cache."""
    for batch in run.batches("iterations"):
        reused, missed = batch.columns["reused_blocks"], batch.columns["missed_blocks"]
        out: list[Window] = []
        for i in range(1, len(reused)):
            part, lost = reused[i] - reused[i - 1], missed[i] - missed[i - 1]
            if part >= 0 and lost >= 0 and part + lost > 0:
                out.append((batch.source, f"iteration {i + 1} of the file", part / (part + lost)))
        yield out


def _drafts_of_iterations(run: Run) -> Iterator[list[Window]]:
    for batch in run.batches("iterations"):
        rows = zip(batch.columns["accepted_tokens"], batch.columns["draft_tokens"], strict=True)
        yield [
            (batch.source, f"iteration {i + 1} of the file", part / whole)
            for i, (part, whole) in enumerate(rows)
            if whole > 0 and 0 <= part <= whole
        ]


def _fall(what: str, words: str, windows: list[Window], limits: Limits) -> dict[str, Any] | None:
    """An entry if the rate of the last third lies clearly below that of the first."""
    lim = limits.requests
    if len(windows) < lim.rate_windows:
        return None
    third = len(windows) // 3
    first, last = (median(w[2] for w in part) for part in (windows[:third], windows[-third:]))
    if first - last < lim.rate_fall:
        return None
    text = f"{words} falls from {first:.0%} to {last:.0%} over {len(windows)} windows"
    ends = [windows[0], windows[-1]]
    return _entry(what, text, [(s, w, pairs({"rate_ratio": round(rate, 4)})) for s, w, rate in ends])
