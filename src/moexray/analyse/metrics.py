"""Scrapes of engines put in order, and what their counters did between them.

Glossary: a *target* is one server (its labels without the engine's index); a *series* is the scrapes
of one target in the order of time. Order comes from the samples' time stamps; without them from the
counters, which never fall; names of files prove nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Batch, Run

__all__ = ["Scrape", "Series", "Window", "engine_sets", "scrapes", "series"]

# labels that tell servers apart, not engines of one server or parts of a metric
TARGET = frozenset(
    ("model_name", "model", "instance", "pod", "host", "hostname", "node", "namespace", "engine_type", "job",
     "cluster", "WorkerId", "exported_instance", "container", "service", "role", "deployment")
)
COPIES = frozenset(("tp_rank", "pp_rank", "moe_ep_rank", "attn_tp_rank"))  # ranks that report the same batch
COUNTED = ("_total", "_count", "_bucket", "_sum")
COUNTERS = frozenset(("preemptions", "generation_tokens", "prompt_tokens", "requests_done"))
LARGEST = frozenset(("kv_usage",))


@dataclass(slots=True)
class Scrape:
    """One scrape of one target; values by canonical name and engine."""

    source: str
    place: int
    target: str
    t_s: float | None
    values: dict[tuple[str, str], float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    births: dict[str, float] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """For evidence."""
        return f"scrape {self.place + 1}"

    @property
    def engines(self) -> list[str]:
        """Engines that report requests running or waiting, in the order of their numbers."""
        names = {e for m, e in self.values if m in ("requests_running", "requests_waiting", *COUNTERS)}
        return sorted(names, key=lambda e: (len(e), e))

    def get(self, metric: str, engine: str | None = None) -> float | None:
        """A value of one engine, or over all of them: the sum, of ratios the largest; None if unknown."""
        if engine is not None:
            return self.values.get((metric, engine))
        known = [v for (m, _), v in self.values.items() if m == metric]
        if not known:
            return None
        return max(known) if metric in LARGEST else sum(known)


@dataclass(frozen=True, slots=True)
class Window:
    """Two scrapes one after the other."""

    first: Scrape
    last: Scrape

    @property
    def seconds(self) -> float | None:
        """Time between them, if the samples carry it."""
        a, b = self.first.t_s, self.last.t_s
        return b - a if a is not None and b is not None and b > a else None

    def delta(self, metric: str, engine: str | None = None) -> float | None:
        """How far a counter moved; None if unknown or if it was reset."""
        a, b = self.first.get(metric, engine), self.last.get(metric, engine)
        return b - a if a is not None and b is not None and b >= a else None

    def mean(self, histogram: str) -> float | None:
        """Mean of a histogram's observations of this window, in seconds."""
        total, count = self.delta(f"{histogram}_sum"), self.delta(f"{histogram}_count")
        return total / count if total is not None and count else None


@dataclass(frozen=True)
class Series:
    """Scrapes of one target in the order of time.

    Args:
        scrapes: At least two.
        basis: What the order is taken from: "time stamps" or "counters".
    """

    scrapes: tuple[Scrape, ...]
    basis: str

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Neighbouring scrapes."""
        return tuple(Window(a, b) for a, b in itertools.pairwise(self.scrapes))

    @property
    def whole(self) -> Window:
        """From the first scrape to the last."""
        return Window(self.scrapes[0], self.scrapes[-1])


def scrapes(run: Run) -> list[Scrape]:
    """Every scrape of every target, in the order of the files.

    Answers to several queries at one time (a file per metric or per engine) are one scrape.
    """
    out: list[Scrape] = []
    at: dict[tuple[str, int], Scrape] = {}
    for scrape in (s for batch in run.batches("metrics") for s in _of_batch(batch)):
        if scrape.t_s is None:
            out.append(scrape)
            continue
        first = at.setdefault((scrape.target, round(scrape.t_s)), scrape)
        born = all(abs(scrape.births[k] - b) < 1 for k, b in first.births.items() if k in scrape.births)
        if first is scrape or not born or first.values.keys() & scrape.values.keys():
            out.append(scrape)
            continue
        first.values.update(scrape.values)
        first.counters.update(scrape.counters)
        first.births.update(scrape.births)
    return out


def _of_batch(batch: Batch) -> list[Scrape]:
    columns = batch.columns
    place, t_s = int(batch.attrs.get("scrape") or 0), batch.attrs.get("t_s")
    parts: dict[str, dict[tuple[str, str, str], float]] = {}
    found: dict[str, Scrape] = {}
    births: dict[str, float] = {}
    rows = zip(*(columns[c] for c in ("name", "metric", "engine", "labels", "value")), strict=True)
    for name, metric, engine, labels, sample in rows:
        pairs = [p.partition("=") for p in labels.split(",")] if labels else []
        target = ",".join(f"{k}={v}" for k, _, v in pairs if k in TARGET)
        scrape = found.setdefault(target, Scrape(batch.source, place, target, t_s))
        value = float(sample)
        if metric == "process_start":
            births[f"{name},{labels}"] = value  # of the process, whose labels name no model
        elif name.endswith("_created"):
            scrape.births[f"{name},{labels}"] = value
        elif name.endswith(COUNTED) or metric in COUNTERS:
            scrape.counters[f"{name},{labels}"] = value
        if metric and metric != "process_start" and not metric.endswith("_bucket"):
            copy = ",".join(v for k, _, v in pairs if k in COPIES)
            sums = parts.setdefault(target, {})
            key = (metric, engine, copy)
            old = sums.get(key)
            largest = metric in LARGEST
            sums[key] = value if old is None else max(old, value) if largest else old + value
    for target, sums in parts.items():
        values = found[target].values
        found[target].births.update(births)
        for (metric, engine, _), value in sums.items():
            values[metric, engine] = max(values.get((metric, engine), value), value)
    return [s for s in found.values() if s.values]


def series(all_scrapes: Iterable[Scrape]) -> list[Series]:
    """Scrapes of one target that follow each other; those that cannot be ordered are left out."""
    groups: dict[tuple[str, tuple[str, ...]], list[Scrape]] = {}
    for scrape in all_scrapes:
        groups.setdefault((scrape.target, tuple(scrape.engines)), []).append(scrape)
    out = []
    for group in groups.values():
        for chain in _lives(group):
            if len(chain) < 2:
                continue
            if (ordered := _order(chain)) is not None:
                out.append(ordered)
    return out


def _lives(group: list[Scrape]) -> list[list[Scrape]]:
    """Splits scrapes by the start times of their process: after a restart all counters begin anew."""
    lives: list[list[Scrape]] = []
    for scrape in group:
        for life in lives:
            common = life[0].births.keys() & scrape.births.keys()
            if all(abs(life[0].births[k] - scrape.births[k]) < 1 for k in common):
                life.append(scrape)
                break
        else:
            lives.append([scrape])
    return lives


def _order(group: list[Scrape]) -> Series | None:
    times = [s.t_s for s in group if s.t_s is not None]
    if len(set(times)) == len(group):
        group = sorted(group, key=lambda s: s.t_s or 0.0)
        return Series(tuple(group), "time stamps")
    common = set.intersection(*(set(s.counters) for s in group))
    if not common:
        return None
    group = sorted(group, key=lambda s: sum(s.counters[k] for k in common))
    for a, b in itertools.pairwise(group):
        if any(b.counters[k] < a.counters[k] for k in common):
            return None
    return Series(tuple(group), "counters")


def engine_sets(all_scrapes: Iterable[Scrape]) -> list[list[Scrape]]:
    """Scrapes that show several engines of one server: one page each, or one page per engine.

    Returns:
        Groups; the scrapes of a group are to be read side by side.
    """
    pages: list[list[Scrape]] = []
    single: dict[str, dict[str, list[Scrape]]] = {}
    for scrape in all_scrapes:
        engines = [e for e in scrape.engines if e]
        if len(engines) > 1:
            pages.append([scrape])
        elif len(engines) == 1:
            single.setdefault(scrape.target, {}).setdefault(engines[0], []).append(scrape)
    for by_engine in single.values():
        if len(by_engine) > 1:
            rounds = min(len(s) for s in by_engine.values())
            pages += [[s[i] for s in by_engine.values()] for i in range(rounds)]
    return pages
