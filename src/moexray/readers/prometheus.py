"""Metrics pages: Prometheus text and OpenMetrics, one scrape or several one after the other.

Legal and no finding: exemplars, `_created`, # UNIT, # EOF, time stamps, NaN quantiles of an empty
summary. NaN and Inf elsewhere, duplicate series, lines that are no samples and error pages are named.
"""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.core.source import decode
from moexray.readers.metric_names import canonical, engine_of, join_labels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["ERROR_TEXT", "add_scrape", "read", "sniff"]

SAMPLE = lazy(
    r'([a-zA-Z_:][\w:.]*)\s*(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?'
    r"\s+([-+]?[\w.+-]+)(?:\s+([-+]?[\d.eE+]+))?\s*(?:#.*)?$"
)
LABEL = lazy(r'([a-zA-Z_][\w.]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
SUFFIX = lazy(r"_(?:total|bucket|sum|count|created)$")
HEADER = lazy(r"HTTP/\d|[A-Za-z][A-Za-z0-9-]*: ")  # of the web server's answer (`curl -i`)
META = lazy(r"#\s+(HELP|TYPE|UNIT|EOF)\b(?:\s+(\S+))?(?:\s+(\S+))?")
TITLE = lazy(r"<(?:title|h1)[^>]*>\s*([^<]{3,80}?)\s*<", re.IGNORECASE)
PHRASES = (
    r"\s*(?:(?:HTTP )?(?:error )?[45]\d\d:? ?)?(?:page not found|not found|bad gateway|internal server error"
    r"|service (?:temporarily )?unavailable|no healthy upstream|upstream connect error|unauthorized|forbidden"
    r"|gateway time-?out|connection refused|too many requests)[.!]?"
)
ERROR_TEXT = lazy(PHRASES, re.IGNORECASE)
ERROR_TITLE = lazy(rf"(?:{PHRASES}|(?:error )?[45]\d\d\b).*", re.IGNORECASE)
PAGE_NAMES = (".prom", ".metrics", ".om", ".openmetrics")
MEANING_LABELS = ("request_type", "kv_cache_block_type")
SHOWN = 5
MAX_BYTES = 128 << 20  # a page of an engine has 50 kB; larger ones are refused with the reason
FIELDS = ("name", "metric", "engine", "labels", "value")


@dataclass(slots=True)
class Scrape:
    """Samples of one scrape, in the order of the page."""

    columns: dict[str, list[object]] = field(default_factory=lambda: {f: [] for f in FIELDS})
    times: list[float] = field(default_factory=list)
    stamps: set[float] = field(default_factory=set)
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    twice: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a sample, parsed once per spelling."""

    joined: str
    engine: str
    meaning: str
    quantile: bool


@dataclass(slots=True)
class Faults:
    """What a page holds that cannot be right."""

    odd: list[tuple[int, str]] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)


def sniff(head: bytes) -> bool:
    """Most of the first lines are samples or # TYPE lines; or the page is a web server's error."""
    start = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<html", b"<!doctype html")):
        return True
    if len(head) < 2048 and ERROR_TEXT.fullmatch(head.strip().split(b"\n")[0].decode("latin-1").strip()):
        return True
    lines = [x for x in decode(head[:16384])[0].splitlines() if x.strip()]
    lines = [x for x in lines[:80] if not x.startswith("# ") or META.match(x)]
    hits = [x for x in lines if META.match(x) or SAMPLE.match(x)]
    # "key: 8" is a line of settings
    sure = any(META.match(x) or "{" in x or ":" in x.split()[0].rstrip(":") for x in hits)
    return sure and len(hits) >= 0.6 * len(lines)


def read(source: Source, out: Reading) -> None:
    """Adds one batch of samples per scrape.

    Raises:
        ReadError: a web server's error page, or a page without any sample.
    """
    from statistics import median

    text, encoding = decode(source.data(MAX_BYTES))
    _refuse_error_page(text, source, out)
    faults = Faults()
    scrapes = _merge_strays(list(_scrapes(text, faults)))
    for i, scrape in enumerate(s for s in scrapes if s.seen):
        t_s = median(scrape.times) if scrape.times else None
        add_scrape(out, source.path, scrape.columns, scrape=i, t_s=t_s)
    _report(scrapes, faults, out)
    if encoding != "utf-8" and out.rows:
        said = f"the text is {encoding}, not plain UTF-8; it was read as such"
        out.problem("input.encoding", said, values={"encoding": encoding})
    if not out.rows:
        raise ReadError("a metrics page without a usable sample", where=source.path, hint="scrape it again")


def add_scrape(
    out: Reading, path: str, columns: dict[str, list[object]], *, scrape: int, t_s: float | None
) -> None:
    """Adds the samples of one scrape as a batch."""
    out.add_columns("metrics", columns, source=path, rows=len(columns["value"]), scrape=scrape, t_s=t_s)


def _refuse_error_page(text: str, source: Source, out: Reading) -> None:
    start = text.lstrip("\ufeff \t\r\n")
    web = start[:15].lower().startswith(("<html", "<!doctype html"))
    plain = len(text) < 2048 and "\n# " not in text and "{" not in text and ERROR_TEXT.match(start)
    if not web and not plain:
        return
    title = m[1] if web and (m := TITLE.search(text[:4096])) else start.split("\n")[0].strip()[:60]
    failed = plain or ERROR_TITLE.fullmatch(title)
    said = f"an error page ({title}), not a metrics page" if failed else "a web page, not a metrics page"
    if failed or source.name.lower().endswith(PAGE_NAMES) or "metrics" in source.name.lower():
        out.problem("input.scrape_dirty", f"{said}; nothing of it was used", where="line 1", lost=None)
    raise ReadError(said, where=source.path, hint="scrape it again")


def _scrapes(text: str, faults: Faults) -> Iterator[Scrape]:
    """Cuts a page into scrapes: the first series again (or # EOF) begins the next one."""
    now = Scrape()
    first: tuple[str, str] | None = None
    kinds: dict[str, str] = {}
    late: dict[float, Scrape] = {}
    known: dict[str | None, Labels] = {}
    for number, raw in enumerate(io.StringIO(text), 1):
        line = raw.strip()
        if not line:
            continue
        if line[0] == "#":
            meta = META.match(line)
            if meta and meta[1] == "TYPE" and meta[2] and meta[3]:
                kinds[meta[2]] = meta[3].lower()
            if meta and meta[1] == "EOF":
                yield now
                now, first = Scrape(), None
            continue
        m = SAMPLE.match(line)
        value = _value(m[3]) if m else None
        if m is None or value is None:
            if now.seen or not HEADER.match(line):
                faults.bad.append((number, line[:60]))
            continue
        labels = known.get(m[2])
        if labels is None:
            labels = known[m[2]] = _labels(m[2])
        series = (m[1], labels.joined)
        if series == first and len(now.seen) > 2 and not m[4]:
            yield now
            now = Scrape()
        first = first or series
        if not math.isfinite(value):
            if not labels.quantile:
                faults.odd.append((number, f"{series[0]}{{{series[1]}}} {m[3]}"))
                now.seen.setdefault(series, number)
            continue
        target = now
        if m[4] and (given := _value(m[4])) is not None:
            stamp = given / 1000 if abs(given) > 1e11 else given  # milliseconds; OpenMetrics has seconds
            if series in now.seen and stamp not in now.stamps:  # a series over time
                target = late.setdefault(stamp, Scrape())
            target.times.append(stamp)
            target.stamps.add(stamp)
        _take(target, number, m[1], labels, value, kinds)
    yield now
    yield from (late[t] for t in sorted(late))


def _labels(text: str | None) -> Labels:
    found = {k: _unescape(v) for k, v in LABEL.findall(text)} if text else {}
    meaning = next((found[k] for k in MEANING_LABELS if k in found), "")
    return Labels(join_labels(found), engine_of(found), meaning, "quantile" in found)


def _take(
    now: Scrape, number: int, name: str, labels: Labels, value: float, kinds: dict[str, str]
) -> None:
    series = (name, labels.joined)
    if series in now.seen:
        now.twice.append((number, f"{name}{{{labels.joined}}}"))
        return
    now.seen[series] = number
    kind = kinds.get(name) or kinds.get(SUFFIX.sub("", name), "")
    metric = "" if labels.quantile else canonical(name, kind, labels.meaning)
    if metric == "kv_usage" and 1.5 < value <= 100:
        value /= 100  # some releases give percent
    columns = now.columns
    columns["name"].append(name)
    columns["metric"].append(metric)
    columns["engine"].append(labels.engine)
    columns["labels"].append(labels.joined)
    columns["value"].append(value)


def _merge_strays(scrapes: list[Scrape]) -> list[Scrape]:
    """A "scrape" with few of the series of the one before it is only a page with duplicate series."""
    out: list[Scrape] = []
    for scrape in scrapes:
        before = out[-1] if out else None
        if before is not None and scrape.seen and len(scrape.seen) < 0.5 * len(before.seen):
            again = [(n, f"{s[0]}{{{s[1]}}}") for s, n in scrape.seen.items() if s in before.seen]
            before.twice += again + scrape.twice
            continue
        out.append(scrape)
    return out


def _report(scrapes: list[Scrape], faults: Faults, out: Reading) -> None:
    twice = [x for s in scrapes for x in s.twice]
    for found, said, lost in (
        (faults.odd, "samples are NaN or infinite and count as missing", 0),
        (twice, "series occur twice in one scrape; the first sample was used", 0),
        (faults.bad, "lines are no samples and were left out", 0),
    ):
        if not found:
            continue
        shown = "; ".join(f"line {n}: {text}" for n, text in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        out.problem(
            "input.scrape_dirty", f"{len(found)} {said} ({shown}{more})", where=f"line {found[0][0]}",
            lost=lost + len(found),
        )


def _value(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return text.replace("\\\\", "\0").replace('\\"', '"').replace("\\n", "\n").replace("\0", "\\")


