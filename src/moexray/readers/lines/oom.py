"""Out-of-memory messages of PyTorch in any wording and any wrapping -> table `oom`.

A *record* holds the request and at least one of total, free, allocated; a *bare* message is an error
line without numbers; a *warning* is one failed attempt of the device allocator. One failure gives one
row, however often the log repeats it (error line, traceback, re-raise in the parent, one per worker).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moexray.readers.lines.oom_context import Surroundings, bare_error, is_quoted
from moexray.readers.lines.oom_fields import ANCHOR, read_fields
from moexray.readers.lines.oom_flow import flows
from moexray.readers.lines.oom_phase import Phases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line
    from moexray.readers.lines.oom_fields import Fields
    from moexray.readers.lines.oom_flow import Flow

__all__ = ["parse"]


NEAR_LINES = 600  # two messages with the same numbers within this distance ...
NEAR_S = 120.0  # ... and time are one failure
BARE_LINES, BARE_S = 400, 300.0  # a bare message this near to a record repeats it
RECENT = 64  # failures of one size among which repetitions are looked for
ATTEMPTS, ATTEMPT_S = 3, 1.0  # torch 2.13 warns up to three times per allocation
COMPARED = (
    "device",
    "free_bytes",
    "total_bytes",
    "process_bytes",
    "allocated_bytes",
    "fragments_bytes",
    "private_bytes",
)
BACK = 120  # lines of a traceback above its message
QUOTED = 1500  # characters kept of a message


@dataclass(slots=True)
class _Found:
    kind: str
    index: int
    last: int
    line: Line
    columns: dict[str, Any]
    repeats: int
    text: str
    phase: str | None = None
    earlier: bool = False

    def agrees(self, other: _Found) -> bool:
        """Every number that both messages print is the same (one of them may be cut)."""
        for name in COMPARED:
            a, b = self.columns.get(name), other.columns.get(name)
            if a is not None and b is not None and a != b:
                return False
        return True


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds one row per failure to `oom`."""
    found = list(_messages(lines))
    if not found:
        return
    found.sort(key=lambda f: f.index)
    records = _merge([f for f in found if f.kind == "record"])
    warnings = _attempts([f for f in found if f.kind == "warning"])
    bare = [f for f in found if f.kind == "bare"]
    bare = _merge([f for f in bare if not any(_same_failure(f, r) for r in records)])
    if records or bare:
        phases = Phases(lines)
        for f in (*records, *bare):
            f.line = _with_origin(f.line, lines, f.index)
            f.phase = phases.at(f.index, f.text[:200])
            f.earlier = phases.survived(f.last)
    for f in sorted((*records, *warnings, *bare), key=lambda f: f.index):
        out.add(
            "oom",
            where=f"line {f.line.number}",
            kind=f.kind,
            t_s=f.line.t_s,
            rank=f.line.rank,
            worker=f.line.worker,
            repeats=f.repeats,
            phase=f.phase,
            earlier=f.earlier,
            text=f.text[:QUOTED],
            **f.columns,
        )


def _messages(lines: Sequence[Line]) -> Iterator[_Found]:
    around: Surroundings | None = None
    seen: set[int] = set()
    for flow in flows(lines):
        around = around or Surroundings.of(lines)
        end = -1
        for m in ANCHOR.finditer(flow.text):
            if m.start() < end:
                continue
            fields = read_fields(flow.text, m.start())
            if not _complete(fields, str(m.lastgroup)):
                continue
            end = fields.end
            found = _place(flow, m.start(), fields, "warning" if m.lastgroup == "warning" else "record")
            if found.index in seen and found.kind == "warning":
                continue
            seen.update(range(found.index, found.last + 1))
            plain = found.kind == "warning" and found.line.known and not (around.source or around.passed)
            if plain or not is_quoted(flow.lead(m.start()), around, lines, found.index, found.last):
                yield found
        for i in range(flow.first, flow.first + len(flow.lines)):
            if i not in seen and bare_error(lines, i, around):
                line = lines[i]
                yield _Found("bare", i, i, line, {}, line.repeats, _quote(line))


def _complete(fields: Fields, anchor: str) -> bool:
    """Enough numbers for a record; a message whose head was cut off needs the total as well."""
    if not fields.is_record:
        return False
    return anchor != "tail" or "total" in fields.values


def _place(flow: Flow, start: int, fields: Fields, kind: str) -> _Found:
    first, last = flow.index(start), flow.index(fields.end - 1)
    line = flow.lines[first]
    text = " ".join([_quote(line), *(x.text.strip() for x in flow.lines[first + 1 : last + 1])])
    repeats = max(x.repeats for x in flow.lines[first : last + 2])
    return _Found(kind, flow.first + first, flow.first + last, line, fields.columns(), repeats, text)


def _with_origin(line: Line, lines: Sequence[Line], at: int) -> Line:
    """A message at the end of a traceback has the time, rank and worker of the line that opened it."""
    if line.t_s is not None or line.rank is not None or line.worker is not None:
        return line
    for above in reversed(lines[max(at - BACK, 0) : at]):
        if "Traceback (most recent" in above.text:
            return replace(line, t_s=above.t_s, rank=above.rank, worker=above.worker)
        if above.t_s is not None or (above.text[:1] not in ("", " ") and not above.text.startswith("File")):
            break
    return line


def _quote(line: Line) -> str:
    return (line.full or line.text).strip()


def _merge(found: list[_Found]) -> list[_Found]:
    """Joins repetitions: the same numbers near by, not from ranks known to differ."""
    kept: dict[int | None, list[_Found]] = {}
    order: list[_Found] = []
    for f in found:
        same = kept.setdefault(f.columns.get("request_bytes"), [])
        twin = next((k for k in same[: -RECENT - 1 : -1] if _near(k, f) and k.agrees(f)), None)
        if twin is None:
            same.append(f)
            order.append(f)
        else:
            twin.repeats += f.repeats
            twin.last = max(twin.last, f.last)
            for name, value in f.columns.items():
                if twin.columns.get(name) is None:
                    twin.columns[name] = value
    return order


def _near(a: _Found, b: _Found) -> bool:
    if a.line.rank is not None and b.line.rank is not None and a.line.rank != b.line.rank:
        return False
    if a.line.t_s is not None and b.line.t_s is not None and abs(b.line.t_s - a.line.t_s) > NEAR_S:
        return False
    return b.index - a.last <= NEAR_LINES


def _same_failure(bare: _Found, record: _Found) -> bool:
    if bare.line.t_s is not None and record.line.t_s is not None:
        return abs(bare.line.t_s - record.line.t_s) <= BARE_S
    return -BARE_LINES <= bare.index - record.last <= BARE_LINES


def _attempts(found: list[_Found]) -> list[_Found]:
    """Joins the up to three warnings of one allocation: same device and size, one after the other."""
    open_: dict[tuple[object, ...], _Found] = {}
    order: list[_Found] = []
    for f in found:
        place = (f.line.rank, f.columns.get("device"))
        last = open_.get(place)
        joined = last is not None and _same_attempt(last, f)
        if last is not None and joined:
            last.repeats += f.repeats
            last.last = f.last
        else:
            open_[place] = f
            order.append(f)
    return order


def _same_attempt(a: _Found, b: _Found) -> bool:
    if a.repeats >= ATTEMPTS or a.columns.get("request_bytes") != b.columns.get("request_bytes"):
        return False
    freed = (b.columns.get("free_bytes") or 0) >= (a.columns.get("free_bytes") or 0)
    timed = a.line.t_s is not None and b.line.t_s is not None
    return freed and (not timed or abs((b.line.t_s or 0) - (a.line.t_s or 0)) <= ATTEMPT_S)
