"""The history of a snapshot as columns: events, interned call stacks, pools, annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.scopes import NOTHING, STEP_WORDS, scope_of
from moexray.core.tables.snapshot import ACTIONS

if TYPE_CHECKING:
    from moexray.core.run import Reading

__all__ = [
    "ACTION_CODES", "EVENT_COLUMNS", "MAX_INT", "UNKNOWN", "Pools", "Stacks", "event_row", "fill_events",
    "marked_ranges", "operator_of", "site_of", "whole",
]  # fmt: skip

MAX_INT = 1 << 62  # beyond this no address or size is real, and sums would leave 64 bits
MAX_FRAMES = 200  # frames of one stack that are looked at
MAX_WORD = 300  # characters of a file or function name that are kept
SHOWN_FRAMES = 5
BETWEEN = " < "
ACTION_CODES = {name: code for code, name in enumerate(ACTIONS)}
UNKNOWN = len(ACTIONS) - 1
EVENT_COLUMNS = ("device", "action", "address", "size_bytes", "stream", "time_ns", "pool", "stack",
                 "note")  # fmt: skip
# Frames of these are machinery, not the user's own code.
MACHINERY = ("/torch/", "/contextlib.py", "/threading.py", "/concurrent/", "/multiprocessing/", "<frozen")


def whole(value: Any) -> int | None:
    """An integer within 62 bits, None for anything else."""
    if type(value) is int:
        return value if -MAX_INT < value < MAX_INT else None
    if isinstance(value, float) and abs(value) < 1 << 53 and value.is_integer():
        return int(value)
    return None
# Native frames of the recorder and the allocator themselves.
NATIVE = ("torch::unwind", "torch::CapturedTraceback", "torch::cuda::", "c10::", "at::detail::", "at::(")
BACKWARD = lazy(r"torch::autograd::(?:generated::)?(\w+)::apply\b")
OPERATOR = "at::_ops::"  # PyTorch's dispatcher stubs: at::_ops::mm::call(...)


class Pools:
    """Pool ids as small numbers; None stands for "not written"."""

    def __init__(self) -> None:
        self._codes: dict[tuple[int, int] | None, int] = {None: 0}

    def code(self, value: Any) -> int:
        """The number of a pool id; (0, 0) is the default pool."""
        key = None
        if isinstance(value, (list, tuple)) and len(value) == 2:
            a, b = whole(value[0]), whole(value[1])
            key = (a, b) if a is not None and b is not None else None
        return self._codes.setdefault(key, len(self._codes))

    def seen(self) -> tuple[tuple[int, int] | None, ...]:
        """The pool ids in the order of their numbers."""
        return tuple(self._codes)


class Stacks:
    """Call stacks as small numbers: by identity first (pickles share them), then by content.

    Notes of events that name a layer, an expert, a router, a token or a step are numbered, too.
    """

    def __init__(self) -> None:
        self._notes: dict[str, int] = {"": 0}
        self._by_list: dict[int, int] = {}
        self._by_frame: dict[int, int] = {}
        self._frames: dict[tuple[str, str, int, str], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}
        self._kept: list[Any] = []  # keeps what is known by identity alive

    def code(self, frames: Any) -> int:
        """The row of a list of frames; 0 for none."""
        if not isinstance(frames, list) or not frames:
            return 0
        known = self._by_list.get(id(frames))
        if known is None:
            key = tuple(map(self._frame, frames[:MAX_FRAMES]))
            known = self._stacks.setdefault(key, len(self._stacks))
            self._by_list[id(frames)] = known
            self._kept.append(frames)
        return known

    def _frame(self, frame: Any) -> int:
        known = self._by_frame.get(id(frame))
        if known is None:
            get = frame.get if isinstance(frame, dict) else {}.get
            line = whole(get("line"))
            key = (_word(get("filename")), _word(get("name")), -1 if line is None else line,
                   _word(get("fx_node_name")))  # fmt: skip
            known = self._frames.setdefault(key, len(self._frames))
            self._by_frame[id(frame)] = known
            self._kept.append(frame)
        return known

    def note(self, *texts: Any) -> int:
        """The number of the first of the texts that names a scope or a step; 0 for none."""
        for text in map(_word, texts):
            if text and (scope_of(text) is not NOTHING or STEP_WORDS.search(text)):
                return self._notes.setdefault(text, len(self._notes))
        return 0

    def notes(self) -> tuple[str, ...]:
        """The notes in the order of their numbers."""
        return tuple(self._notes)

    def columns(self) -> dict[str, list[str]]:
        """The columns of snapshot_stacks."""
        frames = [f[:3] for f in self._frames]
        words = [_scope_words(*f) for f in self._frames]
        sites, texts, scopes, operators = [], [], [], []
        for stack in self._stacks:
            known = [frames[i] for i in stack]
            site, text = site_of(known)
            sites.append(site)
            texts.append(text)
            scopes.append(BETWEEN.join([words[i] for i in stack if words[i]]))
            operators.append(operator_of(known))
        return {"site": sites, "text": texts, "scopes": scopes, "operator": operators}


def _word(value: Any) -> str:
    return value[:MAX_WORD] if isinstance(value, str) else ""


def _scope_words(file: str, name: str, _line: int, node: str) -> str:
    """What of a frame names a layer, an expert, a router or a token; "" where nothing does."""
    if any(word in file for word in MACHINERY):
        return node if node and scope_of(node) is not NOTHING else ""
    text = " ".join(x for x in (node, name, "/".join(file.split("/")[-2:])) if x)
    return text if scope_of(text) is not NOTHING else ""


def site_of(frames: list[tuple[str, str, int]]) -> tuple[str, str]:
    """The innermost frame of the user's own code, and the innermost Python frames as one text.

    Args:
        frames: (file, function, line), innermost first.
    """
    python = [f for f in frames if f[0].endswith(".py") or f[0].startswith("<ipython")]
    own = [f for f in python if not any(word in f[0] for word in MACHINERY)]
    named = own or python or _backward(frames) or [f for f in frames if f[1] and not f[1].startswith(NATIVE)]
    words = [_place(*f) for f in (python or named)[:SHOWN_FRAMES]]
    return (_place(*named[0]) if named else "", BETWEEN.join(words))


def _backward(frames: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """The node of the backward pass that asked: autograd's threads have no Python frames."""
    found = (BACKWARD.match(name) for _, name, _ in frames)
    return [("", f"backward pass, {hit[1]}", -1) for hit in found if hit][:1]


def operator_of(frames: list[tuple[str, str, int]]) -> str:
    """The operator that Python (or the backward pass) called: the outermost dispatcher stub below it.

    Args:
        frames: (file, function, line), innermost first.

    Returns:
        `aten::mm`; "" where the stack holds no native frames of an operator.
    """
    found = ""
    for file, name, _ in frames:
        if file.endswith(".py"):
            break
        if name.startswith(OPERATOR):
            found = name
    return f"aten::{found.removeprefix(OPERATOR).partition('::')[0]}" if found else ""


def _place(file: str, name: str, line: int) -> str:
    """`file:line function`; of the path the last three parts."""
    short = "/".join(file.split("/")[-3:])
    if not file.endswith(".py"):  # of C++ without arguments and types
        name = name.partition("(")[0].partition("<")[0].removeprefix("void ")
    if short in ("", "??"):
        return name
    return f"{short}:{line} {name}".strip() if line >= 0 else f"{short} {name}".strip()


def fill_events(
    traces: list[Any], out: Reading, stacks: Stacks, pools: Pools, attrs: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Adds the batch of events.

    Args:
        traces: For each device a list of events, or a shapes.snapshot_tape.TapeTrace.
        out: What is filled.
        stacks: Interns the call stacks.
        pools: Numbers the pool ids.
        attrs: Facts of the whole file.

    Returns:
        (oom events, what was wrong as (device, text)).
    """
    import numpy as np

    parts, ooms, faults = [], [], []
    for device, trace in enumerate(traces):
        if not len(trace):
            continue
        if isinstance(trace, list):
            columns, written, bad = _columns(trace, device, stacks, pools)
        else:
            columns, written, bad = trace.columns(device, stacks, pools)
        if bad.any():
            text = f"{int(bad.sum())} of {len(trace)} events have no action or an impossible size"
            faults.append((device, text))
            columns = {name: column[~bad] for name, column in columns.items()}
        parts.append(columns)
        ooms += [_oom(event, device) for event in written]
    if not parts:
        return ooms, faults
    whole_trace = parts[0]
    if len(parts) > 1:
        whole_trace = {name: np.concatenate([p[name] for p in parts]) for name in EVENT_COLUMNS}
    for optional in ("time_ns", "pool", "note"):
        if not whole_trace[optional].any():
            del whole_trace[optional]
    rows = len(whole_trace["action"])
    facts = {"pools": pools.seen(), "notes": stacks.notes(), **attrs}
    out.add_columns("snapshot_events", whole_trace, rows=rows, **facts)
    return ooms, faults


def _oom(event: dict[str, Any], device: int) -> dict[str, Any]:
    time_us = whole(event.get("time_us"))
    return {
        "device": device,
        "time_ns": None if time_us is None else time_us * 1000,
        "request_bytes": whole(event.get("size")),
        "free_bytes": whole(event.get("device_free")),
    }


def _columns(trace: list[Any], device: int, stacks: Stacks, pools: Pools) -> tuple[Any, list[Any], Any]:
    """Columns of a list of events; see shapes.snapshot_tape.TapeTrace.columns."""
    import numpy as np

    blank = (device,) + (0,) * (len(EVENT_COLUMNS) - 1)
    rows = [event_row(event, device, stacks, pools) for event in trace]
    bad = np.array([row is None for row in rows], dtype=bool)
    oom = ACTION_CODES["oom"]
    ooms = [e for e, row in zip(trace, rows, strict=True) if row is not None and row[1] == oom]
    table = np.array([blank if row is None else row for row in rows], dtype=np.int64)
    return {name: table[:, i].copy() for i, name in enumerate(EVENT_COLUMNS)}, ooms, bad


def event_row(event: Any, device: int, stacks: Stacks, pools: Pools) -> tuple[int, ...] | None:
    """An event in the order of EVENT_COLUMNS; None if it has no action or an impossible size."""
    if not isinstance(event, dict):
        return None
    action, size = event.get("action"), whole(event.get("size", 0))
    if not isinstance(action, str) or size is None or size < 0:
        return None
    code = ACTION_CODES.get(action, UNKNOWN)
    address = whole(event.get("addr", event.get("address", 0)))
    if address is None:
        return None
    time_us = whole(event.get("time_us")) or 0
    return (
        device,
        code,
        address,
        size,
        whole(event.get("stream")) or 0,
        time_us * 1000 if abs(time_us) < MAX_INT // 1000 else 0,
        pools.code(event.get("pool_id")) if "pool_id" in event else 0,
        stacks.code(event.get("frames")),
        stacks.note(event.get("user_metadata"), event.get("compile_context")),
    )


def marked_ranges(entries: Any) -> dict[str, Any] | None:
    """Joins START and END entries of the same name into ranges; unmatched ones are left out."""
    if not isinstance(entries, list):
        return None
    open_at: dict[tuple[int, str], list[int]] = {}
    found: list[tuple[int, str, int, int]] = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        time_us, name = whole(entry.get("time_us")), _word(entry.get("name"))
        if time_us is None or not name or abs(time_us) >= MAX_INT // 1000:
            continue
        key = (whole(entry.get("device")) or 0, name)
        if str(entry.get("stage")).upper() == "START":
            open_at.setdefault(key, []).append(time_us)
        elif open_at.get(key):
            found.append((*key, open_at[key].pop() * 1000, time_us * 1000))
    found.sort(key=lambda row: (row[0], row[2]))
    return {
        "device": [row[0] for row in found],
        "name": [row[1] for row in found],
        "start_ns": [row[2] for row in found],
        "end_ns": [row[3] for row in found],
    }
