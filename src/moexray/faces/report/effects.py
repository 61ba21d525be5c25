"""What P99 would be without each cause: measured beside re-timed, and how the excess divides."""

import re
from dataclasses import dataclass

from moexray.faces.numbers import human
from moexray.faces.report.fields import Fields, each, listed, named
from moexray.faces.report.safe import short_id
from moexray.faces.report.tables import Bar, Table, table

__all__ = ["Effects", "Without", "effects"]

_PAIR = re.compile(r"(?<!\w)(p50_s|p99_s|p50_without_s|p99_without_s|p99_without_low_s|p99_without_high_s"
                   r"|excess_share_ratio)=(\d+(?:\.\d+)?(?:e-?\d{1,2})?)(?![\w.])")
_NEEDED = ("p99_s", "p99_without_s", "excess_share_ratio")
_FULL = 1000.0


@dataclass(frozen=True, slots=True)
class Without:
    """One bar: P99 without a cause; `x` values in thousandths of the longest bar."""

    id: str
    label: str
    p99: str
    width: float
    low: float
    high: float
    share: str


@dataclass(frozen=True, slots=True)
class Effects:
    """The drawing of all re-timed causes.

    Args:
        measured: P99 as it was, in words.
        measured_width: Its bar in thousandths.
        rows: One bar a cause, roots first.
        shares: The excess divided among the causes that follow from no other one.
        table: All numbers.
    """

    measured: str
    measured_width: float
    rows: tuple[Without, ...]
    shares: tuple[Bar, ...]
    table: Table


def effects(document: Fields) -> Effects | None:
    """Reads the counterfactuals out of the evidence; None where no finding has one."""
    known = [(f, numbers) for f in each(document, "findings") if (numbers := _numbers(f))]
    if not known:
        return None
    ids = {short_id(f.get("id")) for f, _ in known}
    known.sort(key=lambda pair: bool(_causes(pair[0]) & ids))
    longest = max(max(n["p99_s"], n.get("p99_without_high_s", 0.0)) for _, n in known) or 1.0
    rows = [_row(f, n, longest) for f, n in known]
    roots = [(r, n) for r, (f, n) in zip(rows, known, strict=True) if not _causes(f) & ids]
    first = known[0][1]
    return Effects(
        human(first["p99_s"], "s"), _FULL * first["p99_s"] / longest, tuple(rows), tuple(_shares(roots)),
        _table(known, rows),
    )  # fmt: skip


def _numbers(finding: Fields) -> dict[str, float]:
    """The pairs of the last piece of evidence that has all that is needed."""
    for e in reversed(each(finding, "evidence")):
        found = {name: float(value) for name, value in _PAIR.findall(named(e, "text"))}
        if all(name in found for name in _NEEDED):
            return found
    return {}


def _causes(finding: Fields) -> set[str]:
    return {short_id(cause) for cause in listed(finding, "implied_by")}


def _row(finding: Fields, n: dict[str, float], longest: float) -> Without:
    subject = finding.get("subject")
    rank = subject.get("rank") if isinstance(subject, dict) else None
    name = short_id(finding.get("id"))
    after = n["p99_without_s"]
    return Without(
        id=name,
        label=name if rank is None else f"{name} (rank {str(rank)[:8]})",
        p99=human(after, "s"),
        width=_FULL * after / longest,
        low=_FULL * n.get("p99_without_low_s", after) / longest,
        high=_FULL * n.get("p99_without_high_s", after) / longest,
        share=f"{n['excess_share_ratio']:.0%}",
    )


def _shares(roots: list[tuple[Without, dict[str, float]]]) -> list[Bar]:
    """The excess in one bar: never more than all of it, the rest is nobody's."""
    parts = [(r.label, n["excess_share_ratio"]) for r, n in roots if n["excess_share_ratio"] > 0]
    total = sum(share for _, share in parts)
    if total < 0.995:
        parts.append(("unexplained", 1 - total))
    out, start = [], 0.0
    for i, (label, share) in enumerate(parts):
        width = _FULL * share / max(total, 1.0)
        colour = "unknown" if label == "unexplained" else f"c{i % 6}"
        out.append(Bar(label, f"{share:.0%}", "", colour, round(start, 2), round(width, 2)))
        start += width
    return out


def _table(known: list[tuple[Fields, dict[str, float]]], rows: list[Without]) -> Table:
    head = ("Without", "P50", "P99", "from", "to", "Share of the excess")
    first = known[0][1]
    measured = (human(first.get("p50_s"), "s"), human(first["p99_s"], "s"))
    cells = [("nothing (as measured)", *measured, "", "", "")]
    cells += [
        (r.label, human(n.get("p50_without_s"), "s"), r.p99, human(n.get("p99_without_low_s"), "s"),
         human(n.get("p99_without_high_s"), "s"), r.share)
        for r, (_, n) in zip(rows, known, strict=True)
    ]  # fmt: skip
    return table("Steps re-timed without a cause", head, cells, numeric=range(1, 6))
