"""The series of one process, and their page in OpenMetrics or the older Prometheus text.

Glossary: the *ceiling* is the most series the page holds; an update that would pass it is refused and
counted. An *exemplar* is the trace id of one observation of a histogram's bucket.

Source: OpenMetrics 1.0; Prometheus exposition format 0.0.4.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
import weakref
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moexray import __version__
from moexray.live.metrics import DROPS, METRICS, metric

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from moexray.live.metrics import Metric

__all__ = ["CEILING", "OPENMETRICS", "TEXT", "Exemplar", "Page", "Sample", "Scope", "Series"]

CEILING = 2_000  # series of a process: what one scrape can write in a few milliseconds (docs/decisions/028)
SCHEMA = "1"  # of the names and labels in live/metrics.py
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LABEL_LENGTH = 128  # characters of a label's value that are kept
_HALVES = re.compile("[\\ud800-\\udfff]")  # of characters: JSON may hold them, a page cannot
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation that can be looked up.

    Args:
        trace_id: 32 hex digits.
        value: What was observed, in the metric's unit.
        time_s: Epoch seconds.
    """

    trace_id: str
    value: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series.

    Args:
        name: With the suffix of a histogram's part.
        labels: Those with a value, in the metric's order.
        value: As it stands now.
        exemplar: Of a bucket, if it has one.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    exemplar: Exemplar | None = None


@dataclass(slots=True)
class Series:
    """One set of labels of one metric; `counts`, `exemplars` and `value` as the sum: a histogram."""

    labels: tuple[tuple[str, str], ...]
    heads: list[str]
    value: float = 0
    raw: float = 0  # of `follow`: what the source's counter showed last
    counts: list[int] = field(default_factory=list)
    exemplars: list[Exemplar | None] = field(default_factory=list)


class Page:
    """Holds the series; threads may share it.

    Args:
        ceiling: Most series, those about the exporter itself (a dozen) not counted.
    """

    def __init__(self, ceiling: int = CEILING) -> None:
        self.ceiling, self.lock = ceiling, threading.RLock()
        _pages.add(self)
        self.series = 0
        self._families: dict[str, dict[tuple[str, ...], Series]] = {m.name: {} for m in METRICS}
        self._fresh_s = -math.inf  # monotonic: the clock of the day may jump
        self.own = Scope(self)
        self.own.set("moex_build_info", 1, __version__, SCHEMA)
        for signal, reason in DROPS:
            self.drop(signal, reason, 0)
        self.own_series = self.series  # of a page without data
        self.ceiling += self.own_series

    def scope(self, *, model: str = "", engine: str = "", rank: object = "") -> Scope:
        """A writer whose metrics share these labels; empty ones are left out."""
        return Scope(self, (_label(model), _label(engine), _label(rank)))

    def drop(self, signal: str, reason: str, count: float = 1) -> None:
        """Counts what was lost."""
        self.own.add("moex_exporter_dropped_total", count, signal, reason)

    def fresh(self, time_s: float | None = None) -> None:
        """The newest data on the page are of this time (epoch seconds, now by default)."""
        age = 0.0 if time_s is None else max(0.0, time.time() - time_s)
        self._fresh_s = max(self._fresh_s, time.monotonic() - age)

    def at(self, known: Metric, labels: tuple[str, ...], *, own: bool) -> Series | None:
        """The series, made if there is room; None if the ceiling is reached. Call with the lock held."""
        family = self._families[known.name]
        found = family.get(labels)
        if found is None:
            if not own and self.series + known.series > self.ceiling:
                self.drop("series", "ceiling")
                return None
            self.series += known.series
            found = family[labels] = _new(known, labels)
        return found

    def has(self, known: Metric, labels: tuple[str, ...]) -> bool:
        """Whether there is such a series."""
        return labels in self._families[known.name]

    def forget(self, known: Metric, scope: tuple[str, ...], keep: Container[tuple[str, ...]]) -> None:
        """Drops the series of a metric and scope but those in `keep`. Call with the lock held."""
        family = self._families[known.name]
        gone = [k for k in family if k[: len(scope)] == scope and k[len(scope) :] not in keep]
        for labels in gone:
            del family[labels]
        self.series -= known.series * len(gone)

    def value(self, name: str, *labels: object) -> float | None:
        """Value of a series (of a histogram its sum), all labels given in order; None if there is none."""
        with self.lock:
            found = self._families[name].get(tuple(map(str, labels)))
            return None if found is None else found.value

    def samples(self) -> list[Sample]:
        """Every value at this moment."""
        with self.lock:
            self._age()
            return [s for m in METRICS for one in self._families[m.name].values() for s in _samples(m, one)]

    def render(self, *, openmetrics: bool) -> bytes:
        """The page, at one moment of all series."""
        lines: list[str] = []
        with self.lock:
            self._age()
            for m in METRICS:
                if family := self._families[m.name]:
                    lines += _head(m, openmetrics=openmetrics)
                    if m.kind == "histogram":
                        for one in family.values():
                            lines += _buckets(one, openmetrics=openmetrics)
                    else:
                        lines += [f"{one.heads[0]} {one.value}" for one in family.values()]
        if openmetrics:
            lines.append("# EOF")
        return ("\n".join(lines) + "\n").encode()

    def _age(self) -> None:
        if math.isfinite(self._fresh_s):
            self.own.set("moex_exporter_lag_seconds", time.monotonic() - self._fresh_s)


_pages: weakref.WeakSet[Page] = weakref.WeakSet()


def _after_fork() -> None:
    for page in list(_pages):
        page.lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


class Scope:
    """Writes metrics that share the labels of one process. Unknown names raise KeyError: a bug of ours."""

    def __init__(self, page: Page, labels: tuple[str, ...] = ()) -> None:
        self.page, self.labels = page, labels

    def set(self, name: str, value: float, *labels: object) -> None:
        """Sets a gauge; a value that is not finite is unknown and takes the series away."""
        with self.page.lock:
            if not math.isfinite(value):
                self._drop(name, labels)
            elif one := self._at(name, labels):
                one.value = value

    def add(self, name: str, amount: float, *labels: object) -> None:
        """Adds to a counter; amounts below 0, or that are not finite, are refused by ValueError."""
        if not 0 <= amount < math.inf:
            raise ValueError(f"{name} cannot fall, or grow by {amount}")
        with self.page.lock:
            if one := self._at(name, labels):
                one.value += amount

    def follow(self, name: str, value: float, *labels: object) -> None:
        """Takes over a counter of the source, which may have started anew at 0; no count: left out."""
        if not 0 <= value < math.inf:
            return
        with self.page.lock:
            if one := self._at(name, labels):
                one.value += value - one.raw if value >= one.raw else value
                one.raw = value

    def observe(self, name: str, value: float, *labels: object, trace_id: str = "") -> None:
        """Adds one observation to a histogram, with an exemplar where the step's trace was kept.

        What is below 0 or not finite is unknown, and left out.
        """
        if not 0 <= value < math.inf:
            return
        with self.page.lock:
            if one := self._at(name, labels):
                place = bisect_left(metric(name).buckets, value)
                one.counts[place] += 1
                one.value += value
                if trace_id:
                    one.exemplars[place] = Exemplar(trace_id, value, time.time())

    def replace(self, name: str, values: Mapping[tuple[str, ...], float]) -> None:
        """Makes these the only series of a gauge or counter in this scope; labels as texts."""
        known = metric(name)
        with self.page.lock:
            self.page.forget(known, self._own_labels(known), values)
            for labels, value in values.items():
                if one := self._at(name, labels):
                    one.value = value

    def show(self, name: str, labels: Sequence[tuple[str, ...]]) -> list[Series | None]:
        """Makes these the only series of a counter in this scope.

        Returns:
            The series in the same order, to set `value` of with the page's lock held; None where there was no
            room. They are valid until the next `show`.
        """
        known = metric(name)
        with self.page.lock:
            self.page.forget(known, self._own_labels(known), frozenset(labels))
            shown: list[Series | None] = []
            for one in labels:  # a matrix may have thousands too many: those are not asked for one by one
                full = self.page.series >= self.page.ceiling and not self.page.has(known, self.labels + one)
                shown.append(None if full else self._at(name, one))
            if refused := shown.count(None):
                self.page.drop("series", "ceiling", refused)
            return shown

    def _own_labels(self, known: Metric) -> tuple[str, ...]:
        return self.labels if known.scoped else ()

    def _at(self, name: str, labels: tuple[object, ...]) -> Series | None:
        known = metric(name)
        full = (*self._own_labels(known), *map(_label, labels))
        if len(full) != len(known.label_names):
            raise ValueError(f"{name} has the labels {known.label_names}, got {full}")
        return self.page.at(known, full, own=not known.scoped)

    def _drop(self, name: str, labels: tuple[object, ...]) -> None:
        known = metric(name)
        family = self.page._families[name]  # noqa: SLF001
        if family.pop((*self._own_labels(known), *map(_label, labels)), None):
            self.page.series -= known.series


def _label(value: object) -> str:
    """A label's value as a page can hold it."""
    text = str(value)[:LABEL_LENGTH]
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def _new(known: Metric, labels: tuple[str, ...]) -> Series:
    named = tuple((k, v) for k, v in zip(known.label_names, labels, strict=True) if v)
    inner = ",".join(f'{k}="{v.translate(_ESCAPES)}"' for k, v in named)
    if known.kind != "histogram":
        return Series(named, [f"{known.name}{{{inner}}}" if inner else known.name])
    comma = "," if inner else ""
    borders = [*(repr(float(b)) for b in known.buckets), "+Inf"]
    heads = [f'{known.name}_bucket{{{inner}{comma}le="{b}"}}' for b in borders]
    braces = f"{{{inner}}}" if inner else ""
    heads += [f"{known.name}_sum{braces}", f"{known.name}_count{braces}"]
    return Series(named, heads, counts=[0] * len(borders), exemplars=[None] * len(borders))


def _head(known: Metric, *, openmetrics: bool) -> list[str]:
    name = known.family if openmetrics else known.name
    text = known.help.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {text.replace(chr(34), chr(92) + chr(34)) if openmetrics else text}"]
    lines.append(f"# TYPE {name} {known.kind}")
    if openmetrics and known.unit:
        lines.append(f"# UNIT {name} {known.unit}")
    return lines


def _buckets(one: Series, *, openmetrics: bool) -> Iterator[str]:
    total = 0
    for head, count, mark in zip(one.heads, one.counts, one.exemplars, strict=False):
        total += count
        line = f"{head} {total}"
        if mark and openmetrics:
            line += f' # {{trace_id="{mark.trace_id}"}} {mark.value!r} {mark.time_s:.3f}'
        yield line
    yield f"{one.heads[-2]} {one.value!r}"
    yield f"{one.heads[-1]} {total}"


def _samples(known: Metric, one: Series) -> Iterator[Sample]:
    if known.kind != "histogram":
        yield Sample(known.name, one.labels, one.value)
        return
    total = 0
    borders: list[str] = [*(repr(float(b)) for b in known.buckets), "+Inf"]
    for border, count, mark in zip(borders, one.counts, one.exemplars, strict=True):
        total += count
        yield Sample(f"{known.name}_bucket", (*one.labels, ("le", border)), total, mark)
    yield Sample(f"{known.name}_sum", one.labels, one.value)
    yield Sample(f"{known.name}_count", one.labels, total)
