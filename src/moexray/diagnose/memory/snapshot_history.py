"""What a snapshot cannot tell, or tells against itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.snapshot import Shot, pools, shots
from moexray.analyse.snapshot_history import History, history
from moexray.core.finding import SEVERITIES, Evidence, Finding, Severity, pairs
from moexray.core.remedies import remedy
from moexray.core.sizes import human_bytes as size
from moexray.diagnose.memory.snapshot_words import by_subject, place, subject

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["incomplete", "inconsistent"]

SHOWN = 6
QUIET = ("complete", "absent", "broken_off")  # the last one is said by input.truncated
WORDS = {
    "never": "the history was never enabled (0 events)",
    "state": "only the state was recorded (a ring of one entry), no history",
    "wrapped": "the history has wrapped: its {events} events are the newest ones only",
    "late": "recording began after memory was in use (the ring did not overflow)",
    "unknown": "the history does not reach back to the start; whether it wrapped or began late is unknown,"
    " as the file has no overflow flag",
    "unproven": "unknown whether the history is whole: an old format without an overflow flag",
    "endless": "the file lists no segments or no blocks, so the state that the history ends in is unknown",
    "contradiction": "events are missing in the middle: walked backwards, the bytes in use fall below zero",
}


def incomplete(run: Run, limits: Limits) -> list[Finding]:  # noqa: ARG001  # one signature for all rules
    """snapshot.history_incomplete: which kind of gap, what it means, and what stays valid."""
    card = max((row["total_bytes"] or 0 for row in run.rows("oom")), default=0)
    out = []
    for group in by_subject(shots(run)):
        found = [(shot, history(shot)) for shot in group]
        found = [(shot, h) for shot, h in found if h.kind not in QUIET or _too_high(h, card)]
        if found:
            out.append(_incomplete(found, card))
    return out


def _too_high(h: History, card: int) -> bool:
    return bool(card and h.line is not None and h.line.peak_reserved > card)


def _grade(h: History) -> tuple[Severity, float]:
    if h.kind in ("never", "state"):
        return "info", 0.9  # the end state is whole; a history was not asked for
    return ("warn", 0.9) if h.proven else ("info", 0.45)


def _incomplete(found: list[tuple[Shot, History]], card: int) -> Finding:
    graded = [_grade(h) for _, h in found]
    severity = max((g[0] for g in graded), key=SEVERITIES.index)
    shot, first = next(f for f, g in zip(found, graded, strict=True) if g[0] == severity)
    many = len(found) > 1
    claim = _kinds(found)
    claim += "" if first.kind in ("never", "state") else ". Sums over it are no totals"
    claim += "" if many or first.line is None else f"; {_gaps(first)}"
    if _too_high(first, card):
        claim += f". The rebuilt peak passes the card's {size(card)}, so it is wrong"
    claim += "" if first.kind == "endless" else f". The end state is valid all the same: {_end_state(shot)}"
    claim += "."
    return Finding(
        id="snapshot.history_incomplete",
        severity=severity,
        confidence=max(g[1] for g in graded if g[0] == severity),
        claim=claim,
        subject=subject(shot),
        value=float(first.events),
        unit="count",
        evidence=tuple(_row(s, h) for s, h in found[:SHOWN]),
        remedies=(remedy("snapshot-record-all", entries=max(1_000_000, 4 * first.events)),),
        settle_with=() if first.proven else ("a snapshot with an overflow flag, recorded from the start",),
    )


def _kinds(found: list[tuple[Shot, History]]) -> str:
    """What is wrong, with the files grouped by it."""
    groups: dict[str, list[str]] = {}
    for shot, h in found:
        kind = "unproven" if not h.proven else h.kind if h.kind in WORDS else "contradiction"
        words = WORDS[kind].format(events=h.events if len(found) == 1 else "")
        groups.setdefault(words.replace("  ", " "), []).append(shot.source)
    if len(found) == 1:
        return next(iter(groups)).capitalize()
    parts = []
    for words, files in groups.items():
        names = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        parts.append(f"{names}: {words}")
    return "; ".join(parts)


def _gaps(h: History) -> str:
    words = [
        f"{n} {text}"
        for n, text in (
            (h.live_without_alloc, "live blocks have no alloc event"),
            (h.frees_without_alloc, "frees have no alloc event"),
            (h.segments_without_alloc, "segments have no segment_alloc event"),
        )
        if n
    ]
    if h.line is not None:
        words.append(f"the recorded part, rebuilt backwards, peaks at {size(h.line.peak_reserved)} reserved")
    return ", ".join(words)


def _end_state(shot: Shot) -> str:
    parts = [
        f"{size(p.stuck_bytes)} stuck of {size(p.reserved_bytes)} reserved in {p.name},"
        f" largest free block {size(p.largest_free_bytes)}"
        for p in pools(shot)[:2]
    ]
    return "; ".join(parts) or "no segments"


def _row(shot: Shot, h: History) -> Evidence:
    line = h.line
    return Evidence(
        shot.source,
        f"device {shot.device}",
        pairs(
            {
                "history": h.kind,
                "events": h.events,
                "overflowed": shot.info["overflowed"],
                "max_entries": shot.info["max_entries"],
                "live_blocks_without_alloc": h.live_without_alloc,
                "frees_without_alloc": h.frees_without_alloc,
                "segments_without_alloc": h.segments_without_alloc,
                "reserved_at_first_event_bytes": int(line.reserved[0]) if line else None,
                "peak_reserved_bytes": line.peak_reserved if line else None,
                "peak_active_bytes": line.peak_active if line else None,
                "version": shot.info["version"],
            }
        ),
    )


def inconsistent(run: Run, limits: Limits) -> list[Finding]:  # noqa: ARG001  # one signature for all rules
    """snapshot.inconsistent: sums, overlaps, sizes below zero, unknown states; each named."""
    out = []
    for group in by_subject(shots(run)):
        guilty = [s for s in group if s.faults]
        if not guilty:
            continue
        shot = max(guilty, key=lambda s: len(s.faults))
        where, what = shot.faults[0]
        count = len(set(shot.faults))
        sound = int(shot.sound.sum())
        out.append(
            Finding(
                id="snapshot.inconsistent",
                severity="warn",
                confidence=0.95,
                claim=(
                    f"{shot.source} contradicts itself on {place(shot)} in {count}"
                    f" {'place' if count == 1 else 'places'}: {where}: {what}. The other {sound} of"
                    f" {len(shot.sound)} segments were used."
                ),
                subject=subject(shot),
                value=float(count),
                unit="count",
                evidence=tuple(
                    Evidence(s.source, at, text)
                    for s in guilty[:SHOWN]
                    for at, text in dict.fromkeys(s.faults[:SHOWN])
                ),
                remedies=(remedy("snapshot-record-again"),),
            )
        )
    return out
