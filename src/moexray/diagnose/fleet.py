"""Many ranks: each is summarised alone, the summaries meet, and the ranks that stand out are read in full.

`summarise` is a pure function of the files of one rank (a *unit*): it runs in any process, leaves a folder
of Parquet files, and is not run again while the files are the same. `conclude` sees the summaries only,
and then the files of a few units. What calls `summarise`, here or on other machines, is the caller's choice.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.core.errors import MoexrayError
from moexray.core.finding import SEVERITIES, Evidence, Finding, Remedy, Subject
from moexray.core.limits import Limits
from moexray.core.rank_name import rank_in_name
from moexray.core.run import Run, Skipped, merge
from moexray.core.store import load, save
from moexray.core.version import __version__
from moexray.diagnose.chain import link, order, unique
from moexray.diagnose.engine import Diagnosis, diagnose
from moexray.readers.read_any import read_sources
from moexray.readers.remote import is_url, local, version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Summary", "Unit", "conclude", "summarise", "units"]

SUMMARY = "summary.json"
SCHEMA = "moexray.unit/1"
CLOSER = 8  # units that stand out and are read in full
OTHERS = 2  # units beside them that do not stand out, to compare with
UNNAMED = 16  # units without a rank (logs, metrics) that are read in full
OF_THE_SET = ("input.rank_set", "trace.clock_skew")  # of a few ranks they say nothing about the fleet
ALIKE = 4  # findings of one id that are told rank by rank


@dataclass(frozen=True, slots=True)
class Unit:
    """What belongs to one rank.

    Args:
        name: "rank 12", or the path of a file whose name states no rank.
        rank: As the names state it.
        files: Pairs (name to report, path on this machine or URL).
    """

    name: str
    rank: int | None
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """What `summarise` left in `folder`; the rank is that of the names, else of the content."""

    unit: Unit
    folder: str
    rank: int | None
    rows: int
    findings: tuple[Finding, ...]
    again: bool = False


def units(files: Iterable[tuple[str, str]]) -> list[Unit]:
    """Groups files by the rank that their names state; a file without one is a unit of its own.

    Args:
        files: Pairs (name relative to the folder, path).
    """
    ranks: dict[int, list[tuple[str, str]]] = {}
    alone: list[Unit] = []
    for name, path in files:
        rank = rank_in_name(name)
        if rank is None:
            alone.append(Unit(name, None, ((name, path),)))
        else:
            ranks.setdefault(rank, []).append((name, path))
    return [*alone, *(Unit(f"rank {rank}", rank, tuple(ranks[rank])) for rank in sorted(ranks))]


def summarise(
    unit: Unit, folder: str, limits: Limits | None = None, *, secrets: bool = False
) -> Summary:
    """Reads one unit, says what concerns it alone, and keeps what must meet the others.

    Args:
        unit: Its files.
        folder: Where summaries lie; this one gets a folder of its own in it.
        limits: Thresholds; defaults where None.
        secrets: Keep evidence without redaction.

    Returns:
        The summary; one that was made before from the same files, version and limits is taken as it is.
    """
    from moexray.analyse.digest import OF_ONE_RANK, digest

    limits = limits or Limits()
    print_ = _fingerprint(unit, limits, secrets=secrets)
    place = Path(folder) / hashlib.sha256(unit.name.encode()).hexdigest()[:20]
    if (known := _known(unit, place, print_)) is not None:
        return known
    with local(unit.files) as sources:
        run = read_sources(sources)
    inner = replace(
        run,
        problems=(),
        tables={n: r for n, r in run.tables.items() if n in OF_ONE_RANK},
        arrays={n: b for n, b in run.arrays.items() if n in OF_ONE_RANK},
    )
    found = diagnose(inner, limits, secrets=secrets, exhibits=False).findings if inner.present else ()
    save(digest(run), place, force=True)
    rows = sum(i.rows for i in run.inputs)
    inside = {b.attrs["rank"] for b in run.batches("trace")}
    rank = inside.pop() if unit.rank is None and len(inside) == 1 else unit.rank
    told = {"schema": SCHEMA, "print": print_, "rank": rank, "rows": rows}
    out = {**told, "findings": [asdict(f) for f in found]}
    (place / SUMMARY).write_text(json.dumps(out, default=str), encoding="utf-8")
    return Summary(unit, str(place), rank, rows, found)


def conclude(
    summaries: Sequence[Summary],
    failed: Sequence[tuple[Unit, str]] = (),
    limits: Limits | None = None,
    *,
    secrets: bool = False,
) -> Diagnosis:
    """What the ranks say together.

    Args:
        summaries: In any order; the answer does not depend on it.
        failed: Units that gave no summary, and why.
        limits: Thresholds; defaults where None.
        secrets: Quote evidence without redaction.

    Returns:
        An ordinary diagnosis of the units that stand out, joined by what all ranks say. Its exhibit
        `fleet` has a row per rank: late_s, waited_s, clock_offset_ns, clock_error_ns, closer.
    """
    summaries = sorted(summaries, key=lambda s: (s.rank is None, s.rank or 0, s.unit.name))
    lost = tuple(Skipped(unit.name, why) for unit, why in sorted(failed, key=lambda pair: pair[0].name))
    whole = merge([_loaded(s) for s in summaries]) if summaries else Run()
    whole = replace(whole, skipped=(*whole.skipped, *lost))
    wide = diagnose(whole, limits, secrets=secrets, exhibits=False)
    rows = _ranks(whole)
    chosen = _choose(summaries, wide.findings, rows)
    full = _read(chosen)
    near = diagnose(full, limits, secrets=secrets)
    local = [f for s in summaries if s not in chosen for f in _of_rank(s)]
    inside = [f for f in near.findings if f.id not in OF_THE_SET]
    found = order(link(_folded(unique([*inside, *wide.findings, *local]))))
    closer = {s.rank for s in chosen}
    for row in rows:
        row["closer"] = row["rank"] in closer
    exhibits = {**near.exhibits, "fleet": rows}
    told = replace(full, inputs=whole.inputs, skipped=whole.skipped, problems=whole.problems)
    return Diagnosis(
        told,
        tuple(found),
        tuple(unique([*near.ruled_out, *wide.ruled_out])),
        exhibits,
        tuple(dict.fromkeys([*near.failures, *wide.failures])),
    )


def _fingerprint(unit: Unit, limits: Limits, *, secrets: bool) -> str:
    """Changes with the files (size, time of change), the version and the thresholds."""
    stats = [(name, version(path) if is_url(path) else _version(Path(path))) for name, path in unit.files]
    return hashlib.sha256(repr((__version__, limits, secrets, stats)).encode()).hexdigest()


def _version(path: Path) -> tuple[int, int]:
    seen = path.stat()
    return seen.st_size, seen.st_mtime_ns


def _known(unit: Unit, place: Path, print_: str) -> Summary | None:
    """The summary of an earlier call, if it still holds; a damaged one is made again."""
    try:
        told = json.loads((place / SUMMARY).read_text(encoding="utf-8"))
        if told["schema"] != SCHEMA or told["print"] != print_:
            return None
        found = tuple(map(_finding, told["findings"]))
        load(place)  # whole: a full disk or a kill may have cut it
        return Summary(unit, str(place), told["rank"], int(told["rows"]), found, again=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MoexrayError):
        return None


def _finding(told: dict[str, Any]) -> Finding:
    parts = {
        "subject": Subject(**told["subject"]),
        "evidence": tuple(Evidence(**e) for e in told["evidence"]),
        "remedies": tuple(Remedy(**r) for r in told["remedies"]),
        "implied_by": tuple(told["implied_by"]),
        "settle_with": tuple(told["settle_with"]),
    }
    return Finding(**{**told, **parts})


def _loaded(summary: Summary) -> Run:
    try:
        return load(Path(summary.folder))
    except MoexrayError as why:  # it was whole a moment ago
        return Run(skipped=(Skipped(summary.unit.name, f"its summary was lost ({why.what})"),))


def _ranks(run: Run) -> list[dict[str, Any]]:
    """A row per traced rank: lateness, waiting, and its clock against the first."""
    if "trace" not in run.present:
        return []
    from moexray.analyse.timeline_comm import survey
    from moexray.diagnose.timeline.waits import late_table

    out: list[dict[str, Any]] = []
    for capture in survey(run):
        c = capture.collectives
        if not len(c):
            continue
        clocks = {o.rank: (round(o.offset_ns), round(o.residual_ns)) for o in c.offsets}
        for i, row in enumerate(late_table(c)):
            offset, error = clocks.get(i, (None, None)) if i else (0, 0)
            out.append({**row, "clock_offset_ns": offset, "clock_error_ns": error})
    return out


def _choose(
    summaries: Sequence[Summary], findings: Sequence[Finding], rows: Sequence[dict[str, Any]]
) -> list[Summary]:
    """The units to read in full: accused ones, the latest, some to compare with; few without a rank."""
    accused = [f.subject.rank for f in findings if f.severity != "info"]
    late = [row["rank"] for row in sorted(rows, key=lambda row: -row["late_s"])][:OTHERS]
    grave = sorted(
        (-SEVERITIES.index(f.severity), -f.confidence, -f.cost, s.rank)
        for s in summaries for f in s.findings if f.severity != "info" and s.rank is not None
    )  # fmt: skip
    wanted = [r for r in dict.fromkeys([*accused, *late, *(g[3] for g in grave)]) if r is not None][:CLOSER]
    wanted += [s.rank for s in summaries if s.rank is not None and s.rank not in wanted][:OTHERS]
    nobody = [s for s in summaries if s.rank is None][:UNNAMED]
    return [s for s in summaries if s.rank in wanted] + nobody


def _read(chosen: Sequence[Summary]) -> Run:
    with local(pair for s in chosen for pair in s.unit.files) as sources:
        return read_sources(sources)


def _of_rank(summary: Summary) -> list[Finding]:
    """The findings of a unit; its name tells the rank where its content does not."""
    return [
        f if f.subject.rank is not None else replace(f, subject=replace(f.subject, rank=summary.rank))
        for f in summary.findings
    ]


def _folded(findings: list[Finding]) -> list[Finding]:
    """Of an id that many ranks share, the gravest finding stands for all."""
    groups: dict[str, list[Finding]] = {}
    for f in findings:
        groups.setdefault(f.id, []).append(f)
    out: list[Finding] = []
    for group in groups.values():
        if len(group) <= ALIKE:
            out += group
            continue
        group.sort(key=lambda f: (-SEVERITIES.index(f.severity), -f.confidence, -f.cost))
        ranks = sorted({f.subject.rank for f in group[1:] if f.subject.rank is not None})
        named = ", ".join(map(str, ranks[:10])) + (", ..." if len(ranks) > 10 else "")
        words = f" The same is found {len(group) - 1} more times" + (f" (ranks {named})." if ranks else ".")
        out.append(replace(group[0], claim=group[0].claim + words))
    return out
