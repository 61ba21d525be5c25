"""Ledger, waits and inputs as plain tables and bars, drawn without a script."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moexray.faces.numbers import human
from moexray.faces.report.fields import Fields, each, listed, named, number, whole
from moexray.faces.report.safe import clean, fold

__all__ = [
    "Bar", "Bill", "Table", "Wait", "Waits", "inputs", "ledger", "skipped", "table", "waits",
]  # fmt: skip

_MAX_ROWS = 2000
_MAX_BILLS = 32
_MAX_CELL = 300
# Colour numbers of the style sheet: owners that are nobody's get the two neutral ones.
_COLOURS = 6
_NEUTRAL = {"free": "free", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; `numeric` holds the columns to align right, `note` what was left out."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a stacked bar, in thousandths of its full width."""

    owner: str
    size: str
    share: str
    colour: str
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class Bill:
    """Who owns the memory of one device (or rank)."""

    title: str
    bars: tuple[Bar, ...]
    total: str


@dataclass(frozen=True, slots=True)
class Wait:
    """How late one rank was and how long it waited; bar widths in hundredths of the longest."""

    rank: str
    late: str
    waited: str
    late_width: float
    waited_width: float
    collectives: str
    source: str


@dataclass(frozen=True, slots=True)
class Waits:
    """Who is late and who waits, one row a rank, longest lateness first."""

    rows: tuple[Wait, ...]
    note: str


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    numeric: Iterable[int] = (),
    limit: int = _MAX_ROWS,
) -> Table:
    """Make a table of at most `limit` rows, each cell cleaned and cut, the loss said in `note`."""
    shown = tuple(tuple(str(fold(cell, at=_MAX_CELL)) for cell in row) for row in rows[:limit])
    note = f"{limit:,} of {len(rows):,} rows shown" if len(rows) > limit else ""
    return Table(caption, tuple(clean(cell) for cell in head), shown, frozenset(numeric), note)


def ledger(document: Fields) -> tuple[tuple[Bill, ...], Table | None]:
    """Give one stacked bar a device and the table of all entries; (), None without a ledger."""
    entries = each(document, "ledger")
    if not entries:
        return (), None
    groups: dict[str, list[Fields]] = {}
    for entry in entries:
        part = named(entry, "of")
        groups.setdefault(_place(entry) + (f": {part}" if part else ""), []).append(entry)
    owners = dict.fromkeys(named(entry, "owner", "unknown") for entry in entries)
    named_owners = [owner for owner in owners if owner.lower() not in _NEUTRAL]
    colours = {owner: f"c{index % _COLOURS}" for index, owner in enumerate(named_owners)}
    bills = [_bill(title, group, colours) for title, group in groups.items()]
    rows = [
        (
            _place(entry),
            named(entry, "owner", "unknown"),
            human(number(entry.get("bytes")), "bytes"),
            _origin(entry),
            named(entry, "note"),
        )
        for entry in entries
    ]
    head = ("Device", "Owner", "Size", "Read from", "Note")
    return tuple(bills[:_MAX_BILLS]), table("Memory by owner", head, rows, numeric=(2,))


def _bill(title: str, entries: list[Fields], colours: dict[str, str]) -> Bill:
    sizes = [max(number(entry.get("bytes")) or 0, 0) for entry in entries]
    total = sum(sizes)
    bars, start = [], 0.0
    for entry, size in zip(entries, sizes, strict=True):
        owner = named(entry, "owner", "unknown")
        width = 1000 * size / total if total else 0.0
        colour = _NEUTRAL.get(owner.lower()) or colours.get(owner, "c0")
        share = f"{width / 10:.1f} %"
        bytes_words = human(number(entry.get("bytes")), "bytes")
        label = str(fold(owner, at=60))
        bars.append(Bar(label, bytes_words, share, colour, round(start, 2), round(width, 2)))
        start += width
    return Bill(title, tuple(bars), human(total, "bytes"))


def _place(entry: Fields) -> str:
    device, rank = whole(entry.get("device")), whole(entry.get("rank"))
    parts = [f"{name} {n}" for name, n in (("device", device), ("rank", rank)) if n is not None]
    return ", ".join(parts) or "device unknown"


def _origin(entry: Fields) -> str:
    source, where = named(entry, "source"), named(entry, "where")
    joint = ":" if where.isdigit() else ", "
    return joint.join(part for part in (source, where) if part)


def waits(document: Fields) -> Waits | None:
    """Give who is late and who waits; None when nothing is known."""
    entries = each(document, "waits")
    if not entries:
        return None
    entries.sort(key=lambda entry: -(number(entry.get("late_s")) or 0))
    times = [number(entry.get(key)) or 0 for entry in entries for key in ("late_s", "waited_s")]
    longest = max(times) or 1.0
    note = f"{_MAX_ROWS:,} of {len(entries):,} ranks shown" if len(entries) > _MAX_ROWS else ""
    return Waits(tuple(_wait(entry, longest) for entry in entries[:_MAX_ROWS]), note)


def _wait(entry: Fields, longest: float) -> Wait:
    late, waited = number(entry.get("late_s")), number(entry.get("waited_s"))
    return Wait(
        rank=named(entry, "rank", "unknown"),
        late=human(late, "s"),
        waited=human(waited, "s"),
        late_width=round(100 * max(late or 0, 0) / longest, 2),
        waited_width=round(100 * max(waited or 0, 0) / longest, 2),
        collectives=human(number(entry.get("collectives")), "count"),
        source=str(fold(entry.get("source"), at=_MAX_CELL)),
    )


def inputs(document: Fields) -> Table | None:
    """Give what was read, with the notes of what was mended or lost; None when nothing was."""
    rows = [
        (
            named(entry, "path"),
            named(entry, "reader"),
            human(number(entry.get("rows")), "count"),
            "\n".join(clean(note) for note in listed(entry, "notes")),
        )
        for entry in each(document, "inputs")
    ]
    return table("Files read", ("File", "Read as", "Rows", "Notes"), rows, (2,)) if rows else None


def skipped(document: Fields) -> Table | None:
    """Give what was not read and why; None when nothing was left out."""
    rows = [(named(entry, "path"), named(entry, "reason")) for entry in each(document, "skipped")]
    return table("Files skipped", ("File", "Reason"), rows) if rows else None
