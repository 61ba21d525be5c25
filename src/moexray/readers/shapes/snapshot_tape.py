"""The history of a large snapshot straight from the tape of its pickle into columns.

What is usual (a dict, integers, a known action) is done with arrays, chunk by chunk; any
other event is built as a Python dict and goes the way of small files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.tables.snapshot import ACTIONS
from moexray.readers.shapes.snapshot_events import (
    ACTION_CODES,
    EVENT_COLUMNS,
    MAX_INT,
    UNKNOWN,
    Pools,
    Stacks,
    event_row,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moexray.readers.safe_pickle_tape import Tape

__all__ = ["TapeSegments", "TapeTrace", "top_of"]

CHUNK = 16_384  # events at once: what they touch stays in the cache
MISSING = 7  # a tag that the kernel does not use
FRAMES_AT_ONCE = 4_000_000
KEYS = {"action": "action", "addr": "address", "size": "size_bytes", "stream": "stream", "time_us": "time_ns",
        "pool_id": "pool", "frames": "stack", "user_metadata": "note",
        "compile_context": "context"}  # fmt: skip
ODD = 0x9E3779B97F4A7C15  # odd multipliers of a 64-bit mixing hash (golden ratio; splitmix64)
ODD2 = 0xBF58476D1CE4E5B9


def top_of(tape: Tape) -> dict[str, Any] | None:
    """The snapshot as Python objects, its traces and segments still on the tape; None if it is none."""
    if tape.kind(tape.root) != "dict":
        return None
    pairs = tape.pairs(tape.root)
    traces = pairs.pop("device_traces", None)
    if traces is None or tape.kind(traces) != "list":
        return None
    segments = pairs.pop("segments", None)
    top = {key: tape.build(value) for key, value in pairs.items()}
    if segments is not None:
        listed = tape.kind(segments) == "list"
        top["segments"] = TapeSegments(tape, tape.items(segments)) if listed else tape.build(segments)
    lists = [v for v in tape.items(traces).tolist() if tape.kind(v) == "list"]
    return {**top, "device_traces": [TapeTrace(tape, tape.items(v)) for v in lists]}


class TapeSegments:
    """The segments, built one at a time: hundreds of thousands of blocks at once would cost 100 MB."""

    def __init__(self, tape: Tape, values: NDArray[Any]) -> None:
        self.tape, self.values = tape, values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> list[Any]:
        return [self.tape.build(int(v)) for v in self.values[part]]

    def __iter__(self) -> Iterator[Any]:
        for value in self.values.tolist():
            yield self.tape.build(value)
            blocks = self.tape.pairs(value).get("blocks", 0) if self.tape.kind(value) == "dict" else 0
            inner = self.tape.items(blocks).tolist() if self.tape.kind(blocks) == "list" else []
            self.tape.forget([value, blocks, *inner])


class TapeTrace:
    """The events of one device, still on the tape."""

    def __init__(self, tape: Tape, values: NDArray[Any]) -> None:
        self.tape, self.values = tape, values
        self._codes: dict[int, int] = {}
        self._keys: tuple[NDArray[Any], NDArray[Any]] | None = None  # wanted keys, their codes so far

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> list[Any]:
        return [self.tape.build(int(v)) for v in self.values[part]]

    def columns(
        self, device: int, stacks: Stacks, pools: Pools
    ) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]], NDArray[Any]]:
        """The columns of all events.

        Returns:
            (columns, oom events as written, which rows are no events).
        """
        import numpy as np

        out = {name: np.zeros(len(self), dtype=np.int64) for name in EVENT_COLUMNS}
        out["device"][:] = device
        bad = np.zeros(len(self), dtype=bool)
        ooms: list[dict[str, Any]] = []
        for at in range(0, len(self), CHUNK):
            raw, odd = self._raw(self.values[at : at + CHUNK])
            rows = slice(at, at + CHUNK)
            odd |= self._convert(raw, {k: v[rows] for k, v in out.items()}, stacks, pools)
            for i in np.flatnonzero(odd).tolist():
                event = self.tape.build(int(self.values[at + i]))
                row = event_row(event, device, stacks, pools)
                bad[at + i] = row is None
                if row is not None:
                    for name, value in zip(EVENT_COLUMNS, row, strict=True):
                        out[name][at + i] = value
                    if row[1] == ACTION_CODES["oom"]:
                        ooms.append(event)
        return out, ooms, bad

    def _raw(self, values: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """Values of the wanted keys (MISSING where absent), and which events are no dicts."""
        import numpy as np

        from moexray.kernels import pickle_tape as kernel

        if self._keys is None:
            names = np.zeros((len(KEYS), 1 + max(map(len, KEYS))), dtype=np.uint8)
            for row, key in enumerate(KEYS):
                names[row, 0] = len(key)
                names[row, 1 : 1 + len(key)] = list(key.encode())
            self._keys = (names, np.zeros(int(self.tape.arrays.state[4]), dtype=np.uint8))
        picked = np.full((len(KEYS) + 1, len(values)), MISSING, dtype=np.int64)
        wanted, codes = self._keys
        kernel.pick(self.tape.arrays, values, wanted, codes, picked)
        return dict(zip(KEYS.values(), picked, strict=False)), picked[-1] == 1

    def _convert(
        self, raw: dict[str, NDArray[Any]], out: dict[str, NDArray[Any]], stacks: Stacks, pools: Pools
    ) -> NDArray[Any]:
        """Fills a chunk of the columns; returns which events are unusual."""
        import numpy as np

        from moexray.kernels import pickle_tape as kernel

        odd = np.zeros(len(raw["action"]), dtype=bool)
        for name, factor in (("address", 1), ("size_bytes", 1), ("stream", 1), ("time_ns", 1000)):
            value = raw[name]
            absent = value == MISSING
            odd |= ~absent & (value & 7 != kernel.INT)
            number = np.where(absent, 0, value >> 3)
            odd |= np.abs(number) >= MAX_INT // 1000
            out[name][:] = number * factor
        odd |= out["size_bytes"] < 0
        for word, rows in _groups(raw["action"]):
            text = self.tape.text(word) if word & 7 == kernel.TEXT else ""
            code = ACTION_CODES.get(text, UNKNOWN)
            out["action"][rows] = code
            if not text or ACTIONS[code] == "oom":
                odd[rows] = True
        for pool, rows in _groups(raw["pool"]):
            out["pool"][rows] = 0 if pool == MISSING else pools.code(self.tape.build(pool))
        out["stack"][:] = self._stack_codes(raw["stack"], stacks)
        out["note"][:] = self._note_codes(raw["note"], stacks)
        context = self._note_codes(raw["context"], stacks)
        out["note"][:] = np.where(out["note"] > 0, out["note"], context)
        return odd

    def _note_codes(self, values: NDArray[Any], stacks: Stacks) -> NDArray[Any]:
        """Numbers of the notes; 0 where there is none or it is no text."""
        import numpy as np

        from moexray.kernels import pickle_tape as kernel

        distinct, inverse = np.unique(values, return_inverse=True)
        texts = [self.tape.text(v) if v & 7 == kernel.TEXT else "" for v in distinct.tolist()]
        codes = np.array([stacks.note(text) for text in texts], dtype=np.int64)
        return codes[inverse.reshape(-1)]

    def _stack_codes(self, values: NDArray[Any], stacks: Stacks) -> NDArray[Any]:
        """Rows of snapshot_stacks; lists of the same frames are looked at once."""
        import numpy as np

        from moexray.kernels import pickle_tape as kernel

        distinct, inverse = np.unique(values, return_inverse=True)
        codes = np.zeros(len(distinct), dtype=np.int64)
        new = []
        for i, value in enumerate(distinct.tolist()):
            if value & 7 == kernel.OBJECT:
                known = self._codes.get(value)
                if known is None:
                    new.append(i)
                else:
                    codes[i] = known
        if new:
            picked = np.array(new)
            for rows in self._alike(distinct[picked]):
                code = stacks.code(self.tape.build(int(distinct[picked[rows[0]]])))
                codes[picked[rows]] = code
                self._codes.update(dict.fromkeys(distinct[picked[rows]].tolist(), code))
        return codes[inverse.reshape(-1)]

    def _alike(self, lists: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Groups lists whose items are the same values, by a hash of 64 bits."""
        import numpy as np

        a = self.tape.arrays
        extent = a.first[lists >> 3]
        single = (extent >= 0) & (a.extents[np.maximum(extent, 0), 2] < 0)
        hashes = (lists.astype(np.uint64) * np.uint64(ODD2)) | np.uint64(1)  # others stay alone
        rows = np.flatnonzero(single)
        counts = a.extents[extent[rows], 1].astype(np.int64)
        step = max(1, FRAMES_AT_ONCE // max(1, int(counts.max(initial=1))))
        for at in range(0, len(rows), step):
            part, n = rows[at : at + step], counts[at : at + step]
            begin = np.cumsum(n) - n
            place = np.arange(int(n.sum())) - np.repeat(begin, n)
            flat = a.values[np.repeat(a.extents[extent[part], 0].astype(np.int64), n) + place]
            mixed = (flat.astype(np.uint64) + np.uint64(1)) * np.uint64(ODD)
            mixed ^= mixed >> np.uint64(29)
            mixed *= place.astype(np.uint64) * np.uint64(2) + np.uint64(ODD2)
            mixed ^= mixed >> np.uint64(32)
            hashes[part] = np.add.reduceat(mixed, begin) & ~np.uint64(1)
        order = np.argsort(hashes, kind="stable")
        edges = np.flatnonzero(np.diff(hashes[order])) + 1
        yield from np.split(order, edges)


def _groups(values: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Each distinct value with the mask of its rows; many distinct ones are legal but slow."""
    import numpy as np

    for value in np.unique(values).tolist():
        yield value, values == value
