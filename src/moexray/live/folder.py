"""Metrics of a bundle or of any folder of recordings, read again when its files change.

Only what is new is counted: steps, events and traces that were counted before are left out, so the
counters grow with the recording, also when the recorder's ring drops old files.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.core.limits.routing import RoutingLimits
from moexray.core.rank_name import rank_in_name
from moexray.core.source import Source, walk
from moexray.live.feed import TOP, RoutingFeed, Shape, collisions, observe_steps
from moexray.readers.read_any import read_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path

    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Collectives
    from moexray.core.run import Run
    from moexray.live.page import Page, Scope

__all__ = ["Folder", "Names"]

SEGMENT_EVENTS = {"segment_alloc": "alloc", "segment_free": "free", "segment_map": "map",
                  "segment_unmap": "unmap"}  # fmt: skip
STEP_SERIES = ("step", "itl", "tpot")  # latency series of single steps
SETTLED_S = 5.0  # a file that was not written for so long is whole
KEPT = 100_000  # marks of what was counted; the oldest fall out
MANIFEST = "manifest.json"
# A file that only ends early is still being written; a log without a known line is no loss.
DAMAGED = ("input.unreadable", "input.gzip_damaged", "input.unsafe_pickle", "input.huge")
NS = 1e-9

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Names:
    """Labels that the files do not tell, and how many experts are shown."""

    model: str = ""
    engine: str = ""
    top: int = TOP


@dataclass(slots=True)
class _Seen:
    """How far each thing was counted: its last step, time or row."""

    upto: dict[Hashable, float] = field(default_factory=dict)

    def after(self, key: Hashable, values: np.ndarray) -> np.ndarray:
        """Which of these ordered marks are new; they count as seen from now on."""
        new = np.asarray(values > self.upto.get(key, -np.inf))
        if new.any():
            self.upto.pop(key, None)
            self.upto[key] = float(values[new].max())
            while len(self.upto) > KEPT:
                del self.upto[next(iter(self.upto))]
        return new


class Folder:
    """A folder of recordings as a source of metrics.

    Args:
        page: Where they go.
        path: The folder (or one file).
        names: Labels that the files do not tell.
        window_s: Files changed within so many seconds are read; 0 for all.

    Raises:
        UsageError: there is no such path.
    """

    def __init__(self, page: Page, path: Path, names: Names | None = None, *, window_s: float = 0) -> None:
        if not path.exists():
            raise UsageError(f"{path} does not exist", hint="give the folder of a recording")
        self.page, self.path, self.names, self.window_s = page, path, names or Names(), window_s
        self._seen = _Seen()
        self._feeds: dict[tuple[Any, ...], RoutingFeed] = {}
        self._print: tuple[tuple[str, int, int], ...] | None = None
        self._bad: set[tuple[str, str]] = set()
        self._newest = 0.0  # when a file was last written, epoch seconds

    def update(self) -> Run | None:
        """Reads what changed and brings the page up to date.

        Returns:
            What was read; None if nothing changed since the last call.
        """
        found = self._files()
        state = tuple((name, info.st_size, info.st_mtime_ns) for name, _, info in found)
        if state == self._print:
            return None
        self._print = state
        self._newest = max((info.st_mtime for _, _, info in found), default=0.0)
        run = read_sources([Source(name, file) for name, file, _ in found])
        for path, problem in run.problems:
            if problem.id in DAMAGED and (path, problem.id) not in self._bad and len(self._bad) < KEPT:
                self._bad.add((path, problem.id))
                self.page.drop("files", "unreadable")
        for collect in (self._memory, self._history, self._stats, self._routing, self._steps, self._traces):
            self._guarded(collect, run)
        if found:
            self.page.fresh(self._newest)
        return run

    def is_old(self) -> bool:
        """Whether there are files, but none that was written within the window."""
        return not self._files() and any(file.name != MANIFEST for _, file in walk(self.path)[0])

    def _files(self) -> list[tuple[str, Path, Any]]:
        out = []
        least = time.time() - self.window_s if self.window_s else 0.0
        for name, file in walk(self.path)[0]:
            if file.name == MANIFEST:  # says what is there, holds nothing to count
                continue
            try:
                info = file.stat()
            except OSError:  # the recorder has just dropped it
                continue
            if info.st_mtime >= least:
                out.append((name, file, info))
        return out

    def _guarded(self, collect: Callable[[Run], None], run: Run) -> None:
        """One subject that fails is counted and costs none of the others."""
        try:
            collect(run)
        except Exception:  # noqa: BLE001  # one subject that breaks must not cost the others
            _log.exception("%s failed; please report this", collect.__name__)
            self.page.drop("updates", "failed")

    def scope(self, rank: object = None) -> Scope:
        """Writer for one rank."""
        return self.page.scope(
            model=self.names.model, engine=self.names.engine, rank="" if rank is None else rank
        )

    def _memory(self, run: Run) -> None:
        from moexray.analyse.snapshot import pools, shots

        newest = {(s.rank, s.device): s for s in shots(run)}  # files come in order of their names
        for rank in {rank for rank, _ in newest}:
            gauges: dict[str, dict[tuple[str, ...], float]] = {}
            for (of, device), shot in newest.items():
                for p in pools(shot) if of == rank else ():
                    own = "{}-{}".format(*p.id) if p.private and p.id else "default"
                    labels = (str(device), own)
                    for name, value in (
                        ("moex_fragmentation_ratio", p.ratio),
                        ("moex_memory_reserved_bytes", p.reserved_bytes),
                        ("moex_memory_allocated_bytes", p.active_bytes),
                        ("moex_memory_largest_free_block_bytes", p.largest_free_bytes),
                        ("moex_memory_stuck_bytes", p.stuck_bytes),
                    ):
                        gauges.setdefault(name, {})[labels] = value
            for name, values in gauges.items():
                self.scope(rank).replace(name, values)

    def _history(self, run: Run) -> None:
        from moexray.analyse.snapshot import is_action, shots

        for shot in shots(run):
            if shot.events is None or "time_ns" not in shot.events:
                continue
            new = self._seen.after(("events", shot.rank, shot.device), shot.events["time_ns"])
            for action, event in SEGMENT_EVENTS.items():
                if count := int((is_action(shot.events, action) & new).sum()):
                    self.scope(shot.rank).add(
                        "moex_allocator_segment_events_total", count, shot.device, event
                    )

    def _stats(self, run: Run) -> None:
        newest = {(row["rank"], row["device"]): row for row in run.rows("memory_stats")}
        for (rank, device), row in newest.items():
            scope, label = self.scope(rank), "" if device is None else device
            for name, key in (
                ("moex_allocator_retries_total", "num_alloc_retries"),
                ("moex_allocator_oom_total", "num_ooms"),
            ):
                if row[key] is not None:
                    scope.follow(name, row[key], label)
            if "snapshot" in run.present:
                continue
            for name, key in (
                ("moex_memory_reserved_bytes", "reserved_bytes"),
                ("moex_memory_allocated_bytes", "allocated_bytes"),
            ):
                if row[key] is not None:
                    scope.set(name, row[key], label, "")

    def _routing(self, run: Run) -> None:
        from moexray.analyse.routing import loads
        from moexray.analyse.routing_ranks import ep_size, logical_tokens, to_ranks

        for load in loads(run, RoutingLimits().dummy_run)[0]:
            if load.what != "routed" or load.axis == "rank" or load.from_routes:
                continue
            size = ep_size(run, load)[0] or 0
            ranks = to_ranks(run, load, size or 1)
            tokens = load.tokens if ranks is None else logical_tokens(ranks)
            if tokens is None or (ranks is None and load.axis != "logical"):
                continue
            rank = _rank(load.attrs, load.source) if len(load.sources) == 1 else None
            layers = tuple(load.layers.tolist())
            feed = self._feeds.get((rank, layers))
            if feed is None:
                slots = ranks.slots if ranks else None
                if slots is not None and (slots < 0).any():  # empty slots: no even split is known
                    slots = None
                experts = (tokens.shape[-1],) * len(layers)
                shape = Shape(layers, experts, ep_size=size, slots=slots, top=self.names.top)
                feed = self._feeds[rank, layers] = RoutingFeed(self.scope(rank), shape)
            if tokens.shape[-1] == (units := feed.totals.shape[1]):
                whole = self._whole(load.steps)
                key = ("counts", load.source, load.attrs.get("label"), rank, layers)
                new = whole & self._seen.after(key, np.where(whole, load.steps, -np.inf))
                if new.any():
                    fresh = tokens[new]
                    feed.add(fresh.sum(axis=0), collisions(fresh, units).sum(axis=0))

    def _whole(self, steps: np.ndarray) -> np.ndarray:
        """Which steps are whole: the last one of a file that grows may lack layers, and is read again."""
        whole = np.ones(len(steps), bool)
        if len(steps) > 1 and time.time() - self._newest < SETTLED_S:
            whole[-1] = False
            self._print = None
        return whole

    def _steps(self, run: Run) -> None:
        nth: dict[str, int] = {}  # a file may hold several series
        for batch in run.batches("latency"):
            nth[batch.source] = nth.get(batch.source, -1) + 1
            if batch.attrs.get("what") in STEP_SERIES:
                line = np.asarray(batch.columns["line"], np.float64)
                new = self._seen.after(("latency", batch.source, nth[batch.source]), line)
                rank = _rank(batch.attrs, batch.source)
                observe_steps(self.scope(rank), np.asarray(batch.columns["value_s"])[new].tolist())

    def _traces(self, run: Run) -> None:
        if "trace" not in run.present:
            return
        from moexray.analyse.timeline_comm import survey

        for capture in survey(run):
            for profile in capture.profiles:
                self._allocator_calls(profile)
            self._exchanges(capture.collectives)

    def _allocator_calls(self, profile: Profile) -> None:
        from moexray.analyse.timeline_host import DEVICE_MEMORY
        from moexray.core.tables.timeline import CATEGORIES

        rows = profile.named(DEVICE_MEMORY, CATEGORIES.index("runtime"), CATEGORIES.index("driver"))
        new = rows[self._seen.after(("calls", profile.rank), profile.start[rows])]
        devices = np.unique(profile.device[profile.device >= 0])
        device = devices[0] if len(devices) == 1 else ""
        for seconds in ((profile.end[new] - profile.start[new]) * NS).tolist():
            self.scope(profile.rank).observe("moex_allocator_stall_seconds", seconds, device)

    def _exchanges(self, found: Collectives) -> None:
        if not len(found):
            return
        new = self._seen.after("exchanges", found.start.max(axis=0)) & found.complete
        for column in np.flatnonzero(new).tolist():
            if way := _direction(found, column):
                scope = self.scope()
                scope.observe("moex_alltoall_duration_seconds", float(found.transfer[column]) * NS, way)
                scope.observe("moex_alltoall_wait_seconds", float(found.lateness[column]) * NS, way)


def _rank(attrs: Mapping[str, Any], source: str) -> int | None:
    """Rank of a file: of its content, else of its name."""
    rank = attrs.get("rank")
    return rank_in_name(source) if rank is None else int(rank)


def _direction(found: Collectives, column: int) -> str:
    """dispatch, combine or unknown for an all-to-all; empty for any other collective."""
    row = int(found.present[:, column].argmax())
    profile = found.profiles[row]
    kernel = profile.names[profile.name[found.row[row, column]]]
    name = f"{found.op[column]} {kernel}".lower().replace("_", "")
    for way in ("dispatch", "combine"):
        if way in name:
            return way
    return "unknown" if "alltoall" in name or "a2a" in name else ""
