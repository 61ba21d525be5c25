"""input.*: what was wrong with the files themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.finding import Evidence, Finding, Severity, Subject, pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Run
    from moexray.core.source import Problem

__all__ = ["problems_to_findings"]

# id -> (severity when nothing was lost, severity when rows were lost, what it means)
MEANING: dict[str, tuple[Severity, Severity, str]] = {
    "input.empty": ("error", "error", "holds nothing"),
    "input.truncated": ("warn", "warn", "ends in the middle of a record"),
    "input.gzip_damaged": ("warn", "warn", "is damaged as a compressed file"),
    "input.name_mismatch": ("info", "info", "has a name that does not fit its content"),
    "input.encoding": ("info", "info", "is not plain UTF-8"),
    "input.json_repaired": ("info", "warn", "held invalid JSON that was repaired"),
    "input.negative_duration": ("warn", "warn", "holds events with impossible times"),
    "input.dialect": ("info", "info", "has an unusual form that was read"),
    "input.dirty_table": ("warn", "warn", "holds values that cannot be right"),
    "input.missing_values": ("info", "info", "holds placeholders that count as missing"),
    "input.scrape_dirty": ("warn", "warn", "is partly unusable as a metrics page"),
    "input.rank_set": ("warn", "warn", "does not complete the set of ranks"),
    "input.shape_mismatch": ("error", "error", "does not fit the tables of the other ranks"),
    "input.clock_jump": ("warn", "warn", "has a clock that jumps"),
    "input.unsafe_pickle": ("error", "error", "wants to run code and was not loaded"),
    "input.huge": ("info", "warn", "is too large for viewers"),
    "input.unreadable": ("error", "error", "made a reader fail"),
}
SHOWN = 20  # files quoted in one finding


def problems_to_findings(run: Run) -> Iterator[Finding]:
    """One finding per id, with every file that it concerns as evidence."""
    groups: dict[str, list[tuple[str, Problem]]] = {}
    for path, problem in run.problems:
        groups.setdefault(problem.id, []).append((path, problem))
    for id, items in groups.items():
        sound, lossy, meaning = MEANING[id]
        lost = [p.lost for _, p in items]
        severity = lossy if any(n is None or n > 0 for n in lost) else sound
        files = list(dict.fromkeys(path for path, _ in items))
        first = items[0][1]
        yield Finding(
            id=id,
            severity=severity,
            confidence=0.95,
            claim=_claim(files, meaning, first.text),
            subject=Subject(**first.subject) if len(items) == 1 else Subject(),
            value=float(len(items)),
            unit="count",
            evidence=tuple(
                Evidence(path, p.where, f"{p.text} {pairs({'lost': p.lost, **p.values})}".strip())
                for path, p in items[:SHOWN]
            ),
        )


def _claim(files: list[str], meaning: str, text: str) -> str:
    """What is wrong with the files; the text is that of the first one."""
    if len(files) == 1:
        return f"{files[0]} {meaning}: {text}"
    shown, left = (files[:3], f"{len(files) - 3} more") if len(files) > 3 else (files[:-1], files[-1])
    named = f"{', '.join(shown)} and {left}"
    return f"Each of {named} {meaning}; {files[0]}: {text}"
