"""Chrome-trace events -> numpy columns, chunk by chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.tables.timeline import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from moexray.readers.kineto_events import Event

__all__ = ["Columns", "Ids", "numbers"]

CATEGORY_OF = {
    "kernel": "kernel",
    "collective_comm": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "runtime",
    "hip_runtime": "runtime",
    "xpu_runtime": "runtime",
    "runtime": "runtime",
    "cuda_driver": "driver",
    "driver": "driver",
    "cpu_op": "operator",
    "operator": "operator",
    "cpu_operator": "operator",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_sync": "sync",
}
ON_DEVICE = frozenset(CATEGORIES.index(c) for c in ("kernel", "memcpy", "memset"))
PYTHON = CATEGORIES.index("python")
SHORT_NS = 100_000  # Python frames shorter than this are counted, not kept, in huge traces
INT64 = np.int64


class Ids(dict[Any, int]):
    """Numbers keys in the order in which they are met."""

    def __missing__(self, key: Any) -> int:
        self[key] = value = len(self)
        return value


def numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Floats of JSON values: numbers, numbers in quotes; NaN for all else."""
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.empty(0)
    if found.shape == (len(values),):
        return found
    return np.array([_number(v) for v in values], dtype=np.float64)  # one by one where lists are among them


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def whole(values: Sequence[Any]) -> NDArray[np.int64]:
    """Integers of JSON values; -1 where there is none."""
    floats = numbers(values)
    fits = np.abs(floats) < 2**62
    return np.where(fits, floats, -1).astype(INT64)


class Columns:
    """Collects the slices, collectives, memory marks and names of one trace."""

    def __init__(self, *, huge: bool = False) -> None:
        self.huge = huge
        self.names = Ids()
        self.lanes = Ids()
        self.categories = Ids()
        self.labels: dict[tuple[Any, Any], str] = {}
        self.slices: list[dict[str, NDArray[Any]]] = []
        self.comm: list[tuple[int, Any]] = []
        self.memory: list[dict[str, NDArray[Any]]] = []
        self.events = self.kept = self.left_out = 0
        self.text_times = self.whole_times = self.timed = 0
        self.open: list[tuple[int, Event]] = []  # begin and end events, by position
        self.pairs = 0

    def add(self, events: list[Event]) -> None:
        """Takes a chunk of events."""
        self.events += len(events)
        slices = [e for e in events if e.ph == "X"]
        if len(slices) < len(events):
            self._others([e for e in events if e.ph not in ("X", "s", "f", "t", "C")])
        if slices:
            self._slices(slices)

    def finish(self) -> None:
        """Turns begin/end pairs into slices once all events are in."""
        if not self.open:
            return
        paired = _pair(self.open)
        self.open, self.pairs = [], len(paired)
        if paired:
            self._slices(paired)

    def _others(self, events: list[Event]) -> None:
        marks = []
        for event in events:
            if event.ph == "M":
                self._label(event)
            elif event.ph in ("B", "E"):
                self.open.append((len(self.open), event))
            elif event.name == "[memory]":
                marks.append(event)
        if marks:
            args = [e.args for e in marks]
            self.memory.append(
                {
                    "ts_us": numbers([e.ts for e in marks]),
                    "lane": self._lane_ids(marks),
                    "type": whole([a and a.device_type for a in args]),
                    "device": whole([a and a.device_id for a in args]),
                    "address": whole([a and a.address for a in args]),
                    "bytes": whole([a and a.size for a in args]),
                    "allocated_bytes": whole([a and a.allocated for a in args]),
                    "reserved_bytes": whole([a and a.reserved for a in args]),
                }
            )

    def _label(self, event: Event) -> None:
        text = event.args.name if event.args else None
        if isinstance(text, str) and event.name in ("process_name", "thread_name"):
            key = (event.pid, event.tid if event.name == "thread_name" else None)
            self.labels[_hashable(key)] = text

    def _lane_ids(self, events: Iterable[Event]) -> NDArray[np.int32]:
        lanes = self.lanes
        events = list(events)
        try:
            return np.array([lanes[e.pid, e.tid] for e in events], np.int32)
        except TypeError:
            return np.array([lanes[_hashable((e.pid, e.tid))] for e in events], np.int32)

    def _slices(self, events: list[Event]) -> None:
        events, category = self._choose(events)
        times = [e.ts for e in events]
        ts, dur = numbers(times), numbers([e.dur for e in events])
        self.timed += len(times)
        self.text_times += _texts(times)
        self.whole_times += int(np.count_nonzero(ts == np.floor(ts)))
        names = self.names
        args = [e.args for e in events]
        where = np.flatnonzero(np.isin(category, list(ON_DEVICE)))
        on_device = [args[i] for i in where]
        device, stream, size = (np.full(len(events), -1, t) for t in (np.int16, np.int32, INT64))
        device[where] = _bounded(whole([a and a.device for a in on_device]), 30_000)
        stream[where] = _bounded(whole([a and a.stream for a in on_device]), 2**31 - 1)
        size[where] = whole([a and a.bytes for a in on_device])
        self.comm += [(self.kept + i, a) for i, a in enumerate(args) if a and a.collective is not None]
        self.slices.append(
            {
                "ts_us": ts,
                "dur_us": dur,
                "category": category.astype(np.int8),
                "name": np.array([names[e.name] for e in events], np.int32),
                "lane": self._lane_ids(events),
                "device": device,
                "stream": stream,
                "correlation": whole([a and a.correlation for a in args]),
                "bytes": size,
            }
        )
        self.kept += len(events)

    def _choose(self, events: list[Event]) -> tuple[list[Event], NDArray[np.int64]]:
        """The slices to keep and their categories; short Python frames of huge traces are only counted."""
        cats = self.categories
        raw = np.array([cats[e.cat] for e in events])
        codes = np.array([_category(text) for text in cats])
        category = codes[raw]
        if self.huge and (category == PYTHON).any():
            short = numbers([e.dur for e in events]) * 1000 < SHORT_NS
            drop = (category == PYTHON) & short & ~np.array([_telling(e.name) for e in events])
            self.left_out += int(np.count_nonzero(drop))
            keep = np.flatnonzero(~drop)
            return [events[i] for i in keep], category[keep]
        return events, category


def _category(text: str | None) -> int:
    key = (text or "").lower().replace(" ", "_")
    return CATEGORIES.index(CATEGORY_OF.get(key, "other"))


def _telling(name: str | None) -> bool:
    return name is not None and ("empty_cache" in name or "gc" in name.lower() or "compile" in name)


def _texts(values: Sequence[Any]) -> int:
    """How many times are text; looks at a few first, since nearly no file has any."""
    if not any(isinstance(v, str) for v in values[:: max(1, len(values) // 64)]):
        return 0
    return sum(isinstance(v, str) for v in values)


def _bounded(values: NDArray[np.int64], top: int) -> NDArray[np.int64]:
    return np.where((values >= 0) & (values <= top), values, -1)


def _hashable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(k if isinstance(k, str | int | float | None) else repr(k) for k in key)


def _pair(marks: list[tuple[int, Event]]) -> list[Event]:
    """Slices of begin and end events: per thread, the end closes the last open begin."""
    order: Callable[[tuple[int, Event]], tuple[float, int]] = lambda m: (_number(m[1].ts), m[0])  # noqa: E731
    stacks: dict[Any, list[Event]] = {}
    done: list[Event] = []
    for _, event in sorted(marks, key=order):
        stack = stacks.setdefault(_hashable((event.pid, event.tid)), [])
        if event.ph == "B":
            stack.append(event)
        elif stack:
            begin = stack.pop()
            begin.dur = _number(event.ts) - _number(begin.ts)
            begin.ph = "X"
            done.append(begin)
    return done
