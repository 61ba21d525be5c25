"""Text reports of NCCL's RAS client: operation counts per communicator, missing ranks.

A report names the ranks of the smaller sets only, each list right below its own count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.lines.comm_common import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

HEAD = lazy(r"(#\d+-\d+)\s*\(([0-9a-fx]+)\)\s*(MISMATCH|INCOMPLETE|DEAD|\w+)?", re.IGNORECASE)
COUNTED = lazy(r"ranks have different (\w+) operation counts", re.IGNORECASE)
MANY = lazy(r"\b(\d+) ranks? ha(?:ve|s) (?:launched up to operation (\d+)|not launched any operations)")
ONE = lazy(r"\bRank (\d+) has (?:launched up to operation (\d+)|not launched any operations)")
LISTED = lazy(r"^\W*Rank (\d+) -- ")
GONE = lazy(r"\bmissing ranks?: ([\d, ]+)", re.IGNORECASE)
SUMMARY = lazy(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+[A-Z]+\s+[A-Z]+")
MARK = lazy(r"launched up to operation|not launched any|issing rank|Communicators\.\.\.")


@dataclass(slots=True)
class _State:
    """Where in the report we are."""

    report: int = 0
    headed: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    comm: str = ""
    name: str = ""
    op: str = "collective"
    rows: list[dict[str, Any]] = field(default_factory=list)
    open: dict[str, Any] | None = None


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds a row per count of each communicator."""
    if not any(MARK.search(raw(line)) for line in lines):
        return
    state = _State()
    for line in lines:
        text = raw(line)
        if "Job summary" in text or "Communicators..." in text:
            _begin(state, line, text)
        elif (m := SUMMARY.match(text)) is not None:
            state.sizes[m[1]] = int(m[5])
        elif (m := HEAD.search(text)) is not None:
            _head(state, m)
        else:
            _counts(state, line, text)
    for row in state.rows:
        out.add("comm_ras", **row)


def _begin(state: _State, line: Line, text: str) -> None:
    """A new report; its two headings count once."""
    if "Job summary" not in text and state.headed:
        state.headed = False
        return
    state.headed = "Job summary" in text
    state.report += bool(state.rows)
    state.sizes, state.open, state.comm, state.name = {}, None, "", ""
    state.rows.append({"where": f"line {line.number}", "report": state.report, "text": text.strip()})


def _head(state: _State, m: re.Match[str]) -> None:
    """A communicator's paragraph; the same one again without a new head is the next poll."""
    seen = {(r.get("comm"), r["report"]) for r in state.rows}
    if (m[2], state.report) in seen and (m[3] or "").upper() == "MISMATCH" and m[1] == state.name:
        state.report += 1
    state.name, state.comm, state.op, state.open = m[1], m[2], "collective", None


def _counts(state: _State, line: Line, text: str) -> None:
    if (m := COUNTED.search(text)) is not None:
        state.op, state.open = m[1], None
    elif (m := ONE.search(text)) is not None:
        _row(state, line, text, count=int(m[2] or 0), ranks=1, listed=[int(m[1])])
        state.open = None
    elif (m := MANY.search(text)) is not None:
        state.open = _row(state, line, text, count=int(m[2] or 0), ranks=int(m[1]), listed=[])
    elif (m := LISTED.search(text)) is not None and state.open is not None:
        state.open["listed"].append(int(m[1]))
    elif (m := GONE.search(text)) is not None and state.comm:
        gone = [int(r) for r in re.findall(r"\d+", m[1])]
        _row(state, line, text, gone=gone, listed=[], ranks=len(gone))
    elif not text.strip():
        state.open = None


def _row(state: _State, line: Line, text: str, **columns: Any) -> dict[str, Any]:
    group = re.match(r"#(\d+)", state.name)
    row = {
        "where": f"line {line.number}",
        "report": state.report,
        "comm": state.comm or None,
        "name": state.name or None,
        "op": state.op,
        "text": text.strip(),
        "size": state.sizes.get(group[1]) if group else None,
        **columns,
    }
    state.rows.append(row)
    return row
